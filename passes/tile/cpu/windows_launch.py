"""The launch of `windows`: a part of the image is copied, then rows of places are folded from it, a row of the window at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import prod

from ....ir import dims
from ....ir.dims import Dim
from ....ir.errors import InternalError
from ....ir.expression import Apply
from ....ir.region import Ref as Name
from ....ir.region import transform
from ....ir.tile.program import GridAxis, Launch, Ref, Value
from ....ir.types import f32
from ..folds import COMBINE, identity
from ..lower import Block, used_parameters
from ..schedule import Problem, Schedule
from .windows_sides import Side, Windows

HELD = "@held"
"""The name of what is read of the image where the fold is computed."""


def held_bytes(problem: Problem, found: Windows, schedule: Schedule, lanes: int) -> int:
    """Bytes of the part of the image that a grid point holds."""
    return prod(dims.number(_span(problem, side, _step(found, side, schedule))) for side in found.sides) * lanes * found.held.dtype.itemsize


def _step(found: Windows, side: Side, schedule: Schedule) -> int:
    """Places of a grid point along one side."""
    if side is found.sides[-1]:
        return schedule["across"]
    return schedule["rows"] if side is found.sides[-2] and side.place is not None else 1


def _span(problem: Problem, side: Side, places: Dim) -> Dim:
    """What windows at so many places see of a side."""
    return (places - 1) * side.stride + (dims.number(problem.region.axis(side.tap).extent) - 1) * side.step + 1


class WindowsLaunch:
    """Builds the launch."""

    def __init__(self, problem: Problem, found: Windows, schedule: Schedule, lanes: int) -> None:
        self.problem, self.found, self.lanes = problem, found, lanes
        self.region = problem.region
        self.at_once = schedule["n"]
        self.steps = {side.place: _step(found, side, schedule) for side in found.sides if side.place is not None}
        self.taps = {name: dims.number(self.region.axis(name).extent) for name in found.fold.over}
        self.value = transform(found.fold.value, lambda part: Name(HELD, found.held.dtype) if part == found.held else None)

    def launch(self) -> Launch:
        """The kernel."""
        found, region = self.found, self.region
        block = Block(self.problem, names={axis.name: 1 for axis in region.axes})
        grid = []
        for axis in region.axes:
            if axis.name in found.fold.axes:
                step = self.lanes if axis.name == found.lane else self._stepped(axis.name)
                grid.append(GridAxis(axis.name, 0, axis.extent, step))
                block.index[axis.name] = dims.symbol(axis.name)
        spans = [dims.number(_span(self.problem, side, self._places_of(side))) for side in found.sides]
        held = block.local("held", found.held.dtype, (*((f"s{n}", span) for n, span in enumerate(spans)), ("c", self.lanes)))
        block.axes.append(found.lane)
        self._copy(block, held)
        self._places(block, held)
        return Launch(f"{region.name}.windows", used_parameters(self.problem, region.body), tuple(grid), tuple(block.body))

    def _stepped(self, place: str) -> int | None:
        """Places of a grid point, None where that is one."""
        step = self.steps.get(place, 1)
        return None if step == 1 else step

    def _places_of(self, side: Side) -> int:
        """The same of a side, as a number."""
        return 1 if side.place is None else self.steps[side.place]

    def _first(self, side: Side) -> Dim:
        """The first place of a grid point."""
        if side.place is None:
            return 0
        return dims.symbol(side.place if self._stepped(side.place) is None else f"{side.place}.first")

    def _copy(self, block: Block, held: str) -> None:
        """held[s, c] = what is computed of the image where the windows of this grid point see it."""
        found = self.found
        subscripts = list(found.image.subscripts)
        with ExitStack() as loops:
            seen: list[Dim] = []
            for side in found.sides:
                most = 1 if side.place is None else self.region.axis(side.place).extent - self._first(side)
                high = _span(self.problem, side, dims.minimum(most, self._places_of(side)))
                seen.append(dims.symbol(loops.enter_context(block.loop("s", "scalar", 0, high, 1))))
                subscripts[side.dimension] = self._first(side) * side.stride + side.start + seen[-1]
            image = replace(found.image, subscripts=tuple(subscripts))
            value = transform(found.held, lambda part: image if part == found.image else None)
            block.store(held, (*seen, self._lane), block.lower(value))

    @property
    def _lane(self) -> Dim:
        """The subscript of every lane of a held place."""
        return dims.symbol(f"{self.found.lane}.lane")

    def _places(self, block: Block, held: str) -> None:
        """Loops over the places of a grid point, as many of the last side at once as registers hold."""
        found = self.found
        *others, last = found.sides
        with ExitStack() as loops:
            starts: list[Dim] = []
            for side in others:
                first = place = self._first(side)
                if side.place is not None and self._stepped(side.place) is not None:
                    place = dims.symbol(f"{loops.enter_context(block.loop(side.place, 'walk', 0, 0, 1, parent=side.place))}.first")
                    block.axes.pop()
                    block.index[side.place] = place
                starts.append((place - first) * side.stride)
            row = loops.enter_context(self._row(block, last))
            starts.append((dims.symbol(row) - self._first(last)) * last.stride)

            def read(inner: Block) -> Value:
                taps = (inner.index[side.tap] * side.step for side in found.sides)
                places = (start + tap for start, tap in zip(starts, taps, strict=True))
                return inner.load(held, (*places, self._lane), found.held.dtype)

            block.readers[HELD] = read
            self._write(block, self._fold(block, row))

    @contextmanager
    def _row(self, block: Block, side: Side) -> Iterator[str]:
        """A loop over places of a row, several at once; what they leave goes in few, and one by one."""
        if side.place is None:
            raise InternalError(f"region {self.region.name}: windows without places")
        is_whole = dims.divides(self.at_once, self.region.axis(side.place).extent, self.problem.symbols) is True
        tail = () if is_whole else tuple(n for n in (4, 1) if n < self.at_once)
        with block.loop(side.place, "walk", 0, 0, self.at_once, parent=side.place, tail=tail) as row:
            block.axes[-2:] = [row, self.found.lane]
            block.index[side.place] = dims.symbol(row)
            yield row

    def _fold(self, block: Block, row: str) -> Ref:
        """The fold at a row of places: loops over all of the window but its rows, which are written out."""
        fold = self.found.fold
        total = block.let(fold.name, block.full(identity(fold.kind, fold.dtype), fold.dtype, (row, self.found.lane)))
        *others, last = (side.tap for side in self.found.sides)
        with ExitStack() as loops:
            for tap in others:
                block.index[tap] = dims.symbol(loops.enter_context(block.loop(tap, "scalar", 0, self.taps[tap], 1, carries=(total,))))
            sofar = total
            for place in range(self.taps[last]):
                block.index[last] = place
                sofar = block.let("sofar", self._more(block, sofar))
            if others:
                block.rebind(total, sofar)
        return total if others else sofar

    def _more(self, block: Block, sofar: Ref) -> Value:
        """One place of the window more; a product is added without a rounding of its own."""
        value = self.value
        if self.found.fold.kind == "sum" and value.dtype == f32 and isinstance(value, Apply) and value.primitive == "mul":
            left, right = (block.lower(arg) for arg in value.args)
            return block.apply("fma", left, right, sofar)
        return block.apply(COMBINE[self.found.fold.kind], sofar, block.lower(value))

    def _write(self, block: Block, total: Ref) -> None:
        """What follows the fold, and the result."""
        store = self.found.store
        block.readers[self.found.fold.name] = lambda _: total
        for let in self.found.after:
            block.later(let)
        block.store_all(store.output, block.subscripts(store.subscripts, ()), block.lower(store.value))
