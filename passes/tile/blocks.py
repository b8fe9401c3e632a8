"""Sums of blocks: a contracted axis that decoding divides becomes axes for blocks and for places in them, the blocks' scales outside.

Codes of a format share scales in blocks (ir/formats): `codes[j, k // 32 * 16 + k % 16] >> k // 16 % 2 * 4` and `scale[j, k // 32]`
become `codes[j, 16*a + c] >> 4*b` and `scale[j, a]`, with k = 32*a + 16*b + c.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from ...ir import dims
from ...ir.dims import Dim
from ...ir.expression import Apply, Index
from ...ir.region import Reduce, Ref, Region, Scalar, accesses, scalars
from ..hoist_scales import factors_of
from ..simplify_region import split_axis
from .contraction import Contraction, axes_of, read_contraction


def in_blocks(region: Region, symbols: dims.Facts) -> Region:
    """The region with a sum of products over blocks as a sum of scaled sums; as it is where no factor is the same in a block.

    Before: s = sum k: x[i, k] * (codes[j, k] * scale[j, k // 32])
    After:  t = sum b: x[i, 32*a + b] * codes[j, 32*a + b]    s = sum a: t * scale[j, a]

    It adds up in another order (REASSOCIATES).
    """
    found = read_contraction(region)
    if isinstance(found, str) or len(found.over) != 1:
        return region
    sizes = _divisors(region, found.over[0])
    made = split_axis(region, found.over[0], sizes, symbols) if sizes else region
    after = read_contraction(made)
    return _with_scales_outside(made, after) if sizes and isinstance(after, Contraction) else region


def _divisors(region: Region, name: str) -> list[int]:
    """The numbers by which places along an axis are divided somewhere, largest first, if each divides the one before."""
    extent = region.axis(name).extent
    if not isinstance(extent, int):
        return []
    found: set[int] = set()
    for dim in _places(region):
        found |= _steps(dim, name)
    sizes = sorted((size for size in found if 1 < size < extent), reverse=True)
    return sizes if all(large % small == 0 for large, small in pairwise((extent, *sizes))) else []


def _places(region: Region) -> Iterator[Dim]:
    for _, subscripts in accesses(region.body):
        yield from subscripts
    yield from (part.value for part in scalars(region.body) if isinstance(part, Index))


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


def _with_scales_outside(region: Region, found: Contraction) -> Region:
    """Sums over the innermost axes, and of these, times what is the same along them, one over the others."""
    reduce = found.reduce
    factors = [(factor, axes_of(factor)) for factor in factors_of(reduce.value, reduce.dtype.name)]
    order = [axis.name for axis in region.axes if axis.name in reduce.over]
    for first in range(1, len(order)):
        inner = set(order[first:])
        outside = [factor for factor, axes in factors if not axes & inner]
        rest = [factor for factor, axes in factors if axes & inner]
        if outside and len(rest) == 2:
            name = next(
                n
                for n in (f"{reduce.name}_{k}" for k in range(len(region.body) + 1))
                if n not in {getattr(s, "name", "") for s in region.body}
            )
            block = Reduce(name, (*reduce.axes, *order[:first]), "sum", tuple(order[first:]), _product(rest), reduce.dtype)
            whole = replace(reduce, over=tuple(order[:first]), value=_product([Ref(name, reduce.dtype), *outside]))
            return replace(region, body=tuple(part for s in region.body for part in ((block, whole) if s is reduce else (s,))))
    return region


def _product(factors: Sequence[Scalar]) -> Scalar:
    result = factors[0]
    for factor in factors[1:]:
        result = Apply("mul", (result, factor), factor.dtype)
    return result
