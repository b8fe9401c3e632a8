"""Problems as records know them: the region in canonical text, layouts, and the sizes that it is measured at."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from ..ir import dims
from ..ir.dims import Dim
from ..ir.region import Region, indices_of, sizes_of, with_dims
from ..ir.region.cost import cost_of
from ..ir.region.text import print_region
from ..ir.workload import nearest_size
from ..passes.tile.schedule import Problem
from .record import Data, digest

MOST_OPERATIONS = 1e9
"""Sizes are halved until one run needs no more, so that a round takes milliseconds."""


def problem_data(problem: Problem) -> Data:
    """The canonical form of a problem: names of the user's symbols do not matter, all else does."""
    region, names = _neutral(problem.region, tuple(problem.symbols.ranges))
    sizes = bucket(problem)
    facts = problem.symbols
    symbols = {}
    for name, neutral in names.items():
        known = facts.ranges.get(name, dims.UNBOUNDED)
        symbols[neutral] = {"low": known.low, "high": known.high, "divisor": facts.divisors.get(name, 1)}
    return {
        "region": print_region(region),
        "symbols": symbols,
        "layouts": {name: str(layout) for name, layout in problem.layouts.items()},
        "constants": sorted(problem.constants),
        "bucket": {neutral: sizes[name] for name, neutral in names.items()},
    }


def problem_id(problem: Problem) -> str:
    """The digest of the canonical form."""
    return digest(problem_data(problem))


def bucket(problem: Problem) -> dict[str, int]:
    """The sizes that a problem is measured at: those of its heaviest point, as far as a run does not take too long."""
    facts, sizes = problem.symbols, {name: problem.sizes[name] for name in problem.symbols.ranges}
    used = [name for name in sizes if name in _symbols(problem.region)]
    while used and cost_of(problem.region, sizes).operations > MOST_OPERATIONS:
        largest = max(used, key=lambda name: sizes[name])
        smaller = nearest_size(sizes[largest] // 2, largest, facts)
        if smaller >= sizes[largest]:
            break
        sizes[largest] = smaller
    return sizes


def _dims(region: Region) -> Iterable[Dim]:
    """Every size and index expression of a region, in order."""
    return chain(sizes_of(region), indices_of(region))


def _symbols(region: Region) -> set[str]:
    return {name for dim in _dims(region) for name in dims.symbols(dim)} - set(region.extents)


def _neutral(region: Region, known: tuple[str, ...]) -> tuple[Region, dict[str, str]]:
    """The region with its symbols named N0, N1, ... in the order in which they first appear."""
    order: dict[str, None] = {}
    for dim in _dims(region):
        order.update(dict.fromkeys(name for name in known if name in dims.symbols(dim)))
    names = {name: f"N{n}" for n, name in enumerate(order)}
    if set(names.values()) & {axis.name for axis in region.axes}:
        return region, {name: name for name in order}
    change: dict[str, Dim] = {name: dims.symbol(new) for name, new in names.items()}
    return with_dims(region, lambda dim: dims.substitute(dim, change)), names
