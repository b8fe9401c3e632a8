"""Splitting of axes that come in groups: a convolution in groups becomes a batch of products, and heads side by side rows of heads."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir import dims
from ...ir.dims import Dim
from ...ir.region import Reduce, Region, Scan, accesses
from .contraction import Contraction, moved, read_contraction
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


def split_rows(region: Region, symbols: dims.Facts, least: int) -> Region:
    """The region with axes in two that nothing is folded along, where something is read by whole rows of at least so many elements, or
    where as many rows lie side by side.

    Before: y[i, k] = x[k // 64, i, k % 64]    After: y[i, 64*h + d] = x[h, i, d]   (k = 64*h + d)
    Before: y[i, k] = x[k % 4, i, k // 4]      After: y[i, 4*w + c] = x[c, i, w]    (k = 4*w + c)
    """
    folded = {
        name
        for each in region.body
        if isinstance(each, (Reduce, Scan))
        for name in ((each.along,) if isinstance(each, Scan) else each.over)
    }
    for axis in region.axes:
        sizes = _rows_of(region, axis.name, least) if axis.name not in folded else set()
        if len(sizes) == 1:
            region = split_axis(region, axis.name, [*sizes], symbols)
    return region


def groups_of(region: Region, name: str, least: int = LEAST) -> set[int]:
    """The numbers from `least` on that an axis is divided by somewhere, and that divide it."""
    return {size for _, subscripts in accesses(region.body) for size in _parted(region, name, "div", subscripts) if size >= least}


def _rows_of(region: Region, name: str, least: int) -> set[int]:
    """The numbers that divide an axis into rows of at least so many elements, or into as many rows as fill vectors, which lie side by side
    where something is read.
    """
    found = groups_of(region, name, least)
    extent = region.axis(name).extent
    for operand, subscripts in accesses(region.body):
        for size in _parted(region, name, "div", subscripts) & _parted(region, name, "mod", subscripts):
            beside = isinstance(extent, int) and extent // size >= least and extent // size % least == 0
            if beside and dims.simplify(moved(region, operand, subscripts, name, size), region.facts(dims.NO_FACTS)) == 1:
                found.add(size)
    return found


def _parted(region: Region, name: str, kind: str, subscripts: Sequence[Dim]) -> set[int]:
    """The numbers by which an axis is divided in subscripts, and that divide it: of quotients, or of what they leave."""
    extent, axis = region.axis(name).extent, dims.symbol(name)
    found: set[int] = set()
    pending: list[Dim] = [*subscripts]
    for dim in pending:
        for monomial, _ in () if isinstance(dim, int) else dim.terms:
            for atom in monomial:
                if isinstance(atom, dims.Function):
                    pending += (atom.left, atom.right)
                    size = atom.right if atom.kind == kind and atom.left == axis else None
                    if isinstance(extent, int) and isinstance(size, int) and 1 < size < extent and extent % size == 0:
                        found.add(size)
    return found
