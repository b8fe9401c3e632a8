"""Recognition of softmax where a model writes it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ..base import RulePass
from ..match import Replacement, matched, operand, producer
from .normalization import same_value


@dataclass(frozen=True)
class RecognizeSoftmax(RulePass):
    """Write exp(x - m) / sum of exp(x - m), with m the largest, as one softmax; the same of exp(log_softmax(x)).

    Before: %m = reduce_max(%x)  %d = sub(%x, %m)  %e = exp(%d)  %s = sum(%e)  %y = div(%e, %s)
    After:  %y = softmax(%x) {axis = 1}

    Without the largest, weights of large scores are infinite as they are written: they stay so.
    """

    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def rules(self) -> Sequence[Rule]:
        """The quotient, and the power of a logarithm."""
        return (Quotient(), PowerOfLogarithm())


class Quotient(Rule):
    """exp(x - max(x)) / sum(exp(x - max(x))) -> softmax(x)"""

    ops = ("div", "mul")
    numerics: ClassVar[Numerics] = "REASSOCIATES"
    pattern = "softmax"

    def is_near(self, op: Op, module: Module) -> bool:
        return _weights_over_sum(op) is not None

    def check(self, op: Op, module: Module) -> str | None:
        found = _softmax_of(op)
        return found if isinstance(found, str) else None

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        found = _softmax_of(op)
        return op.result if isinstance(found, str) else g.softmax(found[0], axis=found[1])


class PowerOfLogarithm(Rule):
    """exp(log_softmax(x)) -> softmax(x)"""

    ops = ("exp",)
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def check(self, op: Op, module: Module) -> str | None:
        return "it is no power of log_softmax" if producer(operand(op, 0), "log_softmax") is None else None

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        logarithm = matched(operand(op, 0), "log_softmax")
        return g.softmax(operand(logarithm, 0), **logarithm.attrs)


def _softmax_of(op: Op) -> tuple[Value, int] | str:
    """(x, axis) of the softmax that ends in this quotient, or why there is none."""
    found = _weights_over_sum(op)
    if found is None:
        return "no quotient of powers by their sum"
    power, total = found
    axis = _only_axis(total)
    shifted = producer(operand(power, 0), "sub")
    if axis is None:
        return "the sum is not along one dimension that it keeps"
    if shifted is None:
        return "the largest is not subtracted before exp: where scores are large this is infinite as written"
    largest = producer(operand(shifted, 1), "reduce_max")
    if largest is None or not same_value(operand(largest, 0), operand(shifted, 0)):
        return "what is subtracted before exp is not the largest of the scores"
    if _only_axis(largest) != axis or operand(shifted, 0).shape != op.result.shape:
        return "the largest is of another dimension than the sum"
    return operand(shifted, 0), axis


def _weights_over_sum(op: Op) -> tuple[Op, Op] | None:
    """(exp, sum) where the op computes exp(..) / sum(exp(..))."""
    pairs = [(operand(op, 0), operand(op, 1))]
    if op.name == "mul":
        sides = (*pairs, pairs[0][::-1])
        pairs = [(weights, operand(turned, 0)) for weights, other in sides if (turned := producer(other, "reciprocal")) is not None]
    for weights, divisor in pairs:
        power, total = producer(weights, "exp"), producer(divisor, "sum")
        if power is not None and total is not None and same_value(operand(total, 0), weights):
            return power, total
    return None


def _only_axis(fold: Op) -> int | None:
    """The one dimension that a reduction folds and keeps with size 1; None otherwise."""
    axes = fold.attrs["axes"]
    return int(axes[0]) % operand(fold, 0).type.rank if len(axes) == 1 and fold.attrs["keepdims"] else None
