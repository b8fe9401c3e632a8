"""What a rule sees of an ATen node, and the table of rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ....ir import dims
from ....ir.dims import Dim
from ....ir.errors import Source, UnsupportedError
from ....ir.graph import Builder, Value
from ....ir.ops.table import OPS
from ....ir.types import DType, TensorType, boolean, f64
from .symbols import Symbols
from .tensors import dtype_of

Rule: TypeAlias = Callable[..., Any]

ATEN: dict[str, Rule] = {}
"""Rules by operator: `aten.add`, or with its overload `aten.max.dim`, which goes first."""


def aten(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for ATen operators, named without their namespace (`prims.` ones with it)."""

    def register(function: Rule) -> Rule:
        for name in names:
            full = name if name.startswith("prims.") else f"aten.{name}"
            if full in ATEN:
                raise ValueError(f"two rules for {full}")
            ATEN[full] = function
        return function

    return register


def find_rule(operator: str) -> Rule | None:
    """The rule of `aten.name.overload`, or None."""
    return ATEN.get(operator) or ATEN.get(operator.rpartition(".")[0])


@dataclass(frozen=True)
class SymbolicNumber:
    """A float that is computed from sizes: torch's expression of it."""

    expression: Any
    ranges: Any


@dataclass
class Node:
    """One ATen node: the builder, the types of its results as torch sees them, and helpers that rules share.

    Rules get operands as Values, symbolic ints as Dims, everything else as torch gives it, and return one Value, or a
    tuple of them (None for a result that nobody reads).
    """

    operator: str
    source: Source
    b: Builder
    symbols: Symbols
    results: tuple[TensorType | None, ...]
    used: frozenset[int]
    fakes: tuple[Any, ...] = field(repr=False, default=())

    @property
    def facts(self) -> dims.Facts:
        return self.b.module.facts

    @property
    def type(self) -> TensorType:
        """The type of the first result."""
        if not self.results or self.results[0] is None:
            raise UnsupportedError(f"{self.operator} has no tensor as its first result")
        return self.results[0]

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.type.shape

    def needs(self, result: int) -> bool:
        """Whether somebody reads that result."""
        return result in self.used

    def fail(self, why: str) -> UnsupportedError:
        """The error that says why this node cannot be represented."""
        return UnsupportedError(f"{self.operator}: {why}", source=self.source)

    # values

    def cast(self, x: Value, dtype: DType) -> Value:
        """x in a dtype; itself where it has it."""
        if x.dtype == dtype:
            return x
        result: Value = self.b.cast(x, dtype=dtype)
        return result

    def value(self, x: Any, dtype: DType) -> Value:
        """A tensor, a number, a symbolic size or a symbolic number in a dtype."""
        if isinstance(x, Value):
            return self.cast(x, dtype)
        if isinstance(x, dims.Expr):
            return self.cast(self.b.dim(value=x), dtype)
        if isinstance(x, SymbolicNumber):
            return self.cast(self.number(x.expression, x.ranges), dtype)
        result: Value = self.b.full(shape=(), value=python_number(x, dtype), dtype=dtype)
        return result

    def values(self, *xs: Any, dtype: DType | None = None) -> tuple[Value, ...]:
        """Operands in one dtype (default: the result's)."""
        return tuple(self.value(x, dtype or self.dtype) for x in xs)

    def number(self, expression: Any, ranges: Any) -> Value:
        """A float expression over sizes, in f64."""
        name, arguments = type(expression).__name__, expression.args
        if expression.is_number:
            return self.value(float(expression), f64)
        if name in ("ToFloat", "IntTrueDiv") or expression.is_integer:
            parts = [
                self.value(self.symbols.convert(a, ranges), f64)
                for a in (arguments if name in ("ToFloat", "IntTrueDiv") else (expression,))
            ]
            result: Value = parts[0] if len(parts) == 1 else self.b.div(*parts)
            return result
        operators = {"Add": "add", "Mul": "mul", "FloatTrueDiv": "div", "Pow": "pow", "FloatPow": "pow", "Max": "maximum", "Min": "minimum"}
        unary = {
            f"OpaqueUnaryFn_{name}": name for name in ("sqrt", "exp", "cos", "sin", "tan", "cosh", "sinh", "tanh", "asin", "acos", "atan")
        }
        if name in unary:
            result = self.b.build(OPS[unary[name]], (self.number(arguments[0], ranges),), {})[0]
            return result
        if name not in operators:
            raise self.fail(f"the number {str(expression)[:80]} has no form here")
        result = self.number(arguments[0], ranges)
        for argument in arguments[1:]:
            result = self.b.build(OPS[operators[name]], (result, self.number(argument, ranges)), {})[0]
        return result

    def promoted(self, *xs: Any) -> DType:
        """The dtype that torch would compute these operands in."""
        import torch
        from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

        stand_ins = [
            torch.empty(x.type.rank and (1,) * x.type.rank, dtype=_torch(x.dtype), device="meta") if isinstance(x, Value) else x for x in xs
        ]
        numbers = [2 if isinstance(x, dims.Expr) else 1.5 if isinstance(x, SymbolicNumber) else x for x in stand_ins]
        found, _ = elementwise_dtypes(*numbers, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH)
        return dtype_of(found)

    def as_bool(self, x: Value) -> Value:
        """x != 0."""
        return self.cast(x, boolean)

    # shapes

    def axis(self, axis: int, rank: int) -> int:
        """An axis counted from the front; a scalar has one axis in torch."""
        return axis % max(rank, 1)

    def axes(self, axes: Any, rank: int) -> tuple[int, ...]:
        """Axes of a reduction: none or empty means all."""
        if axes is None:
            return tuple(range(rank))
        given = (axes,) if isinstance(axes, int) else tuple(axes)
        return tuple(dict.fromkeys(self.axis(a, rank) for a in given if rank)) if given else tuple(range(rank))

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        if x.shape == tuple(shape):
            return x
        result: Value = self.b.reshape(x, shape=tuple(shape))
        return result

    def expand(self, x: Value, shape: Sequence[Dim]) -> Value:
        """x broadcast to a shape."""
        if x.shape == tuple(shape):
            return x
        result: Value = self.b.broadcast_to(x, shape=tuple(shape))
        return result

    def permute(self, x: Value, order: Sequence[int]) -> Value:
        if tuple(order) == tuple(range(x.type.rank)):
            return x
        result: Value = self.b.transpose(x, permutation=tuple(order))
        return result

    def slice(self, x: Value, axis: int, start: Dim, size: Dim, step: int = 1) -> Value:
        """`size` elements of one axis from `start` on."""
        if start == 0 and step == 1 and size == x.shape[axis]:
            return x
        result: Value = self.b.slice(
            x,
            starts=tuple(start if n == axis else 0 for n in range(x.type.rank)),
            sizes=tuple(size if n == axis else s for n, s in enumerate(x.shape)),
            steps=tuple(step if n == axis else 1 for n in range(x.type.rank)),
        )
        return result

    def index(self, place: Dim, size: Dim) -> Dim:
        """A place counted from the front of an axis."""
        return place + size if dims.at_most(place, -1, self.facts) else place


def _torch(dtype: DType) -> Any:
    from .tensors import torch_dtype

    return torch_dtype(dtype)


def python_number(x: Any, dtype: DType) -> Any:
    """A Python number as an attribute of that dtype."""
    if dtype.kind == "bool":
        return bool(x)
    if dtype.is_integer:
        return int(x)
    return x if dtype.kind == "complex" else float(x)
