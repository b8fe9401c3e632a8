"""Strategies: how a region becomes a tile program."""
