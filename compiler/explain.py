"""`ourcc.explain`: what would be compiled of a model for given inputs, what would fall back, and why; builds nothing."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ..ir.errors import UsageError
from ..ir.graph import Module
from ..ir.plan import Launch
from ..ir.target import gpu_target
from ..passes.build_plan import Kept, Lowered
from ..passes.schedule import Scheduler, cheapest
from .backend import CompiledGraph, aot, unboxed, with_target
from .importers.torch.walk import Imported
from .importers.torch.whole import import_or_leave
from .options import BuildOptions
from .pipeline import simplify
from .report.table import Report, Table
from .sharing import Place, Program, admit_ones, place_of
from .target_cpu import levels_of, lower_cpu
from .targets import Target


def explain_torch(model: Any, inputs: Sequence[Any], options: BuildOptions) -> Report:
    """Run a torch module or function once through torch.compile; every graph is imported, planned, and run by torch."""
    if not callable(model):
        raise UsageError(f"got a {type(model).__name__}, expected a torch module, a function, or a path")
    import torch
    from torch._dynamo.utils import counters

    graphs: list[_Listed] = []
    breaks = dict(counters["graph_break"])
    options = with_target(options, inputs)

    def backend(graph_module: Any, example_inputs: Sequence[Any]) -> Any:
        return aot(graph_module, example_inputs, functools.partial(_Listed, options=options, graphs=graphs))

    # A fresh code object each time: what was compiled before must not hide a graph.
    torch._dynamo.reset_code_caches()
    _differentiate(model, inputs, torch.compile(model, backend=backend)(*inputs))
    return _report(graphs, [reason for reason, count in counters["graph_break"].items() if count > breaks.get(reason, 0)])


def _differentiate(model: Any, inputs: Sequence[Any], answer: Any) -> None:
    """Where gradients are on, have torch make the backward graphs too; nobody's `.grad` changes."""
    import torch
    from torch.utils._pytree import tree_leaves

    outputs = [value for value in tree_leaves(answer) if isinstance(value, torch.Tensor) and value.requires_grad]
    given = [*tree_leaves(list(inputs)), *(model.parameters() if isinstance(model, torch.nn.Module) else ())]
    leaves = [value for value in given if isinstance(value, torch.Tensor) and value.requires_grad]
    if outputs and leaves:
        torch.autograd.grad(outputs, leaves, [torch.ones_like(output) for output in outputs], allow_unused=True)


class _Listed(CompiledGraph):
    """A graph that is imported to be listed, its parameters frozen as the backend would, and run by torch."""

    def __init__(
        self, graph_module: Any, example_inputs: Sequence[Any], *, options: BuildOptions, is_inference: bool, graphs: list[_Listed]
    ) -> None:
        super().__init__(graph_module, example_inputs, options=options, is_inference=is_inference)
        self.found: Imported | None = None
        self.places: tuple[Place, ...] = ()
        graphs.append(self)

    def __call__(self, *arguments: Any) -> Any:
        values = unboxed(arguments)
        if self.found is None:
            frozen = self.frozen(values)
            self.found = import_or_leave(self.graph_module, frozen)
            self.places = tuple(place_of(value) for value in frozen.values())
        return self.graph_module(*values)

    def seen(self) -> Imported:
        """What was imported; a graph that nobody ran, such as a backward one, with nothing frozen."""
        if self.found is None:
            self.found = import_or_leave(self.graph_module)
        return self.found


def _report(graphs: Sequence[_Listed], breaks: Sequence[str]) -> Report:
    rows: list[tuple[str | int, ...]] = []
    fallbacks: list[tuple[str, str, str]] = []
    notes: list[str] = []
    planned = _Planned()
    for number, listed in enumerate(graphs):
        imported = listed.seen()
        symbols = tuple(imported.module.symbols)
        ops = len(imported.module.main) - len(imported.calls)
        kernels, launches, engine, kept = planned.plan(number, listed)
        notes += [f"graph {number}: {row}" for row in kept]
        kind = "inference" if listed.is_inference else "training"
        rows.append((number, kind, ops, kernels, launches, len(imported.fallbacks), ", ".join(symbols), engine))
        fallbacks += [(fallback.operator, str(fallback.source), fallback.why) for fallback in imported.fallbacks]
        if symbols:
            notes.append(
                f"graph {number} has {len(symbols)} symbolic sizes: torch makes up to {2 ** len(symbols)} such graphs, since it "
                "compiles size 1 apart; those that differ in sizes only run one engine, and all share packed weights"
            )
    columns = ("graph", "kind", "compiled ops", "kernels", "launches", "aten calls", "symbols", "engine")
    tables = [
        Table("each graph", columns, tuple(rows), tuple(notes)),
        Table("fallbacks", ("op", "source", "why"), tuple(fallbacks), () if fallbacks else ("nothing falls back",)),
    ]
    if breaks:
        tables.append(Table("reasons of graph breaks", ("reason",), tuple((reason.splitlines()[0],) for reason in breaks)))
    sums = {column: sum(int(row[place]) for row in rows) for place, column in enumerate(columns) if place in (2, 3, 4, 5)}
    return Report({"graphs": len(graphs), **sums, "graph breaks": len(breaks)}, tuple(tables))


class _Planned:
    """The programs that are planned so far, with the number of their graph and their launches."""

    def __init__(self) -> None:
        self.known: list[tuple[Program, int, int]] = []

    def plan(self, number: int, listed: _Listed) -> tuple[int, int, str, tuple[Kept, ...]]:
        """Kernels and launches of a graph on the first target, by the cost model's schedules, whose engine it runs, what fusion kept."""
        module, options = listed.seen().module, listed.options
        if not module.main.outputs:
            return 0, 0, "none", ()
        simplify(module, options)
        program = Program.of(module, options, listed.places)
        for earlier, owner, launches in self.known:
            if earlier.serves(program):
                return 0, launches, f"shared with graph {owner}", ()
        if program.is_shareable:
            admit_ones(module)
        lowered = _lower(module, options.targets[0])
        launches = sum(isinstance(step, Launch) for step in lowered.plan.steps)
        self.known.append((program, number, launches))
        return len(lowered.kernels), launches, "its own", lowered.kept


def _lower(module: Module, target: Target) -> Lowered:
    if target.family == "cpu":
        level = levels_of(target)[-1]
        return lower_cpu(module, level, cheapest(level))
    # Triton is a heavy import that a CPU build does without.
    from ..passes.tile.gpu import STRATEGIES
    from .target_cuda import lower_cuda

    device = gpu_target(target.levels[0])
    scheduler = Scheduler(STRATEGIES, device, cheapest(device), lambda region, constants: {})
    return lower_cuda(module, scheduler)


def explain_module(module: Module) -> Report:
    """What is in an imported program: all of it is compiled, or the import would have failed."""
    kinds: dict[str, int] = {}
    for op in module.main:
        kinds[op.name] = kinds.get(op.name, 0) + 1
    rows = tuple(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))
    return Report({"graphs": 1, "compiled ops": sum(kinds.values()), "aten calls": 0}, (Table("ops", ("op", "count"), rows),))
