"""What a picture shows of a program: its inputs, ops and outputs as nodes, in the order of the program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ....ir.graph import Graph, Op, Value
from ....ir.graph.text import attributes_text, op_text, value_text


@dataclass(frozen=True)
class Vertex:
    """One thing that is computed: `lines` is what its box says, `text` all that there is to say.

    `reads` and `writes` name values in this program. Two nodes are `alike` where a reader need see only one of them: the same op
    on the same types. `inside` is what is fused into it.
    """

    kind: str
    title: str
    lines: tuple[str, ...]
    text: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    alike: str = ""
    inside: tuple[Vertex, ...] = ()


def of_graph(graph: Graph) -> tuple[Vertex, ...]:
    """The nodes of a function."""
    inputs = [_port("input", value.name, value) for value in graph.arguments]
    inputs += [_port("state", name, held) for name, held, _ in graph.ties]
    outputs = [_port("output", name, value) for name, value in zip(graph.result_names, graph.results, strict=True)]
    outputs += [_port("new state", name, held) for name, _, held in graph.ties]
    return (*inputs, *of_ops(graph), *outputs)


def of_ops(ops: Iterable[Op]) -> tuple[Vertex, ...]:
    """The nodes of some ops; constants stand in the boxes of what reads them."""
    return tuple(_node(op) for op in ops)


def _node(op: Op) -> Vertex:
    types = tuple(str(value.type) for value in op.results)
    attributes = attributes_text(op).strip("{}")
    weights = tuple(f"{value_text(value)} {value.type}" for value in op.operands if value is not None and value.constant is not None)
    operands = ", ".join(_operand(value) for value in op.operands)
    return Vertex(
        "op",
        op.name,
        (*types, *((attributes,) if attributes else ()), *weights),
        op_text(op),
        tuple(value.name for value in op.operands if value is not None and value.constant is None),
        tuple(value.name for value in op.results),
        f"{op.name}({operands}) {attributes} : {', '.join(types)}",
    )


def _operand(value: Value | None) -> str:
    """What is the same of an operand in all copies: whether it is there, a constant or computed, and its type."""
    return "_" if value is None else f"{'@' if value.constant is not None else '%'}{value.type}"


def _port(kind: str, name: str, value: Value) -> Vertex:
    reads, writes = ((), (value.name,)) if kind in ("input", "state") else ((value.name,), ())
    return Vertex(kind, name, (str(value.type),), f"{kind} {name}: {value.type}", reads, writes, f"{kind} {value.type}")


__all__ = ["Vertex", "of_graph", "of_ops"]
