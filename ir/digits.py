"""Whole numbers as text, wherever one is read: the digits 0 to 9, and as many of them as the reader takes."""

from __future__ import annotations

import numbers
from typing import Any


def is_whole(text: str) -> bool:
    """Whether a text is nothing but digits 0 to 9; other scripts have digits, which Python's own words for them let pass."""
    return text.isascii() and text.isdigit()


def whole_number(text: str, digits: int = 18) -> int | None:
    """The number that a text is; None for any other text, and for more than `digits` digits."""
    return int(text) if is_whole(text) and len(text) <= digits else None


def integer(value: Any, digits: int = 18) -> int | None:
    """The integer that a text or a number of any library is; None for what is neither, truth values among them."""
    if isinstance(value, str):
        return whole_number(value, digits)
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else None
