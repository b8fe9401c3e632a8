"""Small questions that rules ask of the values they look at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ..ir import dims
from ..ir.dims import Dim
from ..ir.errors import InternalError
from ..ir.graph import Module, Op, Value
from ..ir.scalar import convert
from ..ir.types import DType

Number: TypeAlias = bool | int | float
# What a rule gives back: what a method of the builder returns, a Value or several.
Replacement: TypeAlias = Any

UNIFORM_LIMIT = 1 << 16
MAXIMUM_STEPS = 64


def producer(value: Value | None, *names: str) -> Op | None:
    """The op behind a value if it has one of these names."""
    if value is None or value.op is None or value.op.name not in names:
        return None
    return value.op


def matched(value: Value | None, *names: str) -> Op:
    """`producer`, where the check has shown that there is one."""
    found = producer(value, *names)
    if found is None:
        raise InternalError(f"{value!r} is not made by {' or '.join(names)}, which the check of the rule has shown")
    return found


def operand(op: Op, position: int) -> Value:
    """An operand that is there."""
    value = op.operands[position]
    if value is None:
        raise InternalError(f"{op.name} has no operand {position}")
    return value


def is_finite(value: Value | None) -> bool:
    """Whether a float constant that is given holds neither infinities nor NaN; True for all else, of which only a run can tell.

    A factor of each term of a sum may multiply the sum instead if it is finite: an infinite one makes NaN of terms of both signs,
    and infinity of their sum.
    """
    if value is None or value.constant is None or not value.constant.available or not value.dtype.is_float:
        return True
    array = value.constant.array
    return bool(np.isfinite(array if array.dtype.kind == "f" else array.astype(np.float32)).all())


def uniform(value: Value | None) -> Number | None:
    """The number that every element of a value is known to be; None if there is none.

    Looks through broadcasts, reshapes, transposes, slices and casts; large constants are not searched.
    """
    dtypes: list[DType] = []
    for _ in range(MAXIMUM_STEPS):
        if value is None or value.dtype.kind in ("complex", "string"):
            return None
        op = producer(value, "broadcast_to", "reshape", "transpose", "slice", "cast")
        if op is None:
            break
        if op.name == "cast":
            dtypes.append(value.dtype)
        value = op.operands[0]
    array = _one_element(value)
    if array is None:
        return None
    for dtype in reversed(dtypes):
        array = convert(array, dtype)
    return _python(array)


def _one_element(value: Value | None) -> np.ndarray[Any, Any] | None:
    """An array of the one number that a constant or a `full` holds."""
    if value is None:
        return None
    filled = producer(value, "full")
    if filled is not None:
        return np.asarray(filled.attrs["value"]).astype(value.dtype.numpy)
    elements = value.type.elements
    if value.constant is None or not value.constant.available or not isinstance(elements, int) or not 0 < elements <= UNIFORM_LIMIT:
        return None
    array = value.constant.array.reshape(-1)
    first = array[:1]
    # Compared as bytes: 0.0 and -0.0 differ here, NaN equals itself.
    return first if array.tobytes() == first.tobytes() * array.size else None


def _python(array: np.ndarray[Any, Any]) -> Number:
    item = array.reshape(-1)[0]
    if array.dtype.kind == "b":
        return bool(item)
    return int(item) if array.dtype.kind in "iu" or array.dtype.name.startswith(("int", "uint")) else float(item)


def is_number(value: Value | None, number: Number) -> bool:
    """Whether every element is this number; 0.0 and -0.0 differ."""
    found = uniform(value)
    if found is None or isinstance(found, bool) != isinstance(number, bool):
        return False
    return found == number and math.copysign(1.0, found) == math.copysign(1.0, number)


def same_shape(left: Sequence[Dim], right: Sequence[Dim], module: Module) -> bool:
    """Whether two shapes are known to be equal."""
    return len(left) == len(right) and all(dims.equal(a, b, module.facts) is True for a, b in zip(left, right, strict=True))


def commuted(op: Op) -> tuple[tuple[Value, Value], ...]:
    """The operands of a two-operand op in both orders if it commutes, else in the one it has."""
    left, right = operand(op, 0), operand(op, 1)
    return ((left, right), (right, left)) if op.name in ("add", "mul", "minimum", "maximum") else ((left, right),)


def split_number(op: Op | None) -> tuple[Value, float] | None:
    """(x, number) of an op that combines x with a uniform number, on either side if it commutes; None otherwise."""
    if op is None:
        return None
    for value, other in commuted(op):
        number = uniform(other)
        if number is not None and not isinstance(number, bool):
            return value, float(number)
    return None
