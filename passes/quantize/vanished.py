"""What becomes 0 of weights that are rounded: whole groups of numbers that are too small beside others, or for any scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
NEAR, LARGE = 64.0, 1e-3
"""Where no group's largest number is so many times smaller than another's, or smaller than that, none can vanish: formats reach further."""


def vanished(name: str, format: str, weights: Array, axis: int, group: int, decoded: Callable[[], Array]) -> str | None:
    """A note on the groups along an axis (0: the whole of it) in which nothing but 0 is left; None where there are none."""
    rows = np.moveaxis(weights, axis, -1).astype(np.float32, copy=False)
    sizes = _sizes(rows, group)
    some = sizes[sizes > 0]
    if not some.size or (some.min() * NEAR >= some.max() and some.min() >= LARGE):
        return None
    lost = int(np.count_nonzero((sizes > 0) & (_sizes(np.moveaxis(decoded(), axis, -1), group) == 0)))
    if not lost:
        return None
    what = "channels" if group in (0, rows.shape[-1]) else f"groups of {group} numbers"
    return f"{name} in {format}: {lost} of {sizes.size} {what} are 0, as they are too small for its scales or beside others"


def _sizes(rows: Array, group: int) -> Array:
    """The largest magnitude of each group."""
    apart = rows.reshape(-1, group or rows.shape[-1])
    found: Array = np.abs(apart).max(axis=1, initial=0)
    return found
