"""The strategy `split_rows`: folds along few long rows, each row in parts of their own programs; a launch for each fold that reads others.

A softmax is two launches: of each part the highest number and the sum of weights against that; of all parts, which gives the weights.
Each program adds up what the parts of its row gave by itself, in order, so nothing waits between two launches. A fold that no other
base serves (`rebase`) has a launch of its own between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ....ir import dims
from ....ir.region import Axis, Let, Load, Operand, Reduce, Ref, Region, Statement, Store
from ....ir.region.stores import Fold, needed, references, stores_of, together
from ....ir.target import GpuTarget
from ....ir.tile.program import Launch, TileProgram
from ....ir.types import TensorType
from ...regions.rebase import rebase
from ...regions.simplify_region import split_axis
from ..lower import upper_bound
from ..schedule import Match, Order, Problem, Refusal, Schedule, by_tile
from .parts import LARGEST, free_name, space_param, why_whole
from .rows import Rows
from .shape import LAUNCH_SECONDS, memory_seconds, power_of_two, traffic, warps_for
from .sweep import Sweep, Tiling

PARTS = (4, 8, 16, 32, 64, 128, 256)
CHUNK = (1024, 8192)
"""Elements of a part, which lie in registers together: at least so many, or a launch for them is too much, and at most."""


@dataclass(frozen=True)
class LongRows:
    """Rows along `axis`, and of each fold how many folds, one reading the other, come before it; one with a base comes with that."""

    axis: str
    stages: dict[str, int]

    @property
    def launches(self) -> int:
        """One for each stage, and one for the results."""
        return max(self.stages.values()) + 2


@dataclass(frozen=True)
class SplitRows:
    """`parts` programs for each row; it takes what would leave most of the device idle."""

    name: str = "split_rows"

    def match(self, problem: Problem, target: GpuTarget) -> Match[LongRows] | Refusal:
        rows = Rows().match(problem, target)
        if isinstance(rows, Refusal):
            return rows
        found = read_rows(problem)
        if isinstance(found, str):
            return Refusal(found)
        match = Match(self, problem, found)
        why = why_whole(rows, match, target, f"no row has {PARTS[0]} equal parts of {CHUNK[0]} to {CHUNK[1]} elements", "the rows")
        return match if why is None else Refusal(why)

    def space(self, match: Match[LongRows], target: GpuTarget) -> Iterator[Schedule]:
        """All numbers of parts that divide a row."""
        problem, found = match.problem, match.found
        extent = dims.number(problem.region.axis(found.axis).extent)
        results = upper_bound(dims.product(a.extent for a in problem.region.axes if a.name != found.axis), problem.symbols)
        if results is None:
            return
        for parts in PARTS:
            if extent % parts == 0 and CHUNK[0] <= extent // parts <= CHUNK[1] and results * parts <= LARGEST:
                yield Schedule(self.name, (("parts", parts),))

    def cost(self, match: Match[LongRows], schedule: Schedule, target: GpuTarget) -> float:
        """All operands moved once for each launch, and the launches."""
        problem, found = match.problem, match.found
        sizes = {axis.name: problem.typical(axis.extent) for axis in problem.region.axes}
        chunk = sizes[found.axis] // schedule["parts"]
        programs = float(schedule["parts"])
        for name, size in sizes.items():
            programs *= size if name != found.axis else 1
        wasted = power_of_two(chunk) / chunk
        arithmetic = programs * power_of_two(chunk) * 4 / target.rates["f32"]
        return found.launches * (memory_seconds(traffic(problem), programs, target) * (0.7 + 0.3 * wasted) + arithmetic + LAUNCH_SECONDS)

    def order(self, match: Match[LongRows], schedule: Schedule, target: GpuTarget) -> Order:
        """A part is added up by the threads that hold it."""
        return by_tile(match.problem, schedule)

    def tile(self, match: Match[LongRows], schedule: Schedule, target: GpuTarget) -> TileProgram:
        """The launches and the workspaces between them."""
        launches, spaces = _Launches(match.problem, match.found, schedule["parts"]).made()
        params = tuple(space_param(space, "out") for space in spaces)
        return TileProgram(match.problem.region.name, launches, params, tuple(match.problem.symbols.ranges))


def read_rows(problem: Problem) -> LongRows | str:
    """The long rows of a region, or why it has none."""
    region = problem.region
    folds = [statement for statement in region.body if not isinstance(statement, Let | Store)]
    stores = stores_of(region)
    if len(together(region)) != 1 or len({frozenset(store.axes) for store in stores}) != 1:
        return "its results are not written together"
    if not folds or not all(isinstance(fold, Reduce) and not fold.kind.startswith("arg") for fold in folds):
        return "it has folds that know no parts"
    reduces = [fold for fold in folds if isinstance(fold, Reduce)]
    along = {fold.over for fold in reduces}
    if len(along) != 1 or len(reduces[0].over) != 1:
        return "it folds along several axes"
    ((axis,),) = along
    if not isinstance(region.axis(axis).extent, int):
        return f"axis {axis} has no known length"
    others = {each.name for each in region.axes} - {axis}
    if any(set(fold.axes) != others for fold in reduces) or not others <= set(stores[0].axes):
        return "its folds are not of single rows"
    return LongRows(axis, _stages(region, dims.number(region.axis(axis).extent)))


def _stages(region: Region, extent: int) -> dict[str, int]:
    """Of each fold how many others, one reading the other, it waits for."""
    depth: dict[str, int] = {}
    for statement in region.body:
        if isinstance(statement, Store):
            continue
        read = max((depth[name] for name in references(statement) if name in depth), default=0)
        waits = isinstance(statement, Reduce) and rebase(region, statement, extent) is None
        depth[statement.name] = read + (1 if waits else 0)
    return {s.name: depth[s.name] - 1 for s in region.body if isinstance(s, Reduce)}


class _Launches:
    """Builds the launches: the long axis is `part` and what is left of it, a part's own."""

    def __init__(self, problem: Problem, found: LongRows, parts: int) -> None:
        self.found, self.parts = found, parts
        self.chunk = dims.number(problem.region.axis(found.axis).extent) // parts
        self.region = split_axis(problem.region, found.axis, [self.chunk], problem.symbols)
        self.problem = replace(problem, region=self.region)
        extent = dims.number(problem.region.axis(found.axis).extent)
        self.rebased = {s.name: rebase(self.region, s, extent) for s in self.region.body if isinstance(s, Reduce)}
        self.part, self.inner = (axis.name for axis in self.region.axes if axis.name not in problem.region.extents)
        self.every = free_name(self.problem, "every")
        self.spaces = {fold.name: self._space(fold) for fold in self.region.body if isinstance(fold, Reduce)}

    def made(self) -> tuple[tuple[Launch, ...], tuple[Operand, ...]]:
        """The launches in order, and the workspaces."""
        last = self.found.launches - 1
        launches = [self._launch(stage, *self._keeping(stage)) for stage in range(last)]
        return (*launches, self._launch(last, stores_of(self.region), self.region.outputs)), tuple(self.spaces.values())

    def _space(self, fold: Reduce) -> Operand:
        rows = self._rows(fold)
        shape = (*(self.region.axis(row).extent for row in rows), self.parts)
        return Operand(free_name(self.problem, f"parts_of_{fold.name}"), TensorType(fold.dtype, shape))

    def _rows(self, fold: Reduce) -> tuple[str, ...]:
        return tuple(axis for axis in fold.axes if axis != self.part)

    def _keeping(self, stage: int) -> tuple[tuple[Store, ...], tuple[Operand, ...]]:
        """Stores of what the folds of a stage give in each part."""
        folds = [s for s in self.region.body if isinstance(s, Reduce) and self.found.stages[s.name] == stage]
        stores = []
        for fold in folds:
            axes = (*self._rows(fold), self.part)
            stores.append(Store(self.spaces[fold.name].name, axes, tuple(map(dims.symbol, axes)), Ref(fold.name, fold.dtype)))
        return tuple(stores), tuple(self.spaces[fold.name] for fold in folds)

    def _launch(self, stage: int, stores: Sequence[Store], outputs: Sequence[Operand]) -> Launch:
        earlier = tuple(space for name, space in self.spaces.items() if self.found.stages[name] < stage)
        body = [made for statement in self.region.body if (made := self._at(statement, stage)) is not None]
        axes = (*self.region.axes, Axis(self.every, self.parts))
        region = Region(self.region.name, (*self.region.inputs, *earlier), tuple(outputs), axes, (*body, *stores))
        statements = needed(region, *stores)
        used = {axis for s in (*statements, *stores) for axis in (*s.axes, *(s.over if isinstance(s, Reduce) else ()))}
        padded = {self.every: power_of_two(self.parts), self.inner: power_of_two(self.chunk)}
        whole = {name: size for name, size in padded.items() if name in used}
        grid: dict[str, int | None] = dict.fromkeys(axis.name for axis in axes if axis.name in used - whole.keys())
        tiling = Tiling(grid, whole, {}, (("warps", warps_for(padded[self.inner])),))
        return Sweep(replace(self.problem, region=region), statements, stores, tiling).launch(f"{region.name}.split_rows{stage}")

    def _at(self, statement: Statement, stage: int) -> Fold | None:
        """A statement in the launch of a stage: folds of earlier ones are those of their parts, those of this one are of a part."""
        if not isinstance(statement, Reduce):
            return statement if isinstance(statement, Let) else None
        own, rows = self.found.stages[statement.name], self._rows(statement)
        if own > stage:
            return None
        based = self.rebased[statement.name]
        if own == stage:
            value = statement.value if based is None else based.of_part(self.parts)
            return replace(statement, axes=(*rows, self.part), over=(self.inner,), value=value)
        given = self._given(statement)
        value = given if based is None else based.joined(given, self._given(based.base), self.parts)
        return replace(statement, axes=rows, over=(self.every,), value=value)

    def _given(self, fold: Reduce) -> Load:
        """What each part gave."""
        return Load(self.spaces[fold.name].name, tuple(map(dims.symbol, (*self._rows(fold), self.every))), fold.dtype)
