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
from ...ir.region import Region, Statement, accesses, scalars, transform
from .affine import with_scales_outside
from .contraction import read_contraction
from .selections import find_selections
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
    sizes = steps_along(region, found.over[0])
    made = split_axis(region, found.over[0], sizes, symbols) if sizes else region
    after = read_contraction(made)
    if not sizes or isinstance(after, str):
        return region
    order = [axis.name for axis in made.axes if axis.name in after.reduce.over]
    return with_scales_outside(made, after.reduce, order, after.columns) or region


def steps_along(region: Region, name: str) -> list[int]:
    """The numbers by which places along an axis are divided somewhere, largest first, if each divides the one before; else none."""
    extent = region.axis(name).extent
    if not isinstance(extent, int):
        return []
    found: set[int] = set()
    for dim in _places(region, name):
        found |= _steps(dim, name)
    sizes = sorted((size for size in found if 1 < size < extent), reverse=True)
    return sizes if all(large % small == 0 for large, small in pairwise((extent, *sizes))) else []


def _places(region: Region, name: str) -> Iterator[Dim]:
    """The index expressions of a region, but for those by which numbers are selected along an axis: these are expanded as a whole."""
    body: list[Statement] = []
    for statement in region.body:
        selected = {each.expression: Constant(0, each.number.dtype) for each in find_selections(region, statement.value, name)}
        body.append(replace(statement, value=transform(statement.value, selected.get)))
    for _, subscripts in accesses(body):
        yield from subscripts
    yield from (part.value for part in scalars(body) if isinstance(part, Index))


def _steps(dim: Dim, name: str) -> set[int]:
    """The numbers of elements of an axis after which a quotient or a remainder of its places steps."""
    found: set[int] = set()
    pending: list[Dim] = [dim]
    while pending:
        part = pending.pop()
        for monomial, _ in () if isinstance(part, int) else part.terms:
            for atom in monomial:
                if isinstance(atom, dims.Function):
                    pending += (atom.left, atom.right)
                    scale = _scale(atom.left, name)
                    if scale is not None and isinstance(atom.right, int):
                        found.add(scale * atom.right)
    return found


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
