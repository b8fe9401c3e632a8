"""Weights of linear layers and convolutions: which operand of an op is one, its axes, and how it is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...ir.errors import InternalError
from ...ir.formats import format_of
from ...ir.graph import Graph, Op, Value
from ..match import operand, producer

STORED = frozenset({"dequantize", "decode"})
"""Ops that say how a weight lies in memory; their first operand is what is stored."""


@dataclass(frozen=True)
class Weight:
    """A constant operand of a contraction: where it stands, its axis of output channels, its contracted axis."""

    op: Op
    position: int
    value: Value
    channel: int
    contracted: int

    @property
    def stored(self) -> Value:
        """The constant behind the ops that expand it."""
        value = self.value
        while value.op is not None and value.op.name in STORED and value.op.operands[0] is not None:
            value = value.op.operands[0]
        return value

    def expanded_by(self, name: str) -> Op | None:
        """The op of that name between the constant and the contraction."""
        value = self.value
        while value.op is not None and value.op.name in STORED and value.op.operands[0] is not None:
            if value.op.name == name:
                return value.op
            value = value.op.operands[0]
        return None

    @property
    def sparse(self) -> Op | None:
        """The op that gives the numbers that are not kept, where the weight is sparse."""
        op = self.expanded_by("decode")
        return op if op is not None and format_of(op.attrs["format"]).kept is not None else None

    @property
    def coded(self) -> Op | None:
        """The op that gives the numbers of codes, where the weight lies in a number format."""
        op = self.expanded_by("decode")
        return op if op is not None and format_of(op.attrs["format"]).plain is None else None


def weight_of(op: Op) -> Weight | None:
    """The weight of a matmul or a convolution; None where both operands are computed."""
    if op.name == "conv":
        value = op.operands[1]
        found = Weight(op, 1, value, 0, 1) if value is not None else None
        return found if found is not None and found.stored.constant is not None else None
    if op.name != "matmul":
        return None
    for position in (1, 0):
        value = op.operands[position]
        if value is None:
            continue
        transposed = bool(op.attrs["transpose_b" if position else "transpose_a"])
        # The rows of b and the columns of a are contracted, unless they are transposed.
        last, before = value.type.rank - 1, value.type.rank - 2
        contracted = before if transposed != (position == 1) else last
        weight = Weight(op, position, value, last + before - contracted, contracted)
        if weight.stored.constant is not None:
            return weight
    return None


def weights_of(graph: Graph) -> list[Weight]:
    """The weights of a function's ops, in order."""
    found = (weight_of(op) for op in graph)
    return [weight for weight in found if weight is not None]


def values_of(constant: Value) -> np.ndarray[Any, Any]:
    """The numbers of a constant."""
    if constant.constant is None:
        raise InternalError(f"%{constant.name} is read as a constant and has no values")
    return constant.constant.array


def constant_of(value: Value | None) -> np.ndarray[Any, Any] | None:
    """The numbers of a constant, through casts of it."""
    cast = producer(value, "cast")
    held = operand(cast, 0) if cast is not None else value
    return values_of(held) if held is not None and held.constant is not None and held.constant.available else None


def other_reader(weight: Weight) -> Op | None:
    """An op that reads the constant otherwise than as a weight: for it the constant would have to be kept as it is."""
    if weight.stored is not weight.value:
        return next((user for user in weight.stored.uses if user.name not in STORED), None)
    for user, count in weight.value.uses.items():
        other = weight_of(user)
        if other is None or other.value is not weight.value or count > 1:
            return user
        if (other.channel, other.contracted) != (weight.channel, weight.contracted):
            return user
    return None


def why_not_coded(weight: Weight) -> str | None:
    """Why a weight cannot be stored in a narrower format, whichever; None if it can."""
    stored = weight.stored
    if weight.expanded_by("dequantize") is not None:
        return f"the weight is quantized already, to {stored.dtype}"
    if weight.coded is not None:
        return f"the weight is quantized already, to {weight.coded.attrs['format']}"
    if not stored.dtype.is_float or stored.dtype.bits < 16:
        return f"the weight is {stored.dtype}, expected a float"
    return why_not_replaced(weight)


def why_not_replaced(weight: Weight) -> str | None:
    """Why others cannot stand for a weight's numbers: these are not given, not finite, or somebody else reads them."""
    stored = weight.stored
    if stored.constant is None or not stored.constant.available:
        return "the values of the weight are not given"
    other = other_reader(weight)
    if other is not None:
        return f"the weight is also read by {other.name}, and would be stored twice"
    if not np.isfinite(values_of(stored).astype(np.float32)).all():
        return "the weight holds infinities or NaN"
    return None
