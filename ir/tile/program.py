"""Tile programs: how a region is computed. Every loop level is explicit; a tile's axes have names.

This file owns the words; `text.py` prints and parses them, `verify.py` checks them, `bounds.py` says which accesses
need a mask, `interpret.py` executes them. Index rules:

- A *tile axis* `i` (grid axis with step, `for i in lo..hi step n`, `for ii in i step 12`, `axis d in lo..hi extent n`)
  has three names in index expressions: `i` the vector of absolute indices, `i.first` its start, `i.lane` 0..extent-1.
- A *scalar axis* (`for s in lo..hi by n`, grid axis of step None) is one integer.
- A subscript may name a scalar value of the program as `%name` (its type must be an integer with no axes or, for a
  gather, with axes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ..dims import Dim
from ..expression import Apply, Constant
from ..layout import Layout
from ..making import Making
from ..types import DType


@dataclass(frozen=True)
class TileType:
    """dtype[axes]: one element for each point of the named axes, in register order, the last axis is the lanes."""

    dtype: DType
    axes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(self.axes)}]" if self.axes else str(self.dtype)


@dataclass(frozen=True)
class Made:
    """What an operand is made of when building: the constant `operand`, and how."""

    operand: str
    how: Making


@dataclass(frozen=True)
class Param:
    """A tensor operand of a launch: `dims` are (label, extent) of its logical dimensions; role in, out or inout.

    `strides` (elements, one per dimension) is None for a contiguous tensor; with `layout` memory order is the
    layout's. A workspace of the program is a Param that several launches name, listed in `TileProgram.workspaces`; one that
    is `made` is no operand of the region.
    """

    name: str
    dtype: DType
    dims: tuple[tuple[str, Dim], ...]
    role: str = "in"
    layout: Layout | None = None
    strides: tuple[Dim, ...] | None = None
    made: Made | None = None

    @property
    def shape(self) -> tuple[Dim, ...]:
        return tuple(extent for _, extent in self.dims)


# --- values -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ref:
    """A value named before: register tiles, scalars and carried values."""

    name: str
    type: TileType


@dataclass(frozen=True)
class Full:
    """Every element is `value`."""

    value: Constant
    type: TileType


@dataclass(frozen=True)
class Index:
    """An index expression as data; `type` names the axes it varies over."""

    value: Dim
    type: TileType


@dataclass(frozen=True)
class Load:
    """operand[subscripts] for every point of `type.axes`; lanes that must be masked are `other`, poison if None.

    `operand` is a Param, a workspace or a Local. `hints`: "descriptor", "evict_first", "evict_last", "streaming".
    """

    operand: str
    subscripts: tuple[Dim, ...]
    type: TileType
    other: Constant | None = None
    hints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dot:
    """acc + sum over the axes that `type` lacks of left * right; operands may be nested loads (streamed) or tiles.

    `precision`: exact (products and sums in the accumulator type), tf32, tf32x3; pairs, where products of two neighbours (the first
    and the second along the sum, the third and the fourth) are added in 16 bits, which saturate. `left_scale`, `right_scale` are block
    scales or None: over axes of their operand, or one of blocks for the contracted one, of which each holds neighbours in equal numbers.
    """

    left: Value
    right: Value
    acc: Value
    type: TileType
    precision: str = "exact"
    left_scale: Value | None = None
    right_scale: Value | None = None


@dataclass(frozen=True)
class Reduce:
    """Fold `axis` of `value`: sum, prod, max, min, any, all, argmax, argmin. It does not mask."""

    kind: str
    axis: str
    value: Value
    type: TileType


@dataclass(frozen=True)
class Scan:
    """Running sum, prod, max or min along `axis`, inclusive."""

    kind: str
    axis: str
    value: Value
    type: TileType
    reverse: bool = False


@dataclass(frozen=True)
class Rename:
    """The same elements under other axes: `split i -> (a, b)`, `merge (a, b) -> i`, or plain `rename i -> j`."""

    value: Value
    before: tuple[str, ...]
    after: tuple[str, ...]
    type: TileType


@dataclass(frozen=True)
class Slice:
    """One of the equal parts of axis `before`, the one with number `part`, as axis `after`."""

    value: Value
    before: str
    after: str
    part: int
    type: TileType


@dataclass(frozen=True)
class Join:
    """Two tiles of the same type interleaved along a new last axis of extent 2, `axis`."""

    left: Value
    right: Value
    axis: str
    type: TileType


@dataclass(frozen=True)
class Unpack:
    """Bytes to packed fields: axis `before` of bytes becomes `after` of fields, `bits` wide, low field first; floats of so many bits are
    what the fields say."""

    value: Value
    before: str
    after: str
    bits: int
    type: TileType


@dataclass(frozen=True)
class Expand2to4:
    """2:4 sparse values and their 2-bit positions to a dense tile: axis `before` (half) becomes `after`.

    Of two values with one position the first counts.
    """

    values: Value
    positions: Value
    before: str
    after: str
    type: TileType


@dataclass(frozen=True)
class TileApply(Apply["Value"]):
    """A scalar primitive on tiles; operands broadcast by axis name."""

    type: TileType = field(kw_only=True)


Value: TypeAlias = Ref | Full | Index | Load | Dot | Reduce | Scan | Rename | Slice | Join | Unpack | Expand2to4 | TileApply


# --- statements -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Let:
    """%name = value; a second Let of the same name inside a loop that carries it rebinds it."""

    name: str
    value: Value


@dataclass(frozen=True)
class Store:
    """operand[subscripts] = value over the value's axes, guarded by the axes' domains.

    `atomic`: None, or "add", "max", "min" (integers only). `operand` may be a Local. `hints`: as of loads; what goes by a descriptor is
    for other launches, not for programs of this one.
    """

    operand: str
    subscripts: tuple[Dim, ...]
    value: Value
    atomic: str | None = None
    hints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Local:
    """An addressable tile that lives until the end of the enclosing block; subscripts from 0, constant extents.

    space: register, shared, tensor, cache (the CPU's stack) or workspace (global memory). With a `layout`, which pads nothing, its
    elements lie in another order than that of its subscripts.
    """

    name: str
    dtype: DType
    dims: tuple[tuple[str, Dim], ...]
    space: str
    layout: Layout | None = None

    @property
    def shape(self) -> tuple[Dim, ...]:
        return tuple(extent for _, extent in self.dims)


@dataclass(frozen=True)
class Copy:
    """Local %target = %source elementwise (accumulator tiles to memory, global to shared)."""

    target: str
    source: str


@dataclass(frozen=True)
class AxisDecl:
    """axis name in low..high extent n: opens a tile axis without a loop; index = low + lane, domain index < high."""

    name: str
    low: Dim
    high: Dim
    extent: int


@dataclass(frozen=True)
class For:
    """A loop. kind `tile`: `name` is a tile axis of extent `step` over low..high; kind `scalar`: one integer by `step`;
    kind `walk`: `name` walks the tile axis `parent` by `step`, clipped to it (low and high are ignored).

    `tail` is a ladder of smaller steps for the remainder, () masks it. `carries` are the values that the body
    rebinds. `hints`: ("stages", 3), ("unroll", 1), ("specialise", 1), ("flatten", 1): one loop with those inside it.
    """

    name: str
    kind: str
    low: Dim
    high: Dim
    step: int
    body: tuple[Statement, ...]
    parent: str | None = None
    tail: tuple[int, ...] = ()
    carries: tuple[str, ...] = ()
    hints: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class If:
    """A scalar condition; both blocks may rebind `carries`. One that is `seldom` true is priced as if it never were."""

    condition: Value
    body: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()
    carries: tuple[str, ...] = ()
    seldom: bool = False


@dataclass(frozen=True)
class Signal:
    """Release: counter[subscripts] += 1 after all stores before it."""

    counter: str
    subscripts: tuple[Dim, ...]


@dataclass(frozen=True)
class Wait:
    """Acquire: until counter[subscripts] >= value; only grid points earlier in order may signal it."""

    counter: str
    subscripts: tuple[Dim, ...]
    value: Dim


Statement: TypeAlias = Let | Store | Local | Copy | AxisDecl | For | If | Signal | Wait


# --- programs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GridAxis:
    """name: low..high step n (a tile axis), or step None (one integer each)."""

    name: str
    low: Dim
    high: Dim
    step: int | None = None


@dataclass(frozen=True)
class Counter:
    """An i32 counter array, zeroed by the plan before each run."""

    name: str
    extent: Dim


@dataclass(frozen=True)
class Launch:
    """One kernel: operands, counters, a grid of independent points (row-major, last axis fastest), a body.

    hints: `order` plain | reversed (along the last axis) | grouped(n), `handout` static | queue | persistent, warps, stages, cluster,
    `specialise` 1: the programs of a persistent launch have warps of several kinds.
    """

    name: str
    params: tuple[Param, ...]
    grid: tuple[GridAxis, ...]
    body: tuple[Statement, ...]
    counters: tuple[Counter, ...] = ()
    hints: tuple[tuple[str, str | int], ...] = ()

    def param(self, name: str) -> Param:
        """The operand of that name; KeyError if there is none."""
        for param in self.params:
            if param.name == name:
                return param
        raise KeyError(name)

    def hint(self, name: str, default: str | int) -> str | int:
        return dict(self.hints).get(name, default)


@dataclass(frozen=True)
class TileProgram:
    """Launches in order and the workspaces between them; `symbols` are the sizes all of it may name."""

    name: str
    launches: tuple[Launch, ...]
    workspaces: tuple[Param, ...] = ()
    symbols: tuple[str, ...] = ()

    @property
    def params(self) -> dict[str, Param]:
        """The operands of its launches by name, in the role that the last one has."""
        return {param.name: param for launch in self.launches for param in launch.params}

    @property
    def made(self) -> tuple[tuple[Param, Made], ...]:
        """The operands of its launches that are made of others, each once, and of what."""
        return tuple((param, param.made) for param in self.params.values() if param.made is not None)


def parts(value: Value) -> tuple[Value, ...]:
    """The operands of a value."""
    if isinstance(value, TileApply):
        return value.args
    if isinstance(value, Dot):
        scales = tuple(s for s in (value.left_scale, value.right_scale) if s is not None)
        return (value.left, value.right, value.acc, *scales)
    if isinstance(value, (Reduce, Scan, Rename, Slice, Unpack)):
        return (value.value,)
    if isinstance(value, Join):
        return (value.left, value.right)
    if isinstance(value, Expand2to4):
        return (value.values, value.positions)
    return ()


def with_parts(value: Value, new: tuple[Value, ...]) -> Value:
    """The value with other operands, as many as `parts` gives."""
    if new == parts(value):
        return value
    if isinstance(value, TileApply):
        return replace(value, args=new)
    if isinstance(value, Dot):
        scales = iter(new[3:])
        left, right = (None if scale is None else next(scales) for scale in (value.left_scale, value.right_scale))
        return replace(value, left=new[0], right=new[1], acc=new[2], left_scale=left, right_scale=right)
    if isinstance(value, (Reduce, Scan, Rename, Slice, Unpack)):
        return replace(value, value=new[0])
    if isinstance(value, Join):
        return replace(value, left=new[0], right=new[1])
    if isinstance(value, Expand2to4):
        return replace(value, values=new[0], positions=new[1])
    return value


def transform(value: Value, change: Callable[[Value], Value | None]) -> Value:
    """`value` rebuilt with `change` applied top down; None keeps a value and goes on into its parts."""
    changed = change(value)
    return with_parts(value, tuple(transform(part, change) for part in parts(value))) if changed is None else changed


def walk(value: Value) -> Iterator[Value]:
    """Every sub-value, itself first."""
    yield value
    for part in parts(value):
        yield from walk(part)


def statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Every statement of a body, nested ones included, in order."""
    for statement in body:
        yield statement
        if isinstance(statement, For):
            yield from statements(statement.body)
        elif isinstance(statement, If):
            yield from statements(statement.body)
            yield from statements(statement.otherwise)
