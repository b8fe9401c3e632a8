"""Rules of sequences and optionals: known at import, so they cost nothing at run time; what a loop appends are rows of a tensor."""

from __future__ import annotations

from collections.abc import Sequence

from .....ir.dims import Dim
from .....ir.errors import UnsupportedError
from .....ir.graph import Value
from .....ir.types import TensorType, boolean, i64
from ..context import Item, Node, Optional, Stack, ValueSequence, rule
from .movement import slice_axis
from .shape import unsqueeze


def _sequence(n: Node, position: int = 0) -> ValueSequence:
    item = n.item(position)
    if isinstance(item, Optional) and isinstance(item.item, ValueSequence):
        item = item.item
    if isinstance(item, Stack):
        raise UnsupportedError("takes a sequence whose length only the data tell", hint="give the loop that makes it a known trip count")
    if not isinstance(item, ValueSequence):
        raise n.fail(f"input {position} is not a sequence")
    return item


def stacked(n: Node, item: Item, element: TensorType) -> Value:
    """The elements of a sequence as rows; UnsupportedError where one is of another type."""
    if isinstance(item, Stack):
        return item.rows
    parts = [part for part in item.items if isinstance(part, Value)] if isinstance(item, ValueSequence) else []
    if not isinstance(item, ValueSequence) or any(part.type != element for part in parts):
        found = ", ".join(str(part.type) for part in parts if part.type != element) or "no sequence"
        raise UnsupportedError(f"carries a sequence of {element} that becomes one of {found}", hint="append tensors of one dtype and shape")
    if not parts:
        nothing = n.b.scalar(0, element.dtype)
        return n.b.broadcast_to(nothing, shape=(0, *element.shape))  # type: ignore[no-any-return]
    rows = [unsqueeze(n, part, (0,)) for part in parts]
    return n.b.concat(*rows, axis=0) if len(rows) > 1 else rows[0]


def _extended(n: Node, stack: Stack) -> Item:
    """One more element behind or before all others."""
    place = n.integers(2, "the position")[0] if n.given(2) else None
    if place not in (None, 0):
        raise UnsupportedError(f"inserts at {place} of a sequence whose length only the data tell", hint="append at its end")
    row = unsqueeze(n, n.x(1), (0,))
    if row.dtype != stack.rows.dtype or row.shape[1:] != stack.rows.shape[1:]:
        raise UnsupportedError(
            f"inserts {n.x(1).type} into a sequence of {stack.rows.type.with_shape(stack.rows.shape[1:])}",
            hint="append tensors of one dtype and shape",
        )
    return Stack(n.b.concat(*((row, stack.rows) if place == 0 else (stack.rows, row)), axis=0))


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
    if isinstance(stack := n.item(0), Stack):
        return _extended(n, stack)
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
    if isinstance(stack := n.item(0), Stack):
        place, zero = n.b.cast(n.b.reshape(n.x(1), shape=()), dtype=i64), n.b.scalar(0, i64)
        behind = n.b.add(place, n.b.dim(value=stack.rows.shape[0]))
        return n.b.take(stack.rows, n.b.where(n.b.lt(place, zero), behind, place), axis=0)  # type: ignore[no-any-return]
    items = _sequence(n).items
    return items[_place(n, 1, len(items))]


@rule("SequenceLength")
def _length(n: Node) -> Item:
    if isinstance(stack := n.item(0), Stack):
        return n.b.dim(value=stack.rows.shape[0])  # type: ignore[no-any-return]
    return n.b.scalar(len(_sequence(n).items), i64)


@rule("ConcatFromSequence")
def _concatenated(n: Node) -> Item:
    if isinstance(stack := n.item(0), Stack):
        return _joined(n, stack.rows)
    parts = [item for item in _sequence(n).items if isinstance(item, Value)]
    if not parts:
        raise n.fail("the sequence is empty")
    new = n.attr_flag("new_axis")
    axis = n.axis(n.attr_int("axis"), parts[0].type.rank + new)
    if new:
        parts = [unsqueeze(n, part, (axis,)) for part in parts]
    result: Value = n.b.concat(*parts, axis=axis) if len(parts) > 1 else parts[0]
    return result


def _joined(n: Node, rows: Value) -> Value:
    """The rows side by side along an axis of theirs, or along a new one."""
    new = n.attr_flag("new_axis")
    axis = n.axis(n.attr_int("axis"), rows.type.rank - 1 + new)
    order = (*range(1, axis + 1), 0, *range(axis + 1, rows.type.rank))
    turned = n.b.transpose(rows, permutation=order) if axis else rows
    if new:
        return turned
    shape = (*turned.shape[:axis], turned.shape[axis] * turned.shape[axis + 1], *turned.shape[axis + 2 :])
    return n.b.reshape(turned, shape=shape)  # type: ignore[no-any-return]


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
