"""How `nest` walks the axes of a region: which are the grid, which lies in the lanes, which is taken in blocks beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ....ir import dims
from ....ir.dims import Dim
from ....ir.expression import Apply, Index
from ....ir.region import Load, Reduce, Ref, Region, Scalar, Scan, Store, parts, subscripted, values_of, walk
from ....ir.region.cost import EXPENSIVE
from ....ir.region.stores import Fold, needed, parallel_axes
from ..accesses import SCORE, apart, is_within, step_of, stride_class
from ..lower import upper_bound
from ..schedule import Problem
from ..walk import Walk

TURNED = 16
"""Elements of an axis that the lanes stride across, taken together: so many f32 fill a line of memory."""
FEWEST = 4
"""Elements that an axis in the lanes may have at least."""
WORTH = 12
"""Operations for the same lanes that are computed once for a block of another axis, and not for each of its elements."""
DEAR = 8
"""So many are as much as a function that takes long."""
SECOND = 1
"""What an access says for an axis along which it takes every second element: two loads and a shuffle."""

Accesses = list[tuple[str, tuple[Dim, ...], frozenset[str]]]
"""Every operand with the subscripts that it is stored or read at, and the axes along which loaded ones jump about."""


@dataclass(frozen=True)
class NestAxes:
    """`grid` axes are independent; `lane` is the axis in vector lanes, if one is, in the grid or inside.

    Lanes are taken `step` elements at a time, and `narrow` where fewer are left; a grid tile has about `block` of them.
    `turned` is a grid axis of which `TURNED` elements are taken together.
    """

    problem: Problem
    grid: tuple[str, ...]
    lane: str | None
    turned: str | None
    step: int
    narrow: int
    block: int

    @property
    def walked(self) -> str | None:
        """The lane axis where it is the grid's."""
        return self.lane if self.lane in self.grid else None

    def grid_step(self, name: str) -> int | None:
        """Elements of a grid axis in a tile; None for one index."""
        if name == self.turned:
            return TURNED
        if name != self.lane:
            return None
        bound = self._bound(name)
        whole = self.block if len(self.grid) == 1 else min(self.block, 256)
        return whole if bound is None else max(self.narrow, min(whole, self._rounded(bound)))

    def tail(self, name: str) -> tuple[int, ...]:
        """The smaller steps for what the lanes' step leaves over."""
        known = dims.divides(self.step, self.problem.region.axis(name).extent, self.problem.symbols)
        return () if self.step == self.narrow or known else (self.narrow,)

    def rest(self, axes: Sequence[str]) -> list[str]:
        """The axes that are not the grid's, the lane axis last."""
        return self.lane_last(name for name in axes if name not in self.grid)

    def lane_last(self, axes: Iterator[str] | Sequence[str]) -> list[str]:
        """The axes in the order of their loops."""
        return sorted(axes, key=lambda name: name == self.lane)

    def inner_step(self, name: str) -> int:
        """Elements that are taken at once of an axis inside a grid point: several where it lies in the lanes."""
        if name != self.lane:
            return 1
        bound = self._bound(name)
        return self.step if bound is None else max(self.narrow, min(self.step, self._rounded(bound)))

    def walk(self, name: str) -> Walk:
        """How an axis inside a grid point is walked.

        The lanes go in two stretches, where the size is no known multiple of the step: whole steps, and what is left, masked.
        """
        extent, step, symbols = self.problem.region.axis(name).extent, self.inner_step(name), self.problem.symbols
        if dims.divides(step, extent, symbols) is True:
            return Walk(name, step, ((0, extent, True),))
        whole = dims.simplify(extent // step * step, symbols)
        left = (whole, extent, False)
        return Walk(name, step, (left,) if dims.at_most(whole, 0, symbols) is True else ((0, whole, True), left))

    def _bound(self, name: str) -> int | None:
        return upper_bound(self.problem.region.axis(name).extent, self.problem.symbols)

    def _rounded(self, size: int) -> int:
        return -(-size // self.narrow) * self.narrow


def choose_axes(problem: Problem, stores: Sequence[Store], lanes: int, vectors: int, block: int) -> NestAxes:
    """The walk of stores that go together, the last of which has the most axes, with what they need."""
    statements = needed(problem.region, *stores)
    grid = grid_axes(problem.region, stores, statements)
    accesses = _accesses((*statements, *stores), stores)
    lane = _lane(problem, stores, statements, grid, accesses, lanes)
    turned = None
    if lane in grid and lane is not None:
        turned = _turned(problem, grid, lane, accesses) or _repeated(problem, grid, lane, (*statements, *stores))
    return NestAxes(problem, grid, lane, turned, lanes * vectors, lanes, block)


def grid_axes(region: Region, stores: Sequence[Store], statements: Sequence[Fold]) -> tuple[str, ...]:
    """Axes that every statement varies over; of a scatter, whose points may meet, those that keep its points apart."""
    shared = parallel_axes(statements, *stores)
    for store in stores:
        if store.gathers:
            shared &= apart(store)
    return tuple(axis.name for axis in region.axes if axis.name in shared)


def _accesses(statements: Sequence[Fold | Store], stores: Sequence[Store]) -> Accesses:
    found: Accesses = [(store.output, store.subscripts, frozenset()) for store in stores]
    for statement in statements:
        for value in values_of(statement):
            loads = [part for part in walk(value) if isinstance(part, Load)]
            jumps = [frozenset(name for _, gather in part.gathers for name in subscripted(gather)) for part in loads]
            found += [(part.operand, part.subscripts, along) for part, along in zip(loads, jumps, strict=True)]
    return found


def _lane(
    problem: Problem, stores: Sequence[Store], statements: Sequence[Fold], grid: tuple[str, ...], accesses: Accesses, lanes: int
) -> str | None:
    """The axis that most accesses step through with stride 1, one that fills a vector if there is one; else one that stores step through.

    None where there is none: single elements take the tests and addresses of each by itself.
    """
    region = problem.region
    allowed = set(region.extents)
    if stores[-1].gathers:
        allowed = _side_by_side(problem, stores[-1], grid)
    elif any(isinstance(s, Scan) or (isinstance(s, Reduce) and s.kind.startswith("arg")) for s in statements):
        allowed = set(grid)
    scores = dict.fromkeys(region.extents, 0)
    stored = {name for s in stores for name in scores if step_of(region, s.output, s.subscripts, name) == 1}
    for operand, subscripts, jumping in dict.fromkeys(accesses):
        steps = {name: None if name in jumping else step_of(region, operand, subscripts, name) for name in scores}
        # What varies over few axes is read where they are looped over, not at every point.
        often = sum(step != 0 for step in steps.values())
        for name, step in steps.items():
            scores[name] += often * (SECOND if step == 2 else SCORE[step if step in (0, 1) else 2])
    best: tuple[bool, bool, int] | None = None
    found: str | None = None
    for axis in region.axes:
        extent = upper_bound(axis.extent, problem.symbols)
        gains = scores[axis.name] > 0
        if axis.name not in allowed or (extent is not None and extent < FEWEST) or not (gains or axis.name in stored):
            continue
        rank = gains, extent is None or extent >= lanes, scores[axis.name]
        if best is None or rank >= best:
            best, found = rank, axis.name
    return found


def _side_by_side(problem: Problem, store: Store, grid: tuple[str, ...]) -> set[str]:
    """The axes of a scatter along which its points lie inside and side by side, wherever the others put them."""
    facts, shape = problem.region.facts(problem.symbols), problem.region.operand(store.output).type.shape
    moved = {name for _, gather in store.gathers for name in subscripted(gather)}
    inside = [own for own, size in zip(store.subscripts, shape, strict=True) if is_within(own, size, facts)]
    return {name for name in grid if dims.symbol(name) in inside} - moved


def _turned(problem: Problem, grid: tuple[str, ...], lane: str, accesses: Accesses) -> str | None:
    """The axis along which something is read contiguously that the lanes stride through.

    Lines of memory hold neighbours along that axis: a block of them is taken where the lines were just read.
    """
    region = problem.region
    for operand, subscripts, _ in accesses:
        strides = {name: stride_class(region, operand, subscripts, name) for name in grid}
        along = [name for name, stride in strides.items() if stride == 1]
        if strides[lane] == 2 and along and dims.at_most(TURNED, region.axis(along[0]).extent, problem.symbols) is True:
            return along[0]
    return None


def _repeated(problem: Problem, grid: tuple[str, ...], lane: str, statements: Sequence[Fold | Store]) -> str | None:
    """The axis along which most is computed again for the same lanes, as places and weights are for each channel of an image."""
    region, counts = problem.region, Counter[str]()
    named = {statement.name: frozenset(statement.axes) for statement in statements if not isinstance(statement, Store)}
    # Where a value is named it is computed once for each point of its axes, however often it is read.
    for statement in statements:
        for value in values_of(statement):
            _, found = _computed(value, named)
            for axes, work in found.items():
                counts.update({name: work for name in grid if lane in axes and name != lane and name not in axes})
    counts = Counter({name: work for name, work in counts.items() if upper_bound(region.axis(name).extent, problem.symbols) != 1})
    most = max(counts.values(), default=0)
    return next(name for name in reversed(grid) if counts[name] == most) if most >= WORTH else None


def _computed(value: Scalar, named: Mapping[str, frozenset[str]]) -> tuple[frozenset[str], Counter[frozenset[str]]]:
    """The axes that a value varies over, and the operations of its parts by theirs."""
    if isinstance(value, Ref):
        return named[value.name], Counter()
    own: set[str] = set(dims.symbols(value.value)) if isinstance(value, Index) else set()
    if isinstance(value, Load):
        own = {name for subscript in value.subscripts for name in dims.symbols(subscript)}
    found = [_computed(part, named) for part in parts(value)]
    axes = frozenset(own).union(*(inner for inner, _ in found))
    work = sum((inner for _, inner in found), Counter[frozenset[str]]())
    if isinstance(value, Apply):
        work[axes] += DEAR if value.primitive in EXPENSIVE else 1
    return axes, work
