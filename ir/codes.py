"""What integers a computation of small codes can give, in regions and in tile programs: few codes are tried out one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import scalar
from .expression import Apply, Constant, Index
from .tile import program
from .types import DType, i8, u8

MOST_TERMS = ((1 << 31) - 1) // (255 * 128)
"""So many products of 8-bit codes fit a sum of 32 bits, whatever they are."""
EXACT_TERMS = (1 << 24) // (255 * 128)
"""So many products of an unsigned and a signed byte are summed without a rounding in f32."""
BYTE = 255
"""The greatest number of an unsigned byte."""
FOUR = 4
"""Instructions add up the products of so many bytes at once."""
Node = Any
"""A scalar expression of a region, or a value of a tile program."""


def dtype_of(node: Node) -> DType:
    """The dtype of a node of either form."""
    found: DType = node.type.dtype if hasattr(node, "type") else node.dtype
    return found


def number_of(node: Node) -> int | float | complex | None:
    """The number that a node is, if it is one."""
    if isinstance(node, Apply) and node.primitive == "cast":
        return number_of(node.args[0])
    if isinstance(node, program.Full):
        node = node.value
    found = node.value if isinstance(node, (Constant, Index, program.Index)) else None
    return found if isinstance(found, (bool, int, float, complex)) else None


def mask_of(node: Node) -> int:
    """The low bits of a byte that a node is masked to; 0 for any other node."""
    if not (isinstance(node, Apply) and node.primitive == "bit_and" and dtype_of(node) == u8):
        return 0
    masks = [number_of(arg) for arg in node.args]
    return next((mask for mask in (1, 3, 7, 15, 31, 63, 127, 255) if mask in masks and None in masks), 0)


@dataclass(frozen=True)
class Tabulated:
    """A value that is computed from one code alone: what it is for each code, and by how many operations."""

    code: Node
    bits: int
    numbers: np.ndarray[Any, Any]
    operations: int


LOOKUPS = {4: (2, 1), 5: (4, 1), 6: (6, 3)}
"""By the bits of a code: the operations that a lookup among its numbers stands for at least, and the instructions that it takes."""


def tabulate(value: Node, most: int) -> Tabulated | None:
    """The value for each code, if it is computed from one code of at most `most` bits."""
    code, count = _code(value)
    known = None if code is None else bounds(code)
    if known is None or known[1].bit_length() > most:
        return None
    bits = known[1].bit_length()
    codes = np.arange(1 << bits, dtype=np.uint8)
    with np.errstate(all="ignore"):
        numbers = np.broadcast_to(_evaluate(value, {}, code, codes), codes.shape)
    # A lookup among sixteen numbers sees four bits, and makes a mask of these needless.
    return Tabulated(code, bits, numbers, count + (mask_of(code) == 15))


def _code(value: Node) -> tuple[Node | None, int]:
    """The byte inside of a value that it is computed from, and the number of operations; None where there are several, or none."""
    found: Node | None = None
    seen: set[int] = set()
    pending, count = [value], 0
    while pending:
        part = pending.pop()
        if id(part) in seen or number_of(part) is not None:
            continue
        seen.add(id(part))
        if part is not value and dtype_of(part) == u8:
            if found is not None and found != part:
                return None, 0
            found = part
        elif isinstance(part, Apply):
            count += 1
            pending += part.args
        else:
            return None, 0
    return found, count


def _evaluate(value: Node, known: dict[int, np.ndarray[Any, Any]], code: Node, codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A value for each code."""
    if id(value) not in known:
        known[id(value)] = _computed(value, known, code, codes)
    return known[id(value)]


def _computed(value: Node, known: dict[int, np.ndarray[Any, Any]], code: Node, codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if value == code:
        return codes
    number = None if isinstance(value, Apply) else number_of(value)
    if number is not None:
        return np.asarray(number, dtype_of(value).numpy)
    args = [_evaluate(arg, known, code, codes) for arg in value.args]
    if value.primitive in ("cast", "round"):
        return scalar.convert(args[0], value.dtype)
    if value.primitive == "bitcast":
        return np.asarray(scalar.bitcast(args[0], value.dtype))
    return np.asarray(scalar.evaluate(value.primitive, *args))


def bounds(value: Node) -> tuple[int, int] | None:
    """The least and the greatest integer that a value can be; None where nothing is known."""
    found = _bounds(value) if dtype_of(value).is_integer else None
    limits = _limits(dtype_of(value))
    if found is None or limits is None:
        return found or limits
    # What does not fit its dtype wraps around: then only that is known.
    return found if limits[0] <= found[0] and found[1] <= limits[1] else limits


def _limits(dtype: DType) -> tuple[int, int] | None:
    return {i8: (-128, 127), u8: (0, 255)}.get(dtype)


_JOINED: Mapping[str, Any] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "bit_or": lambda a, b: (0, (1 << max(a[1], b[1]).bit_length()) - 1) if min(a[0], b[0]) >= 0 else None,
    "shift_left": lambda a, b: (a[0] << b[0], a[1] << b[0]) if b[0] == b[1] and 0 <= b[0] < 32 and a[0] >= 0 else None,
}


def _bounds(value: Node) -> tuple[int, int] | None:
    if mask_of(value):
        return 0, mask_of(value)
    number = number_of(value)
    if isinstance(number, int):
        return int(number), int(number)
    tabulated = None if dtype_of(value) == u8 else tabulate(value, 8)
    if tabulated is not None:
        return int(tabulated.numbers.min()), int(tabulated.numbers.max())
    if not isinstance(value, Apply):
        return None
    if value.primitive == "cast":
        return bounds(value.args[0])
    sides = [bounds(arg) for arg in value.args]
    join = _JOINED.get(value.primitive)
    found: tuple[int, int] | None = join(*sides) if join is not None and None not in sides else None
    return found
