"""Regions: made of fused groups, simplified, and brought to one form for all equal problems."""
