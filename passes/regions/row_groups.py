"""Reading a region as one over rows in groups that lie one after the other, each of which has data of its own: experts, segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...ir import dims
from ...ir.expression import Apply, Constant, Index
from ...ir.region import Let, Load, Reduce, Ref, Region, Scalar, Scan, Statement, Store, scalars, transform, walk
from .contraction import axes_of, plain_load

GROUP = "$group"
"""What a strategy that looks at rows of one group alone gives the number of that group to: no symbol of a graph has such a sign."""


@dataclass(frozen=True)
class RowGroups:
    """A region in which the group of a row of `row` is the index `GROUP`, as for rows of one group.

    Group g has the rows from end g - 1 to end g of `ends`, which is read along `along`, if there are several; the first begins with the
    first row, and the last of all `count` has all rows that are left. At rows from `last` on the results do not depend on `product`.
    """

    region: Region
    row: str
    ends: Load
    along: str | None
    count: int
    last: Load | None = None


def read_row_groups(region: Region) -> RowGroups | str:
    """The groups of rows by which a region gathers, or why it has none.

    The number of ends that a row lies at or behind is a group that no later row is before, whatever the ends are:

        %g = sum e: cast(le(%ends[e], index(t, i32)), i32) : i32[t]

    Of two groups one end is asked, which nothing sums up.
    """
    for statement in region.body:
        found = None if isinstance(statement, (Scan, Store)) else _counts_ends(region, statement)
        if found is None or isinstance(statement, Store) or not _is_gathered_by(region, statement.name):
            continue
        body = tuple(_with_group(each, statement.name) for each in region.body if each is not statement)
        products = [each for each in body if isinstance(each, Reduce)]
        last = _last(body, products[0]) if len(products) == 1 else None
        return replace(found, region=replace(region, body=body), last=last)
    return "nothing is gathered by the number of ends that a row lies behind"


def _counts_ends(region: Region, statement: Let | Reduce) -> RowGroups | None:
    """The groups that a sum counts for each row, whose region is still to be made."""
    value, over = statement.value, statement.over if isinstance(statement, Reduce) else ()
    while isinstance(value, Apply) and value.primitive == "cast":
        value = value.args[0]
    if len(statement.axes) != 1 or len(over) > 1 or (isinstance(statement, Reduce) and statement.kind != "sum"):
        return None
    if not (isinstance(value, Apply) and value.primitive == "le"):
        return None
    (row,), (end, place), count = statement.axes, value.args, region.axis(over[0]).extent if over else 1
    ends = plain_load(end)
    if ends is None or ends.gathers or axes_of(end) != {*over} or not isinstance(count, int) or not ends.dtype.is_integer:
        return None
    is_row = isinstance(place, Index) and dims.name_of(place.value) == row
    return RowGroups(region, row, ends, over[0] if over else None, count + 1) if is_row else None


def _is_gathered_by(region: Region, name: str) -> bool:
    loads = (part for part in scalars(region.body) if isinstance(part, Load))
    return any(_is_named(gather, name) for load in loads for _, gather in load.gathers)


def _with_group(statement: Statement, name: str) -> Statement:
    """A statement with the index `GROUP` for the value of that name; what it gathers by it, it reads at that index."""
    group = dims.symbol(GROUP)

    def change(part: Scalar) -> Scalar | None:
        if isinstance(part, Ref) and part.name == name:
            return Index(group, part.dtype)
        if isinstance(part, Load):
            places = {placeholder: group for placeholder, gather in part.gathers if _is_named(gather, name)}
            left = tuple((placeholder, transform(gather, change)) for placeholder, gather in part.gathers if placeholder not in places)
            return replace(part, subscripts=tuple(dims.substitute(s, places) for s in part.subscripts), gathers=left)
        return None

    changed = replace(statement, value=transform(statement.value, change))
    if isinstance(changed, Store):
        return replace(changed, gathers=tuple((placeholder, transform(gather, change)) for placeholder, gather in changed.gathers))
    return changed


def _is_named(value: Scalar, name: str) -> bool:
    while isinstance(value, Apply) and value.primitive == "cast" and value.dtype.is_integer:
        value = value.args[0]
    return isinstance(value, Ref) and value.name == name


def _last(body: Sequence[Statement], product: Reduce) -> Load | None:
    """The row from which on the product is not looked at: it is read once, where a row lies before that, and a number stands elsewhere."""
    (row, *_), found = product.axes, None
    reads = [part for part in scalars(body) if isinstance(part, Ref) and part.name == product.name]
    for part in scalars(body):
        if isinstance(part, Apply) and part.primitive == "where" and isinstance(part.args[2], Constant):
            condition, value, _ = part.args
            if any(inner is reads[0] for inner in walk(value)) and isinstance(condition, Apply) and condition.primitive == "lt":
                place, end = condition.args
                load = plain_load(end)
                if isinstance(place, Index) and dims.name_of(place.value) == row and load is not None and not axes_of(end):
                    found = load
    return found if len(reads) == 1 else None


__all__ = ["GROUP", "RowGroups", "read_row_groups"]
