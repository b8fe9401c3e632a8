"""Codes of sums that are scaled: what they are divided by is part of the constants that scale them, and no element is divided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...ir.errors import InternalError
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ...ir.types import f32
from ..base import RulePass
from ..match import Replacement, operand, uniform

Array = np.ndarray[Any, Any]
SUMS = ("add", "sub", "maximum", "minimum")
"""Ops of which a quotient is that of quotients of both operands."""
MOVES = ("neg", "relu", "max_pool", "reshape", "transpose", "slice", "broadcast_to")
"""Ops of which a quotient is that of a quotient of their only operand."""
NORMS = {"layer_norm": (1, 2), "rms_norm": (1,)}
"""Norms, and their operands that scale and move what is normalized."""
DEPTH = 16
MOST = 2.0**90
"""Of a constant: what it scales, integers of 32 bits at most, is finite and stays so in sums."""


@dataclass(frozen=True)
class FoldCodeScales(RulePass):
    """Divide constants when building, not what they scale in each call.

    Before: %x = add(mul(cast(%t), @a), @b)         %c = quantize(%x, @s, @z)
    After:  %x = add(mul(cast(%t), @a/s), @b/s)     %c = quantize(%x, none, @z)

    Quotients are rounded elsewhere: a code may be its neighbour where a number lies half-way between two, as near as f32 tells.
    """

    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def rules(self) -> Sequence[Rule]:
        """One, for each code that is made."""
        return (FoldedScale(),)


@dataclass(frozen=True)
class FoldedScale(Rule):
    """quantize(x, s, z) -> quantize(x', none, z), where x' is x with its constants divided by s"""

    ops: ClassVar[tuple[str, ...]] = ("quantize",)
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def check(self, op: Op, module: Module) -> str | None:
        if op.operands[1] is None:
            return "nothing is divided"
        if not op.result.dtype.is_integer or operand(op, 0).dtype != f32 or operand(op, 1).type.elements != 1:
            return "no numbers in f32 become integers by one scale"
        scale = uniform(op.operands[1])
        if scale is None:
            return "the scale is known at run time alone"
        if not np.finfo(np.float32).tiny <= scale <= np.finfo(np.float32).max:
            return "the scale is zero, negative, denormal or no number"
        return None if scale == 1 else _why_not(operand(op, 0), float(scale))

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        scale = float(uniform(op.operands[1]) or 1)
        value = operand(op, 0) if scale == 1 else _divided(operand(op, 0), scale, g)
        (result,) = g.build(op.definition, (value, None, *op.operands[2:]), op.attrs)
        return result


def _why_not(value: Value, scale: float, depth: int = DEPTH) -> str | None:
    """Why a value is not what it is made of divided, with no op more than before; None if it is."""
    if value.dtype != f32 or depth == 0:
        return "what is divided is not in f32, or is far from its constants"
    if value.constant is not None:
        return None if _quotients(value, scale) is not None else "a constant is too large, or its quotient has fewer digits"
    made = value.op
    if made is None:
        return "what is divided comes from outside"
    if made.name == "dequantize":
        return _why_not(operand(made, 1), scale, depth - 1) if operand(made, 0).dtype.is_integer else "it is decoded from floats"
    if sum(value.uses.values()) != 1:
        return "something else reads what is divided"
    parts = _parts(made)
    if not parts:
        return f"{made.name} is not divided by a constant of its own"
    reasons = [_why_not(operand(made, part), scale, depth - 1) for part in parts]
    return next((reason for reason in reasons if reason is not None), None)


def _parts(made: Op) -> tuple[int, ...]:
    """The operands of an op that its quotient is made of, divided; none where it is not made so."""
    if made.name in SUMS:
        return 0, 1
    if made.name in MOVES:
        return (0,)
    if made.name == "mul":
        constants = [n for n in (1, 0) if operand(made, n).constant is not None]
        return tuple(constants[:1])
    known = NORMS.get(made.name, ())
    given = len(made.operands) > len(known) and all(made.operands[n] is not None for n in known)
    return known if given else ()


def _divided(value: Value, scale: float, g: Builder) -> Value:
    """A value of which `_why_not` says nothing, divided."""
    constant, made = _quotients(value, scale), value.op
    if constant is not None:
        return g.module.add_constant(f"{value.name}.divided", constant, value.source)
    if made is None:
        raise InternalError(f"{value!r} is no value that is divided, which the check of the rule has shown")
    parts = (1,) if made.name == "dequantize" else _parts(made)
    operands = [_divided(operand(made, n), scale, g) if n in parts else each for n, each in enumerate(made.operands)]
    return g.build(made.definition, operands, made.attrs)[0]


def _quotients(value: Value, scale: float) -> Array | None:
    """The numbers of a constant divided; None where they are not known, or some lose digits, are no numbers, or so large that what they
    scale may be infinite, divided or not.
    """
    if value.constant is None or not value.constant.available:
        return None
    array = value.constant.array
    with np.errstate(all="ignore"):
        found = (array.astype(np.float64) / scale).astype(np.float32)
    sizes = np.abs(found[array != 0])
    fits = np.isfinite(found).all() and (np.abs(array) <= MOST).all() and (sizes >= np.finfo(np.float32).tiny).all()
    return found if bool(fits) else None
