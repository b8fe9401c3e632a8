"""Pictures of graphs: what a program computes, or an engine's kernels, as boxes in layers with what repeats drawn once."""
