"""The verifier: what must hold of every module between passes, checked in near-linear time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from .. import dims
from ..control import functions_of
from ..dims import Dim, Expr
from ..dims_text import is_symbol
from ..errors import CompilerError, Source, VerifyError
from ..ops.table import OPS
from ..types import TensorType, boolean, i64, string, type_of
from .dead import bound_by, needed_by
from .graph import Graph, Module, Op, State, Value
from .text import attribute_text, neighbourhood, value_text

_Key = tuple[str, tuple[TensorType | None, ...], tuple[tuple[str, str], ...]]


def verify(module: Module) -> None:
    """Raise VerifyError at the first broken rule; the message shows the ops around it."""
    Verifier().verify(module)


@dataclass(frozen=True)
class _Passed:
    """What an op was when its attributes and results were found right: while all of it is the same, they are."""

    types: tuple[TensorType | None, ...]
    attrs: dict[str, Any]
    results: tuple[TensorType, ...]
    symbols: frozenset[str]

    def holds(self, op: Op, declared: set[str]) -> bool:
        if len(self.attrs) != len(op.attrs) or len(self.results) != len(op.results) or self.types != op.types:
            return False
        for name, value in op.attrs.items():
            if self.attrs.get(name, self) is not value:
                return False
        for result, type in zip(op.results, self.results, strict=True):
            if result.op is not op or result.type != type:
                return False
        return self.symbols <= declared


class Verifier:
    """Verifies modules; remembers inferred types and the ops that were right, so that verifying again after a pass costs little."""

    def __init__(self) -> None:
        self._inferred: dict[_Key, tuple[TensorType, ...]] = {}
        self._passed: dict[Op, _Passed] = {}
        self._facts = dims.NO_FACTS

    def verify(self, module: Module) -> None:
        """Raise VerifyError at the first broken rule."""
        if module.facts != self._facts:
            self._passed, self._facts = {}, module.facts
        _verify_symbols(module)
        for name, value in module.constants.items():
            _verify_constant(name, value)
        for name, state in module.states.items():
            _verify_state(module, name, state)
        if not module.functions:
            raise VerifyError(f"module @{module.name} has no function")
        for name, graph in module.functions.items():
            if graph.name != name:
                raise VerifyError(f"function @{graph.name} stands under the name @{name}")
            self._verify_graph(module, graph)

    def _verify_graph(self, module: Module, graph: Graph) -> None:
        declared = set(module.symbols)
        defined: dict[Value, None] = {}
        names: set[str] = set()
        uses: Counter[tuple[Value, Op]] = Counter()
        for value in graph.inputs:
            _define(value, defined, names, None)
            _verify_type_symbols(value.type, declared, value.source, f"input %{value.name}", None)
        previous: Op | None = None
        for op in graph:
            if op.previous is not previous:
                raise _error(op, f"{op.name}: the list of ops is broken in front of it")
            previous = op
            for operand in op.operands:
                if operand is not None:
                    _verify_operand(module, op, operand, defined)
                    uses[operand, op] += 1
            self._verify_op(module, op, declared)
            for value in op.results:
                _define(value, defined, names, op)
        _verify_values_of_symbols(module, graph)
        if graph.last is not previous:
            raise VerifyError(f"function @{graph.name}: the list of ops does not end at its last op")
        _verify_uses(graph, defined, uses)
        _verify_outputs(module, graph, defined)
        _verify_ties(module, graph)
        for op in graph:
            for number, name in enumerate(functions_of(op.name, op.attrs)):
                _verify_call(module, op, number, name)

    def _verify_op(self, module: Module, op: Op, declared: set[str]) -> None:
        """The attributes and the results."""
        known = self._passed.get(op)
        if known is not None and known.holds(op, declared):
            return
        _verify_attributes(op, declared)
        self._verify_results(module, op, declared)
        if op.definition.kind != "opaque":
            # Those bind sizes, which others may then name.
            sizes = [*dims.within(tuple(op.attrs.values())), *(size for value in op.results for size in value.shape)]
            symbols = frozenset().union(*map(dims.symbols, sizes))
            self._passed[op] = _Passed(op.types, dict(op.attrs), tuple(value.type for value in op.results), symbols)

    def _verify_results(self, module: Module, op: Op, declared: set[str]) -> None:
        expected = self._infer(op)
        if len(expected) != len(op.results):
            raise _error(op, f"{op.name} has {len(op.results)} results, expected {len(expected)}")
        for value, type in zip(op.results, expected, strict=True):
            if value.op is not op:
                raise _error(op, f"%{value.name} does not know that {op.name} defines it")
            if not _same_type(value.type, type, module.facts, declared):
                raise _error(op, f"{op.name}: %{value.name} has type {value.type}, expected {type}")
            if op.definition.kind == "opaque":
                # A host step may bind sizes that are known only when it has run.
                declared |= {name for size in value.shape for name in dims.symbols(size)}
            _verify_type_symbols(value.type, declared, op.source, f"%{value.name}", op)

    def _infer(self, op: Op) -> tuple[TensorType, ...]:
        if OPS.get(op.name) is not op.definition:
            raise _error(op, f"there is no op {op.name!r}")
        key = (op.name, op.types, tuple((name, attribute_text(value)) for name, value in op.attrs.items()))
        known = self._inferred.get(key)
        if known is not None:
            return known
        try:
            types = op.definition.infer(op.types, op.attrs)
        except CompilerError as error:
            raise _error(op, error.message) from error
        if op.definition.kind != "opaque":
            self._inferred[key] = types
        return types


def _verify_symbols(module: Module) -> None:
    for name, bounds in module.facts.ranges.items():
        if not is_symbol(name):
            expected = "a letter and then letters, digits, '_' or '.', and no reserved word"
            raise VerifyError(f"symbol {name!r} is not a name, expected {expected}")
        if bounds.low is not None and bounds.high is not None and bounds.low > bounds.high:
            raise VerifyError(f"symbol {name} has the empty range {bounds}")
        if module.facts.divisors.get(name, 1) < 1:
            raise VerifyError(f"symbol {name} has divisor {module.facts.divisors[name]}, expected at least 1")
    for size in (size for pair in module.facts.broadcasts for size in pair):
        unknown = sorted(dims.symbols(size) - module.facts.ranges.keys())
        if unknown:
            raise VerifyError(f"broadcasting size {size} names {unknown[0]}, which is no symbol of the module")


def _verify_constant(name: str, value: Value) -> None:
    if value.constant is None or value.op is not None:
        raise VerifyError(f"{value!r} stands among the constants and is none", source=value.source)
    if value.name != name:
        raise VerifyError(f"constant {value_text(value)} stands under the name @{name}", source=value.source)
    if not value.type.is_static:
        raise VerifyError(f"constant {value_text(value)} has the symbolic type {value.type}, expected known sizes", source=value.source)
    if value.constant.loaded and type_of(value.constant.array) != value.type:
        raise VerifyError(f"constant {value_text(value)} holds {type_of(value.constant.array)}, expected {value.type}", source=value.source)


def _verify_state(module: Module, name: str, state: State) -> None:
    if state.name != name:
        raise VerifyError(f"state @{state.name} stands under the name @{name}")
    if not state.type.is_static or state.type.dtype == string:
        raise VerifyError(f"state @{name} is {state.type}, expected known sizes, and no strings")
    if state.initial is None:
        return
    if state.initial.constant is None or module.constants.get(state.initial.name) is not state.initial:
        raise VerifyError(f"state @{name} begins as {value_text(state.initial)}, expected a constant of the module")
    if state.initial.type != state.type:
        raise VerifyError(f"state @{name} begins as {state.initial.type}, expected {state.type}")


def _verify_ties(module: Module, graph: Graph) -> None:
    """Each state of a function is one of the module's, once, and has one type before a call, after it and where it is declared."""
    if len(graph.states) > min(len(graph.inputs), len(graph.outputs)):
        raise VerifyError(f"function @{graph.name} has {len(graph.states)} states, expected an input and an output for each")
    if len(set(graph.states)) != len(graph.states):
        raise VerifyError(f"function @{graph.name} has one state twice")
    for name, before, after in graph.ties:
        state = module.states.get(name)
        if state is None:
            raise VerifyError(f"function @{graph.name} has the state @{name}, which the module does not declare", source=before.source)
        for value in (before, after):
            if value.type != state.type:
                message = f"function @{graph.name}: {value_text(value)} is {value.type}, expected {state.type}, as the state @{name} is"
                raise VerifyError(message, source=value.source)


def _verify_call(module: Module, op: Op, number: int, name: str) -> None:
    """A function that an op runs exists, and takes and gives what the op says: element types and ranks."""
    body = module.functions.get(name)
    if body is None:
        raise _error(op, f"{op.name} runs the function @{name}, which the module does not hold")
    if body.states:
        raise _error(op, f"{op.name} runs @{name}, which keeps state, expected a function that does not")
    first = 1 if op.name == "branch" else 2
    given = [value.type for value in op.operands[first:] if value is not None]
    wanted = [value.type for value in body.inputs]
    made, expected = [value.type for value in body.outputs], [value.type for value in op.results]
    if op.name == "loop":
        given = [TensorType(i64, ()), TensorType(boolean, ()), *given]
        rows = [type.with_shape(type.shape[1:]) for type in expected[op.attrs["carried"] :]]
        expected = [TensorType(boolean, ()), *expected[: op.attrs["carried"]], *rows]
    for what, ours, theirs in (("takes", given, wanted), ("gives", expected, made)):
        if [(type.dtype, type.rank) for type in ours] != [(type.dtype, type.rank) for type in theirs]:
            shown = [", ".join(map(str, types)) for types in (theirs, ours)]
            raise _error(op, f"{op.name} runs @{name}, which {what} ({shown[0]}), expected ({shown[1]})")


def _define(value: Value, defined: dict[Value, None], names: set[str], op: Op | None) -> None:
    if value in defined:
        raise _error(op, f"%{value.name} is defined twice")
    if value.name in names:
        raise _error(op, f"two values have the name %{value.name}")
    if value.constant is not None:
        raise _error(op, f"{value_text(value)} is a constant, expected a value")
    names.add(value.name)
    defined[value] = None


def _verify_operand(module: Module, op: Op, value: Value, defined: dict[Value, None]) -> None:
    if value.constant is not None:
        if module.constants.get(value.name) is not value:
            raise _error(op, f"{op.name} reads constant {value_text(value)}, which the module does not hold")
    elif value not in defined:
        raise _error(op, f"{op.name} reads {value_text(value)} before it is defined")


def _verify_attributes(op: Op, declared: set[str]) -> None:
    for attribute in op.definition.attributes:
        if attribute.name not in op.attrs:
            raise _error(op, f"{op.name}: attribute {attribute.name!r} is missing")
    if len(op.attrs) != len(op.definition.attributes):
        unknown = sorted(op.attrs.keys() - {attribute.name for attribute in op.definition.attributes})
        raise _error(op, f"{op.name}: unknown attribute {unknown[0]!r}")
    for name, value in op.attrs.items():
        try:
            attribute_text(value)
        except VerifyError as error:
            raise _error(op, f"{op.name}: {name}: {error.message}") from error
        for size in dims.within(value):
            _verify_declared(size, declared, op.source, f"{op.name}: attribute {name}", op)


def _verify_type_symbols(type: TensorType, declared: set[str], source: Source | None, what: str, op: Op | None) -> None:
    for size in type.shape:
        if isinstance(size, Expr):
            _verify_declared(size, declared, source, what, op)


def _verify_declared(size: Expr, declared: set[str], source: Source | None, what: str, op: Op | None) -> None:
    unknown = dims.symbols(size) - declared
    if unknown:
        raise _error(op, f"{what}: symbol {min(unknown)} is not declared", source)


def _verify_values_of_symbols(module: Module, graph: Graph) -> None:
    """Each symbol that an op needs has its value by then: from the inputs, from an op before it, or because it has only one."""
    known = set(module.facts.fixed)
    known.update(name for value in graph.inputs for size in value.shape for name in dims.symbols(size))
    for op in graph:
        known |= bound_by(op)
        late = needed_by(op) - known
        if late:
            raise _error(op, f"{op.name} needs the symbol {min(late)}, which has no value before it")


def _same_type(given: TensorType, expected: TensorType, facts: dims.Facts, declared: set[str]) -> bool:
    if given == expected:
        return True
    if given.dtype != expected.dtype or given.rank != expected.rank:
        return False
    return all(_same_size(a, b, facts, declared) for a, b in zip(given.shape, expected.shape, strict=True))


def _same_size(given: Dim, expected: Dim, facts: dims.Facts, declared: set[str]) -> bool:
    # A size that inference names afresh (data-dependent) may have any name or a sharper form in the program.
    return dims.symbols(expected) - declared != frozenset() or dims.equal(given, expected, facts) is True


def _verify_uses(graph: Graph, defined: dict[Value, None], uses: Counter[tuple[Value, Op]]) -> None:
    for value in defined:
        for op, count in value.uses.items():
            if uses[value, op] != count:
                message = f"{value_text(value)} is recorded as read {count} times by {op.name}, which reads it {uses[value, op]} times"
                raise _error(op, message)
    for (value, op), count in uses.items():
        if value.uses.get(op, 0) != count:
            raise _error(op, f"{value_text(value)} does not know that {op.name} reads it")


def _verify_outputs(module: Module, graph: Graph, defined: dict[Value, None]) -> None:
    for value in graph.outputs:
        known = module.constants.get(value.name) is value if value.constant is not None else value in defined
        if not known:
            raise VerifyError(f"function @{graph.name} returns {value_text(value)}, which is not defined", source=value.source)
    if len(graph.output_names) != len(graph.outputs):
        raise VerifyError(f"function @{graph.name} has {len(graph.outputs)} outputs and {len(graph.output_names)} names of outputs")


def _error(op: Op | None, message: str, source: Source | None = None) -> VerifyError:
    if op is None:
        return VerifyError(message, source=source)
    return VerifyError(message, source=source or op.source, note=neighbourhood(op))
