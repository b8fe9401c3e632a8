"""2:4 sparse factors of a contraction, expanded in registers as a prologue of the `dot`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from ...ir import dims
from ...ir.codes import number_of
from ...ir.dims import Dim
from ...ir.expression import Apply, Index
from ...ir.region import Load, Ref, Region, Scalar, transform
from ...ir.tile.program import Expand2to4, TileType, Unpack, Value
from ...ir.types import u8
from ..regions.contraction import axes_of, plain_load
from ..regions.selections import Selection, find_selections
from .lower import Block

GROUP, CHOSEN = 4, 2
MOST = 512
"""Numbers that are computed wait in a cache tile, where a sum has at most so many."""
Lanes: TypeAlias = tuple[str, int]
"""A tile axis and how many lanes it has."""
EXPANDED = "%expanded"
"""With a number after it, the name under which a factor reads its expanded tile."""


def with_expansion(
    block: Block, region: Region, value: Scalar, along: str, tile_axis: str, base: Dim, extent: int, lanes: Lanes | None = None
) -> Scalar:
    """The factor with its 2:4 numbers read from tiles: element `base + lane` of `along` at each lane of `tile_axis`.

    `base` is a multiple of 8, as many numbers as the positions of a byte serve. If `extent` is none, or positions are not packed, the
    factor comes back as it is, and each element looks for its number. Numbers that are more than loaded are computed in a loop of their
    own where it is known along which `lanes` they lie.
    """
    size = region.axis(along).extent
    if not isinstance(size, int):
        return value
    for found in find_selections(region, value, along):
        packed = _packed(found, size * CHOSEN // GROUP)
        if packed is None or (found.group, found.chosen) != (GROUP, CHOSEN) or extent % packed.served:
            continue
        if axes_of(found.number) - {found.kept} != axes_of(packed.load) - {packed.place}:
            continue
        whole = lanes if base == 0 and extent == size <= MOST and plain_load(found.number) is None else None
        name = f"{EXPANDED}.{len(block.readers)}"
        block.readers[name] = lambda inner, found=found, packed=packed, whole=whole: _expanded(  # type: ignore[misc]
            inner, found, packed, tile_axis, base, size, extent, whole
        )
        value = transform(value, lambda part, found=found, name=name: Ref(name, found.number.dtype) if part == found.expression else None)  # type: ignore[misc]
    return value


@dataclass(frozen=True)
class _Fields:
    """Positions that are fields of bytes: the byte at `place`, which counts bytes, and the bits of a field; the first is the lowest."""

    load: Load
    place: str
    bits: int

    @property
    def served(self) -> int:
        """The numbers that the positions of one byte serve, those that are not kept included."""
        return u8.bits // self.bits * GROUP // CHOSEN


def _packed(found: Selection, kept_numbers: int) -> _Fields | None:
    """The bytes that positions are fields of, if position n is field n % count of byte n // count."""
    masked = found.position
    if not (isinstance(masked, Apply) and masked.primitive == "bit_and"):
        return None
    shifted, mask = sorted(masked.args, key=lambda arg: number_of(arg) is not None)
    bits = next((bits for bits in (1, 2, 4) if number_of(mask) == (1 << bits) - 1), 0)
    if not (isinstance(shifted, Apply) and shifted.primitive == "shift_right" and bits):
        return None
    load, amount = shifted.args
    while isinstance(load, Apply) and load.primitive == "cast" and load.dtype.is_integer:
        load = load.args[0]
    count, kept, place = u8.bits // bits, dims.symbol(found.kept), f"{found.kept}.byte"
    if not (isinstance(load, Load) and load.dtype == u8 and isinstance(amount, Index)):
        return None
    if dims.equal(amount.value, kept % count * bits, dims.NO_FACTS.with_axis(found.kept, kept_numbers)) is not True:
        return None
    whole, facts = {found.kept: dims.symbol(place) * count + dims.symbol("field")}, dims.NO_FACTS.with_axis("field", count)
    subscripts = tuple(dims.simplify(dims.substitute(s, whole), facts) for s in load.subscripts)
    varies = any("field" in dims.symbols(s) for s in subscripts)
    return None if varies else _Fields(replace(load, subscripts=subscripts), place, bits)


def _expanded(
    block: Block, found: Selection, packed: _Fields, tile_axis: str, base: Dim, size: int, extent: int, whole: Lanes | None
) -> Value:
    """expand_2to4 of the kept numbers, in a cache tile for `whole` lanes, and their positions on axes of their own, which end here."""
    local = None if whole is None else _computed(block, found, whole, extent // CHOSEN)
    outer = list(block.axes)
    half = block.axis("kept", base // CHOSEN, size // CHOSEN, extent // CHOSEN)
    block.axes = _beside(outer, tile_axis, half)
    block.index[found.kept] = dims.symbol(half)
    if local is None or whole is None:
        values = block.lower(found.number)
    else:
        values = block.load(local, (dims.symbol(half), dims.symbol(f"{whole[0]}.lane")), found.number.dtype)
    byte = block.axis("places", base // packed.served, -(-size // packed.served), extent // packed.served)
    block.axes = _beside(outer, tile_axis, byte)
    block.index[packed.place] = dims.symbol(byte)
    bytes_ = block.lower(packed.load)
    if byte not in bytes_.type.axes:
        # One byte serves all.
        bytes_ = block.apply("bit_or", bytes_, block.full(0, u8, (byte,)))
    of_places = tuple(half if a == byte else a for a in bytes_.type.axes)
    positions = Unpack(bytes_, byte, half, packed.bits, TileType(packed.load.dtype, of_places))
    block.axes = outer
    axes = tuple(tile_axis if a == half else a for a in values.type.axes)
    return Expand2to4(values, positions, half, tile_axis, TileType(found.number.dtype, axes))


def _beside(axes: list[str], tile_axis: str, axis: str) -> list[str]:
    """The axes with one more, in front of that along which numbers are expanded: so what they are read into lies as it does."""
    return [name for each in axes for name in ((axis, each) if each == tile_axis else (each,))]


def _computed(block: Block, found: Selection, lanes: Lanes, count: int) -> str:
    """A cache tile of the kept numbers, computed one after the other."""
    columns, width = lanes
    local = block.local("numbers", found.number.dtype, (("kept", count), ("lane", width)))
    with block.loop("each", "scalar", 0, count, 1) as each:
        block.index[found.kept] = dims.symbol(each)
        block.store(local, (dims.symbol(each), dims.symbol(f"{columns}.lane")), block.lower(found.number))
    return local
