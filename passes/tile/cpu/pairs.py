"""Products of bytes in pairs, on levels that have no instruction for four of them at once: fast where they fit 16 bits, exact anywhere.

Of a constant the packer says how large an unsigned byte may be in each stretch of a panel (ir/pairing.py); of the left factor the largest
byte of each block of rows is found in each stretch, once for a tile of the grid. Where that is no larger than this, sums of two products
fit 16 bits and are taken by one instruction; where it is larger they are widened first, as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....ir import dims
from ....ir.dims import Dim
from ....ir.layout import Factor, Layout
from ....ir.pairing import Pairing
from ....ir.region import Load
from ....ir.target import CpuLevel
from ....ir.tile.program import Dot, Made, Param, TileType, Value
from ....ir.tile.program import Reduce as TileReduce
from ....ir.tile.program import Ref as TileRef
from ....ir.types import i8, u8
from ...regions.contraction import Contraction, in_fours, plain_load
from ..lower import Block
from ..schedule import Problem, Schedule
from .register_blocks import RegisterBlocks, accumulated

PRECISION = "pairs"
"""What a dot is called whose products are added in pairs (ir/tile/program.py)."""
TERMS = 16
"""Terms that are told to fit together: more fit more seldom, fewer ask more often."""
ROOM = 1 << 18
"""Bytes of the largest ones of a grid tile, at most."""
PANELS, ROWS = 2, 2
"""Panels of a grid tile and rows of a block from which on it pays to look for the largest bytes."""


def takes_pairs(problem: Problem, schedule: Schedule, found: Contraction, target: CpuLevel) -> bool:
    """Whether products are taken in pairs: those of unsigned bytes by a constant, where no instruction takes four."""
    if target.vector_bits < 256 or target.dot("u8", "i8", "i32") is not None or not found.rows or found.block is not None:
        return False
    left, right = plain_load(found.left), plain_load(found.right)
    if left is None or right is None or (left.dtype, right.dtype) != (u8, i8) or not in_fours(problem.region, found, problem.symbols):
        return False
    if right.operand not in problem.constants or right.operand not in problem.layouts or _dimensions(found, right) is None:
        return False
    extents = [problem.region.axis(name).extent for name in found.over]
    columns = min(schedule["n"], problem.typical(problem.region.axis(found.columns[-1]).extent))
    sizes = [extent for extent in extents if isinstance(extent, int)]
    if columns < PANELS * schedule["nr"] or schedule["mr"] < ROWS or len(sizes) < len(extents):
        return False
    return sizes[-1] % TERMS == 0 and schedule["m"] * prod(sizes) <= ROOM * TERMS


def _dimensions(found: Contraction, right: Load) -> tuple[int, int] | None:
    """The dimensions of the right factor that the sum and the columns step through, each by itself."""
    names = [dims.name_of(subscript) for subscript in right.subscripts]
    inner, column = found.over[-1], found.columns[-1]
    is_plain = names.count(inner) == names.count(column) == 1
    reads = [inner in dims.symbols(s) or column in dims.symbols(s) for s in right.subscripts]
    return (names.index(inner), names.index(column)) if is_plain and sum(reads) == 2 else None


class PairedBlocks(RegisterBlocks):
    """Register blocks whose products are taken in pairs where these fit."""

    def __init__(self, problem: Problem, schedule: Schedule, found: Contraction, target: CpuLevel) -> None:
        super().__init__(problem, schedule, found, target)
        right = plain_load(found.right)
        assert right is not None
        along = _dimensions(found, right)
        assert along is not None
        self.loaded = right
        self.pairing = Pairing(TERMS, schedule["nr"], along)
        self.limits = f"{right.operand}_limits{schedule['nr']}"
        self.largest = ""

    def _parameters(self) -> tuple[Param, ...]:
        of = self.region.operand(self.loaded.operand).type
        sizes = self.pairing.shape(tuple(map(dims.number, of.shape)))
        labels = tuple(f"d{n}" for n in range(len(sizes)))
        layout = Layout(labels, tuple(map(Factor, labels)))
        made = Made(self.loaded.operand, self.pairing)
        return *super()._parameters(), Param(self.limits, u8, tuple(zip(labels, sizes, strict=True)), layout=layout, made=made)

    def _prepare(self, block: Block) -> None:
        """The largest byte that each block of rows multiplies in each stretch, by its first row."""
        assert self.row is not None
        outer = [(name, dims.number(self.extents[name])) for name in self.found.over[:-1]]
        stretches = dims.number(self.extents[self.inner]) // TERMS
        sizes = ((self.row, self.schedule["m"]), *outer, ("k", stretches))
        self.largest = block.local("largest", u8, sizes)
        for width, loop in list(self._row_loops(self.row, block)):
            if width == self.schedule["nr"]:
                with loop() as rows:
                    block.index[self.row] = dims.symbol(rows)
                    self._find(block, rows, self.found.over[:-1], (dims.symbol(f"{rows}.first") - dims.symbol(f"{self.row}.first"),))

    def _find(self, block: Block, rows: str, over: Sequence[str], place: tuple[Dim, ...]) -> None:
        if over:
            with block.loop(over[0], "scalar", 0, self.extents[over[0]], 1) as outer:
                block.index[over[0]] = dims.symbol(outer)
                self._find(block, rows, over[1:], (*place, dims.symbol(outer)))
            return
        with block.loop(self.inner, "tile", 0, self.extents[self.inner], TERMS) as k:
            block.index[self.inner] = dims.symbol(k)
            left = plain_load(self.found.left)
            assert left is not None
            block.outside = True
            value = block.lower(left)
            block.outside = False
            for axis in (rows, k):
                if axis in value.type.axes:
                    rest = tuple(name for name in value.type.axes if name != axis)
                    value = block.let("most", TileReduce("max", axis, value, TileType(u8, rest)))
            block.store(self.largest, (*place, _stretch(k)), value)

    def _stream(self, block: Block, acc: TileRef, kind: TileType, columns: str, panel: str | None) -> Value:
        if self.width != self.schedule["nr"]:
            return super()._stream(block, acc, kind, columns, panel)
        for let in self.found.prologue:
            block.later(let)
        rows = str(block.index[self.row or ""])
        place = dims.symbol(f"{rows}.first") - dims.symbol(f"{self.row}.first")
        outer = [block.index[name] for name in self.found.over[:-1]]
        with block.loop(self.inner, "tile", 0, self.extents[self.inner], TERMS, carries=(acc,)) as k:
            block.index[self.inner] = dims.symbol(k)
            largest = block.load(self.largest, (place, *outer, _stretch(k)), u8)
            limit = block.load(self.limits, self._limit(block, k, columns), u8)
            with block.either(block.apply("le", largest, limit), (acc,)) as otherwise:
                block.rebind(acc, self._product(block, acc, kind, columns, PRECISION))
                otherwise()
                block.rebind(acc, self._product(block, acc, kind, columns, "exact"))
        return acc

    def _limit(self, block: Block, k: str, columns: str) -> tuple[Dim, ...]:
        """Where the limit of the stretch at hand stands, in the panel at hand."""
        terms, column = self.pairing.along
        places = {terms: _stretch(k), column: dims.floor_divide(dims.symbol(f"{columns}.first"), self.pairing.columns)}
        return tuple(places.get(n, dims.substitute(s, block.index)) for n, s in enumerate(self.loaded.subscripts))

    def _product(self, block: Block, acc: TileRef, kind: TileType, columns: str, precision: str) -> Value:
        left = block.lower(accumulated(self.found.left, kind))
        return Dot(left, self._right(block, kind, columns, None), acc, kind, precision)


def _stretch(k: str) -> Dim:
    return dims.floor_divide(dims.symbol(f"{k}.first"), TERMS)


__all__ = ["PairedBlocks", "takes_pairs"]
