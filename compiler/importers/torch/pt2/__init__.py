"""Reading `.pt2` archives of torch.export: JSON and raw bytes; nothing in them is run."""
