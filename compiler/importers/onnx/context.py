"""What a rule sees of a node: operands, typed attributes, known values; and how a rule says that it cannot."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from ....ir import dims
from ....ir.dims import Dim
from ....ir.errors import ModelError, Source, UnsupportedError
from ....ir.graph import Graph, Value
from ....ir.types import DType, TensorType
from .. import moves
from .external import ExternalFiles
from .symbolic import FoldingBuilder
from .symbols import NarrowerError

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class ValueSequence:
    """An ONNX sequence whose length is known: its elements."""

    items: tuple[Item, ...]


@dataclass(frozen=True)
class Stack:
    """An ONNX sequence whose length only the data tell: its elements, all of one type, are the rows of a tensor."""

    rows: Value


@dataclass(frozen=True)
class Optional:
    """An ONNX optional; `item` is None where it holds nothing."""

    item: Item | None


Item: TypeAlias = "Value | ValueSequence | Stack | Optional"


class ValueNeededError(UnsupportedError):
    """A rule needs a value at import that only the run has; `inputs` are the graph inputs that decide it."""

    def __init__(self, message: str, inputs: frozenset[str], hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.inputs = inputs


@dataclass(frozen=True)
class RefusedNode:
    """One node that cannot be represented."""

    node: str
    op_type: str
    reason: str
    alternative: str | None = None
    inputs: frozenset[str] = frozenset()


class UnsupportedModelError(UnsupportedError):
    """All nodes of a model that cannot be represented, at once."""

    def __init__(self, problems: Sequence[RefusedNode], source: Source | None) -> None:
        types = sorted({problem.op_type for problem in problems})
        nodes = "node is" if len(problems) == 1 else "nodes are"
        hints = list(dict.fromkeys(problem.alternative for problem in problems if problem.alternative))
        lines = [f"{problem.op_type} {problem.node!r}: {problem.reason}" for problem in problems]
        super().__init__(
            f"{len(problems)} {nodes} not supported: {', '.join(types)}",
            source=source,
            note="\n".join(lines),
            hint="; ".join(hints) or "rewrite these nodes before the export, or run them outside the model",
        )
        self.problems = tuple(problems)

    @property
    def inputs(self) -> frozenset[str]:
        """The graph inputs whose values would decide what could not be decided; empty if that would not be enough."""
        return frozenset().union(*(problem.inputs for problem in self.problems))


class Runner(Protocol):
    """What rules need of the importer beyond their node."""

    files: ExternalFiles

    def inline(self, graph: onnx.GraphProto, inputs: Sequence[Item | None], node: Node) -> list[Item]:
        """The outputs of a nested graph, its nodes imported in place."""
        ...

    def function(self, label: str, types: Sequence[TensorType], build: Callable[[list[Value]], Sequence[Item]], node: Node) -> Graph:
        """A function of the module whose inputs have these types, and whose outputs `build` makes of them."""
        ...

    def inputs_of(self, value: Value) -> frozenset[str]:
        """The graph inputs that a value depends on."""
        ...


@dataclass
class Node:
    """One ONNX node with its operands; accessors raise ModelError for what is missing or of a wrong kind."""

    op_type: str
    domain: str
    opset: int
    source: Source
    inputs: list[Item | None]
    attrs: dict[str, Any]
    outputs: list[str]
    builder: FoldingBuilder
    runner: Runner
    scope: Any = field(repr=False, default=None)

    @property
    def b(self) -> FoldingBuilder:
        return self.builder

    @property
    def facts(self) -> dims.Facts:
        return self.builder.module.facts

    # operands

    def item(self, position: int) -> Item:
        """An operand of any kind."""
        item = self.inputs[position] if position < len(self.inputs) else None
        if item is None:
            raise ModelError(f"{self.op_type}: input {position} is missing", source=self.source)
        return item

    def x(self, position: int = 0) -> Value:
        """A tensor operand."""
        item = self.item(position)
        if not isinstance(item, Value):
            raise ModelError(f"{self.op_type}: input {position} is not a tensor", source=self.source)
        return item

    def given(self, position: int) -> bool:
        """Whether an optional operand is there."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def optional(self, position: int) -> Value | None:
        """A tensor operand, or None where it is left out."""
        return self.x(position) if self.given(position) else None

    def xs(self) -> list[Value]:
        """All operands, as tensors."""
        if not self.inputs:
            raise ModelError(f"{self.op_type}: has no inputs", source=self.source)
        return [self.x(position) for position in range(len(self.inputs))]

    def wanted(self, position: int) -> bool:
        """Whether an optional output has a name."""
        return position < len(self.outputs) and bool(self.outputs[position])

    # attributes

    def _attr(self, name: str, kinds: tuple[type, ...], what: str, default: Any) -> Any:
        value = self.attrs.get(name)
        if value is None:
            return default
        if not isinstance(value, kinds):
            raise ModelError(f"{self.op_type}: attribute {name!r} is not {what}", source=self.source)
        return value

    def attr_int(self, name: str, default: int = 0) -> int:
        return int(self._attr(name, (int,), "an integer", default))

    def attr_flag(self, name: str, default: bool = False) -> bool:
        return bool(self._attr(name, (int,), "an integer", default))

    def attr_float(self, name: str, default: float = 0.0) -> float:
        return float(self._attr(name, (float, int), "a float", default))

    def attr_string(self, name: str, default: str = "") -> str:
        return str(self._attr(name, (str,), "a string", default))

    def attr_ints(self, name: str) -> tuple[int, ...] | None:
        values: tuple[int, ...] | None = self._list(name, int)
        return values

    def attr_floats(self, name: str) -> tuple[float, ...] | None:
        values: tuple[float, ...] | None = self._list(name, float)
        return values

    def attr_strings(self, name: str) -> tuple[str, ...] | None:
        values: tuple[str, ...] | None = self._list(name, str)
        return values

    def _list(self, name: str, kind: type) -> Any:
        values = self._attr(name, (list,), "a list", None)
        if values is None:
            return None
        if not all(isinstance(value, kind) for value in values):
            raise ModelError(f"{self.op_type}: attribute {name!r} is not a list of {kind.__name__}", source=self.source)
        return tuple(values)

    def has(self, name: str) -> bool:
        return self.attrs.get(name) is not None

    def attr_graph(self, name: str) -> onnx.GraphProto:
        import onnx

        value = self._attr(name, (onnx.GraphProto,), "a graph", None)
        if value is None:
            raise ModelError(f"{self.op_type}: attribute {name!r} is missing", source=self.source)
        graph: onnx.GraphProto = value
        return graph

    # known values

    def known(self, position: int) -> np.ndarray[Any, Any] | None:
        """The elements of an integer operand as dimensions, or None."""
        return self.b.dims_of(self.x(position))

    def sizes(self, position: int, what: str) -> tuple[Dim, ...]:
        """An integer vector (or scalar) operand that must be known at import."""
        return self.sizes_of(self.x(position), what)

    def sizes_of(self, value: Value, what: str) -> tuple[Dim, ...]:
        """The elements of an integer vector (or scalar) that must be known at import."""
        known = self.b.dims_of(value)
        if known is None:
            raise self.needed(value, what)
        if known.ndim > 1:
            raise ModelError(f"{self.op_type}: {what} has rank {known.ndim}, expected 1", source=self.source)
        return tuple(known.reshape(-1))

    def integers(self, position: int, what: str) -> tuple[int, ...]:
        """An integer vector operand that must be constant."""
        sizes = self.sizes(position, what)
        if any(not isinstance(size, int) for size in sizes):
            raise UnsupportedError(f"{what} depends on a symbolic size", hint="give the sizes of the inputs that it comes from (shapes)")
        return tuple(dims.number(size) for size in sizes)

    def array(self, position: int, what: str) -> np.ndarray[Any, Any]:
        """An operand that must be a constant, of any dtype."""
        value = self.x(position)
        array = self.b.array_of(value)
        if array is None:
            known = self.b.dims_of(value)
            if known is None or any(isinstance(part, dims.Expr) for part in known.flat):
                raise self.needed(value, what)
            array = known.astype(value.dtype.numpy)
        return array

    def needed(self, value: Value, what: str) -> ValueNeededError:
        """The error of a value that is not known at import."""
        inputs = self.runner.inputs_of(value)
        origin = f" (computed from input {', '.join(sorted(inputs))})" if inputs else ""
        return ValueNeededError(
            f"{what} is not known at import{origin}",
            inputs,
            "make it a constant of the model, or fix that input's value at import (values)",
        )

    # shapes

    def fresh(self, name: str) -> Dim:
        """A new symbol for a size that only the data decide."""
        module, count = self.b.module, 0
        while f"{name}_{count}" in module.facts.ranges:
            count += 1
        return module.declare(f"{name}_{count}", 0, None)

    def rank(self, position: int = 0) -> int:
        return self.x(position).type.rank

    def axis(self, axis: int, rank: int) -> int:
        """A possibly negative axis as 0..rank-1."""
        if not -rank <= axis < rank:
            raise ModelError(f"{self.op_type}: axis {axis} is out of range for rank {rank}", source=self.source)
        return axis % rank

    def axes(self, axes: Iterable[int], rank: int) -> tuple[int, ...]:
        """Axes as 0..rank-1, each at most once."""
        result = tuple(self.axis(axis, rank) for axis in axes)
        if len(set(result)) != len(result):
            raise ModelError(f"{self.op_type}: axes {list(result)} name one axis twice", source=self.source)
        return result

    def static_shape(self, value: Value, what: str) -> tuple[int, ...]:
        """A shape that must not be symbolic."""
        if not value.type.is_static:
            raise UnsupportedError(f"{what} has the symbolic shape {value.type}", hint="give its sizes at import (shapes)")
        return tuple(dims.number(size) for size in value.shape)

    def fix(self, size: Dim, value: Dim) -> None:
        """Have the symbol of an input be the one number with which this node means something."""
        name = dims.name_of(size)
        given = {symbol for x in self.b.module.main.inputs for part in x.shape for symbol in dims.symbols(part)}
        if isinstance(value, int) and name is not None and name in given and dims.equal(size, value, self.facts) is not False:
            raise NarrowerError(name, value, value)

    def fail(self, message: str) -> ModelError | UnsupportedError:
        """The error of a node that breaks ONNX's rules; where it is about sizes that only a call knows, nobody knows whether it does."""
        symbols = {name for item in self.inputs if isinstance(item, Value) for part in item.shape for name in dims.symbols(part)}
        if symbols & set(re.findall(r"\w+", message)):
            return UnsupportedError(message, source=self.source, hint="relate or fix the symbolic sizes at import (shapes)")
        return ModelError(f"{self.op_type}: {message}", source=self.source)


RuleResult: TypeAlias = "Item | Sequence[Item | None] | None"
Rule: TypeAlias = Callable[[Node], RuleResult]
RULES: dict[tuple[str, str], Rule] = {}


def rule(*op_types: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Declare how ops of ONNX become ops of the IR."""

    def declare(function: Rule) -> Rule:
        for op_type in op_types:
            if (domain, op_type) in RULES:
                raise ValueError(f"two rules for {op_type}")
            RULES[domain, op_type] = function
        return function

    return declare


def cast(n: Node, value: Value, dtype: DType) -> Value:
    """`value` in another dtype; itself where it already is."""
    return moves.cast(n.b, value, dtype)
