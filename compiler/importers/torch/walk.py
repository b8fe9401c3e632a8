"""From an fx graph of ATen ops to a graph module: placeholders, rules, calls back into torch for what has no rule."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from ....ir import dims
from ....ir.dims import Dim
from ....ir.errors import ModelError, Source, UnsupportedError, VerifyError
from ....ir.graph import Builder, ConstantData, Graph, Module, Value
from ....ir.types import TensorType, boolean, i64, type_of
from . import rules
from .context import Node, Number, find_rule
from .control import is_control, run_control
from .fallback import AtenCall, Operand, unusual_strides
from .imported import Fallback, Feed, Imported, Kept, Result
from .nodes import (
    describe,
    is_effect,
    is_overwriting,
    is_requirement,
    is_whole_memory,
    needed,
    operator_name,
    parts_of,
    plain,
    source_of,
    used,
)
from .refusals import refusal
from .returned import Returned
from .scalars import Refused, Scalars, bind_numbers, flat, given_sizes, symbol_of
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
    states: Mapping[int, Kept] | None = None,
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
    walker = Walker(graph_module, into or (Module(name), "main"), frozen or {}, names, call_back)
    walker.symbols.ranges, walker.symbols.wanted = ranges or {}, wanted or {}
    walker.kept = dict(states or {})
    return walker.run(outputs, ties or {})


class Walker:
    """The state of one import."""

    def __init__(
        self, graph_module: Any, into: tuple[Module, str], frozen: Mapping[int, Any], names: Sequence[str] | None, call_back: bool
    ) -> None:
        self.graph_module = graph_module
        self.module, function = into
        self.graph = Graph(function)
        self.module.functions[function] = self.graph
        self.b = Builder(self.module, self.graph)
        self.symbols = Symbols(self.module)
        self.frozen = frozen
        self.names = names
        self.call_back = call_back
        self.values: dict[Any, Any] = {}
        self.feeds: list[Feed] = []
        self.calls: list[AtenCall] = []
        self.fallbacks: list[Fallback] = []
        self.problems: list[Fallback] = []
        self.places: dict[str, tuple[int, int | None]] = {}
        self.scalars = Scalars(self.b, self.symbols)
        self.strides: list[tuple[Dim, ...] | None] = []
        self.offsets: list[Dim] = []
        self.given: dict[str, int] = {}
        self.numbers: dict[Any, int] = {}
        self.kept: dict[int, Kept] = {}
        self.tied: frozenset[str] = frozenset()
        self.states: dict[str, int] = {}
        self.stored: dict[Any, Value] = {}
        self.count = 0
        describe(graph_module.graph)
        self.overwritten = {node.args[0] for node in graph_module.graph.nodes if is_overwriting(node)}
        self.shared = shared(graph_module.graph) if call_back else Shared({})
        self.needed = needed(graph_module.graph, self.shared)

    def run(self, wanted: Mapping[int, str] | None, ties: Mapping[int, str]) -> Imported:
        outputs: Any = ()
        self.tied = frozenset(ties.values())
        self._arguments()
        for node in self.graph_module.graph.nodes:
            self.b.source = source_of(node)
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "get_attr":
                self._constant(node)
            elif node.op == "call_function":
                if node in self.needed:
                    self._call(node)
            elif node.op == "output":
                outputs = node.args[0]
            else:
                raise UnsupportedError(f"fx node {node.name} is a {node.op}, expected ATen calls only", source=self.b.source)
        if self.problems:
            raise self._unsupported()
        returned = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        results, views, written = self._outputs(returned, wanted, {name: self.argument(returned[n]) for n, name in ties.items()})
        bind_numbers(self.module, self.graph, self.symbols)
        count = len(self.feeds)
        order = sorted(zip(self.feeds, self.graph.arguments, strict=True), key=lambda pair: pair[0].argument)
        self.feeds, self.graph.inputs[:count] = [feed for feed, _ in order], [value for _, value in order]
        return Imported(
            self.module,
            tuple(self.feeds),
            results,
            tuple(self.calls),
            tuple(self.fallbacks),
            self.places,
            strides=tuple(self.strides),
            offsets=tuple(self.offsets),
            views=views,
            given=self.given,
            states=self.states,
            written=written,
        )

    # inputs

    def _placeholder(self, node: Any) -> None:
        number = self.numbers[node] = self.count
        self.count += 1
        fake = node.meta.get("val")
        if number in self.frozen:
            self.values[node] = self._stored(node, number, self.frozen[number])
        elif number in self.kept:
            self.values[node] = self._kept(node, number, self.kept[number])
        elif node in self.overwritten and self._type(fake).is_static:
            name = self._name(node, number)
            self.states[name] = number
            self.values[node] = self.graph.add_state(self.module.add_state(name, self._type(fake)), self.b.source)
        elif any(is_effect(user) for user in node.users):
            # The token that keeps calls with side effects in order: ours stay in order by themselves.
            self.values[node] = None
        elif hasattr(fake, "shape"):
            type = self._type(fake)
            self.values[node] = self.graph.add_input(self._name(node, number), type, self.b.source)
            self.feeds.append(Feed(number))
            for axis, size in enumerate(type.shape):
                self._place(size, number, axis)
        elif fake is None or isinstance(fake, (bool, float, str)):
            self.values[node] = fake
        else:
            size = self.symbols.dim(fake)
            self.values[node] = size
            self._place(size, number, None)

    def _stored(self, node: Any, number: int, tensor: Any) -> Value:
        """A parameter as a constant; another function of the module may hold the same one."""
        array, expected, name = array_of(tensor), self._type(node.meta["val"]), self._name(node, number)
        if type_of(array) != expected:
            raise ModelError(f"parameter {node.name} is {type_of(array)}, expected {expected}", source=self.b.source)
        data, known = ConstantData(array), self.module.constants.get(name)
        if known is not None and known.constant is not None and known.type == expected and known.constant.digest == data.digest:
            return known
        return self.module.add_constant(name, data, self.b.source)

    def _kept(self, node: Any, number: int, kept: Kept) -> Value | None:
        """A state; another function of the module may have declared it. One that is not used is none of this function."""
        if not node.users and kept.name not in self.tied:
            return None
        type, state = self._type(node.meta["val"]), self.module.states.get(kept.name)
        begins = self._stored(node, number, kept.initial) if bool((kept.initial != 0).any()) else None
        if state is None:
            state = self.module.add_state(kept.name, type, begins)
        if state.type != type or state.initial is not begins:
            what = f"is {type}, and {state.type}" if state.type != type else "begins with other values than"
            why = f"state {kept.name!r} {what} in another function, in function {self.graph.name!r}"
            raise UnsupportedError(why, source=self.b.source, hint="export all functions from modules with one state_dict")
        return self.graph.add_state(state, self.b.source)

    def _place(self, size: Dim, number: int, axis: int | None) -> None:
        if isinstance(size, dims.Expr) and str(size) in dims.symbols(size):
            self.places.setdefault(str(size), (number, axis))

    def _name(self, node: Any, number: int) -> str:
        return self.names[number] if self.names is not None and number < len(self.names) else plain(str(node.name))

    def _arguments(self) -> None:
        """Which symbols tensors give, and which integers; those become inputs when somebody reads them."""
        placeholders = [node for node in self.graph_module.graph.nodes if node.op == "placeholder"]
        read = {n: node for n, node in enumerate(placeholders) if n not in self.frozen}
        fakes = {n: node.meta.get("val") for n, node in read.items()}
        self.symbols.sizes = given_sizes([self._type(fake) for fake in fakes.values() if hasattr(fake, "shape")], self.module)
        for number, fake in fakes.items():
            name = symbol_of(fake, self.symbols)
            if name is not None and name not in self.symbols.sizes:
                self.symbols.arguments.setdefault(name, functools.partial(self._number_input, read[number], number))

    def _number_input(self, node: Any, number: int) -> Value:
        self.feeds.append(Feed(number, True))
        return self.graph.add_input(self._name(node, number), TensorType(i64, ()), source_of(node))

    def _constant(self, node: Any) -> None:
        target: Any = self.graph_module
        for part in str(node.target).split("."):
            target = getattr(target, part)
        if not hasattr(target, "shape"):
            self.values[node] = target
            return
        self.values[node] = self.module.add_constant(plain(str(node.target)), ConstantData(array_of(target)), self.b.source)

    # nodes

    def _type(self, fake: Any) -> TensorType:
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
            self._effect(node)
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
        inner.shared, inner.overwritten, inner.values = Shared({}), set(), {}
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
        if not isinstance(value, Value) or value.type != self._type(argument.meta["val"]):
            raise UnsupportedError(f"{argument.name} is overwritten by what is not of its type", source=self.b.source)
        self.stored[argument] = self.values[argument] = self.values[node] = value

    def _requirement(self, node: Any, name: str) -> None:
        """A run-time assertion: checked by the engine, or a call of torch's own where its condition has no form here."""
        first = self.graph.last
        try:
            self._require(node, name)
        except UnsupportedError:
            if not self.call_back:
                raise
            self._drop_after(first)
            self._side_effect(node.target, node.args, node.kwargs)

    def _require(self, node: Any, name: str) -> None:
        """A run-time assertion; over arguments alone torch's guards have settled it, where there are guards."""
        condition = node.args[0]
        fake = condition.meta.get("val") if hasattr(condition, "meta") else condition
        free = {str(symbol) for symbol in getattr(getattr(getattr(fake, "node", None), "expr", None), "free_symbols", ())}
        if not hasattr(fake, "shape") and (not free or (self.call_back and free <= self.places.keys())):
            return
        text = node.args[1] if len(node.args) > 1 and isinstance(node.args[1], str) else f"{fake} does not hold"
        self.scalars.required(name, self.argument(condition), text, node.kwargs)

    def _effect(self, node: Any) -> None:
        """An operator with a side effect and no result, called in the order that its token says."""
        _, operator, *rest = node.args
        fakes = node.meta.get("val")
        if not isinstance(fakes, (tuple, list)) or any(fake is not None for fake in fakes[1:]):
            raise UnsupportedError(
                f"{operator_name(operator)} has a side effect and results",
                source=self.b.source,
                hint="leave it outside the compiled function",
            )
        self._side_effect(operator, rest, node.kwargs)
        self.values[node] = (None,) * len(fakes)

    def _side_effect(self, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        """A call for its side effect, such as a check that raises: always torch's own."""
        operands: list[Value] = []
        name = operator_name(operator)
        given = tuple(self._operand(argument, operands) for argument in arguments)
        named = {key: self._operand(argument, operands) for key, argument in keywords.items()}
        why = "it has a side effect"
        fallback = Fallback(name, self.b.source or Source(name), why)
        (self.fallbacks if self.call_back else self.problems).append(fallback)
        self.b.aten_call(*operands, target=name, key=len(self.calls), why=why, dtypes=(boolean,), shapes=((0,),))
        self.calls.append(AtenCall(operator, given, named, ()))

    def _operator(self, node: Any, fakes: Sequence[Any], several: bool) -> None:
        name = operator_name(node.target)
        first = self.graph.last
        try:
            source, given = self.b.source or Source(name), tuple(getattr(argument, "meta", {}).get("val") for argument in node.args)
            view = Node(name, source, self.b, self.symbols, self._types(fakes), used(node, several), tuple(fakes), given)
            self.values[node] = self._by_rule(node, view)
        except (UnsupportedError, VerifyError) as error:
            self._drop_after(first)
            self._fallback(node, name, error.message)

    def _drop_after(self, last: Any) -> None:
        """Remove what a rule built before it gave up."""
        while self.graph.last is not last and self.graph.last is not None:
            self.graph.remove(self.graph.last)

    def _types(self, fakes: Sequence[Any]) -> tuple[TensorType | None, ...]:
        return tuple(self._type(fake) if hasattr(fake, "layout") else None for fake in fakes)

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

    # calls back into torch

    def _fallback(self, node: Any, name: str, why: str) -> None:
        """Have torch run a node; the parts of its result that somebody reads get their values."""
        fallback = Fallback(name, self.b.source or Source(name), why)
        if name.startswith("aten.as_strided") and not is_whole_memory(node.args[0].meta.get("val")):
            raise UnsupportedError(f"{name} reads memory around its operand", source=self.b.source, hint="index the tensor instead")
        (self.fallbacks if self.call_back else self.problems).append(fallback)
        parts = parts_of(node)
        if not parts:
            return
        types = [self._result_type(name, part.meta.get("val")) for _, part in parts]
        operands: list[Value] = []
        arguments = tuple(self._operand(argument, operands) for argument in node.args)
        keywords = {key: self._operand(argument, operands) for key, argument in node.kwargs.items()}
        attrs = {
            "target": name,
            "key": len(self.calls),
            "why": why,
            "dtypes": tuple(t.dtype for t in types),
            "shapes": tuple(t.shape for t in types),
        }
        self.calls.append(AtenCall(node.target, arguments, keywords, tuple(path for path, _ in parts)))
        built = self.b.aten_call(*operands, **attrs)
        results = built if isinstance(built, tuple) else (built,)
        self.values.update((part, result) for (_, part), result in zip(parts, results, strict=True))

    def _result_type(self, name: str, fake: Any) -> TensorType:
        if not hasattr(fake, "layout"):
            raise UnsupportedError(
                f"{name} gives a {type(fake).__name__}, expected tensors",
                source=self.b.source,
                hint="leave it outside the compiled function",
            )
        return self._type(fake)

    def _operand(self, argument: Any, operands: list[Value]) -> Any:
        import torch

        if isinstance(argument, torch.fx.Node):
            return self._node_operand(argument, operands)
        if isinstance(argument, (tuple, list)):
            return (tuple if isinstance(argument, tuple) else list)(self._operand(part, operands) for part in argument)
        if isinstance(argument, Mapping):
            return {key: self._operand(part, operands) for key, part in argument.items()}
        return argument

    def _node_operand(self, argument: Any, operands: list[Value]) -> Any:
        value = self.values[argument]
        if isinstance(value, Value):
            strides = self.strides_of(argument.meta.get("val"))
            operands.append(value)
            return Operand(
                len(operands) - 1, tuple(dims.number(s) for s in strides) if strides and all(isinstance(s, int) for s in strides) else None
            )
        if isinstance(value, (dims.Expr, Number)):
            operands.append(self.scalars.value(value))
            return Operand(len(operands) - 1, is_size=True)
        if isinstance(value, (Refused, tuple)):
            why = value.why if isinstance(value, Refused) else "it is several tensors"
            raise UnsupportedError(f"an ATen call needs {argument.name}: {why}", source=self.b.source, hint="take it out of the model")
        return value

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

    def is_given(self, sizes: Sequence[Dim]) -> bool:
        """Whether arguments alone decide sizes."""
        return all(dims.symbols(size) <= self.places.keys() for size in sizes)

    def _unsupported(self) -> UnsupportedError:
        names = sorted({problem.operator for problem in self.problems})
        lines = [f"{problem.operator} at {problem.source}: {problem.why}" for problem in self.problems]
        nodes = "node is" if len(lines) == 1 else "nodes are"
        return UnsupportedError(
            f"{len(lines)} {nodes} not supported: {', '.join(names)}",
            note="\n".join(lines),
            hint="use torch.compile(model, backend='ourcc'), which runs them as ATen calls, or take them out of the model",
        )

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
        names = {number: name for name, number in self.states.items()}
        for argument, value in self.stored.items():
            number = self.numbers[argument]
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
