"""From an fx graph of ATen ops to a graph module: placeholders, rules, calls back into torch for what has no rule."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....ir import dims
from ....ir.dims import Dim
from ....ir.errors import ModelError, Source, UnsupportedError, VerifyError
from ....ir.graph import Builder, ConstantData, Graph, Module, Value
from ....ir.types import TensorType, boolean, i64, type_of
from . import rules
from .context import Node, Number, find_rule
from .fallback import AtenCall, Operand, unusual_strides
from .scalars import REQUIREMENTS, Refused, Scalars, bind_numbers, flat, given_sizes, symbol_of
from .symbols import Symbols
from .tensors import array_of, dtype_of

_FAMILIES = rules.FAMILIES  # importing the rules fills the table


@dataclass(frozen=True)
class Feed:
    """An engine input: a tensor argument of the graph, or (`is_number`) an integer one, an i64 scalar."""

    argument: int
    is_number: bool = False


@dataclass(frozen=True)
class View:
    """Memory of an argument seen by other sizes and strides; `offset` counts from the argument's own first element."""

    argument: int
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim


@dataclass(frozen=True)
class Result:
    """What the graph returns at one place: an output of the engine (with torch's strides if unusual, or as a number), a
    view of an argument, a size, or None.
    """

    position: int | None = None
    strides: tuple[Dim, ...] | None = None
    size: Dim | None = None
    is_number: bool = False
    view: View | None = None


@dataclass(frozen=True)
class Fallback:
    """A node that runs as an ATen call, and why."""

    operator: str
    source: Source
    why: str


@dataclass(frozen=True)
class Imported:
    """A module with what its caller must know: where inputs come from, what the outputs are, the calls into torch.

    Where `is_left`, nothing was imported and torch runs the graph.
    """

    module: Module
    feeds: tuple[Feed, ...]
    results: tuple[Result, ...]
    calls: tuple[AtenCall, ...]
    fallbacks: tuple[Fallback, ...]
    places: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    is_left: bool = False


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
        self.scalars = Scalars(self.b, self.symbols)
        self.tensors: dict[int, Any] = {}
        self.count = 0

    def run(self, wanted: Mapping[int, str] | None) -> Imported:
        outputs: Any = ()
        self._arguments()
        for node in self.graph_module.graph.nodes:
            self.b.source = source_of(node)
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "get_attr":
                self._constant(node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                outputs = node.args[0]
            else:
                raise UnsupportedError(f"fx node {node.name} is a {node.op}, expected ATen calls only", source=self.b.source)
        if self.problems:
            raise self._unsupported()
        results = self._outputs(outputs if isinstance(outputs, (tuple, list)) else (outputs,), wanted)
        bind_numbers(self.module, self.graph, self.symbols)
        order = sorted(zip(self.feeds, self.graph.inputs, strict=True), key=lambda pair: pair[0].argument)
        self.feeds, self.graph.inputs = [feed for feed, _ in order], [value for _, value in order]
        return Imported(self.module, tuple(self.feeds), results, tuple(self.calls), tuple(self.fallbacks), self.places)

    # inputs

    def _placeholder(self, node: Any) -> None:
        number = self.count
        self.count += 1
        fake = node.meta.get("val")
        if number in self.frozen:
            array = array_of(self.frozen[number])
            expected = self._type(fake)
            if type_of(array) != expected:
                raise ModelError(f"parameter {node.name} is {type_of(array)}, expected {expected}", source=self.b.source)
            self.values[node] = self.module.add_constant(self._name(node, number), ConstantData(array), self.b.source)
            self.tensors[number] = fake
        elif any(is_effect(user) for user in node.users):
            # The token that keeps calls with side effects in order: ours stay in order by themselves.
            self.values[node] = None
        elif hasattr(fake, "shape"):
            type = self._type(fake)
            self.values[node] = self.graph.add_input(self._name(node, number), type, self.b.source)
            self.feeds.append(Feed(number))
            self.tensors[number] = fake
            for axis, size in enumerate(type.shape):
                self._place(size, number, axis)
        elif fake is None or isinstance(fake, (bool, float, str)):
            self.values[node] = fake
        else:
            size = self.symbols.dim(fake)
            self.values[node] = size
            self._place(size, number, None)

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

        if node.target is operator.getitem and isinstance(self.values.get(node.args[0]), tuple):
            self.values[node] = self.values[node.args[0]][node.args[1]]
            return
        if is_effect(node):
            self._effect(node)
            return
        fake = node.meta.get("val")
        name = operator_name(node.target)
        if name.startswith("aten._local_scalar_dense"):
            self.values[node] = self.scalars.captured(self._argument(node.args[0]), fake)
            return
        if isinstance(fake, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)):
            self.values[node] = self.scalars.number(getattr(node.target, "__name__", ""), fake, [self._read(a) for a in node.args])
            return
        if name.startswith(REQUIREMENTS):
            self._require(node, name)
        if fake is None:
            # An assertion over what was known when torch traced.
            self.values[node] = None
            return
        self._operator(node, fake if isinstance(fake, (tuple, list)) else (fake,), isinstance(fake, (tuple, list)))

    def _require(self, node: Any, name: str) -> None:
        """A run-time assertion; over arguments alone torch's guards have settled it, where there are guards."""
        condition = node.args[0]
        fake = condition.meta.get("val") if hasattr(condition, "meta") else condition
        free = {str(symbol) for symbol in getattr(getattr(getattr(fake, "node", None), "expr", None), "free_symbols", ())}
        if not hasattr(fake, "shape") and (not free or (self.call_back and free <= self.places.keys())):
            return
        text = node.args[1] if len(node.args) > 1 and isinstance(node.args[1], str) else f"{fake} does not hold"
        self.scalars.required(name, self._argument(condition), text, node.kwargs)

    def _effect(self, node: Any) -> None:
        """An operator with a side effect and no result, such as a check that raises: always torch's own."""
        operands: list[Value] = []
        _, operator, *rest = node.args
        name = operator_name(operator)
        fakes = node.meta.get("val")
        if not isinstance(fakes, (tuple, list)) or any(fake is not None for fake in fakes[1:]):
            raise UnsupportedError(
                f"{name} has a side effect and results", source=self.b.source, hint="leave it outside the compiled function"
            )
        arguments = tuple(self._operand(argument, operands) for argument in rest)
        keywords = {key: self._operand(argument, operands) for key, argument in node.kwargs.items()}
        why = "it has a side effect"
        fallback = Fallback(name, self.b.source or Source(name), why)
        (self.fallbacks if self.call_back else self.problems).append(fallback)
        self.b.aten_call(*operands, target=name, key=len(self.calls), why=why, dtypes=(boolean,), shapes=((0,),))
        self.calls.append(AtenCall(operator, arguments, keywords, ()))
        self.values[node] = (None,) * len(fakes)

    def _operator(self, node: Any, fakes: Sequence[Any], several: bool) -> None:
        name = operator_name(node.target)
        first = self.graph.last
        try:
            view = Node(name, self.b.source or Source(name), self.b, self.symbols, self._types(fakes), _used(node, several), tuple(fakes))
            answer = self._by_rule(node, view)
        except (UnsupportedError, VerifyError) as error:
            self._drop_after(first)
            answer = self._fallback(node, name, fakes, error.message, several)
        self.values[node] = answer

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

    def _argument(self, argument: Any) -> Any:
        import torch

        if isinstance(argument, torch.fx.Node):
            value = self.values[argument]
            if isinstance(value, Refused):
                raise UnsupportedError(value.why, source=self.b.source)
            return value
        if isinstance(argument, (tuple, list)):
            return tuple(self._argument(part) for part in argument)
        if isinstance(argument, torch.Tensor):
            return self.module.add_constant("c", ConstantData(array_of(argument)), self.b.source)
        return argument

    # calls back into torch

    def _fallback(self, node: Any, name: str, fakes: Sequence[Any], why: str, several: bool) -> Any:
        fallback = Fallback(name, self.b.source or Source(name), why)
        if name.startswith("aten.as_strided") and not is_whole_memory(node.args[0].meta.get("val")):
            raise UnsupportedError(f"{name} reads memory around its operand", source=self.b.source, hint="index the tensor instead")
        if not self.call_back:
            self.problems.append(fallback)
            wanted: Sequence[int] = range(len(fakes))
        else:
            self.fallbacks.append(fallback)
            wanted = range(len(fakes)) if not several else sorted(_used(node, True))
        types = [self._result_type(name, fakes[number]) for number in wanted]
        if not types:
            return (None,) * len(fakes)
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
        self.calls.append(AtenCall(node.target, arguments, keywords, tuple(wanted)))
        built = self.b.aten_call(*operands, **attrs)
        results = built if isinstance(built, tuple) else (built,)
        if not several:
            return results[0]
        found = dict(zip(wanted, results, strict=True))
        return tuple(found.get(number) for number in range(len(fakes)))

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
            return tuple(self._operand(part, operands) for part in argument)
        return argument

    def _node_operand(self, argument: Any, operands: list[Value]) -> Any:
        value = self.values[argument]
        if isinstance(value, Value):
            strides = self._strides(argument.meta.get("val"))
            operands.append(value)
            return Operand(
                len(operands) - 1, tuple(int(str(s)) for s in strides) if strides and all(isinstance(s, int) for s in strides) else None
            )
        if isinstance(value, (dims.Expr, Number)):
            operands.append(self.scalars.value(value))
            return Operand(len(operands) - 1, is_size=True)
        if isinstance(value, (Refused, tuple)):
            why = value.why if isinstance(value, Refused) else "it is several tensors"
            raise UnsupportedError(f"an ATen call needs {argument.name}: {why}", source=self.b.source, hint="take it out of the model")
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
        if not self._is_given(strides):
            # Made of what the data decide: the values are right in dense memory too.
            return None
        return strides if unusual_strides(self.symbols.shape(fake.shape), strides, self.module.facts) else None

    def _view_of(self, fake: Any) -> View | None:
        """The argument that a result shares its memory with; torch reads sizes, strides and offset off such a result."""
        import torch

        if not isinstance(fake, torch.Tensor) or fake.layout is not torch.strided or fake.is_conj() or fake.is_neg():
            return None
        for number, argument in self.tensors.items():
            same = argument.untyped_storage()._cdata == fake.untyped_storage()._cdata and argument.dtype == fake.dtype
            if not same or argument.is_conj() or argument.is_neg():
                continue
            try:
                offset = self.symbols.dim(fake.storage_offset()) - self.symbols.dim(argument.storage_offset())
                view = View(number, self.symbols.shape(fake.shape), self.symbols.shape(fake.stride()), offset)
            except UnsupportedError:
                return None
            sizes = (*view.shape, *view.strides, offset)
            # Torch makes a view whose numbers it knows anew by itself.
            return view if self._is_given(sizes) and not all(isinstance(size, int) for size in sizes) else None
        return None

    def _is_given(self, sizes: Sequence[Dim]) -> bool:
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

    def _outputs(self, outputs: Sequence[Any], wanted: Mapping[int, str] | None) -> tuple[Result, ...]:
        results: list[Result] = []
        values: list[Value] = []
        labels: list[str] = []
        for number, output in enumerate(outputs):
            if wanted is not None and number not in wanted:
                continue
            value = self._argument(output)
            fake = getattr(output, "meta", {}).get("val")
            view = self._view_of(fake) if isinstance(value, Value) and wanted is None else None
            if view is not None:
                results.append(Result(view=view))
            elif isinstance(value, Value):
                results.append(Result(len(values), self._strides(fake)))
                values.append(value)
                labels.append(wanted[number] if wanted is not None else f"output{len(labels)}")
            elif isinstance(value, (int, dims.Expr)) and dims.symbols(value) <= self.places.keys():
                results.append(Result(size=value))
            elif isinstance(value, (dims.Expr, Number)):
                results.append(Result(len(values), is_number=True))
                values.append(self.scalars.value(value))
                labels.append(wanted[number] if wanted is not None else f"output{len(labels)}")
            elif value is None:
                results.append(Result())
            else:
                raise UnsupportedError(f"output {number} of the graph is a {type(value).__name__}, expected a tensor, a size or None")
        self.graph.set_outputs(values, labels)
        return tuple(results)


def is_effect(node: Any) -> bool:
    """Whether a node calls an operator for its side effect."""
    return getattr(node.target, "__name__", "") == "with_effects"


def _used(node: Any, several: bool) -> frozenset[int]:
    """The results of a node that somebody reads."""
    if not several:
        return frozenset((0,))
    return frozenset(int(user.args[1]) for user in node.users if user.users and len(user.args) == 2 and isinstance(user.args[1], int))


def is_whole_memory(fake: Any) -> bool:
    """Whether a tensor covers its memory from the first byte to the last."""
    last = sum((size - 1) * stride for size, stride in zip(fake.shape, fake.stride(), strict=True))
    return bool(fake.storage_offset() == 0 and fake.untyped_storage().nbytes() <= (last + 1) * fake.dtype.itemsize)


def operator_name(target: Any) -> str:
    """`aten.add.Tensor` of an operator overload."""
    text = str(target)
    return text if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.:]*", text) else getattr(target, "__name__", text)


def plain(text: str) -> str:
    """A name of letters, digits, dots and underscores."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", text)


_FRAME = re.compile(r'File "([^"]*)", line (\d+)')


def source_of(node: Any) -> Source:
    """The Python line of a node and the module path in the user's model; the file without its folder."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(list(stack.values())), ("",))[0] if stack else ""
    text = re.sub(r"^(L\['?self'?\]|L__self__)\.?_*", "", str(path)).replace("[", ".").replace("]", "").replace("'", "")
    label = ".".join(part for part in (re.sub(r"\._modules\.?", ".", text).strip("."), str(node.name)) if part)
    if not frames:
        return Source(label)
    file, line = frames[-1]
    return Source(label, os.path.basename(file), int(line))
