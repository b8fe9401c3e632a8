"""How a tile program becomes a kernel and a plan a host program."""
