"""Recognition of gelu in the spellings that exporters write."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ...ir.types import DType, bf16, f16
from ..base import RulePass
from ..match import Replacement, operand, producer, same_shape, uniform

MAXIMUM_FACTORS = 8
FIVE_DIGITS = 5e-6
ROUNDED = {f16: 2.0**-10, bf16: 2.0**-7}
"""How far apart numbers may be that are the same one rounded to a dtype; factors of two roundings."""


@dataclass(frozen=True)
class RecognizeGelu(RulePass):
    """Write x * 0.5 * (1 + erf(x / sqrt 2)), and its approximation by tanh, as one gelu.

    Before: %a = div(%x, @sqrt2)  %b = erf(%a)  %c = add(%b, @one)  %d = mul(%x, %c)  %y = mul(%d, @half)
    After:  %y = gelu(%x)
    """

    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def rules(self) -> Sequence[Rule]:
        """The one rule."""
        return (Gelu(),)


class Gelu(Rule):
    """x * 0.5 * (1 + erf(x * sqrt(1/2))) -> gelu(x); with tanh(sqrt(2/pi) * (x + 0.044715 x^3)) -> gelu(x, tanh)"""

    ops = ("mul", "div")
    numerics: ClassVar[Numerics] = "REASSOCIATES"
    pattern = "gelu"

    def is_near(self, op: Op, module: Module) -> bool:
        return _is_gated(op) and not any(user.name in self.ops and _is_gated(user) for user in op.result.uses)

    def check(self, op: Op, module: Module) -> str | None:
        found = match_gelu(op.result)
        if isinstance(found, str):
            return found
        return None if same_shape(found[0].shape, op.result.shape, module) else "the shapes differ"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        found = match_gelu(op.result)
        return op.result if isinstance(found, str) else g.gelu(found[0], approximate=found[1])


def _is_gated(op: Op) -> bool:
    """Whether an op multiplies something by 1 + erf, or by 1 + tanh of a sum."""
    factors = product_of(op.result).factors
    gates = [gate for gate in (_plus_one(factor, "erf", "tanh") for factor in factors) if gate is not None]
    sums = [gate for gate in gates if gate.name == "erf" or any(producer(f, "add") for f in product_of(operand(gate, 0)).factors)]
    return bool(sums) and len(factors) > 1


@dataclass
class Product:
    """A product as a number, which is rounded to `dtype`, and its other factors."""

    dtype: DType
    number: float = 1.0
    factors: list[Value] = field(default_factory=list)

    def is_about(self, number: float) -> bool:
        """Whether the number is this one: rounded to the dtype, or written with the five digits that exporters write at least."""
        return math.isclose(self.number, number, rel_tol=ROUNDED.get(self.dtype, FIVE_DIGITS))


def product_of(value: Value) -> Product:
    """`value` as a product: multiplications, divisions by a number, squares and cubes are taken apart."""
    result = Product(value.dtype)
    pending = [value]
    while pending:
        part = pending.pop()
        number = uniform(part)
        if number is not None and not isinstance(number, bool):
            result.number *= float(number)
        elif len(pending) + len(result.factors) >= MAXIMUM_FACTORS or not _take_apart(part, result, pending):
            result.factors.append(part)
    return result


def _take_apart(part: Value, result: Product, pending: list[Value]) -> bool:
    op = producer(part, "mul", "div", "pow")
    if op is None:
        return False
    left, right = operand(op, 0), operand(op, 1)
    if op.name == "mul":
        pending += [right, left]
        return True
    number = uniform(right)
    if number is None or isinstance(number, bool):
        return False
    if op.name == "div" and number != 0:
        result.number /= float(number)
        pending.append(left)
        return True
    if op.name == "pow" and number in (2, 3):
        pending += [left] * int(number)
        return True
    return False


def match_gelu(value: Value) -> tuple[Value, str] | str:
    """(x, approximation) if `value` is gelu(x), else why not."""
    outer = product_of(value)
    if len(outer.factors) != 2 or not outer.is_about(0.5):
        return "no product of 0.5 and two factors"
    for x, other in (outer.factors, outer.factors[::-1]):
        inner = _plus_one(other, "erf", "tanh")
        if inner is None:
            continue
        approximation = "none" if inner.name == "erf" else "tanh"
        matches = _is_erf_argument if inner.name == "erf" else _is_tanh_argument
        return (x, approximation) if matches(operand(inner, 0), x) else f"the argument of {inner.name} is another"
    return "no factor is 1 + erf or 1 + tanh"


def _plus_one(value: Value, *names: str) -> Op | None:
    op = producer(value, "add")
    if op is None:
        return None
    for one, other in ((op.operands[0], op.operands[1]), (op.operands[1], op.operands[0])):
        if uniform(one) == 1:
            return producer(other, *names)
    return None


def _is_erf_argument(value: Value, x: Value) -> bool:
    product = product_of(value)
    return product.factors == [x] and product.is_about(math.sqrt(0.5))


def _is_tanh_argument(value: Value, x: Value) -> bool:
    """sqrt(2/pi) * (x + c x^3) or sqrt(2/pi) * x * (1 + c x^2)."""
    product = product_of(value)
    if not product.is_about(math.sqrt(2 / math.pi)):
        return False
    if len(product.factors) == 1:
        return _is_sum_with(product.factors[0], [x], [x, x, x], x)
    rest = [factor for factor in product.factors if factor is not x]
    return len(product.factors) == 2 and len(rest) == 1 and _is_sum_with(rest[0], [], [x, x], x)


def _is_sum_with(value: Value, first: list[Value], second: list[Value], x: Value) -> bool:
    op = producer(value, "add")
    if op is None:
        return False
    for left, right in ((operand(op, 0), operand(op, 1)), (operand(op, 1), operand(op, 0))):
        one, other = product_of(left), product_of(right)
        if one.factors == first and one.is_about(1.0) and other.factors == second and other.is_about(0.044715):
            return True
    return False
