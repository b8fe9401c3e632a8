"""Structural equality of modules: the same ops, types, attributes, constants and wiring, whatever values are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from .. import dims
from ..dims import Dim, Expr
from ..errors import ParseError
from ..types import TensorType
from .graph import Graph, Module, Op, Value
from .text import attribute_text, op_text

Sizes = Mapping[str, Dim]
"""What the symbols of the left module stand for in the right one; a symbol that is not named stands for itself."""


NAMES = frozenset({"subject"})
"""Attributes that say what a message calls a value."""


def difference(left: Module, right: Module) -> str | None:
    """The first structural difference in one sentence, or None."""
    if left.facts != right.facts:
        return f"symbols differ: {_symbols(left)} and {_symbols(right)}"
    return _difference(left, right, {})


def specialization(general: Module, special: Module) -> dict[str, Dim] | None:
    """The size of each symbol of `general` that makes it `special`; None if there is none, or `general` is not made for it.

    Sizes are read off the inputs: a symbol that stands alone on an axis of `general` has the size of that axis of
    `special`, an integer or any expression over its symbols.
    """
    sizes = _sizes_of_inputs(general, special)
    if sizes.keys() != general.facts.ranges.keys() or not all(_admits(general, name, size, special) for name, size in sizes.items()):
        return None
    try:
        return sizes if _difference(general, special, sizes) is None else None
    except ParseError:  # a size has no value there: a division by zero
        return None


def _sizes_of_inputs(general: Module, special: Module) -> dict[str, Dim]:
    """The sizes that inputs of `special` give to the symbols of `general`; the first place of a symbol decides."""
    sizes: dict[str, Dim] = {}
    for one, other in zip(general.main.inputs, special.main.inputs, strict=False):
        for size, given in zip(one.shape, other.shape, strict=False):
            if (name := dims.name_of(size)) is not None and name in general.facts.ranges:
                sizes.setdefault(name, given)
    # Symbols that are the value of a scalar: the same `item` of both gives it.
    for left, right in zip(_items(general), _items(special), strict=False):
        sizes.setdefault(str(left.attrs["symbol"]), right.attrs["symbol"])
    return sizes


def _items(module: Module) -> list[Op]:
    return [op for op in module.main if op.name == "item"]


def _admits(general: Module, name: str, size: Dim, special: Module) -> bool:
    """Whether every value of `size` is one that the symbol may have."""
    wanted, given = general.facts.ranges[name], dims.range_of(size, special.facts)
    low = wanted.low is None or (given.low is not None and given.low >= wanted.low)
    high = wanted.high is None or (given.high is not None and given.high <= wanted.high)
    return low and high and dims.divides(general.facts.divisors.get(name, 1), size, special.facts) is True


def _difference(left: Module, right: Module, sizes: Sizes) -> str | None:
    if list(left.functions) != list(right.functions):
        return f"functions differ: {', '.join(left.functions)} and {', '.join(right.functions)}"
    if _states(left) != _states(right):
        return f"states differ: {_states(left)} and {_states(right)}"
    for name, graph in left.functions.items():
        found = _Comparison(sizes).difference(graph, right.functions[name])
        if found is not None:
            return f"in function @{name}: {found}"
    return None


def _states(module: Module) -> dict[str, tuple[str, str]]:
    """The type of each state and what it begins with."""
    begins = {name: state.initial.constant for name, state in module.states.items() if state.initial is not None}
    digests = {name: constant.digest for name, constant in begins.items() if constant is not None}
    return {name: (str(state.type), digests.get(name, "zeros")) for name, state in module.states.items()}


class _Comparison:
    """Two functions walked together: which values correspond, with the left one's symbols replaced."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.pairs: dict[Value, Value] = {}

    def difference(self, left: Graph, right: Graph) -> str | None:
        if not self._same_types(left.inputs, right.inputs):
            return f"inputs differ: {_types(left.inputs)} and {_types(right.inputs)}"
        if left.states != right.states:
            return f"states differ: {', '.join(left.states)} and {', '.join(right.states)}"
        self.pairs.update(zip(left.inputs, right.inputs, strict=True))
        for one, other in zip_longest(left, right):
            if one is None or other is None:
                return f"one has the op {op_text(one or other)}, the other ends"
            if not self._same_op(one, other):
                return f"ops differ: {op_text(one, source=False)} and {op_text(other, source=False)}"
            self.pairs.update(zip(one.results, other.results, strict=True))
        if not self._same_values(left.outputs, right.outputs):
            return f"outputs differ: {left.outputs} and {right.outputs}"
        return None

    def _same_op(self, left: Op, right: Op) -> bool:
        if left.name != right.name or not self._same_types(left.results, right.results):
            return False
        return _same_attributes(left, right, self.sizes) and self._same_values(left.operands, right.operands)

    def _same_types(self, left: Sequence[Value], right: Sequence[Value]) -> bool:
        return [_at(value.type, self.sizes) for value in left] == [value.type for value in right]

    def _same_values(self, left: Sequence[Value | None], right: Sequence[Value | None]) -> bool:
        return len(left) == len(right) and all(self._same_value(a, b) for a, b in zip(left, right, strict=True))

    def _same_value(self, left: Value | None, right: Value | None) -> bool:
        if left is None or right is None:
            return left is right
        if left.constant is None or right.constant is None:
            return self.pairs.get(left) is right
        if left.type != right.type:
            return False
        return left.constant is right.constant or left.constant.digest == right.constant.digest


def _at(type: TensorType, sizes: Sizes) -> TensorType:
    """A type with symbols replaced."""
    if not sizes or type.is_static:
        return type
    return type.with_shape(tuple(dims.substitute(size, sizes) for size in type.shape))


def _same_attributes(left: Op, right: Op, sizes: Sizes) -> bool:
    """Whether two ops have equal attributes; 1, 1.0 and true differ, and so do 0.0 and -0.0."""
    if left.attrs.keys() != right.attrs.keys():
        return False
    named = {name: value for name, value in left.attrs.items() if name not in NAMES}
    return all(attribute_text(_attribute_at(value, sizes)) == attribute_text(right.attrs[name]) for name, value in named.items())


def _attribute_at(value: Any, sizes: Sizes) -> Any:
    """An attribute with symbols replaced."""
    if isinstance(value, tuple):
        return tuple(_attribute_at(part, sizes) for part in value)
    return dims.substitute(value, sizes) if isinstance(value, Expr) else value


def _types(values: Sequence[Value]) -> str:
    return f"({', '.join(str(value.type) for value in values)})"


def _symbols(module: Module) -> str:
    divisors = module.facts.divisors
    return ", ".join(f"{name} in {bounds} divisor {divisors.get(name, 1)}" for name, bounds in module.facts.ranges.items()) or "none"
