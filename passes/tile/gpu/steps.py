"""The strategy `steps`: any region, one launch for each fold with its result in a workspace; scans and scatters one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from ....ir import dims
from ....ir.region import Let, Load, Operand, Reduce, Ref, Region, Scalar, Scan, Store, transform
from ....ir.region.stores import needed, stores_of
from ....ir.target import GpuTarget
from ....ir.tile.program import Launch, Param, TileProgram
from ....ir.types import TensorType
from ..schedule import Match, Order, Problem, Schedule, by_tile
from .elementwise import tile_axes
from .rows import tile_rows
from .scatter import Scatter
from .sequence import Sequence
from .shape import LAUNCH_SECONDS, traffic
from .sweep import Sweep


@dataclass(frozen=True)
class Pieces:
    """The regions of all launches, and the workspaces between them."""

    regions: tuple[Region, ...]
    spaces: tuple[Operand, ...]


@dataclass(frozen=True)
class Steps:
    """Folds, scans and stores in the region's order, each a launch of its own."""

    name: str = "steps"

    def match(self, problem: Problem, target: GpuTarget) -> Match[Pieces]:
        """It takes every region."""
        return Match(self, problem, split(problem.region, tuple(problem.symbols.ranges)))

    def space(self, match: Match[Pieces], target: GpuTarget) -> Iterator[Schedule]:
        """Two tile sizes."""
        for elements in (1024, 4096):
            yield Schedule(self.name, (("elements", elements),))

    def cost(self, match: Match[Pieces], schedule: Schedule, target: GpuTarget) -> float:
        """Launches, memory traffic, and a microsecond for each step of the longest sequential walk."""
        problem, region = match.problem, match.problem.region
        sequential = 0.0
        for statement in region.body:
            if isinstance(statement, Scan):
                sequential += problem.typical(region.axis(statement.along).extent)
            if isinstance(statement, Store) and statement.gathers:
                sequential += problem.typical(dims.product(region.axis(a).extent for a in statement.axes)) / 32
        count = sum(not isinstance(s, Let) for s in region.body)
        return count * (LAUNCH_SECONDS + traffic(problem) / target.memory_rate) + sequential * 1e-6 + 1e-9 * schedule["elements"]

    def order(self, match: Match[Pieces], schedule: Schedule, target: GpuTarget) -> Order:
        """A tile in registers is added up by the threads that hold it: its whole shape decides."""
        return by_tile(match.problem, schedule)

    def tile(self, match: Match[Pieces], schedule: Schedule, target: GpuTarget) -> TileProgram:
        """One launch for each fold and each store."""
        problem, pieces, spaces = match.problem, match.found.regions, match.found.spaces
        launches = tuple(
            _launch(replace(problem, region=piece), schedule["elements"], f"{piece.name}.step{n}") for n, piece in enumerate(pieces)
        )
        symbols = tuple(problem.symbols.ranges)
        return TileProgram(problem.region.name, launches, tuple(_role(space, launches) for space in spaces), symbols)


def _role(space: Operand, launches: tuple[Launch, ...]) -> Param:
    param = next(p for launch in launches for p in launch.params if p.name == space.name)
    return replace(param, role="inout")


def _launch(piece: Problem, elements: int, name: str) -> Launch:
    region = piece.region
    (store,) = stores_of(region)
    statements = needed(region, store)
    if store.gathers or store.combine:
        return Scatter(piece, statements, store).launch(name)
    if not any(isinstance(s, (Reduce, Scan)) for s in statements):
        return Sweep(piece, statements, (store,), tile_axes(piece, store, elements, True, 4)).launch(name)
    tiling = tile_rows(piece, statements, (store,), elements, False)
    if not isinstance(tiling, str):
        return Sweep(piece, statements, (store,), tiling).launch(name)
    return Sequence(piece, statements, store).launch(name)


def split(region: Region, symbols: Collection[str]) -> Pieces:
    """A region for each fold, whose result is a workspace that what follows loads from, and for each store."""
    taken = {o.name for o in (*region.inputs, *region.outputs)} | set(symbols) | set(region.extents)
    spaces: dict[str, Operand] = {}
    lets: dict[str, Let] = {}
    pieces: list[Region] = []
    folds: dict[str, Reduce | Scan] = {}

    def loaded(value: Scalar) -> Scalar | None:
        if isinstance(value, Ref) and value.name in spaces:
            return Load(spaces[value.name].name, tuple(dims.symbol(a) for a in folds[value.name].axes), value.dtype)
        return None

    def piece(last: Reduce | Scan | Store, store: Store, outputs: tuple[Operand, ...]) -> Region:
        body = (*lets.values(), *((last,) if last is not store else ()), store)
        inputs = (*region.inputs, *(space for space in spaces.values() if space not in outputs))
        whole = Region(region.name, inputs, outputs, region.axes, body)
        return replace(whole, body=(*needed(whole, store), store))

    for statement in region.body:
        changed = replace(statement, value=transform(statement.value, loaded))
        if isinstance(changed, Let):
            lets[changed.name] = changed
        elif isinstance(changed, Store):
            gathers = tuple((name, transform(gather, loaded)) for name, gather in changed.gathers)
            changed = replace(changed, gathers=gathers)
            pieces.append(piece(changed, changed, region.outputs))
        else:
            name = f"{changed.name}_space"
            while name in taken:
                name += "_"
            taken.add(name)
            space = Operand(name, TensorType(changed.dtype, tuple(region.axis(a).extent for a in changed.axes)))
            store = Store(name, changed.axes, tuple(dims.symbol(a) for a in changed.axes), Ref(changed.name, changed.dtype))
            pieces.append(piece(changed, store, (space,)))
            spaces[changed.name], folds[changed.name] = space, changed
    return Pieces(tuple(pieces), tuple(spaces.values()))
