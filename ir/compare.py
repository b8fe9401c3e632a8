"""Structural equality of modules: the same ops, types, attributes, constants and wiring, whatever values are called."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from .graph import Graph, Module, Op, Value
from .text import attribute_text, op_text


def structurally_equal(left: Module, right: Module) -> bool:
    """Whether two modules are the same but for the names and sources of values and constants."""
    return difference(left, right) is None


def difference(left: Module, right: Module) -> str | None:
    """The first structural difference in one sentence, or None."""
    if left.facts != right.facts:
        return f"symbols differ: {_symbols(left)} and {_symbols(right)}"
    if list(left.functions) != list(right.functions):
        return f"functions differ: {', '.join(left.functions)} and {', '.join(right.functions)}"
    for name, graph in left.functions.items():
        found = _graph_difference(graph, right.functions[name])
        if found is not None:
            return f"in function @{name}: {found}"
    return None


def same_attributes(left: Op, right: Op) -> bool:
    """Whether two ops have equal attributes; 1, 1.0 and true differ, and so do 0.0 and -0.0."""
    if left.attrs.keys() != right.attrs.keys():
        return False
    return all(attribute_text(value) == attribute_text(right.attrs[name]) for name, value in left.attrs.items())


def _graph_difference(left: Graph, right: Graph) -> str | None:
    pairs: dict[Value, Value] = {}
    if [v.type for v in left.inputs] != [v.type for v in right.inputs]:
        return f"inputs differ: {_types(left.inputs)} and {_types(right.inputs)}"
    pairs.update(zip(left.inputs, right.inputs, strict=True))
    for one, other in zip_longest(left, right):
        if one is None or other is None:
            return f"one has the op {op_text(one or other)}, the other ends"
        if not _same_op(one, other, pairs):
            return f"ops differ: {op_text(one, source=False)} and {op_text(other, source=False)}"
        pairs.update(zip(one.results, other.results, strict=True))
    if not _same_values(left.outputs, right.outputs, pairs):
        return f"outputs differ: {left.outputs} and {right.outputs}"
    return None


def _same_op(left: Op, right: Op, pairs: dict[Value, Value]) -> bool:
    if left.name != right.name or [v.type for v in left.results] != [v.type for v in right.results]:
        return False
    return same_attributes(left, right) and _same_values(left.operands, right.operands, pairs)


def _same_values(left: Sequence[Value | None], right: Sequence[Value | None], pairs: dict[Value, Value]) -> bool:
    return len(left) == len(right) and all(_same_value(a, b, pairs) for a, b in zip(left, right, strict=True))


def _same_value(left: Value | None, right: Value | None, pairs: dict[Value, Value]) -> bool:
    if left is None or right is None:
        return left is right
    if left.constant is None or right.constant is None:
        return pairs.get(left) is right
    if left.type != right.type:
        return False
    return left.constant is right.constant or left.constant.digest == right.constant.digest


def _types(values: Sequence[Value]) -> str:
    return f"({', '.join(str(value.type) for value in values)})"


def _symbols(module: Module) -> str:
    divisors = module.facts.divisors
    return ", ".join(f"{name} in {bounds} divisor {divisors.get(name, 1)}" for name, bounds in module.facts.ranges.items()) or "none"
