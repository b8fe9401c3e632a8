"""Importers: torch.fx graphs and ONNX files to graph modules."""
