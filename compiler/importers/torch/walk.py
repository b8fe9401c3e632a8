"""From an fx graph of ATen ops to a graph module: placeholders, rules, calls back into torch for what has no rule."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from ....ir import dims
from ....ir.dims import Dim
from ....ir.errors import Source, UnsupportedError, VerifyError
from ....ir.graph import Builder, ConstantData, Graph, Module, Value
from ....ir.types import TensorType
from . import rules
from .arguments import Arguments
from .calls import Calls
from .context import Node, Number, find_rule
from .control import is_control, run_control
from .fallback import unusual_strides
from .imported import Imported, KeptState, Result
from .nodes import (
    describe,
    is_effect,
    is_overwriting,
    is_requirement,
    needed,
    operator_name,
    plain,
    source_of,
    used,
)
from .refusals import refusal
from .returned import Returned
from .scalars import Refused, Scalars, bind_numbers, flat
from .symbols import Symbols
from .tensors import array_of, dtype_of
from .views import Replay, Shared, Views, shared

_FAMILIES = rules.FAMILIES  # importing the rules fills the table


def import_graph(
    graph_module: Any,
    *,
    name: str = "model",
    frozen: Mapping[int, Any] | None = None,
    names: Sequence[str] | None = None,
    outputs: Mapping[int, str] | None = None,
    call_back: bool = True,
    ranges: Mapping[str, tuple[int | None, int | None]] | None = None,
    wanted: Mapping[str, int | str] | None = None,
    states: Mapping[int, KeptState] | None = None,
    ties: Mapping[int, str] | None = None,
    into: tuple[Module, str] | None = None,
) -> Imported:
    """Import an fx graph whose nodes carry fake tensors in `meta["val"]`.

    `frozen` maps placeholders (by position) to tensors that become constants; `names` are the user's names of the
    others, `outputs` are the results wanted with their names (default: all), `ranges` the bounds of symbols (default:
    those that torch found while tracing), `wanted` their names or sizes. Without `call_back`, nodes that have no rule
    are one error that lists them all. `states` are placeholders that the program keeps, `ties` the results that are their
    next values; arguments that the graph writes are states as well. `into` is a module, and the name of the function that
    the graph becomes there.
    """
    walker = Walker(graph_module, into or (Module(name), "main"), call_back)
    walker.symbols.ranges, walker.symbols.wanted = ranges or {}, wanted or {}
    return walker.run(Arguments(walker, frozen or {}, states or {}, names), outputs, ties or {})


class Walker:
    """The state of one import."""

    arguments: Arguments

    def __init__(self, graph_module: Any, into: tuple[Module, str], call_back: bool) -> None:
        self.graph_module = graph_module
        self.module, function = into
        self.graph = Graph(function)
        self.module.functions[function] = self.graph
        self.b = Builder(self.module, self.graph)
        self.symbols = Symbols(self.module)
        self.calls = Calls(call_back)
        self.values: dict[Any, Any] = {}
        self.scalars = Scalars(self.b, self.symbols)
        self.strides: list[tuple[Dim, ...] | None] = []
        self.offsets: list[Dim] = []
        self.devices: list[Any] = []
        self.given: dict[str, int] = {}
        self.stored: dict[Any, Value] = {}
        describe(graph_module.graph)
        self.shared = shared(graph_module.graph) if call_back else Shared({})
        self.needed = needed(graph_module.graph, self.shared)

    def run(self, arguments: Arguments, wanted: Mapping[int, str] | None, ties: Mapping[int, str]) -> Imported:
        """The import of the whole graph with these arguments."""
        self.arguments = arguments
        outputs: Any = ()
        tied = frozenset(ties.values())
        arguments.find_sizes()
        for node in self.graph_module.graph.nodes:
            self.b.source = source_of(node)
            if node.op == "placeholder":
                self.values[node] = arguments.value(node, tied)
            elif node.op == "get_attr":
                self._constant(node)
            elif node.op == "call_function":
                if node in self.needed:
                    self._call(node)
            elif node.op == "output":
                outputs = node.args[0]
            else:
                raise UnsupportedError(f"fx node {node.name} is a {node.op}, expected ATen calls only", source=self.b.source)
        self.calls.enforce()
        returned = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        results, views, written = self._outputs(returned, wanted, {name: self.argument(returned[n]) for n, name in ties.items()})
        bind_numbers(self.module, self.graph, self.symbols)
        return Imported(
            self.module,
            arguments.in_order(),
            results,
            tuple(self.calls.made),
            tuple(self.calls.fallbacks),
            arguments.places,
            strides=tuple(self.strides),
            offsets=tuple(self.offsets),
            devices=tuple(self.devices),
            views=views,
            given=self.given,
            states=arguments.states,
            written=written,
            frozen=arguments.digests,
        )

    # nodes

    def _constant(self, node: Any) -> None:
        target: Any = self.graph_module
        for part in str(node.target).split("."):
            target = getattr(target, part)
        if not hasattr(target, "shape"):
            self.values[node] = target
            return
        self.values[node] = self.module.add_constant(plain(str(node.target)), ConstantData(array_of(target)), self.b.source)

    def type_of(self, fake: Any) -> TensorType:
        """The type of what torch knows as a tensor."""
        import torch

        if fake.layout is not torch.strided:
            raise UnsupportedError(f"got a tensor of layout {fake.layout}, expected a dense one", source=self.b.source)
        return TensorType(dtype_of(fake.dtype), self.symbols.shape(fake.shape))

    def _call(self, node: Any) -> None:
        import operator

        import torch

        if node in self.values:
            return  # a part of what a call gave
        if node.target is operator.getitem and isinstance(self.values.get(node.args[0]), tuple):
            self.values[node] = self.values[node.args[0]][node.args[1]]
            return
        if node.target is operator.getitem and isinstance(node.meta.get("val"), (tuple, list)):
            return  # its own parts have their values
        if is_effect(node):
            self.calls.effect(self, node)
            return
        if is_overwriting(node):
            self._overwrite(node)
            return
        if is_control(node):
            types = [type for type in self._types(node.meta["val"]) if type is not None]
            self.values[node] = run_control(self, node, [self.argument(argument) for argument in node.args], types)
            return
        fake = node.meta.get("val")
        name = operator_name(node.target)
        if name.startswith("aten._local_scalar_dense"):
            self.values[node] = self.scalars.captured(self.argument(node.args[0]), fake)
            return
        if isinstance(fake, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)):
            self.values[node] = self.scalars.number(getattr(node.target, "__name__", ""), fake, [self._read(a) for a in node.args])
            return
        if is_requirement(node):
            self._requirement(node, name)
        if fake is None:
            # An assertion over what was known when torch traced.
            self.values[node] = None
            return
        self._operator(node, fake if isinstance(fake, (tuple, list)) else (fake,), isinstance(fake, (tuple, list)))

    def inline(self, graph_module: Any, graph: Graph, arguments: Sequence[Any]) -> list[Any]:
        """The values that a graph module gives for these arguments, its nodes built in `graph`."""
        inner = copy.copy(self)
        inner.graph_module, inner.graph, inner.b = graph_module, graph, Builder(self.module, graph)
        inner.scalars = Scalars(inner.b, self.symbols)
        inner.shared, inner.values = Shared({}), {}
        describe(graph_module.graph)
        inner.needed = needed(graph_module.graph, inner.shared)
        given = iter(arguments)
        for node in graph_module.graph.nodes:
            inner.b.source = source_of(node)
            if node.op == "placeholder":
                inner.values[node] = next(given)
            elif node.op == "get_attr":
                inner._constant(node)
            elif node.op == "call_function" and node in inner.needed:
                inner._call(node)
            elif node.op == "output":
                returned = node.args[0]
        return [inner.argument(value) for value in (returned if isinstance(returned, (tuple, list)) else (returned,))]

    def _overwrite(self, node: Any) -> None:
        """An argument gets a new value, which is what is read of it from then on."""
        argument, value = node.args[0], self.argument(node.args[1])
        if not isinstance(value, Value) or value.type != self.type_of(argument.meta["val"]):
            raise UnsupportedError(f"{argument.name} is overwritten by what is not of its type", source=self.b.source)
        self.stored[argument] = self.values[argument] = self.values[node] = value

    def _requirement(self, node: Any, name: str) -> None:
        """A run-time assertion: checked by the engine, or a call of torch's own where its condition has no form here."""
        first = self.graph.last
        try:
            self._require(node, name)
        except UnsupportedError:
            if not self.calls.allowed:
                raise
            self._drop_after(first)
            self.calls.run_effect(self, node.target, node.args, node.kwargs)

    def _require(self, node: Any, name: str) -> None:
        """A run-time assertion; over arguments alone torch's guards have settled it, where there are guards."""
        condition = node.args[0]
        fake = condition.meta.get("val") if hasattr(condition, "meta") else condition
        free = {str(symbol) for symbol in getattr(getattr(getattr(fake, "node", None), "expr", None), "free_symbols", ())}
        if not hasattr(fake, "shape") and (not free or (self.calls.allowed and free <= self.arguments.places.keys())):
            return
        text = node.args[1] if len(node.args) > 1 and isinstance(node.args[1], str) else f"{fake} does not hold"
        self.scalars.required(name, self.argument(condition), text, node.kwargs)

    def _operator(self, node: Any, fakes: Sequence[Any], several: bool) -> None:
        name = operator_name(node.target)
        first = self.graph.last
        try:
            source, given = self.b.source or Source(name), tuple(getattr(argument, "meta", {}).get("val") for argument in node.args)
            view = Node(name, source, self.b, self.symbols, self._types(fakes), used(node, several), given)
            self.values[node] = self._by_rule(node, view)
        except (UnsupportedError, VerifyError) as error:
            self._drop_after(first)
            self.calls.run(self, node, name, error.message)

    def _drop_after(self, last: Any) -> None:
        """Remove what a rule built before it gave up."""
        while self.graph.last is not last and self.graph.last is not None:
            self.graph.remove(self.graph.last)

    def _types(self, fakes: Sequence[Any]) -> tuple[TensorType | None, ...]:
        return tuple(self.type_of(fake) if hasattr(fake, "layout") else None for fake in fakes)

    def _by_rule(self, node: Any, view: Node) -> Any:
        import torch

        rule = find_rule(view.operator)
        if rule is None:
            raise UnsupportedError(f"{view.operator} has no rule")
        why = refusal(node.target, *torch.fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta.get("val")))
        if why is not None:
            raise UnsupportedError(f"torch refuses it: {why}")
        arguments = [self.argument(argument) for argument in node.args]
        keywords = {name: self.argument(argument) for name, argument in node.kwargs.items()}
        try:
            answer = rule(view, *arguments, **keywords)
        except TypeError as error:
            # A rule that needs a number at build, such as the axis of a sum, was given one that only a call decides.
            if not any(isinstance(part, (dims.Expr, Number)) for part in flat((arguments, *keywords.values()))):
                raise
            raise UnsupportedError(f"{view.operator}: a number that only a call decides stands where it must be known at build") from error
        for number, value in enumerate(answer if isinstance(answer, (tuple, list)) else (answer,)):
            self._check(view, number, value)
        return tuple(answer) if isinstance(answer, list) else answer

    def _check(self, view: Node, number: int, value: Value | None) -> None:
        """A rule must give what torch says, as far as that can be decided."""
        expected = view.results[number] if number < len(view.results) else None
        if value is None and number in view.used:
            raise UnsupportedError(f"{view.operator}: its result {number} has no rule")
        if value is None or expected is None:
            return
        sizes = zip(value.shape, expected.shape, strict=False)
        if (
            value.dtype != expected.dtype
            or value.type.rank != expected.rank
            or any(dims.equal(a, b, self.module.facts) is False for a, b in sizes)
        ):
            raise UnsupportedError(f"{view.operator}: the rule gives {value.type}, torch says {expected}")

    def _read(self, argument: Any) -> Any:
        """An operand of arithmetic on numbers, which may be refused."""
        if isinstance(argument, (tuple, list)):
            return tuple(self._read(part) for part in argument)
        return self.values[argument] if hasattr(argument, "op") else argument

    def argument(self, argument: Any) -> Any:
        import torch

        if isinstance(argument, torch.fx.Node):
            value = self.values[argument]
            if isinstance(value, Refused):
                raise UnsupportedError(value.why, source=self.b.source)
            return value
        if isinstance(argument, (tuple, list)):
            return tuple(self.argument(part) for part in argument)
        if isinstance(argument, torch.Tensor):
            return self.module.add_constant("c", ConstantData(array_of(argument)), self.b.source)
        return argument

    def strides_of(self, fake: Any) -> tuple[Dim, ...] | None:
        """Torch's strides of a value where they are not those of dense memory."""
        import torch

        if not hasattr(fake, "stride") or fake.layout is not torch.strided:
            return None
        try:
            strides = self.symbols.shape(fake.stride())
        except UnsupportedError:
            return None
        return strides if unusual_strides(self.symbols.shape(fake.shape), strides, self.module.facts) else None

    # outputs

    def _outputs(
        self, outputs: Sequence[Any], wanted: Mapping[int, str] | None, ties: Mapping[str, Value]
    ) -> tuple[tuple[Result, ...], Views, Mapping[int, int]]:
        returned = Returned(self, wanted)
        replay = Replay(returned.root, returned.size)
        slots = replay.add(self.shared.roots)
        results: list[Result] = []
        for number, output in enumerate(outputs):
            if wanted is None or number in wanted:
                found = Result(slot=slots[output]) if output in slots else returned.result(output, number)
                results.append(found)
        tied, written = dict(ties), dict[int, int]()
        names = {number: name for name, number in self.arguments.states.items()}
        for argument, value in self.stored.items():
            number = self.arguments.numbers[argument]
            if number in names:
                tied[names[number]] = value
            else:
                written[number] = returned.tensor(argument, value)
        for name, value in tied.items():
            state = self.module.states[name]
            if value.type != state.type:
                # Torch takes a program apart as if `copy_` converted and broadcast nothing.
                hint = f"give copy_ what is {state.type} already: x.expand_as(buffer).to(buffer.dtype)"
                raise UnsupportedError(f"state {name!r} is {state.type} and becomes {value.type}", source=value.source, hint=hint)
        self.graph.set_outputs(returned.values, returned.labels, tied)
        return tuple(results), replay.result(), written
