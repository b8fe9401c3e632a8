"""Rewrite rules by family; `canonicalize` and other passes list those that they apply."""
