"""The text of graph modules: one uniform syntax that `parse` reads back without loss.

Names, sources and types are always kept; attributes stand only where they differ from their default; a constant of up
to 16 elements stands inline, a larger one by name and digest (its bytes travel beside the text).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..dims import Expr, Facts
from ..errors import Source, UnsupportedError, VerifyError
from ..expression import literal
from ..literals import constant_array, element_texts
from ..ops.table import REQUIRED
from ..types import DType, TensorType
from .graph import Graph, Module, Op, State, Value

INLINE_ELEMENTS = 16
BARE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./]*")


def module_text(module: Module) -> str:
    """The text of a module; ends with a newline."""
    return assemble(module, module.constants, functions_text(module))


def assemble(module: Module, constants: Mapping[str, Value], functions: str) -> str:
    """A module's text from its parts; a reproducer joins parts that were kept before a pass ran."""
    lines = [f"module @{name_text(module.name)}{facts_text(module.facts)} {{"]
    lines += [f"  {constant_text(value)}" for value in constants.values()]
    lines += [f"  {_state_text(state)}" for state in module.states.values()]
    return "\n".join(lines) + "\n" + functions + "}\n"


def functions_text(module: Module) -> str:
    """The functions of a module, indented as they stand in its text."""
    return "".join(f"  {line}\n" for graph in module.functions.values() for line in graph_lines(graph))


def graph_lines(graph: Graph) -> list[str]:
    """One function, line by line."""
    states = [None] * len(graph.arguments) + graph.states
    inputs = ", ".join(_input_text(value, state) for value, state in zip(graph.inputs, states, strict=True))
    outputs = [str(value.type) for value in graph.outputs]
    result = outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})"
    lines = [f"func @{name_text(graph.name)}({inputs}) -> {result} {{"]
    lines += [f"  {op_text(op)}" for op in graph]
    returned = [
        value_text(value) + (f" as {string_text(name)}" if name != value.name else "")
        for value, name in zip(graph.results, graph.result_names or [v.name for v in graph.results], strict=True)
    ]
    returned += [value_text(tied) for _, _, tied in graph.ties]
    return [*lines, f"  return {', '.join(returned)}".rstrip(), "}"]


def _input_text(value: Value, state: str | None) -> str:
    source = "" if value.source == Source(value.name) else _source_text(value.source, " ")
    return f"{value_text(value)}: {value.type}{f' state @{name_text(state)}' if state is not None else ''}{source}"


def _state_text(state: State) -> str:
    initial = f" = {value_text(state.initial)}" if state.initial is not None else ""
    return f"state @{name_text(state.name)} : {state.type}{initial}"


def op_text(op: Op, source: bool = True) -> str:
    """One op: results, operands, attributes that differ from their default, types, source."""
    results = ", ".join(value_text(value) for value in op.results)
    operands = ", ".join("_" if value is None else value_text(value) for value in op.operands)
    attrs = attributes_text(op)
    types = ", ".join(str(value.type) for value in op.results)
    line = f"{results} = {op.name}({operands})" if results else f"{op.name}({operands})"
    line += f" {attrs}" if attrs else ""
    line += f" : {types}" if types else ""
    return line + _source_text(op.source, "   ") if source else line


def attributes_text(op: Op) -> str:
    """`{name = value, ...}` of the attributes that differ from their default; empty if all are default."""
    parts = []
    for attribute in op.definition.attributes:
        if attribute.name not in op.attrs:
            continue
        text = attribute_text(op.attrs[attribute.name])
        if attribute.default is REQUIRED or text != attribute_text(attribute.default):
            parts.append(f"{attribute.name} = {text}")
    return f"{{{', '.join(parts)}}}" if parts else ""


def attribute_text(value: Any) -> str:
    """An attribute's value: none, true, 3, 0.5, "text", f32, B + 1, complex(1.0, 2.0), [1, 2]."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return string_text(value)
    if isinstance(value, tuple):
        return f"[{', '.join(attribute_text(part) for part in value)}]"
    if isinstance(value, complex):
        return f"complex({literal(value.real)}, {literal(value.imag)})"
    if type(value) in (bool, int, float):
        return literal(value)
    if isinstance(value, (DType, Expr)):
        return str(value)
    expected = "none, bool, int, float, complex, str, dtype, dimension or a tuple of these"
    raise VerifyError(f"attribute of type {type(value).__name__} has no text, expected {expected}")


def constant_text(value: Value) -> str:
    """The declaration of a constant."""
    if value.constant is None:
        raise VerifyError(f"{value!r} is not a constant")
    line = f"const @{name_text(value.name)} : {value.type}"
    inline = _inline_text(value)
    line += f" = {inline}" if inline is not None else ""
    line += _source_text(value.source, "   ")
    return line if inline is not None else f"{line}   # sha256:{value.constant.digest}"


def value_text(value: Value) -> str:
    """How a value is referred to: %name, or @name for a constant."""
    return f"{'@' if value.constant is not None else '%'}{name_text(value.name)}"


def name_text(name: str) -> str:
    """A name, quoted unless it is plain."""
    return name if BARE_NAME.fullmatch(name) else string_text(name)


def string_text(text: str) -> str:
    """A quoted string; everything but printable ASCII is escaped."""
    return json.dumps(text)


def neighbourhood(op: Op, distance: int = 3) -> str:
    """The op with its neighbours, one a line, the op itself marked."""
    before, after = [], []
    previous, following = op.previous, op.next
    for _ in range(distance):
        if previous is not None:
            before.append(previous)
            previous = previous.previous
        if following is not None:
            after.append(following)
            following = following.next
    marked: Iterable[tuple[str, Op]] = [*(("  ", o) for o in reversed(before)), ("> ", op), *(("  ", o) for o in after)]
    return "\n".join(f"{mark}{_safe_text(o)}" for mark, o in marked)


def _safe_text(op: Op) -> str:
    """`op_text`, or what can be said of an op that has none (an attribute of a foreign type)."""
    try:
        return op_text(op, source=False)
    except (VerifyError, UnsupportedError):
        return repr(op)


def facts_text(facts: Facts) -> str:
    """` symbols { B in 1..32 divisor 4 } broadcasts { [A, B] }`; empty where nothing is known."""
    if not facts.ranges:
        return ""
    parts = []
    for name, bounds in facts.ranges.items():
        divisor = facts.divisors.get(name, 1)
        parts.append(f"{name} in {bounds}{f' divisor {divisor}' if divisor != 1 else ''}")
    pairs = ", ".join(f"[{left}, {right}]" for left, right in facts.broadcasts)
    return f" symbols {{ {', '.join(parts)} }}" + (f" broadcasts {{ {pairs} }}" if pairs else "")


def _source_text(source: Source | None, gap: str) -> str:
    if source is None:
        return ""
    parts = [string_text(source.name)]
    if source.file is not None:
        parts.append(string_text(source.file))
    if source.line is not None:
        parts.append(str(source.line))
    return f"{gap}loc({', '.join(parts)})"


def _inline_text(value: Value) -> str | None:
    """The values of a small constant; None for a large one, or one whose NaNs carry a payload."""
    elements = value.type.elements
    if not isinstance(elements, int) or elements > INLINE_ELEMENTS or value.constant is None or not value.constant.available:
        return None
    array = np.asarray(value.constant.array)
    texts = element_texts(array, value.type)
    shown = f"[{', '.join(texts)}]" if value.type.rank else ", ".join(texts)
    if value.type.dtype.kind == "complex" and not value.type.rank:
        shown = f"[{shown}]"
    return shown if _reads_back(array, value.type, texts) else None


def _reads_back(array: np.ndarray[Any, Any], type: TensorType, texts: list[str]) -> bool:
    if type.dtype.kind == "string":
        return all(isinstance(item, str) for item in array.reshape(-1))
    return constant_array(texts, type).tobytes() == array.tobytes()
