"""Exported programs and torch modules to graph modules: parameters become constants, what has no rule is one error."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ....ir import dims
from ....ir.errors import CompilerError, UnsupportedError, UsageError
from ....ir.graph import Module
from .declared import Bounds, kept_open
from .decompositions import decompositions
from .imported import Imported, KeptState
from .nodes import plain
from .symbols import bounds_of
from .walk import import_graph

Wish: TypeAlias = int | str | tuple[int, int | None]
"""A size, a name or a range for a symbol."""
# What torch.export says of an input that is no argument of the user's.
STORED = ("PARAMETER", "BUFFER", "CONSTANT_TENSOR")


def import_exported(program: Any, name: str = "model", shapes: Mapping[str, Wish] | None = None) -> Module:
    """The graph module of a torch.export.ExportedProgram; `shapes` gives its symbols a size, a narrower range or a name.

    Buffers that the program writes are states.
    """
    lowered = _lowered(program, shapes or {})
    return _import(program, lowered, shapes or {}, (Module(name), "main"), _written(lowered))


def _written(lowered: Any) -> frozenset[str]:
    """The buffers that a program writes."""
    return frozenset(spec.target for spec in lowered.graph_signature.output_specs if spec.kind.name == "BUFFER_MUTATION")


def _import(program: Any, lowered: Any, shapes: Mapping[str, Wish], into: tuple[Module, str], kept: frozenset[str]) -> Module:
    """The module with a program as one more function: it shares parameters that are equal, and the states, which are `kept`."""
    module, function = into
    wanted, ranges = _resolved(program, shapes, module, function)
    names: list[str] = []
    frozen: dict[int, Any] = {}
    states: dict[int, KeptState] = {}
    specs = [(spec.kind.name, spec.target) for spec in lowered.graph_signature.output_specs]
    ties = {number: target for number, (kind, target) in enumerate(specs) if kind == "BUFFER_MUTATION" and target is not None}
    for number, spec in enumerate(lowered.graph_signature.input_specs):
        kind = spec.kind.name
        if kind in STORED:
            tensor = lowered.state_dict[spec.target] if spec.target in lowered.state_dict else lowered.constants[spec.target]
            if spec.target in kept:
                states[number] = KeptState(spec.target, tensor)
            else:
                frozen[number] = tensor
            names.append(spec.target)
        elif kind == "USER_INPUT":
            names.append(str(spec.arg.name))
        else:
            raise UnsupportedError(f"input {number} of the program is a {kind.lower()}, expected tensors")
    imported = import_graph(
        lowered.graph_module,
        frozen=frozen,
        names=names,
        outputs=wanted_outputs(specs, output_names(program)),
        call_back=False,
        ranges=ranges,
        wanted=wanted,
        states=states,
        ties=ties,
        into=(module, function),
    )
    return tensors_only(imported)


def import_functions(programs: Mapping[str, Any], shapes: Mapping[str, Wish] | None = None) -> Module:
    """One module of several exported programs, each a function: equal parameters are there once, and so are the buffers of
    one name that any of them writes.
    """
    module = Module("model")
    lowered = {name: _lowered(program, shapes or {}) for name, program in programs.items()}
    # What one function writes is a state to all.
    kept = frozenset[str]().union(*map(_written, lowered.values()))
    for name, program in programs.items():
        _import(program, lowered[name], shapes or {}, (module, name), kept)
    module.functions = {name: module.functions[name] for name in dict.fromkeys([*programs, *module.functions])}
    return module


def input_shapes(program: Any) -> dict[str, tuple[str | int | None, ...]]:
    """The shapes of the user's inputs: sizes, names of symbols, None where a size is an expression."""
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    shapes = {str(spec.arg.name): getattr(values[spec.arg.name], "shape", ()) for spec in specs}
    return {name: tuple(_named(size) for size in shape) for name, shape in shapes.items()}


def _named(size: Any) -> str | int | None:
    if isinstance(size, int):
        return size
    return str(size.node.expr) if size.node.expr.is_Symbol else None


def _resolved(program: Any, shapes: Mapping[str, Wish], module: Module, function: str) -> tuple[dict[str, int | str], dict[str, Bounds]]:
    """The sizes and names wanted of the program's symbols, and the ranges of all; UsageError beyond what was exported.

    A symbol that another function of the module has with another range gets a name of its own.
    """
    exported = _exported(program)
    wanted: dict[str, int | str] = {}
    ranges: dict[str, Bounds] = {}
    for symbol, bounds in exported.items():
        name, asked = _asked(symbol, bounds, shapes)
        wish = shapes.get(symbol)
        if isinstance(wish, (int, str)):
            wanted[symbol] = wish
        ranges[name] = _common(ranges.get(name, (None, None)), asked)
    for name, known in module.facts.ranges.items():
        if name in ranges and ranges[name] != (known.low, known.high):
            own = f"{name}_{function}"
            ranges[own] = ranges.pop(name)
            wanted.update({s: own for s in exported if wanted.get(s, s) == name})
    return wanted, ranges


def _exported(program: Any) -> dict[str, Bounds]:
    """The ranges of a program's symbols."""
    return {str(symbol): bounds_of(interval) for symbol, interval in program.range_constraints.items()}


def _asked(symbol: str, exported: Bounds, shapes: Mapping[str, Wish]) -> tuple[str, Bounds]:
    """The name and the range that a symbol is to have; UsageError beyond what was exported."""
    wish = shapes.get(symbol)
    name = wish if isinstance(wish, str) else symbol
    range_wish = shapes.get(name)
    asked = (wish, wish) if isinstance(wish, int) else range_wish if isinstance(range_wish, tuple) else None
    return name, exported if asked is None else _within(symbol, asked, exported)


def _within(symbol: str, asked: tuple[int, int | None], exported: Bounds) -> Bounds:
    """The range asked for; an open end is the program's own."""
    (low, high), (least, most) = asked, exported
    high = most if high is None else high
    if (least is not None and low < least) or (most is not None and high is not None and high > most):
        raise UsageError(
            f"shape: got {low}..{'' if high is None else high} for {symbol}, expected sizes in {least}..{'' if most is None else most}",
            hint="export the program for a wider range",
        )
    return low, high


def _common(left: Bounds, right: Bounds) -> Bounds:
    """The range that two symbols of one name share."""
    lows, highs = ([part for part in pair if part is not None] for pair in zip(left, right, strict=True))
    return max(lows, default=None), min(highs, default=None)


_APART = threading.Lock()
"""Torch registers what it takes programs apart by with all of the process: one program at a time."""


def _lowered(program: Any, shapes: Mapping[str, Wish]) -> Any:
    """The program in the ops that have rules, for all sizes that are asked for."""
    bounds = {symbol: _asked(symbol, exported, shapes)[1] for symbol, exported in _exported(program).items()}
    with warnings.catch_warnings():
        # Torch warns of what it uses itself.
        warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
        try:
            with _APART, kept_open(program, bounds):
                return program.run_decompositions(dict(decompositions()))
        except CompilerError:
            raise
        except Exception as error:
            lines = [line for line in str(error).splitlines() if line.strip()] or ["it gives no reason"]
            twice = "one value that several buffers take as it is must be copied for each: buffer.copy_(value.clone()); "
            kind = "" if type(error).__module__ == "builtins" else f"{type(error).__name__}: "
            raise UnsupportedError(
                f"torch cannot take the program apart: {kind}{lines[0][:200]}",
                note="\n".join(lines[1:])[:2000] or None,
                hint=(twice if type(error).__name__ == "SpecViolationError" else "") + "torch.compile needs no export",
            ) from error


def output_names(program: Any) -> list[str]:
    """The names of the user's outputs before anything was taken apart; a value that is returned twice counts its places."""
    specs = [spec for spec in program.graph_signature.output_specs if spec.kind.name == "USER_OUTPUT"]
    found: list[str] = []
    for number, spec in enumerate(specs):
        given = plain(getattr(spec.arg, "name", None) or f"output{number}")
        found.append(given if given not in found else f"{given}_{number}")
    return found


def wanted_outputs(specs: Sequence[tuple[str, str | None]], names: Sequence[str]) -> dict[int, str]:
    """The user's outputs by position; a program that writes its buffers has no place in an engine."""
    wanted: dict[int, str] = {}
    for number, (kind, target) in enumerate(specs):
        if kind == "USER_OUTPUT":
            wanted[number] = names[len(wanted)]
        elif "MUTATION" in kind and kind != "BUFFER_MUTATION":
            hint = "return the new value, or register what is written as a buffer of the module: it becomes a state"
            raise UnsupportedError(f"the program writes its input {target!r}, and an engine writes no memory of its caller's", hint=hint)
    return wanted


def tensors_only(imported: Imported) -> Module:
    """The module; UnsupportedError where the program gives something else than tensors. An integer it takes is an i64 scalar."""
    if any(result.position is None or result.is_number for result in imported.results):
        raise UnsupportedError("the program returns a number or None, expected tensors", hint="return tensors only")
    return imported.module


def export_module(model: Any, example_inputs: Sequence[Any], shapes: Mapping[str, Sequence[Any]]) -> Any:
    """torch.export of a module for these inputs; `shapes` says per input name which axes are symbolic."""
    import torch

    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"got a {type(model).__name__}, expected a torch module, an exported program, or a path to .onnx or .pt2")
    dynamic = _dynamic_shapes(model, example_inputs, shapes) if shapes else None
    try:
        with torch.no_grad():
            # Of a view torch would also guard what it is a view of.
            inputs = tuple(value.clone() if isinstance(value, torch.Tensor) and value._is_view() else value for value in example_inputs)
            return torch.export.export(model, inputs, dynamic_shapes=dynamic, strict=False)
    except RuntimeError as error:
        note = "\n".join(line for line in str(error).splitlines() if line.strip())[:2000]
        raise UnsupportedError(
            "torch.export cannot export this model for these shapes",
            note=note,
            hint="give axes that are always equal one symbol (x=B:1..8), or use torch.compile, which needs no export",
        ) from error


def _dynamic_shapes(model: Any, example_inputs: Sequence[Any], shapes: Mapping[str, Sequence[Any]]) -> Any:
    """What torch.export wants: per argument, its symbolic axes."""
    import inspect

    import torch

    names = list(inspect.signature(model.forward).parameters)
    variadic = [p for p in inspect.signature(model.forward).parameters.values() if p.kind is inspect.Parameter.VAR_POSITIONAL]
    if variadic:
        raise UsageError(
            "the model's forward takes *inputs, whose names are not known",
            hint="give shapes for named arguments, or pass an exported program",
        )
    for name in shapes:
        if name not in names[: len(example_inputs)]:
            raise UsageError(f"shape: got the input {name!r}, expected one of {', '.join(names[: len(example_inputs)])}")
    symbols: dict[str, Any] = {}

    def axis(request: Any, place: str) -> Any:
        if isinstance(request.size, int):
            return None
        if request.size is not None and dims.name_of(request.size) is None:
            raise UsageError(f"shape: got {request.size}, expected one symbol or a size for an axis of a torch model")
        # Torch's automatic dimensions leave out a size of 1; named ones do not.
        name = place if request.size is None else str(request.size)
        symbols.setdefault(name, torch.export.Dim(name, min=request.low if request.low is not None else 1, max=request.high))
        return symbols[name]

    return tuple(
        {n: axis(request, f"{name}_{n}") for n, request in enumerate(shapes[name])} if name in shapes else None
        for name in names[: len(example_inputs)]
    )
