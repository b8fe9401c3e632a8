"""Graph modules: tensor-level SSA programs with symbols, constants and the source of every value.

The graph is the one mutable form of a program. Passes change it only through `rewrite.Rewriter`; importers build it
with `Builder`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from .. import dims
from ..dims import Dim
from ..errors import Source, VerifyError
from ..ops.table import OPS, OpDef
from ..types import DType, TensorType, type_of


class Value:
    """One SSA value: a function's input, a constant, or a result of an op."""

    __slots__ = ("constant", "name", "op", "source", "type", "uses")

    def __init__(
        self, name: str, type: TensorType, *, op: Op | None = None, constant: ConstantData | None = None, source: Source | None = None
    ) -> None:
        self.name = name
        self.type = type
        self.op = op
        self.constant = constant
        self.source = source
        self.uses: dict[Op, int] = {}

    def __repr__(self) -> str:
        return f"{'@' if self.constant else '%'}{self.name}: {self.type}"

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.type.shape


class ConstantData:
    """A constant's bytes, loaded when first asked for; the digest names it everywhere."""

    __slots__ = ("_array", "_digest", "_load", "available", "origin")

    def __init__(
        self,
        array: np.ndarray[Any, Any] | None = None,
        load: Callable[[], np.ndarray[Any, Any]] | None = None,
        origin: str | None = None,
        digest: str | None = None,
        available: bool = True,
    ) -> None:
        """`digest` may be given where it is known; not `available` says that `load` can only refuse."""
        self._array = array
        self._load = load
        self._digest = digest
        self.available = available
        self.origin = origin

    @property
    def loaded(self) -> bool:
        """Whether the values are in memory."""
        return self._array is not None

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The values; treat them as read-only."""
        if self._array is None:
            if self._load is None:
                raise VerifyError("constant has neither values nor a way to load them")
            self._array = self._load()
        return self._array

    @property
    def digest(self) -> str:
        """sha256 of dtype, shape and bytes, in hexadecimal."""
        if self._digest is None:
            array = np.ascontiguousarray(self.array)
            header = f"{array.dtype.name}{list(array.shape)}".encode()
            body = (
                repr(array.tolist()).encode()
                if array.dtype.kind == "O"
                else array.view(np.uint8).data
                if array.size and array.ndim
                else array.tobytes()
            )
            hasher = hashlib.sha256(header)
            hasher.update(body)
            self._digest = hasher.hexdigest()
        return self._digest


class Op:
    """One operation; `operands` may hold None for an absent optional one."""

    __slots__ = ("attrs", "definition", "next", "operands", "previous", "results", "source")

    def __init__(
        self, definition: OpDef, operands: tuple[Value | None, ...], attrs: Mapping[str, Any], source: Source | None = None
    ) -> None:
        self.definition = definition
        self.operands = operands
        self.attrs = dict(attrs)
        self.results: tuple[Value, ...] = ()
        self.source = source
        self.previous: Op | None = None
        self.next: Op | None = None

    def __repr__(self) -> str:
        return f"<{self.name} -> {', '.join('%' + r.name for r in self.results)}>"

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def result(self) -> Value:
        """The only result."""
        if len(self.results) != 1:
            raise VerifyError(f"{self.name} has {len(self.results)} results, expected one")
        return self.results[0]

    @property
    def types(self) -> tuple[TensorType | None, ...]:
        """Operand types."""
        return tuple(None if value is None else value.type for value in self.operands)


@dataclass(frozen=True)
class State:
    """What lives as long as a session and functions share: what it holds at the begin is a constant, or zeros."""

    name: str
    type: TensorType
    initial: Value | None = None


class Graph:
    """A function: inputs, ops in an order that respects data flow (a linked list), outputs.

    The last inputs are what the `states` hold when a call begins, the last outputs what they hold when it ends: both in
    the order of `states`. To all that reads or rewrites a function these are inputs and outputs as any other.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.output_names: list[str] = []
        self.states: list[str] = []
        self.first: Op | None = None
        self.last: Op | None = None
        self._names: dict[str, int] = {}

    def __iter__(self) -> Iterator[Op]:
        op = self.first
        while op is not None:
            following = op.next
            yield op
            op = following

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def reversed(self) -> Iterator[Op]:
        """The ops from the last to the first."""
        op = self.last
        while op is not None:
            before = op.previous
            yield op
            op = before

    @property
    def arguments(self) -> list[Value]:
        """The inputs that a caller gives."""
        return self.inputs[: len(self.inputs) - len(self.states)]

    @property
    def results(self) -> list[Value]:
        """The outputs that a caller gets."""
        return self.outputs[: len(self.outputs) - len(self.states)]

    @property
    def result_names(self) -> list[str]:
        """The user's names of `results`."""
        return self.output_names[: len(self.results)]

    @property
    def ties(self) -> list[tuple[str, Value, Value]]:
        """Each state with what it holds before a call and after it."""
        count = len(self.states)
        return list(zip(self.states, self.inputs[len(self.inputs) - count :], self.outputs[len(self.outputs) - count :], strict=True))

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols of its sizes and attributes."""
        values = [*self.inputs, *(result for op in self for result in op.results)]
        sizes = (size for value in values for size in value.shape)
        parts = (part for op in self for part in dims.within(tuple(op.attrs.values())))
        return frozenset().union(*map(dims.symbols, sizes), *map(dims.symbols, parts))

    def add_input(self, name: str, type: TensorType, source: Source | None = None) -> Value:
        """Append an input, before those that are states."""
        value = Value(self.unique(name), type, source=source or Source(name))
        self.inputs.insert(len(self.arguments), value)
        return value

    def add_state(self, state: State, source: Source | None = None, name: str | None = None) -> Value:
        """What a state holds when a call begins, by the state's name unless it has another here."""
        own = name or state.name
        value = Value(self.unique(own), state.type, source=source or Source(own))
        self.inputs.append(value)
        self.states.append(state.name)
        return value

    def set_outputs(
        self, values: Sequence[Value], names: Sequence[str] | None = None, states: Mapping[str, Value] = MappingProxyType({})
    ) -> None:
        """Say what the function returns, the user's names of it, and what states hold after it; others stay as they are."""
        before = zip(self.states, self.inputs[len(self.arguments) :], strict=True)
        self.outputs = [*values, *(states.get(name, value) for name, value in before)]
        self.output_names = [*(names if names is not None else (value.name for value in values)), *self.states]

    def unique(self, name: str) -> str:
        """`name`, or `name.1`, `name.2` ... if it is taken."""
        if name not in self._names:
            self._names[name] = 0
            return name
        while True:
            self._names[name] += 1
            candidate = f"{name}.{self._names[name]}"
            if candidate not in self._names:
                self._names[candidate] = 0
                return candidate

    def insert(self, op: Op, before: Op | None = None) -> Op:
        """Link an op in front of `before`, or at the end, and register its uses."""
        op.next, op.previous = before, before.previous if before is not None else self.last
        if op.previous is not None:
            op.previous.next = op
        else:
            self.first = op
        if before is not None:
            before.previous = op
        else:
            self.last = op
        for value in op.operands:
            if value is not None:
                value.uses[op] = value.uses.get(op, 0) + 1
        return op

    def remove(self, op: Op) -> None:
        """Unlink an op whose results have no uses."""
        for result in op.results:
            if result.uses:
                raise VerifyError(f"cannot remove {op!r}: %{result.name} is used by {next(iter(result.uses))!r}")
        if op.previous is not None:
            op.previous.next = op.next
        else:
            self.first = op.next
        if op.next is not None:
            op.next.previous = op.previous
        else:
            self.last = op.previous
        for value in op.operands:
            if value is not None:
                _unuse(value, op)
        op.previous = op.next = None

    def set_operand(self, op: Op, position: int, value: Value | None) -> None:
        """Replace one operand of an op."""
        old = op.operands[position]
        if old is not None:
            _unuse(old, op)
        op.operands = (*op.operands[:position], value, *op.operands[position + 1 :])
        if value is not None:
            value.uses[op] = value.uses.get(op, 0) + 1

    def replace_uses(self, old: Value, new: Value) -> None:
        """Let every user of `old`, the outputs included, read `new`."""
        for op in list(old.uses):
            for position, value in enumerate(op.operands):
                if value is old:
                    self.set_operand(op, position, new)
        self.outputs = [new if value is old else value for value in self.outputs]


def _unuse(value: Value, op: Op) -> None:
    value.uses[op] -= 1
    if not value.uses[op]:
        del value.uses[op]


@dataclass
class Module:
    """A program: symbols with what is known of them, constants and states by name, functions (the first one is the entry).

    `assets` are files that travel with it, for those who call it: what the functions compute does not depend on them.
    `workload` are the sizes, as text, that calls of it usually have, if its importer knows. `allowed` are the quantizations that the
    model itself permits, each with the number of products.
    """

    name: str
    facts: dims.Facts = field(default_factory=dims.Facts)
    constants: dict[str, Value] = field(default_factory=dict)
    states: dict[str, State] = field(default_factory=dict)
    functions: dict[str, Graph] = field(default_factory=dict)
    assets: dict[str, bytes] = field(default_factory=dict)
    workload: tuple[str, ...] = ()
    allowed: Counter[str] = field(default_factory=Counter, compare=False)
    _numbers: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    @property
    def main(self) -> Graph:
        """The entry function."""
        return next(iter(self.functions.values()))

    @property
    def symbols(self) -> tuple[str, ...]:
        """The declared symbols, in order of declaration."""
        return tuple(self.facts.ranges)

    @property
    def constant_bytes(self) -> int:
        """What all constants take as they are stored; strings, whose sizes no type says, take none."""
        sizes = (value.type.nbytes for value in self.constants.values())
        return sum(size for size in sizes if isinstance(size, int))

    def declare(self, name: str, low: int | None = 0, high: int | None = None, divisor: int = 1) -> Dim:
        """Declare a symbol with its range and a known divisor."""
        self.facts = self.facts.with_range(name, low, high, divisor)
        return dims.symbol(name)

    def add_state(self, name: str, type: TensorType, initial: Value | None = None) -> State:
        """Declare a state, which holds zeros or a constant when a session begins."""
        self.states[name] = State(name, type, initial)
        return self.states[name]

    def add_constant(
        self, name: str, data: np.ndarray[Any, Any] | ConstantData, source: Source | None = None, type: TensorType | None = None
    ) -> Value:
        """A constant by name (made unique); give `type` with lazily loaded data."""
        unique = name
        while unique in self.constants:
            self._numbers[name] = self._numbers.get(name, 0) + 1
            unique = f"{name}.{self._numbers[name]}"
        constant = data if isinstance(data, ConstantData) else ConstantData(data)
        value = Value(unique, type or type_of(constant.array), constant=constant, source=source)
        self.constants[unique] = value
        return value


class Builder:
    """Appends ops to a graph: `b.matmul(x, w)` adds the op `matmul` and returns its result (a tuple if several).

    Operands are Values, None, numpy arrays, or Python numbers (which take the dtype of the first Value). Types are
    inferred; `b.source` is the source of what is built next.
    """

    def __init__(self, module: Module, graph: Graph, before: Op | None = None, source: Source | None = None) -> None:
        self.module = module
        self.graph = graph
        self.before = before
        self.source = source

    def __getattr__(self, name: str) -> Callable[..., Any]:
        definition = OPS.get(name.rstrip("_"))
        if definition is None:
            raise AttributeError(f"there is no op {name!r}")

        def build(*operands: Any, **attrs: Any) -> Any:
            results = self.build(definition, operands, attrs)
            return results[0] if len(results) == 1 else results

        return build

    def build(self, definition: OpDef, operands: Sequence[Any], attrs: Mapping[str, Any], names: Sequence[str] = ()) -> tuple[Value, ...]:
        """Add one op; `names` are wished names of its results. Type errors carry the source."""
        values = tuple(self.value(operand, operands) for operand in operands)
        complete = definition.complete(attrs)
        op = Op(definition, values, complete, self.source)
        try:
            types = definition.infer(op.types, complete)
        except VerifyError as error:
            error.source = error.source or self.source
            raise
        op.results = tuple(
            Value(self.graph.unique(names[n] if n < len(names) else f"v{len(self.graph._names)}"), type, op=op, source=self.source)
            for n, type in enumerate(types)
        )
        self.graph.insert(op, self.before)
        return op.results

    def value(self, operand: Any, others: Sequence[Any] = ()) -> Value | None:
        """An operand as a Value: arrays and numbers become constants."""
        if operand is None or isinstance(operand, Value):
            return operand
        if isinstance(operand, (bool, int, float, complex)):
            dtype = next((other.dtype for other in others if isinstance(other, Value)), None)
            operand = np.asarray(operand) if dtype is None else np.asarray(operand).astype(dtype.numpy)
        return self.module.add_constant("c", np.asarray(operand), self.source)
