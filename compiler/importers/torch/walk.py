"""From an fx graph of ATen ops to a graph module: placeholders, rules, calls back into torch for what has no rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....ir import dims
from ....ir.dims import Dim
from ....ir.errors import ModelError, Source, UnsupportedError, VerifyError
from ....ir.graph import Builder, ConstantData, Graph, Module, Value
from ....ir.types import TensorType, boolean, type_of, u8
from ....runtime.contents import Port
from ....runtime.signature import Signature
from . import rules
from .context import Node, SymbolicNumber, find_rule
from .fallback import AtenCall, Operand, unusual_strides
from .nodes import describe, is_check, is_effect, is_whole_memory, needed, operator_name, parts_of, plain, source_of, used
from .symbols import LARGEST, Symbols
from .tensors import array_of, dtype_of
from .views import NO_VIEWS, Replay, Root, Shared, Views, shared

_FAMILIES = rules.FAMILIES  # importing the rules fills the table


@dataclass(frozen=True)
class Feed:
    """An engine input: a tensor argument of the graph, or (`is_size`) an integer one, carried as a size plus `shift`."""

    argument: int
    is_size: bool = False
    shift: int = 0


@dataclass(frozen=True)
class Result:
    """What the graph returns at one place: an output of the engine, a size, one of the `views` (`slot`), or None."""

    position: int | None = None
    size: Dim | None = None
    slot: int | None = None


@dataclass(frozen=True)
class Fallback:
    """A node that runs as an ATen call, and why."""

    operator: str
    source: Source
    why: str


@dataclass(frozen=True)
class Imported:
    """A module with what its caller must know: where inputs come from, what the outputs are, the calls into torch.

    `strides` are torch's strides of the engine's outputs where they are unusual, `views` what shares them.

    Where `is_left`, nothing was imported and torch runs the graph.
    """

    module: Module
    feeds: tuple[Feed, ...]
    results: tuple[Result, ...]
    calls: tuple[AtenCall, ...]
    fallbacks: tuple[Fallback, ...]
    places: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    is_left: bool = False
    strides: tuple[tuple[Dim, ...] | None, ...] = ()
    views: Views = NO_VIEWS


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
) -> Imported:
    """Import an fx graph whose nodes carry fake tensors in `meta["val"]`.

    `frozen` maps placeholders (by position) to tensors that become constants; `names` are the user's names of the
    others, `outputs` are the results wanted with their names (default: all), `ranges` the bounds of symbols (default:
    those that torch found while tracing), `wanted` their names or sizes. Without `call_back`, nodes that have no rule
    are one error that lists them all.
    """
    walker = _Walker(graph_module, name, frozen or {}, names, call_back)
    walker.symbols.ranges, walker.symbols.wanted = ranges or {}, wanted or {}
    return walker.run(outputs)


class _Walker:
    """The state of one import."""

    def __init__(self, graph_module: Any, name: str, frozen: Mapping[int, Any], names: Sequence[str] | None, call_back: bool) -> None:
        self.graph_module = graph_module
        self.module = Module(name)
        self.graph = Graph("main")
        self.module.functions["main"] = self.graph
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
        self.sizes: list[tuple[int, Dim]] = []
        self.strides: list[tuple[Dim, ...] | None] = []
        self.numbers: dict[Any, int] = {}
        self.count = 0
        describe(graph_module.graph)
        self.shared = shared(graph_module.graph) if call_back else Shared({})
        self.needed = needed(graph_module.graph, self.shared)

    def run(self, wanted: Mapping[int, str] | None) -> Imported:
        outputs: Any = ()
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
        results, views = self._outputs(outputs if isinstance(outputs, (tuple, list)) else (outputs,), wanted)
        self._carry_sizes()
        return Imported(
            self.module,
            tuple(self.feeds),
            results,
            tuple(self.calls),
            tuple(self.fallbacks),
            self.places,
            strides=tuple(self.strides),
            views=views,
        )

    # inputs

    def _placeholder(self, node: Any) -> None:
        number = self.numbers[node] = self.count
        self.count += 1
        fake = node.meta.get("val")
        if number in self.frozen:
            array = array_of(self.frozen[number])
            expected = self._type(fake)
            if type_of(array) != expected:
                raise ModelError(f"parameter {node.name} is {type_of(array)}, expected {expected}", source=self.b.source)
            self.values[node] = self.module.add_constant(self._name(node, number), ConstantData(array), self.b.source)
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
            if not isinstance(size, int) and (node.users or self._is_read(size)):
                self.sizes.append((number, size))

    def _is_read(self, size: Dim) -> bool:
        """Whether a tensor has a size of these symbols; those of jagged tensors hold no number, and nothing reads them."""
        fakes = [fake for node in self.graph_module.graph.nodes if hasattr(fake := node.meta.get("val"), "layout")]
        return any(
            dims.symbols(size) & dims.symbols(each) for fake in fakes for each in self._type(fake).shape if not isinstance(each, int)
        )

    def _place(self, size: Dim, number: int, axis: int | None) -> None:
        if isinstance(size, dims.Expr) and str(size) in dims.symbols(size):
            self.places.setdefault(str(size), (number, axis))

    def _name(self, node: Any, number: int) -> str:
        return self.names[number] if self.names is not None and number < len(self.names) else plain(str(node.name))

    def _carry_sizes(self) -> None:
        """Integer arguments that no tensor's shape gives arrive as the size of an empty input."""
        ports = [Port(value.name, value.type) for value in self.graph.inputs]
        known = {solve.symbol for solve in Signature(ports, self.module.facts).solves}
        for number, size in self.sizes:
            if dims.symbols(size) <= known:
                continue
            low = dims.range_of(size, self.module.facts).low
            shift = 0 if low is not None and low >= 0 else LARGEST
            self.graph.add_input(f"size_{number}", TensorType(u8, (size + shift, 0)))
            self.feeds.append(Feed(number, True, shift))
            known |= dims.symbols(size)

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
        if is_check(node) and self.call_back:
            self._side_effect(node.target, node.args, node.kwargs)
            return
        fake = node.meta.get("val")
        if isinstance(fake, (int, torch.SymInt)) and not isinstance(fake, bool):
            self.values[node] = self.symbols.dim(fake)
            return
        if isinstance(fake, torch.SymFloat):
            self.values[node] = SymbolicNumber(fake.node.expr, fake.node.shape_env.var_to_range)
            return
        if fake is None or isinstance(fake, (float, torch.SymBool, bool)):
            # An assertion over sizes, or a number that nothing but sizes decide: guards have settled it.
            self.values[node] = fake if isinstance(fake, (float, bool)) else None
            return
        self._operator(node, fake if isinstance(fake, (tuple, list)) else (fake,), isinstance(fake, (tuple, list)))

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
            view = Node(name, self.b.source or Source(name), self.b, self.symbols, self._types(fakes), used(node, several), tuple(fakes))
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
        rule = find_rule(view.operator)
        if rule is None:
            raise UnsupportedError(f"{view.operator} has no rule")
        arguments = [self._argument(argument) for argument in node.args]
        keywords = {name: self._argument(argument) for name, argument in node.kwargs.items()}
        answer = rule(view, *arguments, **keywords)
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

    def _argument(self, argument: Any) -> Any:
        import torch

        if isinstance(argument, torch.fx.Node):
            return self.values[argument]
        if isinstance(argument, (tuple, list)):
            return tuple(self._argument(part) for part in argument)
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
            strides = self._strides(argument.meta.get("val"))
            operands.append(value)
            return Operand(
                len(operands) - 1, tuple(int(str(s)) for s in strides) if strides and all(isinstance(s, int) for s in strides) else None
            )
        if isinstance(value, dims.Expr):
            operands.append(self.b.dim(value=value))
            return Operand(len(operands) - 1, is_size=True)
        if isinstance(value, (SymbolicNumber, tuple)):
            raise UnsupportedError(
                f"{argument.name} is a number computed from symbolic sizes, or several tensors, and an ATen call needs it",
                source=self.b.source,
                hint="mark that dimension static (torch._dynamo.mark_static)",
            )
        return value

    def _strides(self, fake: Any) -> tuple[Dim, ...] | None:
        """Torch's strides of a value where they are not those of dense memory."""
        import torch

        if not hasattr(fake, "stride") or fake.layout is not torch.strided:
            return None
        try:
            strides = self.symbols.shape(fake.stride())
        except UnsupportedError:
            return None
        return strides if unusual_strides(self.symbols.shape(fake.shape), strides, self.module.facts) else None

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

    def _outputs(self, outputs: Sequence[Any], wanted: Mapping[int, str] | None) -> tuple[tuple[Result, ...], Views]:
        values: list[Value] = []
        labels: list[str] = []
        positions: dict[Any, int] = {}

        def position(node: Any, label: str | None = None) -> int:
            """The place of a node's value among the engine's outputs: one, however often it is returned."""
            if label is not None or node not in positions:
                positions[node] = len(values)
                self.strides.append(self._strides(getattr(node, "meta", {}).get("val")))
                labels.append(label or f"output{len(labels)}")
                values.append(self._argument(node))
            return positions[node]

        def root(node: Any) -> Root:
            if node.op == "call_function":
                return Root("output", position(node))
            return Root("argument", self.numbers[node]) if node.op == "placeholder" else Root("attribute", str(node.target))

        replay = Replay(root, lambda node: self.values[node])
        slots = replay.add(self.shared.roots)
        results: list[Result] = []
        for number, output in enumerate(outputs):
            if wanted is not None and number not in wanted:
                continue
            if output in slots:
                results.append(Result(slot=slots[output]))
                continue
            value = self._argument(output)
            if isinstance(value, Value):
                results.append(Result(position(output, wanted[number] if wanted is not None else None)))
            elif isinstance(value, int) or isinstance(value, dims.Expr):
                results.append(Result(size=value))
            elif value is None:
                results.append(Result())
            else:
                raise UnsupportedError(f"output {number} of the graph is a {type(value).__name__}, expected a tensor, a size or None")
        self.graph.set_outputs(values, labels)
        return tuple(results), replay.result()
