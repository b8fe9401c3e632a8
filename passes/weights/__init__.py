"""Weights: which constants are weights, how their codes lie in memory, and which of them are multiplied as one."""
