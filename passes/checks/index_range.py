"""What is known of the integers in a value: the bounds that its ops, constants and the sizes of the program prove."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ...ir import dims
from ...ir.dims import Dim, Facts
from ...ir.graph import Op, Value
from ...ir.types import i64
from ..match import operand

MAXIMUM_DEPTH = 24
SEARCHED = 1 << 24
"""A larger constant is not searched for its extremes."""


@dataclass(frozen=True)
class Bounds:
    """low <= every element <= high; None where nothing is known."""

    low: Dim | None = None
    high: Dim | None = None

    def within(self, low: Dim, high: Dim, facts: Facts) -> bool:
        """Whether every element is known to lie in low..high."""
        above = self.low is not None and dims.at_most(low, self.low, facts) is True
        return above and self.high is not None and dims.at_most(self.high, high, facts) is True


Known: TypeAlias = "Bounds | None"


def bounds_of(value: Value | None, facts: Facts, depth: int = MAXIMUM_DEPTH) -> Bounds:
    """The bounds of an integer or boolean value."""
    if value is None or value.dtype.kind not in ("int", "uint", "bool"):
        return Bounds()
    found = _constant(value) if value.constant is not None else _computed(value, facts, depth)
    if value.dtype.kind == "bool":
        return found or Bounds(0, 1)
    if value.dtype == i64:
        return found or Bounds()
    lowest = -(1 << (value.dtype.bits - 1)) if value.dtype.kind == "int" else 0
    highest = (1 << (value.dtype.bits - (value.dtype.kind == "int"))) - 1
    # A narrow result may have wrapped around: then only its type is known.
    return found if found is not None and found.within(lowest, highest, facts) else Bounds(lowest, highest)


def _constant(value: Value) -> Known:
    elements = value.type.elements
    if value.constant is None or not value.constant.available or not isinstance(elements, int) or not 0 < elements <= SEARCHED:
        return None
    array = np.asarray(value.constant.array)
    array = array if array.dtype.kind in "iu" else array.astype(np.int64)
    return Bounds(int(array.min()), int(array.max()))


def _computed(value: Value, facts: Facts, depth: int) -> Known:
    rule = RULES.get(value.op.name) if value.op is not None and depth else None
    return rule(value.op, value, facts, lambda v: bounds_of(v, facts, depth - 1)) if rule is not None and value.op is not None else None


# --- what ops do to bounds --------------------------------------------------------------------------------------------

Ask: TypeAlias = Callable[["Value | None"], Bounds]
Rule: TypeAlias = Callable[[Op, Value, Facts, Ask], Known]


def _same(op: Op, value: Value, facts: Facts, ask: Ask) -> Known:
    return ask(operand(op, 0))


def _union(parts: list[Bounds], facts: Facts) -> Bounds:
    low, high = parts[0].low, parts[0].high
    for part in parts[1:]:
        low = None if low is None or part.low is None else dims.simplify(dims.minimum(low, part.low), facts)
        high = None if high is None or part.high is None else dims.simplify(dims.maximum(high, part.high), facts)
    return Bounds(low, high)


def _checked(op: Op, value: Value, facts: Facts, ask: Ask) -> Known:
    size = op.attrs["size"]
    found = ask(operand(op, 0))
    wraps = op.attrs["negative"] and not (found.low is not None and dims.at_most(0, found.low, facts) is True)
    return Bounds(-size if wraps else 0, size - 1)


def _place(op: Op, value: Value, facts: Facts, ask: Ask) -> Known:
    """Places along an axis of the first operand."""
    x = operand(op, 0)
    return Bounds(0, x.shape[op.attrs["axis"] % x.type.rank] - 1) if x.type.rank else Bounds(0, 0)


def _second_place(op: Op, value: Value, facts: Facts, ask: Ask) -> Known:
    return _place(op, value, facts, ask) if value is op.results[1] else ask(operand(op, 0))


def _sum(op: Op, value: Value, facts: Facts, ask: Ask) -> Known:
    left, right = ask(operand(op, 0)), ask(operand(op, 1))
    low = None if left.low is None or right.low is None else left.low + right.low
    return Bounds(low, None if left.high is None or right.high is None else left.high + right.high)


def _difference(op: Op, value: Value, facts: Facts, ask: Ask) -> Known:
    left, right = ask(operand(op, 0)), ask(operand(op, 1))
    low = None if left.low is None or right.high is None else left.low - right.high
    return Bounds(low, None if left.high is None or right.low is None else left.high - right.low)


def _product(op: Op, value: Value, facts: Facts, ask: Ask) -> Known:
    left, right = ask(operand(op, 0)), ask(operand(op, 1))
    corners = [a * b for a in (left.low, left.high) for b in (right.low, right.high) if isinstance(a, int) and isinstance(b, int)]
    return Bounds(min(corners), max(corners)) if len(corners) == 4 else None


def _remainder(op: Op, value: Value, facts: Facts, ask: Ask) -> Known:
    divisor = ask(operand(op, 1))
    positive = divisor.low is not None and divisor.high is not None and dims.at_most(1, divisor.low, facts) is True
    return Bounds(0, divisor.high - 1) if positive and divisor.high is not None else None


def _extreme(op: Op, value: Value, facts: Facts, ask: Ask) -> Known:
    left, right = ask(operand(op, 0)), ask(operand(op, 1))
    combine = dims.maximum if op.name == "maximum" else dims.minimum
    lows, highs = (left.low, right.low), (left.high, right.high)
    low = _combined(combine, lows, facts, one_is_enough=op.name == "maximum")
    return Bounds(low, _combined(combine, highs, facts, one_is_enough=op.name == "minimum"))


def _combined(combine: Callable[[Dim, Dim], Dim], ends: tuple[Dim | None, Dim | None], facts: Facts, one_is_enough: bool) -> Dim | None:
    known = [end for end in ends if end is not None]
    if len(known) == 2:
        return dims.simplify(combine(*known), facts)
    return known[0] if known and one_is_enough else None


def _clipped(op: Op, value: Value, facts: Facts, ask: Ask) -> Known:
    if len(op.operands) < 3 or op.operands[1] is None:
        return None
    low, high = ask(operand(op, 1)), ask(op.operands[2])
    if low.low is None or high.high is None:
        return None
    # The upper end wins where the two cross.
    floor = low.low if high.low is None else dims.simplify(dims.minimum(low.low, high.low), facts)
    return Bounds(floor, high.high)


RULES: dict[str, Rule] = {
    "iota": lambda op, value, facts, ask: Bounds(0, value.shape[op.attrs["axis"] % value.type.rank] - 1),
    "full": lambda op, value, facts, ask: Bounds(int(op.attrs["value"]), int(op.attrs["value"])),
    "dim": lambda op, value, facts, ask: Bounds(op.attrs["value"], op.attrs["value"]),
    "concat": lambda op, value, facts, ask: _union([ask(part) for part in op.operands], facts),
    "where": lambda op, value, facts, ask: _union([ask(operand(op, 1)), ask(operand(op, 2))], facts),
    "clip": _clipped,
    "check_index": _checked,
    "add": _sum,
    "sub": _difference,
    "mul": _product,
    "mod": _remainder,
    "maximum": _extreme,
    "minimum": _extreme,
    **dict.fromkeys(("argmax", "argmin"), _place),
    **dict.fromkeys(("sort", "top_k"), _second_place),
    **dict.fromkeys(
        ("check_divisor", "check_place", "cast", "reshape", "transpose", "broadcast_to", "slice", "take", "take_along_axis", "gather_nd"),
        _same,
    ),
}
