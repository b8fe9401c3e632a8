"""The walk over ONNX nodes: scopes, rules, functions, nested graphs; problems are collected, not thrown."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ....ir.errors import IndexRangeError, ModelError, ParseError, Source, UnsupportedError, VerifyError
from ....ir.graph import Graph, Value
from ....ir.types import TensorType
from ..bodies import drop_body, open_body
from . import rules
from .attributes import attributes, value_of
from .context import RULES, Item, Node, Optional, RefusedNode, Stack, ValueNeededError, ValueSequence
from .faults import STUMBLES, judged
from .functions import function_body
from .load import OpenModel, normal_domain, opset_versions, subgraphs
from .symbolic import FoldingBuilder
from .symbols import NarrowerError, implied_limit
from .tensors import constant_data

if TYPE_CHECKING:
    import onnx

DEPTH = 64
STEPS = 20_000
GROWTH = 16
"""A model may unroll to so many nodes, or to so many times what is written in its file."""


@dataclass(frozen=True)
class _Poison:
    """The value of a node that could not be imported; what reads it is not reported again."""


POISON = _Poison()
Entry: TypeAlias = "Item | _Poison | None"


class _Poisoned(Exception):
    """A nested graph reads what could not be imported; the node around it is skipped without a report."""


@dataclass
class Scope:
    """The names that a list of nodes sees."""

    opsets: Mapping[str, int]
    parent: Scope | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    depth: int = 0
    items: dict[str, Entry] = field(default_factory=dict)

    def lookup(self, name: str, source: Source) -> Entry:
        """The value of a name here or further out."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.items:
                return scope.items[name]
            scope = scope.parent
        raise ModelError(f"value {name[:200]!r} is read and never defined", source=source, hint="nodes must stand in topological order")


def in_order(protos: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Nodes as they stand, but each after those whose results it (or a graph in it) reads; as they stand where they form a
    cycle. The format asks for that order; tools whose output ONNX Runtime sorts (casts of inputs, appended) do not keep it."""
    nodes = list(protos)
    producers = {name: number for number, proto in enumerate(nodes) for name in proto.output if name}
    order: dict[int, None] = {}
    for first in range(len(nodes)):
        # Depth first, by hand: a chain may be long.
        path = {first: None} if first not in order else {}
        while path:
            number = next(reversed(path))
            needed = (producers[name] for name in _names_read(nodes[number]) if name in producers)
            before = next((other for other in needed if other not in order), None)
            if before in path:
                return nodes
            if before is None:
                path.popitem()
                order[number] = None
            else:
                path[before] = None
    return [nodes[number] for number in order]


def _names_read(proto: onnx.NodeProto) -> Iterator[str]:
    """The names that a node reads, those that its nested graphs read from around them too."""
    yield from proto.input
    for graph in subgraphs(proto):
        own = {value.name for value in (*graph.input, *graph.initializer)}.union(*(inner.output for inner in graph.node))
        read = itertools.chain((output.name for output in graph.output), *(_names_read(inner) for inner in graph.node))
        yield from (name for name in read if name not in own)


class Walker:
    """Imports nodes into one graph through the rules."""

    def __init__(self, builder: FoldingBuilder, model: OpenModel) -> None:
        self.builder, self.files, self.file = builder, model.files, model.name
        self.functions = {(normal_domain(f.domain), f.name, f.overload): f for f in model.proto.functions}
        self.written, self.limit = model.nodes, max(STEPS, GROWTH * model.nodes)
        self.problems: list[RefusedNode] = []
        self.given: dict[Value, tuple[Value, ...]] = {}
        self.steps = 0
        self.is_sized = False
        """Whether sizes were given to the model."""

    # scopes

    def initializers(self, graph: onnx.GraphProto, scope: Scope) -> None:
        """The constants of a graph."""
        for tensor in graph.initializer:
            source = Source(tensor.name, self.file)
            if tensor.name in scope.items:
                raise ModelError(f"value {tensor.name!r} is defined twice", source=source)
            data, type = constant_data(tensor, self.files, source)
            scope.items[tensor.name] = self.builder.module.add_constant(tensor.name or "constant", data, source, type)
        for sparse in graph.sparse_initializer:
            source = Source(sparse.values.name, self.file)
            array = rules.constants.dense(sparse, self.files, source)
            scope.items[sparse.values.name] = self.builder.module.add_constant(sparse.values.name, array, source)

    def nodes(self, protos: Iterable[onnx.NodeProto], scope: Scope) -> None:
        """Import nodes in order; one that stands before what it reads is imported after it."""
        for proto in in_order(protos):
            self.steps += 1
            if self.steps > self.limit:
                raise ModelError(
                    f"the model unrolls to more than {self.limit} nodes, its file has {self.written}",
                    source=Source(scope.prefix.rstrip("/") or self.file or "model", self.file),
                    hint="loops of fixed length and functions are written out: make them shorter, or compute them outside the model",
                )
            self._node(proto, scope)

    def _node(self, proto: onnx.NodeProto, scope: Scope) -> None:
        label = proto.name or next((name for name in proto.output if name), proto.op_type)
        source = Source(scope.prefix + label, self.file)
        entries = [scope.lookup(name, source) if name else None for name in proto.input]
        results: Sequence[Entry]
        if any(isinstance(entry, _Poison) for entry in entries):
            # Its own support is still checked, so that the list of problems is complete.
            if not self._supported(proto, scope):
                self._report_unknown(source, proto)
            results = [POISON] * len(proto.output)
        else:
            results = self._results(proto, [entry for entry in entries if not isinstance(entry, _Poison)], scope, source)
        self._bind(proto, results, scope, source)

    def _results(self, proto: onnx.NodeProto, inputs: list[Item | None], scope: Scope, source: Source) -> Sequence[Entry]:
        outer, self.builder.source = self.builder.source, source
        try:
            return self._apply(proto, inputs, scope, source)
        except _Poisoned:
            pass
        except UnsupportedError as error:
            self._narrow(inputs)
            self.report(source.name, proto.op_type, error)
        except (VerifyError, ParseError) as error:
            self._narrow(inputs)
            values = [item for item in inputs if isinstance(item, Value)]
            if all(value.type.is_static and value.dtype.kind != "string" for value in values):
                hint = "sizes that are given at import, or frozen in the model by its export, contradict it" if self.is_sized else None
                raise ModelError(f"{proto.op_type}: {error.message}", source=source, hint=hint) from error
            hint = error.hint or "relate or fix the symbolic sizes at import (shapes)"
            self.report(source.name, proto.op_type, UnsupportedError(error.message, hint=hint))
        except IndexRangeError:
            raise
        except STUMBLES as error:
            self._narrow(inputs)
            fault = judged(error, proto, inputs, self.builder, scope.opsets, source)
            if not isinstance(fault, UnsupportedError):
                raise fault from error
            self.report(source.name, proto.op_type, fault)
        finally:
            self.builder.source = outer
        return [POISON] * len(proto.output)

    def _narrow(self, inputs: Sequence[Item | None]) -> None:
        """Start again where the operands only fit each other below some size (a table of 512 positions)."""
        shapes = [item.shape for item in inputs if isinstance(item, Value)]
        vectors = [self.builder.known.get(item) for item in inputs if isinstance(item, Value) and item.type.rank == 1]
        shapes += [tuple(vector) for vector in vectors if vector is not None]
        facts = self.builder.module.facts
        for left, right in itertools.combinations(shapes, 2):
            for one, other in zip(reversed(left), reversed(right), strict=False):
                limit = implied_limit(one, other, facts)
                if limit is not None:
                    raise NarrowerError(*limit)

    def _apply(self, proto: onnx.NodeProto, inputs: list[Item | None], scope: Scope, source: Source) -> Sequence[Entry]:
        domain = normal_domain(proto.domain)
        node = Node(
            proto.op_type,
            domain,
            scope.opsets.get(domain, 1),
            source,
            inputs,
            attributes(proto, scope.attributes, source),
            list(proto.output),
            self.builder,
            self,
            scope,
        )
        function = self.functions.get((domain, proto.op_type, proto.overload))
        if function is not None:
            return self._call(function, node)
        rule = RULES.get((domain, proto.op_type))
        if rule is not None:
            answer = rule(node)
            return answer if isinstance(answer, (list, tuple)) else [answer]  # type: ignore[list-item]
        body = function_body(proto, node)
        if body is None:
            raise _unknown(proto.op_type, domain)
        return self._call(body, node)

    def _supported(self, proto: onnx.NodeProto, scope: Scope) -> bool:
        domain = normal_domain(proto.domain)
        if (domain, proto.op_type, proto.overload) in self.functions or (domain, proto.op_type) in RULES:
            return True
        return rules.has_function(proto.op_type, domain, scope.opsets.get(domain, 1))

    def _bind(self, proto: onnx.NodeProto, results: Sequence[Entry], scope: Scope, source: Source) -> None:
        for position, name in enumerate(proto.output):
            if not name:
                continue
            if name in scope.items:
                raise ModelError(f"value {name[:200]!r} is defined twice", source=source)
            if position >= len(results) or results[position] is None:
                raise ModelError(f"{proto.op_type}: has no output {position}", source=source)
            value = results[position]
            if isinstance(value, Value) and value.op is not None and value.source is source:
                value.name = self.builder.graph.unique(name)
            scope.items[name] = value

    # functions and nested graphs

    def _call(self, function: onnx.FunctionProto, node: Node) -> Sequence[Entry]:
        """A function's body in place of the call."""
        scope: Scope = node.scope
        if scope.depth >= DEPTH:
            raise ModelError(f"functions call each other more than {DEPTH} deep", source=node.source)
        bindings = {attribute.name: value_of(attribute, node.source) for attribute in function.attribute_proto}
        bindings |= node.attrs
        opsets = {**scope.opsets, **opset_versions(function.opset_import, node.source)}
        inner = Scope(opsets, None, bindings, f"{node.source.name}/", scope.depth + 1)
        for position, name in enumerate(function.input):
            inner.items[name] = node.inputs[position] if position < len(node.inputs) else None
        if len(node.inputs) > len(function.input):
            raise ModelError(f"{function.name}: got {len(node.inputs)} inputs, expected at most {len(function.input)}", source=node.source)
        self.nodes(function.node, inner)
        wanted = [
            name if position < len(node.outputs) and node.outputs[position] else None for position, name in enumerate(function.output)
        ]
        return [None if name is None else inner.lookup(name, node.source) for name in wanted]

    def inline(self, graph: onnx.GraphProto, inputs: Sequence[Item | None], node: Node) -> list[Item]:
        """The outputs of a nested graph, its nodes imported in place."""
        outer: Scope = node.scope
        if outer.depth >= DEPTH:
            raise ModelError(f"graphs are nested more than {DEPTH} deep", source=node.source)
        scope = Scope(outer.opsets, outer, outer.attributes, outer.prefix, outer.depth + 1)
        if len(graph.input) != len(inputs):
            raise ModelError(f"{node.op_type}: nested graph has {len(graph.input)} inputs, expected {len(inputs)}", source=node.source)
        for info, item in zip(graph.input, inputs, strict=True):
            scope.items[info.name] = item
        self.initializers(graph, scope)
        self.nodes(graph.node, scope)
        results = [scope.lookup(output.name, node.source) for output in graph.output]
        items = [item for item in results if isinstance(item, (Value, ValueSequence, Stack, Optional))]
        if len(items) < len(results):
            raise _Poisoned
        return items

    def function(self, label: str, types: Sequence[TensorType], build: Callable[[list[Value]], Sequence[Item]], node: Node) -> Graph:
        """A function of the module whose inputs have these types, and whose outputs `build` makes of them.

        It may read values from around it: `bodies.close` makes these inputs.
        """
        outer, count = self.builder.graph, len(self.problems)
        body = self.builder.graph = open_body(self.builder.module, f"{outer.name}.{label}")
        try:
            inputs = [body.add_input(f"x{number}", type, node.source) for number, type in enumerate(types)]
            self.given |= dict.fromkeys(inputs, tuple(item for item in node.inputs if isinstance(item, Value)))
            items = build(inputs)
            if not all(isinstance(item, Value) for item in items):
                raise UnsupportedError("its nested graph gives sequences or optionals", hint="give their tensors one by one")
            body.set_outputs([item for item in items if isinstance(item, Value)], [f"y{number}" for number in range(len(items))])
            if len(self.problems) > count:
                raise _Poisoned
        except BaseException:
            drop_body(self.builder.module, body)
            raise
        finally:
            self.builder.graph = outer
        return body

    def inputs_of(self, value: Value) -> frozenset[str]:
        """The graph inputs that a value depends on; the inputs of a nested graph depend on those of the node that runs it."""
        seen, found, queue = {value}, set(), [value]
        while queue:
            current = queue.pop()
            if current.op is None and current not in self.given:
                found |= {current.name} if current.constant is None else set()
                continue
            for operand in self.given[current] if current.op is None else current.op.operands:
                if operand is not None and operand not in seen:
                    seen.add(operand)
                    queue.append(operand)
        return frozenset(found)

    # problems

    @staticmethod
    def is_poison(entry: Entry) -> bool:
        """Whether the entry stands for something already reported."""
        return isinstance(entry, _Poison)

    def report(self, name: str, op_type: str, error: UnsupportedError) -> None:
        """Remember one thing that cannot be represented."""
        inputs = error.inputs if isinstance(error, ValueNeededError) else frozenset()
        self.problems.append(RefusedNode(name, op_type, error.message, error.hint, inputs))

    def _report_unknown(self, source: Source, proto: onnx.NodeProto) -> None:
        self.report(source.name, proto.op_type, _unknown(proto.op_type, normal_domain(proto.domain)))


def _unknown(op_type: str, domain: str) -> UnsupportedError:
    where = f"domain {domain!r}" if domain else "ONNX"
    return UnsupportedError(
        f"there is no rule for {op_type} of {where}",
        hint="replace it by ops that are supported, or give its body as a function of the model",
    )
