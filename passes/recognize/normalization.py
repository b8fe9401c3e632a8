"""Recognition of layer_norm and rms_norm in the spellings that exporters write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ir.dims import Dim
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ..base import RulePass
from ..match import Replacement, operand, producer, split_number, uniform

NORMS = ("layer_norm", "rms_norm")


@dataclass(frozen=True)
class RecognizeNormalization(RulePass):
    """Write (x - mean) / sqrt(variance + epsilon) * scale + bias as one layer_norm, the form without mean as rms_norm.

    Before: %m = mean(%x)  %d = sub(%x, %m)  %s = mul(%d, %d)  %v = mean(%s)  %e = add(%v, @epsilon)  %r = sqrt(%e)
            %n = div(%d, %r)  %p = mul(%n, @scale)  %y = add(%p, @bias)
    After:  %y = layer_norm(%x, @scale, @bias) {axes = [2], epsilon = 1e-05}
    """

    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def rules(self) -> Sequence[Rule]:
        """The bare norm, the casts around it, then its parameters."""
        return (Norm(), ScaleOfNorm(), BiasOfNorm())


@dataclass(frozen=True)
class Found:
    """A norm of x over axes; centred: minus its mean first."""

    x: Value
    axes: tuple[int, ...]
    epsilon: float
    centred: bool


class Norm(Rule):
    """d / sqrt(mean(d * d) + epsilon) -> layer_norm(x) where d = x - mean(x), else rms_norm(d)"""

    ops = ("div", "mul")
    numerics: ClassVar[Numerics] = "REASSOCIATES"
    pattern = "normalization"

    def is_near(self, op: Op, module: Module) -> bool:
        sums = (producer(root, "add") for _, root in _quotients(op))
        return any(_is_folded(part) for added in sums if added is not None for part in added.operands)

    def check(self, op: Op, module: Module) -> str | None:
        found = match_norm(op)
        return found if isinstance(found, str) else None

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        found = match_norm(op)
        if isinstance(found, str):
            return op.result
        build = g.layer_norm if found.centred else g.rms_norm
        return build(found.x, axes=found.axes, epsilon=found.epsilon)


def match_norm(op: Op) -> Found | str:
    """What an op normalizes, or why it does not."""
    why = "no quotient by the root of a mean of squares plus a number"
    for value, root in _quotients(op):
        inside = split_number(producer(root, "add"))
        squares = averaged(inside[0]) if inside is not None else None
        if inside is None or squares is None or not is_square_of(squares[0], value):
            why = _missing(inside, squares) or why
            continue
        axes = squares[1]
        if value.shape != op.result.shape:
            return "the norm is broadcast"
        centre = producer(value, "sub")
        mean = averaged(operand(centre, 1)) if centre is not None else None
        if centre is not None and mean is not None and same_value(mean[0], operand(centre, 0)) and mean[1] == axes:
            return Found(operand(centre, 0), axes, inside[1], True)
        return Found(value, axes, inside[1], False)
    return why


def _missing(inside: tuple[Value, float] | None, squares: tuple[Value, tuple[int, ...]] | None) -> str | None:
    """What a quotient by the root of a sum lacks."""
    if inside is None:
        return None
    if squares is None:
        return "what is under the root is no mean that keeps its dimensions, plus a number"
    return "the mean under the root is not of the squares of what is divided by it"


def _is_folded(value: Value | None) -> bool:
    """Whether a value is a mean or a sum, perhaps scaled."""
    scaled = producer(value, "div", "mul")
    return producer(value if scaled is None else scaled.operands[0], "mean", "sum") is not None


def _quotients(op: Op) -> list[tuple[Value, Value]]:
    """(x, v) where the op computes x / sqrt(v)."""
    left, right = operand(op, 0), operand(op, 1)
    if op.name == "div":
        root = _root(right)
        return [(left, root)] if root is not None else []
    pairs = [(value, _reciprocal_root(other)) for value, other in ((left, right), (right, left))]
    return [(value, root) for value, root in pairs if root is not None]


def _root(value: Value) -> Value | None:
    op = producer(value, "sqrt")
    if op is not None:
        return operand(op, 0)
    op = producer(value, "pow")
    return operand(op, 0) if op is not None and uniform(op.operands[1]) == 0.5 else None


def _reciprocal_root(value: Value) -> Value | None:
    op = producer(value, "rsqrt")
    if op is not None:
        return operand(op, 0)
    op = producer(value, "reciprocal")
    if op is not None:
        return _root(operand(op, 0))
    op = producer(value, "div")
    if op is not None and uniform(op.operands[0]) == 1:
        return _root(operand(op, 1))
    op = producer(value, "pow")
    return operand(op, 0) if op is not None and uniform(op.operands[1]) == -0.5 else None


def averaged(value: Value) -> tuple[Value, tuple[int, ...]] | None:
    """(x, axes) if `value` is the mean of x with its dimensions kept, axes ascending."""
    op = producer(value, "mean")
    if op is not None and op.attrs["keepdims"]:
        return operand(op, 0), _axes(op)
    scaled = producer(value, "div", "mul")
    split = split_number(scaled)
    total = producer(split[0], "sum") if split is not None else None
    if scaled is None or split is None or total is None or not total.attrs["keepdims"]:
        return None
    count: Dim = 1
    for axis in _axes(total):
        count = count * operand(total, 0).shape[axis]
    if not isinstance(count, int) or count == 0:
        return None
    expected = float(count) if scaled.name == "div" else 1 / count
    return (operand(total, 0), _axes(total)) if abs(split[1] - expected) <= 1e-6 * expected else None


def _axes(op: Op) -> tuple[int, ...]:
    rank = operand(op, 0).type.rank
    return tuple(sorted(axis % rank for axis in op.attrs["axes"]))


def is_square_of(value: Value, x: Value) -> bool:
    """Whether `value` is x * x or x to the power 2."""
    op = producer(value, "mul", "pow")
    if op is None or not same_value(operand(op, 0), x):
        return False
    return same_value(operand(op, 1), x) if op.name == "mul" else uniform(op.operands[1]) == 2


def same_value(left: Value, right: Value, depth: int = 3) -> bool:
    """Whether two values are one, or made by equal ops from the same values (not yet shared)."""
    if left is right:
        return True
    one, other = left.op, right.op
    if one is None or other is None or depth == 0 or one.name != other.name or not one.definition.is_pure:
        return False
    if one.attrs != other.attrs or len(one.operands) != len(other.operands) or len(one.results) != 1:
        return False
    pairs = zip(one.operands, other.operands, strict=True)
    return all(a is b or (a is not None and b is not None and same_value(a, b, depth - 1)) for a, b in pairs)


class ScaleOfNorm(Rule):
    """norm(x) * scale -> norm(x, scale)"""

    ops = ("mul",)
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def check(self, op: Op, module: Module) -> str | None:
        found = _norm_and_parameter(op)
        if isinstance(found, str):
            return found
        return None if all(value is None for value in found[0].operands[1:]) else "the norm has parameters"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        found = _norm_and_parameter(op)
        if isinstance(found, str):
            return op.result
        norm, parameter = found
        return getattr(g, norm.name)(norm.operands[0], _fitted(parameter, norm, g), **norm.attrs)


class BiasOfNorm(Rule):
    """layer_norm(x, scale) + bias -> layer_norm(x, scale, bias)"""

    ops = ("add",)
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def check(self, op: Op, module: Module) -> str | None:
        found = _norm_and_parameter(op)
        if isinstance(found, str):
            return found
        if found[0].name != "layer_norm":
            return "rms_norm has no bias"
        return None if len(found[0].operands) < 3 or found[0].operands[2] is None else "the norm has a bias"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        found = _norm_and_parameter(op)
        if isinstance(found, str):
            return op.result
        norm, parameter = found
        scale = norm.operands[1] if len(norm.operands) > 1 else None
        return g.layer_norm(norm.operands[0], scale, _fitted(parameter, norm, g), **norm.attrs)


def _norm_and_parameter(op: Op) -> tuple[Op, Value] | str:
    """The norm among an op's operands, and the other one if it may be a parameter of it."""
    for value, parameter in ((operand(op, 0), operand(op, 1)), (operand(op, 1), operand(op, 0))):
        norm = producer(value, *NORMS)
        if norm is None:
            continue
        if sum(value.uses.values()) != 1:
            return "the norm has other users"
        if parameter.constant is None and (parameter.op is not None or parameter.type.rank != len(norm.attrs["axes"])):
            return "the other operand is no parameter"
        return (norm, parameter) if _fits(parameter, norm) else "the other operand does not vary over the norm's axes only"
    return "no operand is a norm"


def _fits(parameter: Value, norm: Op) -> bool:
    rank, axes = norm.result.type.rank, norm.attrs["axes"]
    if [axis % rank for axis in axes] != list(range(rank - len(axes), rank)) or parameter.type.rank > rank:
        return False
    sizes = [1] * (rank - len(axes)) + list(norm.result.shape[rank - len(axes) :])
    own = parameter.shape
    return all(a in (1, b) for a, b in zip(own, sizes[rank - len(own) :], strict=True))


def _fitted(parameter: Value, norm: Op, g: Builder) -> Value:
    """The parameter without leading ones that the norm's axes have no place for."""
    extra = parameter.type.rank - len(norm.attrs["axes"])
    if extra <= 0:
        return parameter
    result: Value = g.reshape(parameter, shape=parameter.shape[extra:])
    return result
