"""What a picture shows of an engine's plan: launches, host steps and copies as nodes, with the ops that each kernel computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....ir.graph import Op
from ....ir.graph.parse import parse_module
from ....ir.plan import Alias, Buffer, Call, Check, CheckPlace, Copy, Host, Launch, Plan, Step, storage
from ....ir.plan.steps import reads, writes
from ....ir.plan.text import step_lines
from ....runtime.contents import EngineContents
from .vertices import Vertex, of_ops


def of_plan(contents: EngineContents, part: str, function: str) -> tuple[Vertex, ...]:
    """The nodes of one function of a part."""
    return _Reader(contents, part, function).nodes()


class _Reader:
    """One plan beside what the report says of its kernels and the program says of their ops."""

    def __init__(self, contents: EngineContents, part: str, function: str) -> None:
        self.plan: Plan = contents.parts[part].plans[function]
        self.rows = {row["kernel"]: row for row in contents.report.get("kernels", {}).get(part, [])}
        fused = [row for row in contents.report.get("fusion", {}).get(part, []) if row.get("function", function) == function]
        self.values = _by_kernel(fused)
        graph = parse_module(contents.graph).functions.get(function)
        self.ops: dict[str, Op] = {value.name: op for op in graph or () for value in op.results}
        self.order = {op: place for place, op in enumerate(graph or ())}
        self.held: dict[str, str] = {}
        self.versions: dict[str, int] = {}

    def nodes(self) -> tuple[Vertex, ...]:
        found = [self._port("input", name, buffer) for name, buffer in self.plan.inputs]
        found += [self._port("state", b.storage.name, b.name) for b in self.plan.buffers if isinstance(b.storage, storage.State)]
        found += [self._step(step) for step in self.plan.steps]
        found += [self._port("output", name, buffer) for name, buffer in self.plan.outputs]
        return (*found, *(self._port("new state", name, buffer) for name, buffer in self.plan.ties))

    def _port(self, kind: str, name: str, buffer: str) -> Vertex:
        type = str(self.plan.named[buffer].type)
        written = (self._written(buffer),) if kind in ("input", "state") else ()
        read = () if written else self._read([buffer])
        return Vertex(kind, name, (type,), f"{kind} {name}: {type}", read, written, f"{kind} {type}")

    def _step(self, step: Step) -> Vertex:
        kind, title, lines = self._said(step)
        read = self._read(reads(step))
        types = [f"{self._buffer(name).type}" for name in writes(step) if name]
        inside = self._inside(step) if isinstance(step, Launch) else ()
        same = ", ".join(f"{self._buffer(name).type}" if name else "_" for name in (*reads(step), *writes(step)))
        alike = f"{title} {kind} ({same}) {' '.join(each.alike for each in inside)}"
        written = tuple(self._written(name) for name in writes(step) if name)
        return Vertex(kind, title, (*types, *lines), "\n".join(step_lines(step)), read, written, alike, inside)

    def _said(self, step: Step) -> tuple[str, str, tuple[str, ...]]:
        """The kind of a step, its title, and what else its box says."""
        if isinstance(step, Launch):
            row = self.rows.get(step.name) or self.rows.get(step.variants[-1].kernel) or {}
            strategy, time = row.get("strategy"), row.get("predicted_us")
            said = [] if strategy is None else [str(strategy)]
            return "kernel", step.name, (*said, *([] if time is None else [f"{time} us predicted"]))
        if isinstance(step, Host):
            return "host", step.routine, ()
        if isinstance(step, Call):
            return "call", step.target, ()
        if isinstance(step, Check | CheckPlace):
            return "check", "check", (step.subject,)
        return "host", "copy" if isinstance(step, Copy) else "zero", ()

    def _inside(self, step: Launch) -> tuple[Vertex, ...]:
        """The ops that a kernel computes here: those of the user's that the launch names."""
        kernels = {step.name, *(variant.kernel for variant in step.variants)}
        names = [name for kernel in sorted(kernels) for source in step.sources for name in self.values.get((kernel, source), ())]
        ops = {self.ops[name]: None for name in names if name in self.ops}
        return of_ops(sorted(ops, key=self.order.__getitem__))

    def _buffer(self, name: str) -> Buffer:
        return self.plan.named[name]

    def _root(self, name: str) -> str:
        held = self._buffer(name).storage
        return held.root if isinstance(held, Alias) else name

    def _read(self, names: Sequence[str]) -> tuple[str, ...]:
        """What is read: a buffer as it was last written; constants stand for themselves and are nobody's to write."""
        roots = [self._root(name) for name in names if name and not isinstance(self._buffer(name).storage, storage.Constant)]
        return tuple(self.held[root] for root in dict.fromkeys(roots) if root in self.held)

    def _written(self, name: str) -> str:
        """The name of what a buffer holds from here on."""
        root = self._root(name)
        self.versions[root] = self.versions.get(root, 0) + 1
        self.held[root] = root if self.versions[root] == 1 else f"{root}, written {self.versions[root]} times"
        return self.held[root]


def _by_kernel(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """The values that a kernel computes, by the kernel and the op of the user's that they stem from."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for kernel in row["where"]:
            found.setdefault((kernel, row["source"]), []).append(row["value"])
    return found


__all__ = ["of_plan"]
