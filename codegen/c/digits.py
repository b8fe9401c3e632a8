"""Loops over positions that are divided: one for each digit, so that what hangs on the first digits is computed once.

Numbers of few bits lie in blocks: the scale of position p is the one at p // 32, its code at p % 16, in bits that (p % 32) // 16
tells. Counted as 32 b + 16 h + r, each of these is a loop's own variable. Positions come in the same order, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ...ir import dims
from ...ir.dims import Dim, Function
from ...ir.tile.program import Index, Load, Value, walk
from .values import Values

FEW = 4
"""So many bodies of the last loop are written one after the other at most, for all values of the digits before: shifts are known then."""


def digits(values: Values, axis: str, extent: int, group: int, sources: Sequence[Value]) -> list[int]:
    """How many values each digit has, the first digit first; the last one counts groups."""
    names = {axis, values.scope.axis(axis).lane}
    subscripts = [s for source in sources for part in walk(source) for s in _subscripts(part)]
    weights = [group]
    for divisor in sorted({each for subscript in subscripts for each in _divisors(subscript, names)} | {extent}):
        if divisor > weights[-1] and divisor % weights[-1] == 0 and extent % divisor == 0:
            weights.append(divisor)
    return [high // low for low, high in pairwise(weights)][::-1] or [1]


def _subscripts(value: Value) -> tuple[Dim, ...]:
    if isinstance(value, Load):
        return value.subscripts
    return (value.value,) if isinstance(value, Index) else ()


def _divisors(dim: Dim, names: set[str]) -> Iterator[int]:
    """The constants that divide expressions of these symbols."""
    if isinstance(dim, int):
        return
    for atom in (atom for monomial, _ in dim.terms for atom in monomial):
        if isinstance(atom, Function) and names & dims.symbols(atom.left):
            yield from _divisors(atom.left, names)
            if atom.kind in ("div", "mod") and isinstance(atom.right, int) and atom.right > 0:
                yield atom.right


def numbers(values: Values, sizes: Sequence[int]) -> Iterator[Dim]:
    """Print loops over digits; what is printed between one number and the next stands inside of them."""
    return _numbers(values, sizes, len(sizes) - 1 - _spelled(sizes), 0)


def _spelled(sizes: Sequence[int]) -> int:
    """How many digits in front of the last one have so few values together that each is written out."""
    bodies, count = 1, 0
    for size in reversed(sizes[:-1]):
        bodies *= size
        if bodies > FEW:
            break
        count += 1
    return count


def _numbers(values: Values, sizes: Sequence[int], looped: int, before: Dim) -> Iterator[Dim]:
    """The numbers that begin with the digits `before`; loops over the first `looped` digits and the last one."""
    if not sizes:
        yield before
        return
    size, rest = sizes[0], sizes[1:]
    if size == 1 or (rest and looped <= 0):
        for digit in range(size):
            yield from _numbers(values, rest, looped - 1, before * size + digit)
        return
    variable, position = values.writer.position(0, size - 1)
    values.writer.open(f"for (int64_t {variable} = 0; {variable} < {size}; ++{variable})")
    values.writer.bind(f"@{variable}", variable)
    yield from _numbers(values, rest, looped - 1, before * size + position)
    values.writer.close()
