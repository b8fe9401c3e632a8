"""The graph of a `.pt2` as an fx graph: each entry checked, each function looked up, each result's type worked out by torch."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

from .....ir.errors import CompilerError, ModelError, UnsupportedError
from ..declared import fixed
from .entries import Entry
from .operators import INLINED, resolve
from .sizes import Sizes
from .tensors import check_layout, dtype_of_number

DEPTH = 16
_FORMATS = {1: "contiguous_format", 2: "channels_last", 3: "channels_last_3d", 4: "preserve_format"}
_FRAME = re.compile(r'File "([^"\n]{1,1000})", line ([0-9]{1,9})')
_MODULE = re.compile(r"[A-Za-z0-9_.\[\]']*")


class GraphBuilder:
    """One graph in the making; names are those of the graph or of the inlined one that is being read."""

    def __init__(self, fake_mode: Any, sizes: Sizes, depth: int = 0) -> None:
        import torch

        self.graph = torch.fx.Graph()
        self.root = torch.nn.Module()
        """What holds the graphs that branches and loops run."""
        self.fake_mode = fake_mode
        self.sizes = sizes
        self.names: dict[str, Any] = {}
        self.depth = depth

    def placeholder(self, entry: Entry, name: str, value: Any) -> Any:
        """An input of the program."""
        node = self.graph.placeholder(name)
        node.name = name
        node.meta["val"] = value
        self._bind(name, node, entry)
        return node

    def fake(self, meta: Entry) -> Any:
        """A tensor of a described type, without data."""
        import torch

        check_layout(meta.at("layout"))
        sizes, strides = self.sizes.shape(meta.at("sizes")), self.sizes.shape(meta.at("strides"))
        if len(sizes) != len(strides):
            raise meta.fail(f"got {len(sizes)} sizes and {len(strides)} strides, expected as many")
        with self.fake_mode:
            return torch.empty_strided(sizes, strides, dtype=dtype_of_number(meta.at("dtype")), device="cpu")

    def nodes(self, nodes: Entry) -> None:
        """All nodes of a graph, in order."""
        for node in nodes.parts():
            self._node(node)

    def output(self, outputs: Entry) -> tuple[Any, ...]:
        """End the graph with these results."""
        results = tuple(self.argument(output) for output in outputs.parts())
        node = self.graph.output(results)
        node.meta["val"] = tuple(_value(result) for result in results)
        return results

    def _bind(self, name: str, value: Any, entry: Entry) -> None:
        if name in self.names:
            raise entry.fail(f"the name {name!r} is given twice")
        self.names[name] = value

    def _named(self, entry: Entry) -> Any:
        name = entry.text()
        if name not in self.names:
            raise entry.fail(f"nothing before it is called {name[:80]!r}")
        return self.names[name]

    # nodes

    def _node(self, node: Entry) -> None:
        target = node.at("target").text()
        if target in INLINED:
            self._inline(node)
            return
        try:
            function = resolve(target, node.source)
        except CompilerError as error:
            error.note = _described(node)
            raise
        arguments, keywords = self._inputs(node.at("inputs"), function)
        if getattr(function, "_schema", None) is None:
            # Branches and loops take their operands in tuples.
            arguments = tuple(tuple(argument) if isinstance(argument, list) else argument for argument in arguments)
        names = [None if output is None else output.identifier() for output in _flat(node.at("outputs"))]
        value = self._run(node, target, function, arguments, keywords)
        if not _traced(value):
            # Sizes that the file fixes: numbers from here on.
            self._results(node, [value], value)
            return
        several = isinstance(value, (tuple, list))
        call = self.graph.create_node("call_function", function, arguments, keywords, names[0] if names and not several else None)
        call.meta.update({"val": value, **self._bindings(value), **_metadata(node)})
        self._results(node, [self._part(call, *part) for part in zip_longest(value, names[: len(value)])] if several else [call], call)

    def _bindings(self, value: Any) -> dict[str, Any]:
        """The symbols that a node's result makes, such as a captured scalar: torch wants to know where each comes from."""
        from torch.fx.experimental.symbolic_shapes import compute_unbacked_bindings

        found = compute_unbacked_bindings(self.fake_mode.shape_env, value)
        return {"unbacked_bindings": found} if found else {}

    def _part(self, call: Any, value: Any, name: str | None) -> Any:
        number = len(call.users)
        part = self.graph.create_node("call_function", operator.getitem, (call, number), {}, name)
        # The symbols that a call makes are the call's: their places are those in its whole result.
        part.meta.update({**{key: known for key, known in call.meta.items() if key != "unbacked_bindings"}, "val": value})
        return part

    def _results(self, node: Entry, parts: list[Any], whole: Any) -> None:
        """Bind the names that the file gives to what a node returns."""
        outputs = list(_flat(node.at("outputs")))
        if _value(whole) is None:
            return
        if len(outputs) > len(parts):
            raise node.fail(f"names {len(outputs)} results of {node.at('target').text()[:120]}, expected at most {len(parts)}")
        for output, part in zip(outputs, parts, strict=False):
            if output is not None:
                self._bind(output.identifier(), part, output)

    def _run(self, node: Entry, target: str, function: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        """The result as torch's shape rules give it, without data."""
        import torch
        from torch._dispatch.python import enable_python_dispatcher

        values, named = torch.fx.map_arg(arguments, _value), torch.fx.map_arg(dict(keywords), _value)
        try:
            # Torch's rules in Python keep sizes symbolic where its compiled ones want numbers, or make numbers of them.
            with enable_python_dispatcher(), self.fake_mode, torch.no_grad():
                result = function(*values, **named)
        except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError, AssertionError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            raise ModelError(f"{node.place}: {target} refuses its operands: {reason}", source=node.source) from error
        self._check_open(node, target)
        return result

    def _check_open(self, node: Entry, target: str) -> None:
        """UnsupportedError where a size that the file declares has become a number."""
        for name, integer in self.sizes.integers.items():
            if integer.node.expr.is_number:
                axis, bounds, value = self.sizes.axes.get(name), self.sizes.declared(name), integer.node.expr
                error = fixed(name, axis, bounds, value, target, node.source)
                error.note = _described(node)
                raise error

    def _inputs(self, inputs: Entry, function: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        schema = getattr(function, "_schema", None)
        by_name = {argument.name for argument in schema.arguments if argument.kwarg_only} if schema is not None else set()
        arguments: list[Any] = []
        keywords: dict[str, Any] = {}
        for given in inputs.parts():
            kind, name = given.maybe("kind"), given.at("name").text()
            value = self.argument(given.at("arg"))
            # Files of older versions do not say how an argument is passed.
            is_keyword = kind.integer() == 2 if kind is not None else name in by_name or bool(keywords)
            if is_keyword:
                keywords[given.at("name").identifier()] = value
            else:
                arguments.append(value)
        return tuple(arguments), keywords

    # graphs within

    def _inline(self, node: Entry) -> None:
        """Put the nodes of a wrapped graph in the place of the call that wraps them."""
        graphs = [number for number, given in enumerate(node.at("inputs").parts()) if given.at("arg").case()[0] == "as_graph"]
        given = list(node.at("inputs").parts())
        if len(graphs) != 1 or self.depth >= DEPTH:
            raise node.fail(f"holds {len(graphs)} graphs at depth {self.depth}, expected 1 and a depth below {DEPTH}")
        graph = given[graphs[0]].at("arg").at("as_graph").at("graph")
        operands = [self.argument(part.at("arg")) for part in given[graphs[0] + 1 :]]
        inputs = list(graph.at("inputs").parts())
        if len(inputs) != len(operands):
            raise node.fail(f"passes {len(operands)} operands, expected {len(inputs)}")
        outer, self.names = self.names, {}
        self.depth += 1
        for entry, operand in zip(inputs, operands, strict=True):
            name = next(_flat_one(entry))
            if name is not None:
                self._bind(name.identifier(), operand, name)
        self.nodes(graph.at("nodes"))
        results = [self.argument(output) for output in graph.at("outputs").parts()]
        self.depth -= 1
        self.names = outer
        self._results(node, results, results)

    def _function(self, entry: Entry) -> Any:
        """A graph that a branch or a loop runs, as a module of its own beside the nodes."""
        import torch

        if self.depth >= DEPTH:
            raise entry.fail(f"graphs lie {self.depth} deep in each other, expected less than {DEPTH}")
        name, graph = entry.at("name").identifier(), entry.at("graph")
        if hasattr(self.root, name):
            raise entry.fail(f"the name {name!r} is given twice")
        inner = GraphBuilder(self.fake_mode, self.sizes, self.depth + 1)
        for given in graph.at("inputs").parts():
            kind, value = given.case()
            if kind == "as_tensor":
                label = value.at("name").identifier()
                inner.placeholder(given, label, self.fake(graph.at("tensor_values").at(label)))
            elif kind == "as_sym_int":
                label = value.at("as_name").identifier()
                inner.placeholder(given, label, self.sizes.number(graph.at("sym_int_values").at(label)))
            else:
                raise UnsupportedError(f"{given.place}: an input of the kind {kind[:40]!r} has no form here", source=given.source)
        inner.nodes(graph.at("nodes"))
        inner.output(graph.at("outputs"))
        module = torch.fx.GraphModule(inner.root, inner.graph)
        setattr(self.root, name, module)
        node = self.graph.get_attr(name)
        node.meta["val"] = module
        return node

    # arguments

    def argument(self, entry: Entry) -> Any:
        """An argument as torch takes it: nodes, numbers, dtypes; UnsupportedError for objects and functions."""
        kind, value = entry.case()
        if kind in _SINGLE:
            return _SINGLE[kind](self, value)
        if kind in _LISTS:
            return [_LISTS[kind](self, part) for part in value.parts()]
        if kind == "as_nested_tensors":
            return [[self._tensor(part) for part in parts.parts()] for parts in value.parts()]
        if kind in ("as_int_lists", "as_float_lists"):
            read = Entry.integer if kind == "as_int_lists" else Entry.number
            return [[read(part) for part in parts.parts()] for parts in value.parts()]
        raise UnsupportedError(
            f"{entry.place}: an argument of the kind {kind[:40]!r} has no form here",
            source=entry.source,
            hint="export the model without custom objects and control flow",
        )

    def _tensor(self, entry: Entry) -> Any:
        return self._named(entry.at("name"))

    def _symbolic(self, entry: Entry) -> Any:
        kind, value = entry.case()
        reads: dict[str, Callable[[], Any]] = {"as_int": value.integer, "as_float": value.number, "as_bool": value.boolean}
        if kind in reads:
            return reads[kind]()
        return self._named(entry.at("as_name"))

    def _optional(self, entry: Entry) -> Any:
        kind, value = entry.case()
        return None if kind == "as_none" else self._tensor(value)

    def _dtype(self, entry: Entry) -> Any:
        return dtype_of_number(entry)

    def _format(self, entry: Entry) -> Any:
        import torch

        if entry.integer() not in _FORMATS:
            raise entry.fail(f"memory format {entry.integer()} is not known")
        return getattr(torch, _FORMATS[entry.integer()])

    def _layout(self, entry: Entry) -> Any:
        import torch

        check_layout(entry)
        return torch.strided

    def _device(self, entry: Entry) -> Any:
        import torch

        # Where a program was exported says nothing of where it will run.
        if entry.at("type").text() not in ("cpu", "cuda"):
            raise entry.fail(f"got device {entry.at('type').text()[:40]!r}, expected cpu or cuda")
        return torch.device("cpu")

    def _complex(self, entry: Entry) -> Any:
        return complex(entry.at("real").number(), entry.at("imag").number())


_SINGLE: dict[str, Callable[[GraphBuilder, Entry], Any]] = {
    "as_none": lambda builder, entry: None,
    "as_graph": GraphBuilder._function,
    "as_tensor": GraphBuilder._tensor,
    "as_optional_tensor": GraphBuilder._optional,
    "as_int": lambda builder, entry: entry.integer(),
    "as_float": lambda builder, entry: entry.number(),
    "as_string": lambda builder, entry: entry.text(),
    "as_bool": lambda builder, entry: entry.boolean(),
    "as_sym_int": GraphBuilder._symbolic,
    "as_sym_float": GraphBuilder._symbolic,
    "as_sym_bool": GraphBuilder._symbolic,
    "as_scalar_type": GraphBuilder._dtype,
    "as_memory_format": GraphBuilder._format,
    "as_layout": GraphBuilder._layout,
    "as_device": GraphBuilder._device,
    "as_complex": GraphBuilder._complex,
}
_LISTS: dict[str, Callable[[GraphBuilder, Entry], Any]] = {
    "as_tensors": GraphBuilder._tensor,
    "as_optional_tensors": GraphBuilder._optional,
    **{f"{kind}s": _SINGLE[kind] for kind in ("as_int", "as_float", "as_string", "as_bool", "as_sym_int", "as_sym_float", "as_sym_bool")},
}


def _value(argument: Any) -> Any:
    import torch

    return argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument


def _traced(value: Any) -> bool:
    """Whether a result belongs into the graph: tensors, symbolic numbers, and nothing at all (an assertion)."""
    return not isinstance(value, (int, float, bool, complex))


def _flat(outputs: Entry) -> Iterator[Entry | None]:
    """The names of all results, lists of them included; None where nobody reads one."""
    for output in outputs.parts():
        yield from _flat_one(output)


def _flat_one(output: Entry) -> Iterator[Entry | None]:
    kind, value = output.case()
    if kind in ("as_tensors", "as_optional_tensors", "as_sym_ints"):
        for part in value.parts():
            yield from _flat_one(part) if kind != "as_tensors" else [part.at("name")]
    elif kind in ("as_tensor", "as_token"):
        yield value.at("name")
    elif kind in ("as_sym_int", "as_sym_float", "as_sym_bool", "as_optional_tensor"):
        yield value.maybe("as_name") or (value.at("as_tensor").at("name") if value.maybe("as_tensor") else None)
    else:
        yield None


def _metadata(node: Entry) -> dict[str, Any]:
    """Where a node comes from in the model: its Python lines and its modules, as far as they are plain."""
    stack: dict[str, tuple[str, str]] = {}
    modules = node.maybe("metadata") and node.at("metadata").maybe("nn_module_stack")
    for part in modules.text().split(";") if modules else ():
        fields = part.split(",")
        if len(fields) == 3 and all(_MODULE.fullmatch(field) for field in fields):
            stack[fields[0]] = (fields[1], fields[2])
    trace = _stack_trace(node)
    return {"nn_module_stack": stack, **({"stack_trace": trace} if trace else {})}


def _described(node: Entry) -> str:
    """A node by its name, its place in the file and its line in the model."""
    name = node.maybe("name")
    frames = "".join(f", {frame.strip()}" for frame in _stack_trace(node).splitlines()[-1:])
    return f"node {str(name.value)[:80] if name else '?'}, {node.place}{frames}"


def _stack_trace(node: Entry) -> str:
    """The frames of a stack trace: files by name and lines."""
    trace = node.maybe("metadata") and node.at("metadata").maybe("stack_trace")
    frames = _FRAME.findall(trace.text()) if trace else ()
    return "\n".join(
        f'  File "{re.sub(r"[^A-Za-z0-9_./-]", "_", file.rpartition("/")[2])}", line {line}, in forward' for file, line in frames
    )
