"""Splitting of axes that come in groups: a convolution in groups becomes a batch of products, one for each group."""

from __future__ import annotations

from ...ir import dims
from ...ir.dims import Dim
from ...ir.region import Region, accesses
from .contraction import Contraction, read_contraction
from .simplify_region import split_axis

LEAST = 4
"""Members that a group has at least: fewer neither fill a vector nor share what they read."""


def split_groups(region: Region, symbols: dims.Facts) -> Region:
    """The region with an axis in two where a product reads one factor by whole groups of it; the same meaning.

    Before: sum c: x[p, 16*(i // 16) + c] * w[i, c]    After: sum c: x[p, 16*g + c] * w[16*g + o, c]   (i = 16*g + o)
    """
    found = read_contraction(region)
    if isinstance(found, str) or (found.rows and found.columns):
        return region
    for name in found.batch:
        for size in sorted(groups_of(region, name)):
            made = split_axis(region, name, [size], symbols)
            after = read_contraction(made)
            if isinstance(after, Contraction) and after.rows and after.columns:
                return made
    return region


def groups_of(region: Region, name: str, least: int = LEAST) -> set[int]:
    """The numbers from `least` on that an axis is divided by somewhere, and that divide it."""
    extent, axis = region.axis(name).extent, dims.symbol(name)
    found: set[int] = set()
    for _, subscripts in accesses(region.body):
        pending: list[Dim] = [*subscripts]
        for dim in pending:
            for monomial, _ in () if isinstance(dim, int) else dim.terms:
                for atom in monomial:
                    if isinstance(atom, dims.Function):
                        pending += (atom.left, atom.right)
                        size = atom.right if atom.kind == "div" and atom.left == axis else None
                        if isinstance(extent, int) and isinstance(size, int) and least <= size < extent and extent % size == 0:
                            found.add(size)
    return found
