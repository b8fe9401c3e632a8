"""Building regions: the small language in which an op says its index structure, and the region of any one op."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count
from typing import Any

from .. import dims, scalar
from ..dims import Dim
from ..expression import Constant, Index
from ..region import Axis, Let, Load, Operand, Reduce, Ref, Region, Scalar, Scan, Statement, Store
from ..scalar import Traced
from ..types import DType, TensorType, i64
from .table import OpDef


class RegionBuilder:
    """Collects axes and statements; values are `Traced`, so the scalar primitives work on them directly.

    Operands are %x0, %x1 ... in order, outputs %y0, %y1 ... An absent optional operand keeps its number.
    """

    def __init__(
        self, name: str, operands: Sequence[TensorType | None], results: Sequence[TensorType], reserved: Iterable[str] = ()
    ) -> None:
        self.name = name
        # Axes and symbols share one namespace: an axis takes no name that a size already has.
        types = [t for t in (*operands, *results) if t is not None]
        self.reserved = frozenset(reserved).union(*(dims.symbols(size) for t in types for size in t.shape))
        self.operands = tuple(None if t is None else Operand(f"x{n}", t) for n, t in enumerate(operands))
        self.outputs = tuple(Operand(f"y{n}", t) for n, t in enumerate(results))
        self.axes: list[Axis] = []
        self.body: list[Statement] = []

    def axis(self, extent: Dim, name: str = "i") -> Dim:
        """A new axis 0..extent, as an index expression; the name is made unique."""
        taken = self.reserved | {axis.name for axis in self.axes}
        unique = next(n for n in chain((name,), (f"{name}{k}" for k in count(1))) if n not in taken)
        self.axes.append(Axis(unique, extent))
        return dims.symbol(unique)

    def grid(self, shape: Sequence[Dim], name: str = "i") -> tuple[Dim, ...]:
        """One axis for each size."""
        return tuple(self.axis(extent, name) for extent in shape)

    def load(self, operand: int, subscripts: Sequence[Dim | Traced], other: bool | float | None = None, compute: bool = True) -> Traced:
        """Operand number `operand` at `subscripts` (index expressions, or loaded integers for a gather).

        `other` is the value outside the operand; with `compute` narrow floats are cast to their compute type.
        """
        spec = self.operands[operand]
        if spec is None:
            raise ValueError(f"{self.name}: operand {operand} is absent")
        plain, gathers = self._subscripts(subscripts)
        outside = None if other is None else Constant(scalar.literal_of(other, spec.type.dtype), spec.type.dtype)
        value = Traced(Load(spec.name, plain, spec.type.dtype, outside, gathers), spec.type.dtype)
        return scalar.cast(value, spec.type.dtype.compute) if compute else value

    def broadcast_load(self, operand: int, subscripts: Sequence[Dim]) -> Traced:
        """The operand at the trailing subscripts, 0 along its dimensions of size 1 (numpy broadcasting)."""
        spec = self.operands[operand]
        if spec is None:
            raise ValueError(f"{self.name}: operand {operand} is absent")
        shape = spec.type.shape
        trailing = subscripts[len(subscripts) - len(shape) :]
        return self.load(operand, [0 if size == 1 else s for size, s in zip(shape, trailing, strict=True)])

    def broadcast_matrix(self, operand: int, groups: Sequence[Dim], matrix: Sequence[Dim]) -> Traced:
        """The operand at `matrix` in its last dimensions, its leading ones broadcast against `groups`."""
        spec = self.operands[operand]
        if spec is None:
            raise ValueError(f"{self.name}: operand {operand} is absent")
        lead = spec.type.shape[: spec.type.rank - len(matrix)]
        trailing = groups[len(groups) - len(lead) :]
        return self.load(operand, [*(0 if size == 1 else axis for size, axis in zip(lead, trailing, strict=True)), *matrix])

    def index(self, value: Dim, dtype: DType = i64) -> Traced:
        """An index expression as data."""
        return Traced(Index(value, dtype), dtype)

    def constant(self, value: bool | int | float | complex, dtype: DType) -> Traced:
        """A scalar literal."""
        return Traced(Constant(value, dtype), dtype)

    def let(self, value: Traced, axes: Sequence[Dim]) -> Traced:
        """Name a value, one element for each point of `axes`."""
        name = f"t{len(self.body)}"
        self.body.append(Let(name, _names(axes), value.value))
        return Traced(Ref(name, value.dtype), value.dtype)

    def reduce(self, kind: str, over: Sequence[Dim], value: Traced, axes: Sequence[Dim]) -> Traced:
        """Fold `value` over the axes `over`; the result varies over `axes`."""
        name = f"t{len(self.body)}"
        dtype = i64 if kind.startswith("arg") else value.dtype
        self.body.append(Reduce(name, _names(axes), kind, _names(over), value.value, dtype))
        return Traced(Ref(name, dtype), dtype)

    def scan(self, kind: str, along: Dim, value: Traced, axes: Sequence[Dim], exclusive: bool = False, reverse: bool = False) -> Traced:
        """The running fold of `value` along one of `axes`."""
        name = f"t{len(self.body)}"
        self.body.append(Scan(name, _names(axes), kind, _names([along])[0], value.value, value.dtype, exclusive, reverse))
        return Traced(Ref(name, value.dtype), value.dtype)

    def store(
        self, output: int, subscripts: Sequence[Dim | Traced], value: Traced, axes: Sequence[Dim] | None = None, combine: str | None = None
    ) -> None:
        """output[subscripts] = value at each point of `axes` (default: the subscripts, which are then plain axes)."""
        spec = self.outputs[output]
        plain, gathers = self._subscripts(subscripts)
        names = _names(axes) if axes is not None else _names([s for s in plain if not isinstance(s, int)])
        self.body.append(Store(spec.name, names, plain, scalar.rounded(value, spec.type.dtype).value, gathers, combine))

    def finish(self) -> Region:
        """The region."""
        inputs = tuple(operand for operand in self.operands if operand is not None)
        return Region(self.name, inputs, self.outputs, tuple(self.axes), tuple(self.body))

    def _subscripts(self, subscripts: Sequence[Dim | Traced]) -> tuple[tuple[Dim, ...], tuple[tuple[str, Scalar], ...]]:
        plain: list[Dim] = []
        gathers: list[tuple[str, Scalar]] = []
        for subscript in subscripts:
            if isinstance(subscript, Traced):
                placeholder = f"%g{len(gathers)}"
                gathers.append((placeholder, subscript.value))
                plain.append(dims.symbol(placeholder))
            else:
                plain.append(subscript)
        return tuple(plain), tuple(gathers)


def _names(axes: Sequence[Dim]) -> tuple[str, ...]:
    names: list[str] = []
    for axis in axes:
        found = dims.symbols(axis)
        if len(found) != 1 or str(axis) not in found:
            raise ValueError(f"{axis} is not an axis")
        names.append(str(axis))
    return tuple(names)


def region_of(
    definition: OpDef,
    operands: Sequence[TensorType | None],
    attrs: Mapping[str, Any],
    name: str | None = None,
    symbols: Iterable[str] = (),
) -> Region | None:
    """The region of one op, derived for a pointwise op; None for an opaque one.

    No axis is called as one of `symbols`: those of other ops, whose regions may become one with this.
    """
    results = definition.infer(tuple(operands), attrs)
    own = frozenset(symbols).union(*map(dims.symbols, dims.within(tuple(attrs.values()))))
    builder = RegionBuilder(name or definition.name, operands, results, own)
    if definition.build_region is not None:
        definition.build_region(builder, *operands, **definition.complete(attrs))
        return builder.finish()
    if definition.kind != "pointwise":
        return None
    subscripts = builder.grid(results[0].shape)
    leaves = [None if operand is None else builder.broadcast_load(n, subscripts) for n, operand in enumerate(operands)]
    value = definition.body(*leaves, **definition.complete(attrs))
    builder.store(0, subscripts, value, axes=subscripts)
    return builder.finish()
