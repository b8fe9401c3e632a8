"""Codes that many rows share, decoded once: other programs of `packed`, in tiles of matrices, by dot products or in floats.

Codes of a block of columns and the whole sum, of fewer bits than a byte or 2:4 sparse, become bytes in panels of a cache tile, or floats
where these are multiplied. Where
blocks are summed each is a product of matrices; its sums are scaled and added up as register blocks do it, to the bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from ....ir import dims
from ....ir.codes import FOUR, LOOKUPS, bounds, number_of, tabulate
from ....ir.dims import Dim
from ....ir.expression import Apply, Constant
from ....ir.region import Reduce, Ref, Scalar, transform, walk
from ....ir.target import CpuLevel
from ....ir.tile.program import Dot, TileType, Value
from ....ir.tile.program import Load as TileLoad
from ....ir.tile.program import Ref as TileRef
from ....ir.types import f32, i8, u8
from ...regions.contraction import Contraction, in_fours, plain_load, stride_of, unwidened
from ..expand import with_expansion
from ..lower import Block
from ..schedule import Problem, Schedule
from .codes import HALF
from .matrix import SIDE
from .register_blocks import RegisterBlocks, accumulated, cast, scaled_onto, together

ROOM = 3 << 18
"""Bytes of panels, and of the left factor's sums, at most: a kernel may hold a third more in arrays."""
FEW = 8
"""Rows at most that fill less than half of a tile."""
LEAST = 32
"""Terms of a block that fill half of a tile."""
RUN = 16
"""Codes of a column that are decoded in one step, at most: more are no longer printed one after the other."""
TOGETHER = 4
"""Blocks at most whose products come before the first of them is scaled."""
GRIDS = ((512, 256), (256, 256), (128, 256), (512, 512), (128, 1024))
"""Rows and columns of grid tiles: codes are decoded once for each, and the left factor's sums found."""


def blocks_of_codes(problem: Problem, found: Contraction, target: CpuLevel) -> Contraction | None:
    """A contraction that sums up blocks of codes as tiles take them; None of one that they do not."""
    return with_signs(found) if _are_taken(problem, found, target) else None


def shapes(problem: Problem, codes: Contraction) -> Iterator[tuple[int, int, int, int]]:
    """(m, n, mr, nr): two rows of tiles and two columns of them, or one row and four, as far as there is room for what all share; none
    where few rows do.
    """
    extents = [problem.typical(problem.region.axis(name).extent) for name in codes.over]
    blocks = 0 if codes.alone is None else prod(extents[: -len(codes.streamed)])
    if problem.typical(problem.region.axis(codes.rows[-1]).extent) <= FEW:
        return
    for (m, n), (rows, columns) in itertools.product(GRIDS, ((2 * SIDE, 2 * SIDE), (SIDE, 4 * SIDE))):
        if prod(extents) * columns + m * blocks * codes.reduce.dtype.itemsize <= ROOM:
            yield m, n, rows, columns


def _are_taken(problem: Problem, found: Contraction, target: CpuLevel) -> bool:
    """Whether tiles take the blocks of a contraction: bytes in sums of a known length, of which the left ones of a block lie together."""
    left, right, region = plain_load(found.left), unwidened(found.right), problem.region
    extents = [extent for name in found.over if isinstance(extent := region.axis(name).extent, int)]
    if left is None or not is_decoded(problem, found) or len(extents) < len(found.over):
        return False
    sizes = extents[len(extents) - len(found.streamed) :]
    lies = [stride_of(left, region, name) for name in found.streamed] == [prod(sizes[n + 1 :]) for n in range(len(sizes))]
    is_known = target.matrix(left.dtype.name, right.dtype.name, "i32") is not None
    return is_known and (lies or found.block is None) and prod(sizes) >= LEAST


def is_decoded(problem: Problem, found: Contraction) -> bool:
    """Whether rows share bytes that are computed from codes."""
    return bool(found.rows) and plain_load(found.right) is None and in_fours(problem.region, found, problem.symbols)


def is_computed(found: Contraction) -> bool:
    """Whether rows share floats that are computed from codes, of 8 bits or fewer, or from anything else."""
    load = plain_load(found.right)
    is_cheap = load is not None and not (load.dtype.is_float and load.dtype.bits <= 8)
    return bool(found.rows) and not is_cheap and (found.block or found.reduce).dtype == f32


def panels_fit(problem: Problem, found: Contraction, columns: int) -> bool:
    """Whether there is room for the bytes or floats of so many columns, and there are rows enough to share them."""
    extents = [problem.region.axis(name).extent for name in found.over]
    size = columns * (f32.itemsize if is_computed(found) else 1)
    has_room = all(isinstance(extent, int) for extent in extents) and prod(map(problem.typical, extents)) * size <= ROOM
    return has_room and problem.typical(problem.region.axis(found.rows[-1]).extent) > FEW


def with_signs(found: Contraction) -> Contraction:
    """The contraction with codes that an integer was added to, where these are bytes with a sign: what it adds to the sum of a block,
    which is as many times the left factor's own sum, needs not be found.
    """
    codes: Scalar = unwidened(found.right)
    known = bounds(codes)
    if found.block is None or found.alone is None or codes.dtype != u8 or known is None:
        return found
    total, own, offsets = Ref(found.block.name, found.block.dtype), Ref(found.alone.name, found.alone.dtype), list[int]()

    def change(part: Scalar) -> Scalar | None:
        if not (isinstance(part, Apply) and part.primitive == "add" and part.dtype == total.dtype and total in part.args):
            return None
        more = next((arg for arg in part.args if isinstance(arg, Apply) and arg.primitive == "mul" and own in arg.args), None)
        numbers = [] if more is None else [n for arg in more.args if isinstance(n := number_of(arg), int)]
        offsets.extend(numbers)
        return total if numbers else None

    value = transform(found.reduce.value, change)
    if len(offsets) != 1 or own in walk(value) or known[0] + offsets[0] < -HALF or known[1] + offsets[0] >= HALF:
        return found
    moved: Scalar = Apply("add", (codes, Constant(offsets[0] % (2 * HALF), u8)), u8)
    if tabulate(moved, max(LOOKUPS)) is None:
        return found
    signed: Scalar = Apply("bitcast", (moved,), i8)
    right: Scalar = Apply("cast", (signed,), total.dtype)
    return replace(found, reduce=replace(found.reduce, value=value), right=right, alone=None)


class DecodedPanels(RegisterBlocks):
    """Builds the launch: each block of columns decodes the panels that its blocks of rows multiply by."""

    def __init__(self, problem: Problem, schedule: Schedule, found: Contraction, target: CpuLevel, in_tiles: bool = False) -> None:
        super().__init__(problem, schedule, found, target, in_tiles)
        kind = TileType((self.found.block or self.found.reduce).dtype)
        self.codes = accumulated(self.found.right, kind) if is_computed(found) else unwidened(self.found.right)
        """What panels hold."""
        self.outers = self.found.over[: -1 if self.found.block is None else -len(self.found.streamed)]
        self.parts = self.found.over[len(self.outers) : -1]
        self.sizes = {name: self.problem.typical(self.extents[name]) for name in self.found.over}

    def _panel(self, block: Block, columns: str) -> str:
        """All codes of a block of columns as bytes, four neighbours along the sum together, as instructions read them; or as floats."""
        extents = ("k", prod(self.sizes.values())), ("n", self.width)
        local = block.local("decoded", self.codes.dtype, extents, () if self.codes.dtype.is_float else together(FOUR))
        self._decode(block, columns, local, list(self.outers))
        return local

    def _copied_depth(self) -> int:
        return prod(self.sizes.values())

    def _decode(self, block: Block, columns: str, local: str, outers: list[str]) -> None:
        """Fill panels: loops over blocks, and the parts of one, of which there are few, one after the other."""
        if outers:
            with block.loop(outers[0], "scalar", 0, self.extents[outers[0]], 1) as outer:
                block.index[outers[0]] = dims.symbol(outer)
                self._decode(block, columns, local, outers[1:])
            return
        for at in itertools.product(*(range(self.sizes[name]) for name in self.parts)):
            block.index.update(zip(self.parts, at, strict=True))
            self._decode_run(block, columns, local)

    def _decode_run(self, block: Block, columns: str, local: str) -> None:
        """Codes along the innermost axis, in steps that bytes of places divide."""
        count = self.sizes[self.inner]
        if count <= RUN:
            axis = block.axis(self.inner, 0, count, count)
            self._decode_step(block, columns, local, axis, 0, count)
            block.axes.remove(axis)
            return
        step = next(step for step in (RUN, 8, FOUR) if count % step == 0)
        with block.loop(self.inner, "tile", 0, count, step) as axis:
            self._decode_step(block, columns, local, axis, dims.symbol(f"{axis}.first"), step)

    def _decode_step(self, block: Block, columns: str, local: str, axis: str, first: Dim, count: int) -> None:
        axes, lane = list(block.axes), dims.symbol(f"{columns}.lane")
        block.index[self.inner] = dims.symbol(axis)
        block.axes.remove(columns)
        block.axes.append(columns)
        codes = with_expansion(block, self.region, self.codes, self.inner, axis, first, count)
        block.store(local, (self._place(block), lane), self._of_columns(block, columns, codes))
        block.outside = False
        block.axes[:] = axes

    def _place(self, block: Block, names: Sequence[str] | None = None) -> Dim:
        """Where what is at hand stands in the panels, along these axes or all."""
        place: Dim = 0
        for name in self.found.over if names is None else names:
            place = place * self.sizes[name] + block.index[name]
        return place

    def _right(self, block: Block, kind: TileType, columns: str, panel: str | None) -> Value:
        assert panel is not None
        return self._loaded(block, kind, columns, panel, self._place(block))

    def _loaded(self, block: Block, kind: TileType, columns: str, panel: str, place: Dim) -> Value:
        """Decoded bytes from a place on, in the dtype of the sum."""
        axes = block.ordered({columns, *block.axes_in(place)})
        zero = Constant(0.0, self.codes.dtype) if block.outside else None
        return cast(block, TileLoad(panel, (place, dims.symbol(f"{columns}.lane")), TileType(self.codes.dtype, axes), zero), kind)


class DecodedBlocks(DecodedPanels):
    """Builds the launch of sums of blocks in tiles."""

    def __init__(self, problem: Problem, schedule: Schedule, found: Contraction, target: CpuLevel) -> None:
        super().__init__(problem, schedule, found, target, in_tiles=True)

    def _contract(self, block: Block, acc: TileRef, kind: TileType, columns: str, panel: str | None, over: list[str]) -> Value:
        """`acc` plus all blocks: the products of some, then each scaled, while tiles multiply the next."""
        if len(over) > len(self.found.streamed) + 1:
            return super()._contract(block, acc, kind, columns, panel, over)
        assert panel is not None and self.found.block is not None
        inner, count, lost = self.found.block, self.sizes[self.outers[-1]], self._lost(block, acc)
        ahead = max(n for n in range(1, TOGETHER + 1) if count % n == 0)
        carries = (acc,) if lost is None else (acc, lost)
        with block.loop(over[0], "scalar", 0, count, ahead, carries=carries) as first:
            places = [dims.symbol(first) + n for n in range(ahead)]
            totals = [self._product(block, places[0], kind, columns, panel, inner)]
            for number, place in enumerate(places):
                totals += [self._product(block, after, kind, columns, panel, inner) for after in places[number + 1 : number + 2]]
                total = totals[number]
                block.index[over[0]] = place
                block.readers[inner.name] = lambda _, total=total: total  # type: ignore[misc]
                scaled = self._of_columns(block, columns, self.found.reduce.value)
                self._add(block, acc, lost, over, lambda start, scaled=scaled: scaled_onto(block, start, scaled))  # type: ignore[misc]
        return acc

    def _product(self, block: Block, outer: Dim, kind: TileType, columns: str, panel: str, inner: Reduce) -> TileRef:
        """The sums of the products of one block."""
        part, count = TileType(inner.dtype, kind.axes), prod(self.sizes[name] for name in self.found.streamed)
        axis = block.axis(self.inner, 0, count, count)
        place: Dim = dims.symbol(axis)
        block.index[self.outers[-1]] = outer
        first, *others = self.found.streamed
        for name in reversed(others):
            whole = dims.floor_divide(place, self.sizes[name])
            block.index[name], place = place - whole * self.sizes[name], whole
        block.index[first] = place
        left = block.lower(accumulated(self.found.left, part))
        deep = self._place(block, self.outers) * count + dims.symbol(axis)
        right = self._loaded(block, part, columns, panel, deep)
        total = block.let("block", Dot(left, right, block.full(0, inner.dtype, part.axes), part))
        block.axes.remove(axis)
        return total
