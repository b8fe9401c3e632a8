"""Rules of control flow: a decided If, loops of known length unrolled."""

from __future__ import annotations

from collections.abc import Sequence

from .....ir.errors import UnsupportedError
from .....ir.graph import Value
from .....ir.types import boolean, i64
from ..context import Item, Node, rule
from .shape import unsqueeze

TRIPS = 1024


@rule("If")
def _if(n: Node) -> list[Item]:
    known = n.b.dims_of(n.x(0))
    if known is None:
        raise n.needed(n.x(0), "the condition")
    return n.runner.inline(n.attr_graph("then_branch" if bool(known.reshape(-1)[0]) else "else_branch"), [], n)


@rule("Loop")
def _loop(n: Node) -> Sequence[Item]:
    """Unrolled: the trip count and every condition must be known."""
    body = n.attr_graph("body")
    trips = n.integers(0, "the trip count")[0] if n.given(0) else None
    carried: list[Item] = [n.item(position) for position in range(2, len(n.inputs))]
    keep = _known_condition(n, n.x(1)) if n.given(1) else True
    collected: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    condition: Item = n.x(1) if n.given(1) else n.b.scalar(True, boolean)
    trip = 0
    while keep and (trips is None or trip < trips):
        if trip >= TRIPS:
            raise UnsupportedError(f"runs more than {TRIPS} times", hint="compute the loop outside the model, or use Scan on fewer steps")
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
        raise n.needed(value, "the condition of the loop")
    return bool(known.reshape(-1)[0])


def _tensor(n: Node, item: Item) -> Value:
    if not isinstance(item, Value):
        raise UnsupportedError("collects sequences or optionals", hint="carry the sequence instead")
    return item


def _stacked(n: Node, name: str, parts: Sequence[Value], axis: int = 0, reverse: bool = False) -> Value:
    if not parts:
        raise UnsupportedError(f"result {name!r} of a loop that never runs", hint="remove the loop")
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
    if not isinstance(trips, int) or trips > TRIPS:
        raise UnsupportedError(f"scans {trips} steps, expected a known number up to {TRIPS}", hint="fix that size at import (shapes)")
    collected: list[list[Value]] = [[] for _ in range(outputs)]
    for trip in range(trips):
        places = [trips - 1 - trip if backward else trip for backward in backwards]
        parts = [n.b.take(value, n.b.scalar(place, i64), axis=axis) for value, place, axis in zip(scanned, places, axes, strict=True)]
        results = n.runner.inline(body, [*carried, *parts], n)
        carried = results[:states]
        for rows, result in zip(collected, results[states:], strict=True):
            rows.append(_tensor(n, result))
    out_axes = n.attr_ints("scan_output_axes") or (0,) * outputs
    out_backwards = n.attr_ints("scan_output_directions") or (0,) * outputs
    stacked = []
    for position, rows in enumerate(collected):
        axis = n.axis(out_axes[position], (rows[0].type.rank if rows else 0) + 1)
        stacked.append(_stacked(n, body.output[states + position].name, rows, axis, bool(out_backwards[position])))
    return [*carried, *stacked]
