"""A module again: the same functions with values and ops of their own, which a target may rewrite; constants share their bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .graph import Graph, Module, Op, Value


def copied(module: Module) -> Module:
    """The same module, of which nothing is changed when the other is."""
    constants = {
        name: Value(value.name, value.type, constant=value.constant, source=value.source) for name, value in module.constants.items()
    }
    known = {value: constants[name] for name, value in module.constants.items()}
    states = {
        name: replace(state, initial=None if state.initial is None else known[state.initial]) for name, state in module.states.items()
    }
    functions = {name: _copied(graph, known) for name, graph in module.functions.items()}
    numbers, allowed = dict(module._numbers), module.allowed.copy()
    return replace(module, constants=constants, states=states, functions=functions, allowed=allowed, _numbers=numbers)


def _copied(graph: Graph, constants: Mapping[Value, Value]) -> Graph:
    made, known = Graph(graph.name), dict(constants)
    made._names = dict(graph._names)
    for value in graph.inputs:
        known[value] = Value(value.name, value.type, source=value.source)
    for op in graph:
        own = Op(op.definition, tuple(None if value is None else known[value] for value in op.operands), op.attrs, op.source)
        own.results = tuple(Value(value.name, value.type, op=own, source=value.source) for value in op.results)
        known.update(zip(op.results, own.results, strict=True))
        made.insert(own)
    made.inputs, made.outputs = ([known[value] for value in values] for values in (graph.inputs, graph.outputs))
    made.output_names, made.states = list(graph.output_names), list(graph.states)
    return made


__all__ = ["copied"]
