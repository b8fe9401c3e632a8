"""Rules of sequences and optionals: known at import, so they cost nothing at run time."""

from __future__ import annotations

from collections.abc import Sequence

from .....ir.dims import Dim
from .....ir.errors import UnsupportedError
from .....ir.graph import Value
from .....ir.types import boolean, i64
from ..context import Item, Node, Optional, ValueSequence, rule
from .movement import slice_axis
from .shape import unsqueeze


def _sequence(n: Node, position: int = 0) -> ValueSequence:
    item = n.item(position)
    if isinstance(item, Optional) and isinstance(item.item, ValueSequence):
        item = item.item
    if not isinstance(item, ValueSequence):
        raise n.fail(f"input {position} is not a sequence")
    return item


def _place(n: Node, position: int, length: int, inclusive: bool = False) -> int:
    place = n.integers(position, "the position")[0]
    if not -length <= place <= (length if inclusive else length - 1):
        raise n.fail(f"position {place} is out of range for a sequence of {length}")
    return place + length if place < 0 else place


@rule("SequenceEmpty")
def _empty(n: Node) -> Item:
    return ValueSequence(())


@rule("SequenceConstruct")
def _construct(n: Node) -> Item:
    return ValueSequence(tuple(n.xs()))


@rule("SequenceInsert")
def _insert(n: Node) -> Item:
    items = list(_sequence(n).items)
    items.insert(_place(n, 2, len(items), inclusive=True) if n.given(2) else len(items), n.item(1))
    return ValueSequence(tuple(items))


@rule("SequenceErase")
def _erase(n: Node) -> Item:
    items = list(_sequence(n).items)
    if not items:
        raise n.fail("the sequence is empty")
    del items[_place(n, 1, len(items)) if n.given(1) else len(items) - 1]
    return ValueSequence(tuple(items))


@rule("SequenceAt")
def _at(n: Node) -> Item:
    items = _sequence(n).items
    return items[_place(n, 1, len(items))]


@rule("SequenceLength")
def _length(n: Node) -> Item:
    return n.b.scalar(len(_sequence(n).items), i64)


@rule("ConcatFromSequence")
def _concatenated(n: Node) -> Item:
    parts = [item for item in _sequence(n).items if isinstance(item, Value)]
    if not parts:
        raise n.fail("the sequence is empty")
    new = n.attr_flag("new_axis")
    axis = n.axis(n.attr_int("axis"), parts[0].type.rank + new)
    if new:
        parts = [unsqueeze(n, part, (axis,)) for part in parts]
    result: Value = n.b.concat(*parts, axis=axis) if len(parts) > 1 else parts[0]
    return result


@rule("SplitToSequence")
def _split(n: Node) -> Item:
    x = n.x()
    axis = n.axis(n.attr_int("axis"), x.type.rank)
    size = x.shape[axis]
    squeeze = not n.given(1) and not n.attr_flag("keepdims", True)
    if not n.given(1):
        parts: Sequence[Dim] = (1,) * _count(n, size)
    elif n.x(1).type.rank == 0:
        step, whole = n.integers(1, "the split")[0], _count(n, size)
        if step < 1:
            raise n.fail(f"split is {step}, expected a positive size")
        parts = [min(step, whole - start) for start in range(0, whole, step)]
    else:
        parts = n.sizes(1, "the split")
    items: list[Item] = []
    start: Dim = 0
    for part in parts:
        piece = slice_axis(n, x, axis, start, part)
        items.append(n.b.reshape(piece, shape=(*x.shape[:axis], *x.shape[axis + 1 :])) if squeeze else piece)
        start = start + part
    return ValueSequence(tuple(items))


def _count(n: Node, size: Dim) -> int:
    if not isinstance(size, int):
        raise UnsupportedError(f"splits the symbolic size {size}", hint="fix it at import (shapes)")
    return size


@rule("SequenceMap")
def _map(n: Node) -> list[Item]:
    sequence = _sequence(n)
    body = n.attr_graph("body")
    columns: list[list[Item]] = [[] for _ in body.output]
    for position, item in enumerate(sequence.items):
        others: list[Item] = []
        for k in range(1, len(n.inputs)):
            other = n.item(k)
            others.append(other.items[position] if isinstance(other, ValueSequence) else other)
        results = n.runner.inline(body, [item, *others], n)
        for column, result in zip(columns, results, strict=True):
            column.append(result)
    return [ValueSequence(tuple(column)) for column in columns]


# --- optionals --------------------------------------------------------------------------------------------------------


@rule("Optional")
def _optional(n: Node) -> Item:
    return Optional(n.item(0) if n.given(0) else None)


@rule("OptionalHasElement")
def _has_element(n: Node) -> Item:
    item = n.item(0) if n.given(0) else None
    return n.b.scalar(item is not None and not (isinstance(item, Optional) and item.item is None), boolean)


@rule("OptionalGetElement")
def _get_element(n: Node) -> Item:
    item = n.item(0)
    if not isinstance(item, Optional):
        return item
    if item.item is None:
        raise n.fail("the optional holds nothing")
    return item.item
