"""Small pieces of Python text."""

from __future__ import annotations


def shape_text(extents: tuple[int, ...]) -> str:
    """A shape as Python writes a tuple."""
    return f"({', '.join(map(str, extents))}{',' if len(extents) == 1 else ''})"


def bare(text: str) -> str:
    """`text` without parentheses around the whole of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if depth == 0 and position < len(text) - 1:
            return text
        if depth == 1 and character == ",":
            return text
    return text[1:-1]
