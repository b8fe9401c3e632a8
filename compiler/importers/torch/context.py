"""What a rule sees of an ATen node, and the table of rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ....ir import dims
from ....ir.dims import Dim
from ....ir.errors import Source, UnsupportedError
from ....ir.graph import Builder, Value
from ....ir.ops.table import OPS
from ....ir.types import DType, TensorType, boolean, i64
from .. import moves
from . import casts
from .symbols import Symbols
from .tensors import dtype_of

Rule: TypeAlias = Callable[..., Any]

ATEN: dict[str, Rule] = {}
"""Rules by operator: `aten.add`, or with its overload `aten.max.dim`, which goes first."""


QUANTIZED = "quantized_decomposed"
"""The namespace of torch's and torchao's quantizers."""
OTHERS = ("prims.", f"{QUANTIZED}.")
"""Namespaces of operators beside ATen's."""


def aten(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for ATen operators, named without their namespace; those of others are named with it."""

    def register(function: Rule) -> Rule:
        for name in names:
            full = name if name.startswith(OTHERS) else f"aten.{name}"
            if full in ATEN:
                raise ValueError(f"two rules for {full}")
            ATEN[full] = function
        return function

    return register


def find_rule(operator: str) -> Rule | None:
    """The rule of `aten.name.overload`, or None."""
    return ATEN.get(operator) or ATEN.get(operator.rpartition(".")[0])


@dataclass(frozen=True)
class Number:
    """A Python number that only a call decides and that is no size: a scalar of the program (f64, i64 or bool)."""

    value: Value


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
    given: tuple[Any, ...] = field(repr=False, default=())
    """What torch knows of each operand: a fake tensor with the layout of its memory, None of what is no tensor."""

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

    def as_result(self, number: int, value: Value) -> Value:
        """A value with the sizes and in the dtype that torch gives that result; as it is where nobody reads it."""
        expected = self.results[number]
        return value if expected is None else self.cast(self.reshape(value, expected.shape), expected.dtype)

    def fail(self, why: str) -> UnsupportedError:
        """The error that says why this node cannot be represented."""
        return UnsupportedError(f"{self.operator}: {why}", source=self.source)

    # values

    def cast(self, x: Value, dtype: DType) -> Value:
        """x in a dtype; itself where it has it."""
        return casts.cast(self.b, x, dtype)

    def value(self, x: Any, dtype: DType) -> Value:
        """A tensor, a number, a symbolic integer or a number that only a call decides, in a dtype."""
        if isinstance(x, Value):
            return self.cast(x, dtype)
        if isinstance(x, dims.Expr):
            return self.cast(self.symbols.integer(self.b, x), dtype)
        if isinstance(x, Number):
            return self.cast(x.value, dtype)
        result: Value = self.b.full(shape=(), value=python_number(x, dtype), dtype=dtype)
        return result

    def values(self, *xs: Any, dtype: DType | None = None) -> tuple[Value, ...]:
        """Operands in one dtype (default: the result's)."""
        return tuple(self.value(x, dtype or self.dtype) for x in xs)

    def scaled(self, op: str, x: Any, y: Any, dtype: DType | None = None) -> Value:
        """x times or over y. Torch takes a factor or divisor that is one number, of another dtype than the result's, as it is:
        of narrow floats they are float32, and what comes out is rounded once.
        """
        dtype = dtype or self.dtype
        wide = dtype.is_float and dtype.compute != dtype and _loses(y, dtype)
        result: Value = self.b.build(OPS[op], (self.value(x, dtype), self.value(y, dtype.compute if wide else dtype)), {})[0]
        return result

    def promoted(self, *xs: Any) -> DType:
        """The dtype that torch would compute these operands in."""
        import torch
        from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

        stand_ins = [torch.empty((1,) * x.type.rank, dtype=_torch(x.dtype), device="meta") if isinstance(x, Value) else x for x in xs]
        numbers = [2 if isinstance(x, dims.Expr) else _PYTHON[x.value.dtype.kind] if isinstance(x, Number) else x for x in stand_ins]
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
        return moves.reshape(self.b, x, shape)

    def expand(self, x: Value, shape: Sequence[Dim]) -> Value:
        """x broadcast to a shape."""
        return moves.broadcast(self.b, x, shape)

    def permute(self, x: Value, order: Sequence[int]) -> Value:
        return moves.transpose(self.b, x, order)

    def with_place(self, x: Value, axis: int, place: Dim = 0, negative: bool = False) -> Value:
        """x, whose axis must have a place, as eager's IndexError says; 0: must not be empty; `negative`: also from the end."""
        return moves.with_place(self.b, x, axis, place, negative)

    def with_places(self, x: Value, axis: int, count: Dim) -> Value:
        """x, whose axis must have so many places."""
        return moves.with_places(self.b, x, axis, count)

    def with_index(self, x: Value, axis: int, index: Dim) -> tuple[Value, Dim]:
        """x, whose axis must have a place that may be counted from the end, and that place counted from the front."""
        return self.with_place(x, axis, index, negative=True), self.index(index, x.shape[axis])

    def slice(self, x: Value, axis: int, start: Dim, size: Dim, step: Dim = 1) -> Value:
        """`size` elements of one axis from `start` on."""
        if not isinstance(step, int):
            # Slices have steps that are known; other places are computed.
            places = self.b.mul(self.b.iota(shape=(size,), axis=0, dtype=i64), self.value(step, i64))
            taken: Value = self.b.take(x, self.b.add(places, self.value(start, i64)), axis=axis)
            return taken
        return moves.slice_axis(self.b, x, axis, start, size, step)

    def index(self, place: Dim, size: Dim) -> Dim:
        """A place counted from the front of an axis; where its sign is not known, a factor of 0 or 1 decides."""
        if dims.at_most(place, -1, self.facts):
            return place + size
        if dims.at_most(0, place, self.facts):
            return place
        return place - size * dims.maximum(dims.minimum(place, 0), -1)


# A Python number of each kind: what torch promotes to depends on the kind alone.
_PYTHON: dict[str, bool | int | float] = {"bool": True, "int": 2, "float": 1.5}


def _torch(dtype: DType) -> Any:
    from .tensors import torch_dtype

    return torch_dtype(dtype)


def _loses(y: Any, dtype: DType) -> bool:
    """Whether y is one number, and none that a narrow float is known to hold."""
    if isinstance(y, Value):
        return y.type.rank == 0 and y.dtype != dtype and y.dtype.kind != "bool"
    if isinstance(y, (dims.Expr, Number)):
        return True
    with np.errstate(over="ignore"):
        number = float(np.float32(y))
        return number == number and float(np.asarray(number).astype(dtype.numpy)) != number


def python_number(x: Any, dtype: DType) -> Any:
    """A Python number as an attribute of that dtype; UnsupportedError for one that only a call decides."""
    if isinstance(x, (dims.Expr, Number)):
        raise UnsupportedError("a number that only a call decides stands where it must be known at build")
    if dtype.kind == "bool":
        return bool(x)
    if dtype.is_integer:
        return int(x)
    return x if dtype.kind == "complex" else casts.rounded(float(x), dtype)
