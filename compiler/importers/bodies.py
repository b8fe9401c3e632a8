"""Nested graphs that only the data decide about: functions of the module, with what they read from around them as inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ...ir import dims
from ...ir.graph import Builder, Graph, Module, Value
from ...ir.types import TensorType, i64


def open_body(module: Module, name: str) -> Graph:
    """A new function of the module, under this name with a number."""
    number = 0
    while f"{name}{number}" in module.functions:
        number += 1
    module.functions[f"{name}{number}"] = Graph(f"{name}{number}")
    return module.functions[f"{name}{number}"]


def drop_body(module: Module, body: Graph) -> None:
    """Take a function back, and its reads of what stands around it."""
    for op in list(body.reversed()):
        body.remove(op)
    del module.functions[body.name]


def close(builder: Builder, bodies: Sequence[Graph], outside: Collection[str]) -> list[Value]:
    """Make what any of the bodies reads from around it a further input of all of them: values, and symbols of `outside`.

    The values that the op which runs them has to give for these inputs, in order.
    """
    outer = list(dict.fromkeys(value for body in bodies for value in _read_outside(body)))
    for body in bodies:
        inner = {value: body.add_input(value.name, value.type, value.source) for value in outer}
        for op in body:
            for position, value in enumerate(op.operands):
                if value in inner:
                    body.set_operand(op, position, inner[value])
        body.outputs = [inner.get(value, value) for value in body.outputs]
    sizes: list[Value] = []
    for name in sorted(set().union(*(_unknown(body, outside) for body in bodies))):
        sizes.append(builder.dim(value=dims.symbol(name)))
        for body in bodies:
            given = body.add_input(name, TensorType(i64, ()))
            Builder(builder.module, body, body.first).item(given, symbol=dims.symbol(name))
    return [*outer, *sizes]


def _read_outside(body: Graph) -> Iterator[Value]:
    own = {*body.inputs, *(result for op in body for result in op.results)}
    read = (*(value for op in body for value in op.operands), *body.outputs)
    return (value for value in read if value is not None and value.constant is None and value not in own)


def _unknown(body: Graph, outside: Collection[str]) -> frozenset[str]:
    """The symbols of `outside` that the sizes of the body's inputs do not tell."""
    told = {dims.name_of(size) for value in body.inputs for size in value.shape}
    return (body.symbols & frozenset(outside)) - told
