"""2:4 sparse factors of a contraction: found in a region's expressions, expanded in registers as a prologue of the `dot`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...ir import dims
from ...ir.dims import Dim
from ...ir.expression import Apply, Constant, Index
from ...ir.ops.structure import region_of
from ...ir.ops.table import OPS
from ...ir.region import Load, Ref, Region, Scalar, Store, substitute, transform, walk
from ...ir.tile.program import Expand2to4, TileType, Unpack, Value
from ...ir.types import DType
from .lower import Block, zero

GROUP = 4
EXPANDED = "%expanded"
"""With an operand's name after it, the name under which a factor reads its expanded tile."""


@dataclass(frozen=True)
class Expansion:
    """decompress_2to4 of two operands along one axis, as it stands in a region: the subscripts of the dense element."""

    values: str
    positions: str
    axis: int
    subscripts: tuple[Dim, ...]
    packed: bool
    dtype: DType
    expression: Scalar


def find_expansion(region: Region, value: Scalar, along: str) -> Expansion | None:
    """The first expansion along an axis in an expression, whose other subscripts do not vary along it."""
    for part in walk(value):
        found = _read(region, part, along) if isinstance(part, Apply) and part.primitive == "where" else None
        if found is not None:
            return found
    return None


def _read(region: Region, value: Scalar, along: str) -> Expansion | None:
    """An expansion, if the expression is what the op's own region says for operands and axes found in it."""
    loads = {part.operand: part for part in walk(value) if isinstance(part, Load)}
    if len(loads) != 2 or not isinstance(value, Apply):
        return None
    kept = next((part for part in (value.args[1],) if isinstance(part, Load)), None)
    places = next((load for name, load in loads.items() if kept is not None and name != kept.operand), None)
    if kept is None or places is None or len(kept.subscripts) != len(places.subscripts):
        return None
    axes = [n for n, s in enumerate(kept.subscripts) if along in dims.symbols(s) and str(s) != along]
    if len(axes) != 1:
        return None
    (axis,) = axes
    subscripts = tuple(dims.symbol(along) if n == axis else s for n, s in enumerate(kept.subscripts))
    types = (region.operand(kept.operand).type, region.operand(places.operand).type)
    op = region_of(OPS["decompress_2to4"], types, {"axis": axis})
    store = op.body[-1] if op is not None else None
    if op is None or not isinstance(store, Store):
        return None
    named = dict(zip((a.name for a in op.axes), subscripts, strict=True))
    expected = substitute(store.value, named, operands={"x0": kept.operand, "x1": places.operand})
    facts = region.facts()
    if _tidy(expected, facts) != _tidy(value, facts):
        return None
    packed = types[0].shape != types[1].shape
    return Expansion(kept.operand, places.operand, axis, subscripts, packed, kept.dtype, value)


def _tidy(value: Scalar, facts: dims.Facts) -> Scalar:
    """The expression with its index expressions in one form."""

    def change(part: Scalar) -> Scalar | None:
        if isinstance(part, Index):
            return replace(part, value=dims.simplify(part.value, facts))
        if isinstance(part, Load):
            return replace(part, subscripts=tuple(dims.simplify(s, facts) for s in part.subscripts))
        return None

    return transform(value, change)


def with_expansion(block: Block, region: Region, value: Scalar, along: str, tile_axis: str, base: Dim, extent: int) -> Scalar:
    """The factor with its expansion read from a tile: element `base + lane` of `along` at each lane of `tile_axis`.

    `base` is a multiple of 8 and `extent` is one of 8 (4 where each place has an element of its own); otherwise the
    factor comes back as it is, and each element looks for its value.
    """
    found = find_expansion(region, value, along)
    size = region.axis(along).extent
    if found is None or not isinstance(size, int) or extent % (2 * GROUP if found.packed else GROUP):
        return value
    name = f"{EXPANDED}.{found.values}"
    block.readers[name] = lambda inner: _expanded(inner, found, tile_axis, base, size, extent)
    return transform(value, lambda part: Ref(name, found.dtype) if part == found.expression else None)


def _expanded(block: Block, found: Expansion, tile_axis: str, base: Dim, size: int, extent: int) -> Value:
    """expand_2to4 of the kept values and their places on axes of their own, which end here."""
    outer = list(block.axes)
    half = block.axis("kept", base // 2, size // 2, extent // 2)
    values = _part(block, found, found.values, half, found.dtype)
    positions_dtype = block.problem.region.operand(found.positions).type.dtype
    if found.packed:
        byte = block.axis("places", base // (2 * GROUP), -(-size // (2 * GROUP)), extent // (2 * GROUP))
        packed = _part(block, found, found.positions, byte, positions_dtype)
        axes = tuple(half if a == byte else a for a in packed.type.axes)
        positions: Value = Unpack(packed, byte, half, 2, TileType(positions_dtype, axes))
    else:
        positions = _part(block, found, found.positions, half, positions_dtype)
    block.axes = outer
    axes = tuple(tile_axis if a == half else a for a in values.type.axes)
    return Expand2to4(values, positions, half, tile_axis, TileType(found.dtype, axes))


def _part(block: Block, found: Expansion, operand: str, axis: str, dtype: DType) -> Value:
    """One operand with its own axis in place of the dense one."""
    mapped = [dims.substitute(s, block.index) for s in found.subscripts]
    mapped[found.axis] = dims.symbol(axis)
    return block.load(operand, mapped, dtype, Constant(zero(dtype), dtype) if block.outside else None)
