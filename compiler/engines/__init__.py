"""Engines as files on a command's way: which files are engines, what they tell, whom they are trusted from, where they go."""
