"""Sparsification: one file per structure; each stores the kept weights and says in the graph how they are expanded."""
