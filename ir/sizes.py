"""Which symbols the sizes of inputs tell, in which order, and how."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from . import dims
from .dims import Dim, Expr


@dataclass(frozen=True)
class Solve:
    """symbol = (size of an input's axis - rest) / factor; the symbols of `rest` are told before."""

    place: int
    axis: int
    symbol: str
    factor: int
    rest: Dim


def solves_of(shapes: Iterable[Sequence[Dim]], known: Collection[str]) -> Iterator[Solve]:
    """How the shapes of inputs tell the symbols that are not `known`; one that no size tells by itself is left out."""
    told = set(known)
    sizes = [(place, axis, size) for place, shape in enumerate(shapes) for axis, size in enumerate(shape) if not isinstance(size, int)]
    before = -1
    while before != len(told):
        before = len(told)
        for place, axis, size in sizes:
            unknown = dims.symbols(size) - told
            solve = _solved(place, axis, size, min(unknown)) if len(unknown) == 1 else None
            if solve is not None:
                told |= unknown
                yield solve


def _solved(place: int, axis: int, size: Expr, name: str) -> Solve | None:
    """How a size tells the value of `name`: size = factor * name + rest with a positive factor."""
    rest = dims.substitute(size, {name: 0})
    factor = dims.substitute(size, {name: 1}) - rest
    if not isinstance(factor, int) or factor <= 0 or size != factor * dims.symbol(name) + rest:
        return None
    return Solve(place, axis, name, factor, rest)


__all__ = ["Solve", "solves_of"]
