"""Compiles many generated modules as one engine, judges its results, and reduces a module that fails."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
from generator import Case, draw

from ourcc.codegen.c.printer import SourceFile
from ourcc.codegen.c.weight import check_weight, weigh
from ourcc.codegen.host.c import print_plans
from ourcc.compiler.backends import cpu as target_cpu
from ourcc.compiler.options import BuildOptions
from ourcc.compiler.pipeline import compile_module
from ourcc.compiler.requests import parse_measuring
from ourcc.compiler.targets.registry import TARGETS
from ourcc.ir import dims
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.reference import Array, interpret, judge
from ourcc.ir.graph.text import module_text
from ourcc.ir.tile.program import Launch
from ourcc.passes.lower.build_plan import Lowered
from ourcc.passes.lower.lower import print_each
from ourcc.passes.lower.schedule import Scheduled
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline
from ourcc.runtime.engine import Engine

Compare: TypeAlias = Callable[[Case, int, Sequence[Array]], str | None]
"""What is wrong with the results of a case at one of its bindings, None where nothing is."""


def drawn(count: int, number: int) -> list[Case]:
    """The first `count` cases of a seed: always the same ones, whatever else the process has loaded and drawn."""
    tried = (draw(random.Random(f"{number} {place}")) for place in range(2 * count))
    return list(islice((case for case in tried if case is not None), count))


def joined(group: Sequence[Case]) -> Module:
    """One module that computes all of some modules; inputs, and symbols whose names are taken, get the number of their case."""
    module = Module("batch")
    graph = Graph("main")
    module.functions["main"] = graph
    builder = Builder(module, graph)
    outputs: list[Value] = []
    names: list[str] = []
    for number, case in enumerate(group):
        values = _copied(case.module, module, graph, builder, f"c{number}_")
        outputs += [values[value] for value in case.module.main.outputs]
        names += [f"c{number}_{name}" for name in case.module.main.output_names]
    graph.set_outputs(outputs, names)
    return module


def _copied(source: Module, module: Module, graph: Graph, builder: Builder, prefix: str) -> dict[Value, Value]:
    """Copy a module's main into `graph`, under other symbols where theirs are taken; the new values by old ones."""
    symbols: dict[str, dims.Dim] = {}
    for name, bounds in source.facts.ranges.items():
        symbols[name] = module.declare(
            prefix + name if name in module.facts.ranges else name, bounds.low, bounds.high, source.facts.divisors.get(name, 1)
        )

    def renamed(value: Any) -> Any:
        if isinstance(value, dims.Expr):
            return dims.substitute(value, symbols)
        return tuple(renamed(part) for part in value) if isinstance(value, tuple) else value

    pairs = tuple((renamed(left), renamed(right)) for left, right in source.facts.broadcasts)
    module.facts = replace(module.facts, broadcasts=(*module.facts.broadcasts, *pairs))
    values: dict[Value, Value] = {}
    for value in source.main.inputs:
        values[value] = graph.add_input(prefix + value.name, value.type.with_shape(renamed(value.shape)))
    for op in source.main:
        for value in op.operands:
            if value is not None and value.constant is not None and value not in values:
                values[value] = module.add_constant(prefix + value.name, value.constant)
        operands = tuple(None if v is None else values[v] for v in op.operands)
        attrs = {name: renamed(value) for name, value in op.attrs.items()}
        values.update(zip(op.results, builder.build(op.definition, operands, attrs), strict=True))
    for value in source.main.outputs:
        if value.constant is not None and value not in values:
            values[value] = module.add_constant(prefix + value.name, value.constant)
    return values


class PrintedTogether(target_cpu.KernelTexts):
    """All kernels in one C file: starting a compiler takes as long as compiling a small kernel, so none begins by itself."""

    def ahead(self, scheduled: Scheduled) -> None:
        pass

    def of(self, lowered: Lowered) -> Mapping[str, str]:
        file = SourceFile(self.level)

        def add(name: str, launch: Launch) -> None:
            symbols = lowered.scheduled[name].problem.symbols
            kernel = file.add(launch, name, tuple(symbols.ranges), symbols)
            if len(lowered.scheduled[name].group.ops) > 1:
                check_weight(weigh([kernel.source], file.library))

        print_each(lowered, add)
        return {"kernels.c": file.text(), **print_plans(lowered.plans)}


def built(module: Module) -> Engine:
    """The engine of a module of many small kernels."""
    with mock.patch.object(target_cpu, "KernelTexts", PrintedTogether):
        return Engine(compile_module(module, BuildOptions(targets=(TARGETS["native"],), tune=parse_measuring("off"))), threads=1)


def failures(group: Sequence[Case], compare: Compare | None = None) -> dict[int, str]:
    """Which cases of a group compute something else than the reference, and what."""
    engine = built(joined(group))
    threaded = Engine(engine.contents, threads=3)
    found: dict[int, str] = {}
    for run in range(2):
        inputs = [array for case in group for array in case.inputs[run]]
        results, again = engine(*inputs), threaded(*inputs)
        results, again = (r if isinstance(r, tuple) else (r,) for r in (results, again))
        place = 0
        for number, case in enumerate(group):
            count = len(case.module.main.outputs)
            ours, theirs = results[place : place + count], again[place : place + count]
            verdict = (compare or compared)(case, run, ours) or differing(ours, theirs)
            if verdict is not None:
                found.setdefault(number, f"binding {run}: {verdict}")
            place += count
    return found


def compared(case: Case, run: int, results: Sequence[Array]) -> str | None:
    """What is wrong with the results of a case, by the judge."""
    inputs = case.inputs[run]
    stepwise, wide = interpret(case.module, inputs), interpret(case.module, inputs, wide=True)
    for name, got, step, exact in zip(case.module.main.output_names, results, stepwise, wide, strict=True):
        verdict = judge(np.asarray(got), step, exact)
        if not verdict.passed:
            return f"{name}: {verdict.reason}"
    return None


def differing(results: Sequence[Array], others: Sequence[Array]) -> str | None:
    """Whether other threads gave other bits."""
    for n, (one, other) in enumerate(zip(results, others, strict=True)):
        if np.ascontiguousarray(one).tobytes() != np.ascontiguousarray(other).tobytes():
            return f"output {n}: other bits with three threads than with one"
    return None


def failing(group: Sequence[Case], compare: Compare | None = None) -> list[tuple[Case, str]]:
    """The cases that fail, each with why; where the whole group cannot be compiled, each is tried alone."""
    try:
        return [(group[n], why) for n, why in failures(group, compare).items()]
    except Exception as error:  # noqa: BLE001 - whatever the compiler does wrong is what this is looking for
        if len(group) == 1:
            return [(group[0], f"{type(error).__name__}: {error}")]
    half = len(group) // 2
    return failing(group[:half], compare) + failing(group[half:], compare)


def reduced(case: Case, fails: Callable[[Case], bool]) -> Case:
    """A smaller case that still fails: fewer outputs, and ops replaced by inputs that hold their results."""
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(case):
            if fails(smaller):
                case, changed = smaller, True
                break
    return case


def _smaller(case: Case) -> list[Case]:
    graph = case.module.main
    found = []
    if len(graph.outputs) > 1:
        found += [_cut(case, [output], set()) for output in graph.outputs]
    found += [_cut(case, list(graph.outputs), {op.results[0]}) for op in graph if not set(op.results) & set(graph.outputs)]
    last = [op for op in graph if set(op.results) & set(graph.outputs)]
    found += [_cut(case, [value], set()) for op in last for value in op.operands if value is not None and value.op is not None]
    return [smaller for smaller in found if _size(smaller) < _size(case)]


def _size(case: Case) -> tuple[int, int, int]:
    return len(case.module.main), len(case.module.main.outputs), len(case.module.main.inputs)


def _cut(case: Case, outputs: list[Value], ends: set[Value]) -> Case:
    """The part of a case that computes `outputs`, with `ends` given as inputs."""
    module = Module("case", case.module.facts)
    graph = Graph("main")
    module.functions["main"] = graph
    builder = Builder(module, graph)
    values: dict[Value, Value] = {}
    inputs: list[Value] = []
    needed = _needed(outputs, ends)
    for value in (*case.module.main.inputs, *sorted(ends & needed, key=lambda v: v.name)):
        if value in needed or any(str(size) in module.symbols for size in value.shape):
            values[value] = graph.add_input(value.name, value.type)
            inputs.append(value)
    for op in case.module.main:
        if (op.results and not set(op.results) & needed) or set(op.results) & ends:
            continue
        for value in op.operands:
            if value is not None and value.constant is not None and value not in values:
                values[value] = module.add_constant(value.name, value.constant)
        operands = tuple(None if v is None else values[v] for v in op.operands)
        values.update(zip(op.results, builder.build(op.definition, operands, op.attrs), strict=True))
    graph.set_outputs([values[v] for v in outputs], [f"y{n}" for n in range(len(outputs))])
    return Case(module, tuple(_given(case, run, inputs) for run in range(2)))


def _needed(outputs: Sequence[Value], ends: set[Value]) -> set[Value]:
    found: set[Value] = set()
    stack = list(outputs)
    while stack:
        value = stack.pop()
        if value in found:
            continue
        found.add(value)
        if value.op is not None and value not in ends:
            stack += [v for v in value.op.operands if v is not None]
    return found


def _given(case: Case, run: int, wanted: Sequence[Value]) -> tuple[Array, ...]:
    """The values of inputs and of results at one binding."""
    graph = case.module.main
    outputs = graph.outputs
    graph.outputs = list(wanted)
    try:
        return tuple(interpret(case.module, case.inputs[run]))
    finally:
        graph.outputs = outputs


def report(case: Case, why: str, compare: Compare | None = None) -> str:
    """A failing case as a person wants to see it: reduced, as text, with the sizes it was run at."""
    small = reduced(case, lambda smaller: bool(failing([smaller], compare)))
    names = [value.name for value in small.module.main.inputs]
    sizes = "; ".join(", ".join(f"{name}{list(a.shape)}" for name, a in zip(names, run, strict=True)) for run in small.inputs)
    reason = next((text for _, text in failing([small], compare)), why)
    return f"{reason}\n{module_text(small.module)}\ninputs: {sizes}"


def optimized(module: Module, pipeline: str) -> Module:
    """The module after a pipeline (in place)."""
    PassManager(parse_pipeline(pipeline)).run(module)
    return module
