"""Sums of blocks: a contracted axis that decoding divides becomes axes for blocks and for places in them, the blocks' scales outside.

Codes of a format share scales in blocks (ir/formats): `codes[j, k // 32 * 16 + k % 16] >> k // 16 % 2 * 4` and `scale[j, k // 32]`
become `codes[j, 16*a + c] >> 4*b` and `scale[j, a]`, with k = 32*a + 16*b + c.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ...ir import dims
from ...ir.dims import Dim
from ...ir.expression import Constant, Index
from ...ir.region import Reduce, Region, Statement, accesses, scalars, transform
from ...ir.types import i32
from .affine import with_scales_outside
from .contraction import read_contraction
from .selections import Selection, find_selections, places_in
from .simplify_region import split_axis


@functools.lru_cache(maxsize=64)
def _known(region: Region, ranges: tuple[Any, ...], divisors: tuple[Any, ...]) -> Region:
    """What was found for the last regions: a strategy asks for each of its schedules."""
    return _in_blocks(region, dims.Facts(dict(ranges), dict(divisors)))


def in_blocks(region: Region, symbols: dims.Facts) -> Region:
    """The region with a sum of products over blocks as a sum of scaled sums; as it is where no factor is the same in a block.

    Before: s = sum k: x[i, k] * (codes[j, k] * scale[j, k // 32])
    After:  t = sum b: x[i, 32*a + b] * codes[j, 32*a + b]    s = sum a: t * scale[j, a]

    It adds up in another order (REASSOCIATES); what leaves the sums is said in affine.py.
    """
    return _known(region, tuple(symbols.ranges.items()), tuple(symbols.divisors.items()))


def _in_blocks(region: Region, symbols: dims.Facts) -> Region:
    found = read_contraction(region)
    if isinstance(found, str) or len(found.over) != 1:
        return region
    # Bytes of which some are selected are taken apart as far as these lie; other numbers are expanded as a whole.
    for inside in (True, False) if _selected(region, found.over[0]) else (False,):
        sizes = steps_along(region, found.over[0], inside)
        made = split_axis(region, found.over[0], sizes, symbols) if sizes else region
        after = read_contraction(made)
        if not sizes or isinstance(after, str):
            continue
        order = [axis.name for axis in made.axes if axis.name in after.reduce.over]
        result = with_scales_outside(made, after.reduce, order, after.columns)
        if result is not None and (not inside or any(isinstance(s, Reduce) and s.dtype == i32 for s in result.body)):
            return result
    return region


def steps_along(region: Region, name: str, inside: bool = False) -> list[int]:
    """The numbers by which places along an axis are divided somewhere, largest first, if each divides the one before; else none.

    With `inside` those by which kept numbers are found among which selections choose count as well.
    """
    extent = region.axis(name).extent
    if not isinstance(extent, int):
        return []
    found: set[int] = set()
    for dim in _places(region, name):
        found |= _steps(dim, name)
    for each in _selected(region, name) if inside else ():
        inner = {step for dim in places_in(each.number) for step in _steps(dim, each.kept) if step > each.chosen}
        found |= {step * each.group // each.chosen for step in inner}
    sizes = sorted((size for size in found if 1 < size < extent), reverse=True)
    return sizes if all(large % small == 0 for large, small in pairwise((extent, *sizes))) else []


def _places(region: Region, name: str) -> Iterator[Dim]:
    """The index expressions of a region, but for those by which numbers are selected along an axis: these are expanded as a whole."""
    selected = {each.expression: Constant(0, each.number.dtype) for each in _selected(region, name)}
    body: list[Statement] = [replace(statement, value=transform(statement.value, selected.get)) for statement in region.body]
    for _, subscripts in accesses(body):
        yield from subscripts
    yield from (part.value for part in scalars(body) if isinstance(part, Index))


def _selected(region: Region, name: str) -> list[Selection]:
    return [each for statement in region.body for each in find_selections(region, statement.value, name)]


def _steps(dim: Dim, name: str) -> set[int]:
    """The numbers of elements of an axis after which a quotient or a remainder of its places steps; of a quotient of a quotient those
    of the whole.
    """
    found: set[int] = set()
    pending: list[tuple[Dim, bool]] = [(dim, False)]
    while pending:
        part, is_divided = pending.pop()
        for monomial, _ in () if isinstance(part, int) else part.terms:
            for atom in monomial:
                if isinstance(atom, dims.Function):
                    step = _step(atom, name)
                    if step is not None and not (is_divided and atom.kind == "div"):
                        found.add(step)
                    pending += ((atom.left, step is not None and (is_divided or atom.kind == "div")), (atom.right, False))
    return found


def _step(atom: dims.Function, name: str) -> int | None:
    """The number of elements of an axis after which a quotient or a remainder steps or begins anew."""
    scale = _scale(atom.left, name)
    return scale * atom.right if scale is not None and isinstance(atom.right, int) else None


def _scale(dim: Dim, name: str) -> int | None:
    """By how many elements of an axis an expression steps: 1 for the axis itself, 32 for axis // 32."""
    if isinstance(dim, int) or name not in dims.symbols(dim):
        return None
    if dim == dims.symbol(name):
        return 1
    if len(dim.terms) == 1 and len(dim.terms[0][0]) == 1 and dim.terms[0][1] == 1:
        atom = dim.terms[0][0][0]
        if isinstance(atom, dims.Function) and isinstance(atom.right, int):
            inner = _scale(atom.left, name)
            return None if inner is None else inner * atom.right if atom.kind == "div" else inner
    return None
