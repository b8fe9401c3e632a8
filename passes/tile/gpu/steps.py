"""The strategy `steps`: any region, one launch for each fold with its result in a workspace; scans and scatters one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from ....ir import dims
from ....ir.dims import Dim
from ....ir.region import Let, Load, Operand, Reduce, Ref, Region, Scalar, Scan, Store, transform
from ....ir.region.cost import cost_of
from ....ir.region.stores import needed, stores_of
from ....ir.target import GpuTarget
from ....ir.tile.program import Launch, Param, TileProgram
from ....ir.types import TensorType
from ...regions.simplify_region import unused
from ..accesses import apart
from ..schedule import Match, Order, Problem, Schedule, by_tile
from .elementwise import tile_axes
from .overwritten import search_of
from .rows import tile_rows
from .scatter import Scatter, by_atomics
from .sequence import Sequence
from .shape import LAUNCH_SECONDS
from .sweep import Sweep

FEW = 4
"""Points that take less one after the other than a launch that finds which of them meet."""
COMPARED = 4
"""Instructions of each pair of points that are compared."""


@dataclass(frozen=True)
class Pieces:
    """The regions of all launches, and the workspaces between them; scatters of the regions with the numbers `apart` never meet."""

    regions: tuple[Region, ...]
    spaces: tuple[Operand, ...]
    apart: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Steps:
    """Folds, scans and stores in the region's order, each a launch of its own."""

    name: str = "steps"

    def match(self, problem: Problem, target: GpuTarget) -> Match[Pieces]:
        """It takes every region."""
        return Match(self, problem, split(problem.region, tuple(problem.symbols.ranges), problem.typical))

    def space(self, match: Match[Pieces], target: GpuTarget) -> Iterator[Schedule]:
        """Two tile sizes."""
        for elements in (1024, 4096):
            yield Schedule(self.name, (("elements", elements),))

    def cost(self, match: Match[Pieces], schedule: Schedule, target: GpuTarget) -> float:
        """Launches, memory traffic or arithmetic of each, a microsecond for each step of sequential walks, and what searches compare."""
        problem, pieces = match.problem, match.found
        walked, compared = 0.0, 0.0
        for number, region in enumerate(pieces.regions):
            for statement in region.body:
                if isinstance(statement, Scan):
                    walked += problem.typical(region.axis(statement.along).extent)
                elif isinstance(statement, Store) and number not in pieces.apart and not by_atomics(region, statement):
                    met = set(statement.axes) - apart(statement)
                    walked += problem.typical(dims.product(region.axis(a).extent for a in met)) if met else 0
                elif isinstance(statement, Reduce) and number + 1 in pieces.apart:
                    compared += problem.typical(dims.product(region.axis(a).extent for a in (*statement.axes, *statement.over)))
        launches = sum(LAUNCH_SECONDS + _seconds(replace(problem, region=piece), target) for piece in pieces.regions)
        return launches + walked * 1e-6 + compared * COMPARED / target.rates["f32"] + 1e-9 * schedule["elements"]

    def order(self, match: Match[Pieces], schedule: Schedule, target: GpuTarget) -> Order:
        """A tile in registers is added up by the threads that hold it: its whole shape decides."""
        return by_tile(match.problem, schedule)

    def tile(self, match: Match[Pieces], schedule: Schedule, target: GpuTarget) -> TileProgram:
        """One launch for each fold and each store."""
        problem, pieces, spaces = match.problem, match.found.regions, match.found.spaces
        launches = tuple(
            _launch(replace(problem, region=piece), schedule["elements"], f"{piece.name}.step{n}", n in match.found.apart)
            for n, piece in enumerate(pieces)
        )
        symbols = tuple(problem.symbols.ranges)
        return TileProgram(problem.region.name, launches, tuple(_role(space, launches) for space in spaces), symbols)


def _role(space: Operand, launches: tuple[Launch, ...]) -> Param:
    param = next(p for launch in launches for p in launch.params if p.name == space.name)
    return replace(param, role="inout")


def _launch(piece: Problem, elements: int, name: str, is_apart: bool) -> Launch:
    region = piece.region
    (store,) = stores_of(region)
    statements = needed(region, store)
    if store.gathers or store.combine:
        return Scatter(piece, statements, store, is_apart).launch(name)
    if not any(isinstance(s, (Reduce, Scan)) for s in statements):
        return Sweep(piece, statements, (store,), tile_axes(piece, store, elements, True, 4)).launch(name)
    tiling = tile_rows(piece, statements, (store,), elements, False)
    if not isinstance(tiling, str):
        return Sweep(piece, statements, (store,), tiling).launch(name)
    return Sequence(piece, statements, store).launch(name)


def _seconds(piece: Problem, target: GpuTarget) -> float:
    """What a launch moves, or what it computes without matrix instructions."""
    cost = cost_of(piece.region, piece.sizes)
    return max(cost.bytes / target.memory_rate, cost.operations / target.rates["f32"])


def split(region: Region, symbols: Collection[str], typical: Callable[[Dim], int]) -> Pieces:
    """A region for each fold, whose result is a workspace that what follows loads from, and for each store. Before a scatter of more
    than `FEW` points one after the other stands the search of those that are overwritten.
    """
    taken = {o.name for o in (*region.inputs, *region.outputs)} | set(symbols) | set(region.extents)
    spaces: dict[str, Operand] = {}
    lets: dict[str, Let] = {}
    pieces: list[Region] = []
    folds: dict[str, Reduce | Scan] = {}
    alone: set[int] = set()
    axes = region.axes

    def loaded(value: Scalar) -> Scalar | None:
        if isinstance(value, Ref) and value.name in spaces:
            return Load(spaces[value.name].name, tuple(dims.symbol(a) for a in folds[value.name].axes), value.dtype)
        return None

    def piece(last: Reduce | Scan | Store, store: Store, outputs: tuple[Operand, ...]) -> Region:
        body = (*lets.values(), *((last,) if last is not store else ()), store)
        inputs = (*region.inputs, *(space for space in spaces.values() if space not in outputs))
        whole = Region(region.name, inputs, outputs, axes, body)
        return replace(whole, body=(*needed(whole, store), store))

    def fold(statement: Reduce | Scan) -> None:
        name = unused(f"{statement.name}_space", taken)
        taken.add(name)
        space = Operand(name, TensorType(statement.dtype, tuple(region.axis(a).extent for a in statement.axes)))
        store = Store(name, statement.axes, tuple(dims.symbol(a) for a in statement.axes), Ref(statement.name, statement.dtype))
        pieces.append(piece(statement, store, (space,)))
        spaces[statement.name], folds[statement.name] = space, statement

    def with_places(store: Store) -> Store:
        return replace(store, gathers=tuple((name, transform(gather, loaded)) for name, gather in store.gathers))

    for statement in region.body:
        changed = replace(statement, value=transform(statement.value, loaded))
        if isinstance(changed, Let):
            lets[changed.name] = changed
        elif isinstance(changed, Store):
            changed = with_places(changed)
            search = search_of(replace(region, axes=axes), lets, changed, taken)
            if search is not None and typical(search.region.axis(search.fold.axes[0]).extent) > FEW:
                axes = search.region.axes
                fold(search.fold)
                changed = with_places(search.store)
                alone.add(len(pieces))
            pieces.append(piece(changed, changed, region.outputs))
        else:
            fold(changed)
    return Pieces(tuple(pieces), tuple(spaces.values()), frozenset(alone))
