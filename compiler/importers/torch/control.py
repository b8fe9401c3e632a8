"""Control flow of torch: `cond`, `while_loop`, `scan`, `map`, `associative_scan` and the functions that they run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ....ir.dims import Expr
from ....ir.errors import Source, UnsupportedError
from ....ir.graph import Builder, Graph, Module, Value
from ....ir.ops.control import ENDLESS, result_attrs
from ....ir.ops.table import OPS
from ....ir.types import TensorType, boolean, i64
from ..bodies import close, drop_body, open_body

Build = Callable[[Graph, Sequence[Any]], list[Any]]
"""Builds the results of a function in it, from what it is given."""


class Walk(Protocol):
    """What is needed of the import of a graph."""

    module: Module
    graph: Graph
    b: Builder

    def inline(self, graph_module: Any, graph: Graph, arguments: Sequence[Any]) -> list[Any]:
        """The values that a graph module gives for these arguments, its nodes built in `graph`."""


def is_control(node: Any) -> bool:
    """Whether a node runs graphs that are its arguments."""
    return getattr(node.target, "__name__", "") in _RULES and not hasattr(node.target, "_schema")


def run_control(walk: Walk, node: Any, arguments: Sequence[Any], types: Sequence[TensorType]) -> tuple[Value, ...]:
    """The results of a node that runs graphs; UnsupportedError where one of them gives something else than tensors."""
    return _RULES[node.target.__name__](walk, arguments, types)


def _cond(walk: Walk, arguments: Sequence[Any], types: Sequence[TensorType]) -> tuple[Value, ...]:
    condition, *graphs, operands = arguments
    if not isinstance(condition, Value):
        raise UnsupportedError(f"the condition of cond is a {type(condition).__name__}, expected a tensor")
    outside, values = frozenset(walk.module.symbols), _tensors(operands)
    parts: list[tuple[str, Build]] = [
        (label, functools.partial(walk.inline, graph)) for label, graph in zip(("then", "else"), graphs, strict=True)
    ]
    bodies = _bodies(walk, parts, lambda graph: _inputs(graph, operands))
    attrs = {"then": bodies[0].name, "otherwise": bodies[1].name, **result_attrs(types)}
    return walk.b.build(OPS["branch"], [_scalar(walk, condition), *values, *close(walk.b, bodies, outside)], attrs)


def _while_loop(walk: Walk, arguments: Sequence[Any], types: Sequence[TensorType]) -> tuple[Value, ...]:
    goes_on, step, carried, captured = arguments
    values = _tensors(carried)
    if len(values) != len(carried):
        raise UnsupportedError("a number is carried by while_loop, expected tensors", hint="carry it as a tensor of no dimensions")
    outside = frozenset(walk.module.symbols)

    def inputs(graph: Graph) -> list[Any]:
        graph.add_input("round", TensorType(i64, ()))
        graph.add_input("goes_on", TensorType(boolean, ()))
        return _inputs(graph, [*carried, *captured])

    def body(graph: Graph, given: Sequence[Any]) -> list[Any]:
        made = walk.inline(step, graph, given)
        (after,) = walk.inline(goes_on, graph, [*made, *given[len(made) :]])
        return [_scalar(walk, after, graph), *made]

    (condition,) = walk.inline(goes_on, walk.graph, [*carried, *captured])
    bodies = _bodies(walk, [("loop", body)], inputs)
    count = walk.module.add_constant("endless", np.asarray(ENDLESS, np.int64))
    operands = [count, _scalar(walk, condition), *values, *_tensors(captured), *close(walk.b, bodies, outside)]
    return walk.b.build(OPS["loop"], operands, {"body": bodies[0].name, "carried": len(values), **result_attrs(types)})


def _scan(walk: Walk, arguments: Sequence[Any], types: Sequence[TensorType]) -> tuple[Value, ...]:
    """A function of what is carried and of one row of each operand gives what is carried next, and rows of the results."""
    combine, carried, rows, captured = arguments
    return _over_rows(walk, "scan", (carried, rows, captured), types, lambda graph, place, given: walk.inline(combine, graph, given))


def _map(walk: Walk, arguments: Sequence[Any], types: Sequence[TensorType]) -> tuple[Value, ...]:
    """A function of one row of each operand gives rows of the results."""
    function, rows, captured = arguments
    return _over_rows(walk, "map", ([], rows, captured), types, lambda graph, place, given: walk.inline(function, graph, given))


def _associative_scan(walk: Walk, arguments: Sequence[Any], types: Sequence[TensorType]) -> tuple[Value, ...]:
    """Row after row: each is combined with what those before it gave, but for the first."""
    combine, rows, captured = arguments
    count, zero = len(rows), np.asarray(0, np.int64)

    def step(graph: Graph, place: Value, given: Sequence[Any]) -> list[Any]:
        b = Builder(walk.module, graph)
        first = b.eq(place, walk.module.add_constant("first", zero))
        made = walk.inline(combine, graph, given)
        held = [b.where(first, row, value) for row, value in zip(given[count : 2 * count], made, strict=True)]
        return [*held, *held]

    start = [walk.b.take(row, walk.module.add_constant("first", zero), axis=0) for row in _tensors(rows)]
    results = _over_rows(walk, "associative_scan", (start, rows, captured), [*(value.type for value in start), *types], step)
    return results[count:]


def _over_rows(
    walk: Walk,
    name: str,
    operands: tuple[Sequence[Any], Sequence[Any], Sequence[Any]],
    types: Sequence[TensorType],
    step: Callable[[Graph, Value, Sequence[Any]], list[Any]],
) -> tuple[Value, ...]:
    """A loop over the first axis of `rows`: carried values, their rows and what is captured go in, what is carried and rows come out."""
    carried, rows, captured = operands
    given = [_tensors(part) for part in operands]
    if [len(given[0]), len(given[1])] != [len(carried), len(rows)] or not rows:
        raise UnsupportedError(
            f"{name} runs over {len(rows)} values and carries {len(carried)}, expected tensors only, and one to run over"
        )
    outside, length = frozenset(walk.module.symbols), given[1][0].shape[0]

    def inputs(graph: Graph) -> list[Any]:
        place = graph.add_input("round", TensorType(i64, ()))
        goes_on = graph.add_input("goes_on", TensorType(boolean, ()))
        return [place, goes_on, *_inputs(graph, [*carried, *rows, *captured])]

    def body(graph: Graph, inside: Sequence[Any]) -> list[Any]:
        place, goes_on, *values = inside
        held, read = values[: len(carried)], values[len(carried) :]
        parts = [Builder(walk.module, graph).take(value, place, axis=0) for value in read[: len(rows)]]
        return [goes_on, *step(graph, place, [*held, *parts, *read[len(rows) :]])]

    bodies = _bodies(walk, [(name, body)], inputs)
    always = walk.module.add_constant("always", np.asarray(True))
    closed = close(walk.b, bodies, outside)
    attrs = {"body": bodies[0].name, "carried": len(carried), **result_attrs(types)}
    return walk.b.build(OPS["loop"], [walk.b.dim(value=length), always, *(value for part in given for value in part), *closed], attrs)


_RULES: dict[str, Callable[[Walk, Sequence[Any], Sequence[TensorType]], tuple[Value, ...]]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "map_impl": _map,
    "associative_scan": _associative_scan,
}


def _bodies(walk: Walk, parts: Sequence[tuple[str, Build]], inputs: Callable[[Graph], list[Any]]) -> list[Graph]:
    """A function for each part."""
    made: list[Graph] = []
    try:
        for label, build in parts:
            made.append(open_body(walk.module, f"{walk.graph.name}.{label}"))
            results = build(made[-1], inputs(made[-1]))
            if not all(isinstance(result, Value) for result in results):
                raise UnsupportedError(f"the {label} part of control flow gives something else than tensors", hint="return tensors only")
            made[-1].set_outputs(results, [f"y{number}" for number in range(len(results))])
    except BaseException:
        for graph in made:
            drop_body(walk.module, graph)
        raise
    return made


def _inputs(graph: Graph, operands: Sequence[Any]) -> list[Any]:
    """The operands inside: tensors are inputs, sizes and numbers what they are outside."""
    return [
        graph.add_input(operand.name, operand.type, operand.source or Source(operand.name)) if isinstance(operand, Value) else operand
        for operand in operands
    ]


def _tensors(operands: Sequence[Any]) -> list[Value]:
    for operand in operands:
        if not isinstance(operand, (Value, Expr, int)):
            raise UnsupportedError(f"control flow takes a {type(operand).__name__}, expected tensors and sizes")
    return [operand for operand in operands if isinstance(operand, Value)]


def _scalar(walk: Walk, value: Any, graph: Graph | None = None) -> Value:
    """A bool of no dimensions."""
    if not isinstance(value, Value) or value.dtype != boolean or value.type.elements != 1:
        raise UnsupportedError("a condition is no single bool", hint="compute it with torch, as a tensor of one bool")
    made: Value = Builder(walk.module, graph or walk.graph).reshape(value, shape=()) if value.type.rank else value
    return made
