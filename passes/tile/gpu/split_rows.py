"""The strategy `split_rows`: folds along few long rows, each row in parts of their own programs; a launch for each fold that reads others.

A softmax is two launches: of each part the highest number and the sum of weights against that; of all parts, which gives the weights.
Each program adds up what the parts of its row gave by itself, in order, so nothing waits between two launches. A fold that no other
base serves (`rebase`) has a launch of its own between them. A running fold goes on from what the parts before gave (reduce, then scan:
Blelloch, 1990).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from ....ir import dims
from ....ir.expression import Apply, Constant, Index
from ....ir.region import SCANS, Axis, Let, Load, Operand, Reduce, Ref, Region, Scalar, Scan, Statement, Store
from ....ir.region.stores import Fold, needed, references, stores_of, together
from ....ir.target import GpuTarget
from ....ir.tile.program import Launch, TileProgram
from ....ir.types import DType, TensorType, boolean, i64
from ...regions.extremes import in_two_folds
from ...regions.rebase import rebase
from ...regions.simplify_region import join_axes, unused
from ..folds import identity
from ..lower import upper_bound
from ..schedule import Match, Order, Problem, Refusal, Schedule, by_tile
from .parts import LARGEST, free_name, space_param, why_whole
from .rows import Rows
from .shape import LAUNCH_SECONDS, memory_seconds, power_of_two, traffic, warps_for
from .sweep import Sweep, Tiling, can_shift

CHUNKS = (8192, 4096, 2048, 1024)
"""Elements of a part, which lie in registers together: with fewer a launch for them is too much."""
PARTS = (4, 4096)
"""Parts of a row, at least and at most: what all of them gave lies in registers of each program together."""


JOINED = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
"""The primitive that goes on with a running fold."""


@dataclass(frozen=True)
class LongRows:
    """A region with rows along `axis` alone, and of each fold how many folds, one reading the other, come before it; one with a base
    comes with that. `totals` are folds of what is folded in running, by the name of the running fold.
    """

    region: Region
    axis: str
    totals: dict[str, str]
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
        rows, found = Rows().match(problem, target), read_rows(problem)
        if isinstance(found, str):
            return Refusal(found)
        match = Match(self, problem, found)
        if isinstance(rows, Refusal):
            # Rows that no program holds, which running folds need.
            return match if found.totals and any(self.space(match, target)) else rows
        why = why_whole(rows, match, target, f"no row has {PARTS[0]} parts of {CHUNKS[-1]} elements", "the rows")
        return match if why is None else Refusal(why)

    def space(self, match: Match[LongRows], target: GpuTarget) -> Iterator[Schedule]:
        """Parts of as many elements as threads hold; the last one has what is left."""
        problem, found = match.problem, match.found
        extent = dims.number(found.region.axis(found.axis).extent)
        results = upper_bound(dims.product(a.extent for a in found.region.axes if a.name != found.axis), problem.symbols)
        if results is None:
            return
        for chunk in CHUNKS:
            parts = -(-extent // chunk)
            if PARTS[0] <= parts <= PARTS[1] and results * parts <= LARGEST:
                yield Schedule(self.name, (("parts", parts), ("elements", chunk)))

    def cost(self, match: Match[LongRows], schedule: Schedule, target: GpuTarget) -> float:
        """All operands moved once for each launch, and the launches."""
        problem, found, chunk = match.problem, match.found, schedule["elements"]
        sizes = {axis.name: problem.typical(axis.extent) for axis in found.region.axes}
        programs = float(schedule["parts"])
        for name, size in sizes.items():
            programs *= size if name != found.axis else 1
        arithmetic = programs * chunk * 4 / target.rates["f32"]
        return found.launches * (memory_seconds(traffic(problem), programs, target) + arithmetic + LAUNCH_SECONDS)

    def order(self, match: Match[LongRows], schedule: Schedule, target: GpuTarget) -> Order:
        """A part is added up by the threads that hold it."""
        return by_tile(match.problem, schedule)

    def tile(self, match: Match[LongRows], schedule: Schedule, target: GpuTarget) -> TileProgram:
        """The launches and the workspaces between them."""
        launches, spaces = _Launches(match.problem, match.found, schedule).made()
        params = tuple(space_param(space, "out") for space in spaces)
        return TileProgram(match.problem.region.name, launches, params, tuple(match.problem.symbols.ranges))


def read_rows(problem: Problem) -> LongRows | str:
    """The long rows of a region, or why it has none."""
    region = in_two_folds(problem.region)
    region, totals = _with_totals(region)
    stores = stores_of(region)
    if len(together(region)) != 1 or len({frozenset(store.axes) for store in stores}) != 1:
        return "its results are not written together"
    reduces = [statement for statement in region.body if isinstance(statement, Reduce)]
    along = {fold.over for fold in reduces}
    if len(along) != 1:
        return "it folds along several axes, apart" if reduces else "nothing is folded"
    (over,) = along
    if not all(isinstance(region.axis(axis).extent, int) for axis in over):
        return f"axis {' or '.join(over)} has no known length"
    others = {each.name for each in region.axes} - {*over}
    if any(set(fold.axes) != others for fold in reduces) or not others <= set(stores[0].axes):
        return "its folds are not of single rows"
    before = [statement for statement in region.body if not isinstance(statement, Store)]
    folded = [statement for statement in before if not isinstance(statement, Let)]
    if totals and (len(over) > 1 or not all(can_shift(before, fold.value, over[0]) for fold in folded)):
        return "a running fold is read by another fold"
    axis = over[0]
    if len(over) > 1:
        axis = free_name(problem, "row")
        region = join_axes(region, [each.name for each in region.axes if each.name in over], axis, problem.symbols)
    return LongRows(region, axis, totals, _stages(region, dims.number(region.axis(axis).extent), totals.values()))


def _with_totals(region: Region) -> tuple[Region, dict[str, str]]:
    """The region with a fold of all that each running fold folds before it, and their names."""
    taken = {statement.name for statement in region.body if not isinstance(statement, Store)}
    body: list[Statement] = []
    totals: dict[str, str] = {}
    for statement in region.body:
        if isinstance(statement, Scan):
            name = totals[statement.name] = unused(f"{statement.name}_total", taken)
            taken.add(name)
            rows = tuple(axis for axis in statement.axes if axis != statement.along)
            body.append(Reduce(name, rows, SCANS[statement.kind], (statement.along,), statement.value, statement.dtype))
        body.append(statement)
    return replace(region, body=tuple(body)), totals


def _stages(region: Region, extent: int, totals: Collection[str]) -> dict[str, int]:
    """Of each fold how many others, one reading the other, it waits for."""
    depth: dict[str, int] = {}
    for statement in region.body:
        if isinstance(statement, Store):
            continue
        read = max((depth[name] for name in references(statement) if name in depth), default=0)
        waits = isinstance(statement, Reduce) and (statement.name in totals or rebase(region, statement, extent) is None)
        depth[statement.name] = read + (1 if waits else 0)
    return {s.name: depth[s.name] - 1 for s in region.body if isinstance(s, Reduce)}


class _Launches:
    """Builds the launches: each program has the elements of the long axis from where its `part` begins on."""

    def __init__(self, problem: Problem, found: LongRows, schedule: Schedule) -> None:
        self.axis, self.parts, self.chunk = found.axis, schedule["parts"], schedule["elements"]
        self.problem, self.region, self.found = replace(problem, region=found.region), found.region, found
        self.extent = dims.number(self.region.axis(found.axis).extent)
        folds = [s for s in self.region.body if isinstance(s, Reduce)]
        running = {*found.totals.values()}
        self.rebased = {fold.name: None if fold.name in running else rebase(self.region, fold, self.extent) for fold in folds}
        self.part = free_name(problem, "part")
        self.every = free_name(problem, "every")
        self.spaces = {fold.name: self._space(fold) for fold in folds}

    def made(self) -> tuple[tuple[Launch, ...], tuple[Operand, ...]]:
        """The launches in order, and the workspaces."""
        last = self.found.launches - 1
        launches = [self._launch(stage, *self._keeping(stage)) for stage in range(last)]
        return (*launches, self._launch(last, stores_of(self.region), self.region.outputs)), tuple(self.spaces.values())

    def _space(self, fold: Reduce) -> Operand:
        shape = (*(self.region.axis(row).extent for row in fold.axes), self.parts)
        return Operand(free_name(self.problem, f"parts_of_{fold.name}"), TensorType(fold.dtype, shape))

    def _keeping(self, stage: int) -> tuple[tuple[Store, ...], tuple[Operand, ...]]:
        """Stores of what the folds of a stage give in each part."""
        folds = [s for s in self.region.body if isinstance(s, Reduce) and self.found.stages[s.name] == stage]
        stores = []
        for fold in folds:
            axes = (*fold.axes, self.part)
            stores.append(Store(self.spaces[fold.name].name, axes, tuple(map(dims.symbol, axes)), Ref(fold.name, fold.dtype)))
        return tuple(stores), tuple(self.spaces[fold.name] for fold in folds)

    def _launch(self, stage: int, stores: Sequence[Store], outputs: Sequence[Operand]) -> Launch:
        earlier = tuple(space for name, space in self.spaces.items() if self.found.stages[name] < stage)
        body = [made for statement in self.region.body for made in self._at(statement, stage)]
        axes = (*self.region.axes, Axis(self.part, self.parts), Axis(self.every, self.parts))
        region = Region(self.region.name, (*self.region.inputs, *earlier), tuple(outputs), axes, (*body, *stores))
        statements = needed(region, *stores)
        used = {axis for s in (*statements, *stores) for axis in (*s.axes, *(s.over if isinstance(s, Reduce) else ()))}
        # What a program has of the long axis is its part; results of whole rows are one program's.
        used |= {self.part} if self.axis in used else set()
        padded = {self.every: power_of_two(self.parts), self.axis: self.chunk}
        whole = {name: size for name, size in padded.items() if name in used}
        grid: dict[str, int | None] = dict.fromkeys(axis.name for axis in axes if axis.name in used - whole.keys())
        begin = {self.axis: dims.symbol(self.part) * self.chunk}
        tiling = Tiling(grid, whole, {}, (("warps", warps_for(self.chunk)),), begin=begin)
        return Sweep(replace(self.problem, region=region), statements, stores, tiling).launch(f"{region.name}.split_rows{stage}")

    def _at(self, statement: Statement, stage: int) -> Iterator[Fold]:
        """A statement in the launch of a stage: folds of earlier ones are those of their parts, those of this one are of a part."""
        if isinstance(statement, Let):
            yield statement
        elif isinstance(statement, Reduce) and self.found.stages[statement.name] <= stage:
            yield self._fold(statement, stage)
        elif isinstance(statement, Scan) and stage == self.found.launches - 1:
            yield from self._running(statement)

    def _fold(self, statement: Reduce, stage: int) -> Reduce:
        own, rows = self.found.stages[statement.name], statement.axes
        based = self.rebased[statement.name]
        if own == stage:
            value = statement.value if based is None else based.of_part(self._length(self.part, statement.dtype))
            return replace(statement, axes=(*rows, self.part), value=value)
        given = self._given(statement)
        value = given if based is None else based.joined(given, self._given(based.base), self._length(self.every, statement.dtype))
        return replace(statement, axes=rows, over=(self.every,), value=value)

    def _running(self, scan: Scan) -> Iterator[Fold]:
        """A running fold of a part, from what the parts before it gave on: those after it, where it runs from the end."""
        total = next(each for each in self.region.body if isinstance(each, Reduce) and each.name == self.found.totals[scan.name])
        kind, (first, last) = total.kind, (self.part, self.every) if scan.reverse else (self.every, self.part)
        earlier: Scalar = Apply("lt", (Index(dims.symbol(first), i64), Index(dims.symbol(last), i64)), boolean)
        nothing = Constant(identity(kind, scan.dtype), scan.dtype)
        given: Scalar = Apply("where", (earlier, self._given(total), nothing), scan.dtype)
        yield Reduce(f"{total.name}_before", (*total.axes, self.part), kind, (self.every,), given, scan.dtype)
        yield replace(scan, name=f"{total.name}_within")
        both = tuple(Ref(f"{total.name}_{word}", scan.dtype) for word in ("before", "within"))
        yield Let(scan.name, scan.axes, Apply(JOINED[kind], both, scan.dtype))

    def _length(self, part: str, dtype: DType) -> int | Scalar:
        """The elements of a part: the last one has what is left."""
        if self.extent % self.chunk == 0:
            return self.chunk
        left = dims.minimum(self.chunk, self.extent - dims.symbol(part) * self.chunk)
        return Apply("cast", (Index(left, i64),), dtype)

    def _given(self, fold: Reduce) -> Load:
        """What each part gave."""
        return Load(self.spaces[fold.name].name, tuple(map(dims.symbol, (*fold.axes, self.every))), fold.dtype)
