"""Rules of arithmetic that hold bit for bit: neutral elements, idempotence, double negation."""

from __future__ import annotations

import math

import numpy as np

from ...ir import dims
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Rule
from ...ir.ops.table import OPS
from ..match import Number, Replacement, is_number, matched, operand, producer, same_shape, uniform

# op -> (neutral numbers on the right for floats, for integers, for bools); x + 0.0 turns -0.0 into 0.0 and is none.
NEUTRAL: dict[str, tuple[tuple[Number, ...], tuple[Number, ...], tuple[Number, ...]]] = {
    "add": ((-0.0,), (0,), ()),
    "sub": ((0.0,), (0,), ()),
    "mul": ((1.0,), (1,), ()),
    "div": ((1.0,), (1,), ()),
    "floor_div": ((), (1,), ()),
    "pow": ((1.0,), (1,), ()),
    "minimum": ((math.inf,), (), ()),
    "maximum": ((-math.inf,), (), ()),
    "logical_and": ((), (), (True,)),
    "logical_or": ((), (), (False,)),
    "logical_xor": ((), (), (False,)),
    "bit_and": ((), (), ()),
    "bit_or": ((), (0,), ()),
    "bit_xor": ((), (0,), ()),
    "shift_left": ((), (0,), ()),
    "shift_right": ((), (0,), ()),
}
COMMUTATIVE = tuple(name for name, definition in OPS.items() if "commutative" in definition.traits)
IDEMPOTENT = tuple(name for name, definition in OPS.items() if "idempotent" in definition.traits and len(definition.operands) == 1)


def neutral_numbers(op: Op) -> tuple[Number, ...]:
    """The numbers that change nothing as the second operand."""
    by_kind = NEUTRAL[op.name]
    dtype = operand(op, 0).dtype
    return by_kind[0] if dtype.is_float else by_kind[1] if dtype.is_integer else by_kind[2] if dtype.kind == "bool" else ()


class NeutralElement(Rule):
    """op(x, neutral) -> x, where it holds for every x: x * 1, x - 0.0, x + -0.0, x / 1, x and true"""

    ops = tuple(NEUTRAL)

    def check(self, op: Op, module: Module) -> str | None:
        kept = _without_neutral(op)
        if kept is None:
            return "no operand is a neutral element"
        same = kept.dtype == op.result.dtype and same_shape(kept.shape, op.result.shape, module)
        return None if same else "the other operand is broadcast"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return _without_neutral(op)


def _without_neutral(op: Op) -> Value | None:
    """The operand that stands beside a neutral element: the first, or the second too if the op commutes."""
    numbers = neutral_numbers(op)
    for kept, other in ((0, 1), (1, 0)) if op.name in COMMUTATIVE else ((0, 1),):
        if any(is_number(op.operands[other], number) for number in numbers):
            return operand(op, kept)
    return None


class ConstantsRight(Rule):
    """op(constant, x) -> op(x, constant), for an op that commutes"""

    ops = COMMUTATIVE

    def check(self, op: Op, module: Module) -> str | None:
        constant = [value is not None and (value.constant is not None or producer(value, "full") is not None) for value in op.operands]
        return None if constant == [True, False] else "the first operand is not constant, or both are"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return g.build(op.definition, (op.operands[1], op.operands[0]), op.attrs)


class Idempotent(Rule):
    """f(f(x)) -> f(x), for abs, sign, floor, ceil, trunc, round, relu"""

    ops = IDEMPOTENT

    def check(self, op: Op, module: Module) -> str | None:
        return None if producer(op.operands[0], op.name) is not None else f"the operand is no {op.name}"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return operand(op, 0)


class Involution(Rule):
    """f(f(x)) -> x, for neg, logical_not, bit_not"""

    ops = ("neg", "logical_not", "bit_not")

    def check(self, op: Op, module: Module) -> str | None:
        return None if producer(op.operands[0], op.name) is not None else f"the operand is no {op.name}"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return operand(matched(op.operands[0], op.name), 0)


class AbsOfNeg(Rule):
    """abs(neg(x)) -> abs(x), but for unsigned x, where neg wraps"""

    ops = ("abs",)

    def check(self, op: Op, module: Module) -> str | None:
        if op.result.dtype.kind == "uint":
            return "the operand is unsigned: its neg wraps and is not undone by abs"
        return None if producer(op.operands[0], "neg") is not None else "the operand is no neg"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return g.abs(operand(matched(op.operands[0], "neg"), 0))


class SameOperands(Rule):
    """op(x, x) -> x, for minimum, maximum, logical and bitwise and, or"""

    ops = ("minimum", "maximum", "logical_and", "logical_or", "bit_and", "bit_or")

    def check(self, op: Op, module: Module) -> str | None:
        return None if op.operands[0] is op.operands[1] else "the operands differ"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return operand(op, 0)


class TimesMinusOne(Rule):
    """mul(x, -1) -> neg(x), on floats and signed integers"""

    ops = ("mul",)

    def check(self, op: Op, module: Module) -> str | None:
        if operand(op, 0).dtype.kind not in ("float", "int"):
            return "unsigned"
        number = -1.0 if operand(op, 0).dtype.is_float else -1
        if not is_number(op.operands[1], number):
            return "the second operand is not -1"
        if operand(op, 0).dtype != op.result.dtype:
            return "the first operand is a wider factor"
        return None if same_shape(operand(op, 0).shape, op.result.shape, module) else "the other operand is broadcast"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return g.neg(operand(op, 0))


class PlusNegative(Rule):
    """add(x, neg(y)) -> sub(x, y)"""

    ops = ("add",)

    def check(self, op: Op, module: Module) -> str | None:
        return None if producer(op.operands[1], "neg") is not None else "the second operand is no neg"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return g.sub(operand(op, 0), operand(matched(op.operands[1], "neg"), 0))


class DivideByPowerOfTwo(Rule):
    """div(x, 2^k) -> mul(x, 2^-k), which rounds alike"""

    ops = ("div",)

    def check(self, op: Op, module: Module) -> str | None:
        number = uniform(op.operands[1])
        if number is None or isinstance(number, bool) or not operand(op, 1).dtype.is_float:
            return "the divisor is no known float"
        if not math.isfinite(number) or abs(math.frexp(number)[0]) != 0.5:
            return "the divisor is no power of two"
        if operand(op, 1).dtype.bits < 16 or not 2.0**-14 <= abs(number) <= 2.0**14:
            return "the reciprocal may be subnormal"
        return None

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        divisor = operand(op, 1)
        number = uniform(divisor)
        reciprocal = np.asarray(1.0 / float(number or 1.0)).astype(divisor.dtype.numpy)
        same = same_shape(operand(op, 0).shape, op.result.shape, g.module)
        factor = g.value(reciprocal)
        return g.mul(operand(op, 0), factor if same else g.broadcast_to(factor, shape=divisor.shape))


class SquareByMultiplication(Rule):
    """pow(x, 2) -> mul(x, x)"""

    ops = ("pow",)

    def check(self, op: Op, module: Module) -> str | None:
        number = 2.0 if operand(op, 0).dtype.is_float else 2
        if not is_number(op.operands[1], number):
            return "the exponent is not 2"
        return None if same_shape(operand(op, 0).shape, op.result.shape, module) else "the base is broadcast"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return g.mul(operand(op, 0), operand(op, 0))


class ClipOfNothing(Rule):
    """clip(x) -> x"""

    ops = ("clip",)

    def check(self, op: Op, module: Module) -> str | None:
        return None if all(bound is None for bound in op.operands[1:]) else "there is a bound"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return operand(op, 0)


class ArithmeticOfSizes(Rule):
    """op(dim(a), dim(b)) -> dim(op(a, b)), for add, sub, mul, floor_div, minimum, maximum on scalar sizes"""

    ops = ("add", "sub", "mul", "floor_div", "minimum", "maximum")

    def check(self, op: Op, module: Module) -> str | None:
        if op.result.type.rank or op.result.dtype.name != "i64":
            return "no i64 scalar"
        sizes = [size_of(value) for value in op.operands]
        if sizes[0] is None or sizes[1] is None or all(isinstance(size, int) for size in sizes):
            return "the operands are no symbolic sizes"
        return "the divisor may be 0 or below" if op.name == "floor_div" and dims.at_most(1, sizes[1], module.facts) is not True else None

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        left, right = size_of(op.operands[0]) or 0, size_of(op.operands[1]) or 0
        if op.name == "floor_div":
            value = left // right
        elif op.name in ("minimum", "maximum"):
            value = dims.minimum(left, right) if op.name == "minimum" else dims.maximum(left, right)
        else:
            value = left + right if op.name == "add" else left - right if op.name == "sub" else left * right
        return g.dim(value=value)


def size_of(value: Value | None) -> dims.Dim | None:
    """The size that an i64 scalar is known to be."""
    made = producer(value, "dim")
    if made is not None:
        size: dims.Dim = made.attrs["value"]
        return size
    number = uniform(value)
    return number if isinstance(number, int) and not isinstance(number, bool) else None


RULES: tuple[Rule, ...] = (
    *(ConstantsRight(), NeutralElement(), Idempotent(), Involution(), AbsOfNeg(), SameOperands(), TimesMinusOne()),
    *(PlusNegative(), DivideByPowerOfTwo(), SquareByMultiplication(), ClipOfNothing(), ArithmeticOfSizes()),
)
