"""Quantization: one file per format; each stores weights narrow and says in the graph how they are read."""
