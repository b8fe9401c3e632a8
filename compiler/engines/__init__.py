"""Engines as files on a command's way: what they tell of their making, whom they are trusted from, where they are written."""
