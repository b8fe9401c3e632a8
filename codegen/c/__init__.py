"""Tile programs to C for the host CPU."""
