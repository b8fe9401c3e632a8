"""Rules of control flow: what is known at import is taken, or written out; what the data decide runs functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from .....ir import dims
from .....ir.dims import Dim
from .....ir.errors import UnsupportedError
from .....ir.graph import Value
from .....ir.ops.control import ENDLESS, result_attrs
from .....ir.ops.table import OPS
from .....ir.types import TensorType, boolean, i64
from ...bodies import close, drop_body
from ..context import Item, Node, Stack, ValueSequence, cast, rule
from .sequences import stacked
from .shape import unsqueeze

TRIPS = 1024
"""A loop that runs more often is not written out."""


class _Undecided(Exception):
    """Only the data tell whether a loop goes on."""


@rule("If")
def _if(n: Node) -> Sequence[Item]:
    known = n.b.dims_of(n.x(0))
    if known is not None:
        return n.runner.inline(n.attr_graph("then_branch" if bool(known.reshape(-1)[0]) else "else_branch"), [], n)
    outside = frozenset(n.b.module.symbols)
    branches = {label: n.attr_graph(f"{label}_branch") for label in ("then", "else")}
    bodies = [n.runner.function(label, (), _nested(n, graph), n) for label, graph in branches.items()]
    counts = [len(body.outputs) for body in bodies]
    if len(set(counts)) != 1:
        raise n.fail(f"its branches give {counts[0]} and {counts[1]} results")
    types = [_common(n, one.type, other.type, outside) for one, other in zip(*(body.outputs for body in bodies), strict=True)]
    operands = close(n.b, bodies, outside)
    attrs = {"then": bodies[0].name, "otherwise": bodies[1].name, **result_attrs(types)}
    return n.b.build(OPS["branch"], [_scalar(n, n.x(0), "the condition"), *operands], attrs)


def _nested(n: Node, graph: object) -> Callable[[list[Value]], Sequence[Item]]:
    return lambda values: n.runner.inline(graph, values, n)


def _scalar(n: Node, value: Value, what: str) -> Value:
    """One element, which may stand in a vector."""
    if value.type.elements != 1:
        raise n.fail(f"{what} is {value.type}, expected one element")
    return value if not value.type.rank else n.b.reshape(value, shape=())


def _common(n: Node, one: TensorType, other: TensorType, outside: Collection[str]) -> TensorType:
    """The type of what is either of two: sizes that differ, or that only a branch knows, are known when one has run."""
    if one.dtype != other.dtype:
        raise n.fail(f"one branch gives {one}, the other {other}")
    if one.rank != other.rank:
        raise UnsupportedError(f"one branch gives {one}, the other {other}", hint="give both the same number of dimensions")
    return one.with_shape(tuple(_size(n, a, b, outside) for a, b in zip(one.shape, other.shape, strict=True)))


def _size(n: Node, one: Dim, other: Dim, outside: Collection[str]) -> Dim:
    return one if dims.equal(one, other, n.facts) is True and dims.symbols(one) <= set(outside) else n.fresh("size")


@rule("Loop")
def _loop(n: Node) -> Sequence[Item]:
    """Written out where the trip count and every condition are known, and the count is small; else a loop."""
    known = n.known(0) if n.given(0) else None
    trips = None if known is None or known.size != 1 else known.reshape(-1)[0]
    if isinstance(trips, int) and 0 < trips <= TRIPS:
        try:
            return _written_out(n, trips)
        except _Undecided:
            pass
    return _running(n)


def _running(n: Node) -> Sequence[Item]:
    """A loop that runs as often as the data say."""
    body, items = n.attr_graph("body"), [n.item(position) for position in range(2, len(n.inputs))]
    elements = _elements(n, body, items)
    carried = [_tensor(n, item) if element is None else stacked(n, item, element) for item, element in zip(items, elements, strict=True)]
    count = cast(n, _scalar(n, n.x(0), "the trip count"), i64) if n.given(0) else n.b.scalar(ENDLESS, i64)
    condition = _scalar(n, n.x(1), "the condition") if n.given(1) else n.b.scalar(True, boolean)
    if len(body.input) != 2 + len(carried) or len(body.output) < 1 + len(carried):
        raise n.fail(f"its body has {len(body.input)} inputs and {len(body.output)} results for {len(carried)} carried values")

    def build(values: list[Value]) -> Sequence[Item]:
        head, held = values[:2], values[2:]
        given = [value if element is None else Stack(value) for value, element in zip(held, elements, strict=True)]
        goes_on, *made = n.runner.inline(body, [*head, *given], n)
        after = [item if element is None else stacked(n, item, element) for item, element in zip(made, elements, strict=False)]
        return [goes_on, *after, *made[len(elements) :]]

    results = looped(n, count, condition, carried, build)
    held = [value if element is None else Stack(value) for value, element in zip(results, elements, strict=False)]
    return [*held, *results[len(elements) :]]


def _elements(n: Node, body: Any, items: Sequence[Item]) -> list[TensorType | None]:
    """Of which type the elements of each carried sequence are, None for what is none: an empty one is what a round makes of it."""
    found: list[TensorType | None] = [_element(item) for item in items]
    if not any(isinstance(item, ValueSequence) and not item.items for item in items):
        return found
    outside = frozenset(n.b.module.symbols)
    head = [TensorType(i64, ()), TensorType(boolean, ())]
    tensors = [item for item in items if isinstance(item, Value)]

    def build(values: list[Value]) -> Sequence[Item]:
        held = iter(values[2:])
        given = [next(held) if isinstance(item, Value) else item for item in items]
        _, *made = n.runner.inline(body, [*values[:2], *given], n)
        for place, item in enumerate(items):
            if isinstance(item, ValueSequence) and not item.items:
                found[place] = _element(made[place])
        return []

    drop_body(n.b.module, n.runner.function("loop", [*head, *(value.type for value in tensors)], build, n))
    for place, (item, element) in enumerate(zip(items, found, strict=True)):
        if isinstance(item, ValueSequence) and (element is None or any(not dims.symbols(size) <= outside for size in element.shape)):
            raise UnsupportedError(
                f"carries sequence {place} whose elements {'are not known' if element is None else f'are {element}'}",
                hint="append tensors of one dtype and shape, which is known before the loop",
            )
    return found


def _element(item: Item) -> TensorType | None:
    """The type of a sequence's first element."""
    if isinstance(item, Stack):
        return item.rows.type.with_shape(item.rows.shape[1:])
    first = next(iter(item.items), None) if isinstance(item, ValueSequence) else None
    return first.type if isinstance(first, Value) else None


def looped(
    n: Node, count: Value, condition: Value, carried: Sequence[Value], build: Callable[[list[Value]], Sequence[Item]]
) -> list[Value]:
    """A loop over values that may change their sizes from round to round."""
    outside = frozenset(n.b.module.symbols)
    head = [TensorType(i64, ()), TensorType(boolean, ())]
    types, loose = [value.type for value in carried], set[str]()
    while True:
        body = n.runner.function("loop", [*head, *types], build, n)
        made = [value.type for value in body.outputs[1 : 1 + len(types)]]
        wider = [_widened(n, before, after, loose) for before, after in zip(types, made, strict=True)]
        if wider == types:
            break
        drop_body(n.b.module, body)
        types = wider
    goes_on = body.outputs[0]
    always = _is_true(n, condition) and (goes_on is body.inputs[1] or _is_true(n, goes_on))
    rounds = n.b.dims_of(count) if always else None
    turns = n.fresh("rounds") if rounds is None or not _is_size(n, rounds.reshape(-1)[0]) else rounds.reshape(-1)[0]
    rows = [value.type.with_shape((turns, *value.shape)) for value in body.outputs[1 + len(types) :]]
    inside = set(outside) | dims.symbols(turns)
    results = [type.with_shape(tuple(s if dims.symbols(s) <= inside else n.fresh("size") for s in type.shape)) for type in (*types, *rows)]
    operands = close(n.b, [body], outside)
    attrs = {"body": body.name, "carried": len(carried), **result_attrs(results)}
    return list(n.b.build(OPS["loop"], [count, condition, *carried, *operands], attrs))


def _is_true(n: Node, value: Value) -> bool:
    known = n.b.dims_of(value)
    return known is not None and bool(known.reshape(-1)[0])


def _is_size(n: Node, size: Dim) -> bool:
    return dims.at_most(0, size, n.facts) is True


def _widened(n: Node, before: TensorType, after: TensorType, loose: set[str]) -> TensorType:
    """The type of a carried value that has room for what a round makes of it."""
    if before.dtype != after.dtype:
        raise n.fail(f"a carried value is {before} and becomes {after}")
    if before.rank != after.rank:
        raise UnsupportedError(f"a carried value is {before} and becomes {after}", hint="keep its number of dimensions")
    shape = []
    for size, following in zip(before.shape, after.shape, strict=True):
        if dims.name_of(size) not in loose and dims.equal(size, following, n.facts) is not True:
            size = n.fresh("carried")
            loose.add(str(size))
        shape.append(size)
    return before.with_shape(tuple(shape))


def _written_out(n: Node, trips: int) -> Sequence[Item]:
    body = n.attr_graph("body")
    carried: list[Item] = [n.item(position) for position in range(2, len(n.inputs))]
    keep = _known_condition(n, n.x(1)) if n.given(1) else True
    collected: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    condition: Item = n.x(1) if n.given(1) else n.b.scalar(True, boolean)
    trip = 0
    while keep and trip < trips:
        results = n.runner.inline(body, [n.b.scalar(trip, i64), condition, *carried], n)
        condition, carried = results[0], results[1 : 1 + len(carried)]
        for scanned, result in zip(collected, results[1 + len(carried) :], strict=True):
            scanned.append(_tensor(n, result))
        keep = _known_condition(n, _tensor(n, condition))
        trip += 1
    return [*carried, *(_stacked(n, body.output[1 + len(carried) + k].name, parts) for k, parts in enumerate(collected))]


def _known_condition(n: Node, value: Value) -> bool:
    known = n.b.dims_of(value)
    if known is None:
        raise _Undecided
    return bool(known.reshape(-1)[0])


def _tensor(n: Node, item: Item) -> Value:
    if not isinstance(item, Value):
        raise UnsupportedError("collects sequences or optionals", hint="carry the sequence instead")
    return item


def _stacked(n: Node, name: str, parts: Sequence[Value], axis: int = 0, reverse: bool = False) -> Value:
    if not parts:
        raise _Undecided
    rows = [unsqueeze(n, part, (axis,)) for part in (reversed(parts) if reverse else parts)]
    result: Value = n.b.concat(*rows, axis=axis) if len(rows) > 1 else rows[0]
    return result


@rule("Scan")
def _scan(n: Node) -> Sequence[Item]:
    """Unrolled over a scan axis of known size."""
    if n.opset < 9:
        return _batched_scan(n)
    return _scan_over(n, [n.item(k) for k in range(len(n.inputs))], n.attr_int("num_scan_inputs"))


def _batched_scan(n: Node) -> Sequence[Item]:
    """Opset 8 had a batch axis: each of its members is scanned alone."""
    if n.given(0):
        raise UnsupportedError("sequence lengths", hint="export the model with opset 9 or later")
    count = n.attr_int("num_scan_inputs")
    inputs = [n.x(k) for k in range(1, len(n.inputs))]
    batch = inputs[0].shape[0] if inputs else 0
    if not isinstance(batch, int) or batch < 1 or batch > TRIPS:
        raise UnsupportedError(f"batch of size {batch}", hint="fix it at import (shapes)")
    rows: list[Sequence[Item]] = []
    for member in range(batch):
        parts = [n.b.take(value, n.b.scalar(member, i64), axis=0) for value in inputs]
        rows.append(_scan_over(n, parts, count))
    return [_stacked(n, "result", [_tensor(n, row[k]) for row in rows]) for k in range(len(rows[0]))]


def _scan_over(n: Node, inputs: Sequence[Item], count: int) -> Sequence[Item]:
    body = n.attr_graph("body")
    states = len(inputs) - count
    outputs = len(body.output) - states
    if count < 1 or states < 0 or outputs < 0:
        raise n.fail(f"got {count} scanned of {len(inputs)} inputs and {len(body.output)} results")
    carried: list[Item] = list(inputs[:states])
    scanned = [_tensor(n, item) for item in inputs[states:]]
    axes = [n.axis(axis, value.type.rank) for axis, value in zip(n.attr_ints("scan_input_axes") or (0,) * count, scanned, strict=True)]
    backwards = n.attr_ints("scan_input_directions") or n.attr_ints("directions") or (0,) * count
    trips = scanned[0].shape[axes[0]]
    if not isinstance(trips, int) or not 0 < trips <= TRIPS:
        return _running_scan(n, [_tensor(n, item) for item in carried], scanned, axes, backwards)
    collected: list[list[Value]] = [[] for _ in range(outputs)]
    for trip in range(trips):
        places = [trips - 1 - trip if backward else trip for backward in backwards]
        parts = [n.b.take(value, n.b.scalar(place, i64), axis=axis) for value, place, axis in zip(scanned, places, axes, strict=True)]
        results = n.runner.inline(body, [*carried, *parts], n)
        carried = results[:states]
        for rows, result in zip(collected, results[states:], strict=True):
            rows.append(_tensor(n, result))
    out_axes, out_backwards = _directions(n, outputs)
    stacked = []
    for position, rows in enumerate(collected):
        axis = n.axis(out_axes[position], (rows[0].type.rank if rows else 0) + 1)
        stacked.append(_stacked(n, body.output[states + position].name, rows, axis, bool(out_backwards[position])))
    return [*carried, *stacked]


def _directions(n: Node, outputs: int) -> tuple[Sequence[int], Sequence[int]]:
    """Along which axis rows are stacked, and whether the last one comes first."""
    return n.attr_ints("scan_output_axes") or (0,) * outputs, n.attr_ints("scan_output_directions") or (0,) * outputs


def _running_scan(
    n: Node, carried: Sequence[Value], scanned: Sequence[Value], axes: Sequence[int], backwards: Sequence[int]
) -> Sequence[Value]:
    """A scan over as many steps as the data have."""
    graph, trips = n.attr_graph("body"), scanned[0].shape[axes[0]]

    def build(values: list[Value]) -> Sequence[Item]:
        place, true, *held = values
        last = n.b.sub(n.b.dim(value=trips - 1), place) if any(backwards) else place
        steps = zip(scanned, axes, backwards, strict=True)
        parts = [n.b.take(value, last if backward else place, axis=axis) for value, axis, backward in steps]
        return [true, *n.runner.inline(graph, [*held, *parts], n)]

    results = looped(n, n.b.dim(value=trips), n.b.scalar(True, boolean), carried, build)
    rows = results[len(carried) :]
    out_axes, out_backwards = _directions(n, len(rows))
    return [*results[: len(carried)], *(turned(n, *row) for row in zip(rows, out_axes, out_backwards, strict=True))]


def turned(n: Node, rows: Value, axis: int, backwards: int) -> Value:
    """Stacked rows with the last one first if that is asked, along the axis that is asked."""
    if backwards:
        count, rest = rows.shape[0], len(rows.shape) - 1
        rows = n.b.slice(rows, starts=(count - 1, *(0,) * rest), sizes=rows.shape, steps=(-1, *(1,) * rest))
    axis = n.axis(axis, rows.type.rank)
    order = [*range(1, axis + 1), 0, *range(axis + 1, rows.type.rank)]
    return rows if axis == 0 else n.b.transpose(rows, permutation=tuple(order))
