"""`ourcc.explain`: what would be compiled of a model for given inputs, what would fall back, and why; builds nothing."""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...ir.errors import Source, UsageError
from ...ir.graph import Module
from ...passes.base import Missed
from ...passes.fusion.decision import Decision
from ...passes.lower.build_plan import Kept
from ...runtime.captured import FEWEST
from ...runtime.captured import TOLD as GRAPHS
from ..importers.torch.imported import Imported
from ..importers.torch.whole import left
from ..models.importing import import_model, is_program
from ..options import BuildOptions
from ..pipeline import lower, simplify
from ..report.fusion import VERDICTS, largest_kept
from ..report.table import Report, Table
from ..torch.backend import CompiledGraph, aot, unboxed
from ..torch.breaks import Break, Breaks, EagerOps
from ..torch.sharing import Place, SharedProgram, admit_ones, place_of
from ..torch.telling import may_leave, tell_left

WIDTH = 80
LARGEST_COLUMNS = ("graph", "value", "op", "bytes", "why")


def explain(model: Any, inputs: Sequence[Any], options: BuildOptions) -> Report:
    """What would be compiled of a model, what would fall back, and why."""
    if is_program(model):
        return explain_module(import_model(model, options), options)
    return explain_torch(model, inputs, options)


def _check_arguments(model: Any, inputs: Sequence[Any]) -> None:
    """UsageError for inputs that a module or function does not take."""
    try:
        signature = inspect.signature(getattr(model, "forward", model))
    except (TypeError, ValueError):
        return  # a builtin, which says nothing of its arguments
    try:
        signature.bind(*inputs)
    except TypeError as error:
        raise UsageError(f"got {len(inputs)} inputs for {type(model).__name__}: {error}", hint="ourcc.explain(model, x, ...)") from error


def explain_torch(model: Any, inputs: Sequence[Any], options: BuildOptions) -> Report:
    """Run a torch module or function once through torch.compile; every graph is imported, planned, and run by torch."""
    if not callable(model):
        raise UsageError(f"got a {type(model).__name__}, expected a torch module, a function, or a path")
    _check_arguments(model, inputs)
    import torch

    graphs: list[_Listed] = []
    breaks, eager = Breaks(), EagerOps()

    def backend(graph_module: Any, example_inputs: Sequence[Any]) -> Any:
        breaks.note(graph_module)
        with eager.paused():
            return aot(
                graph_module, example_inputs, functools.partial(_Listed, options=options, by_device=True, graphs=graphs, eager=eager)
            )

    # A fresh code object each time: what was compiled before must not hide a graph.
    torch._dynamo.reset_code_caches()
    with eager.watched():
        answer = torch.compile(model, backend=backend)(*inputs)
    learned = _learned(model, answer)
    _differentiate(inputs, learned, answer)
    return _report(graphs, breaks.finish(), eager, bool(learned))


def _learned(model: Any, answer: Any) -> list[Any]:
    """The parameters for whose sake torch made training graphs: a module's, and those that a function closes over."""
    import torch
    from torch.utils._pytree import tree_leaves

    waiting = [value.grad_fn for value in tree_leaves(answer) if isinstance(value, torch.Tensor) and value.grad_fn is not None]
    own = model.parameters() if isinstance(model, torch.nn.Module) and torch.is_grad_enabled() else ()
    seen, found = set(waiting), {id(value): value for value in own if value.requires_grad}
    while waiting:
        node = waiting.pop()
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.nn.Parameter):
            found[id(variable)] = variable
        following = [child for child, _ in node.next_functions if child is not None and child not in seen]
        seen.update(following)
        waiting += following
    return list(found.values())


def _differentiate(inputs: Sequence[Any], learned: Sequence[Any], answer: Any) -> None:
    """Where gradients are on, have torch make the backward graphs too; nobody's `.grad` changes."""
    import torch
    from torch.utils._pytree import tree_leaves

    outputs = [value for value in tree_leaves(answer) if isinstance(value, torch.Tensor) and value.requires_grad]
    given = {id(value): value for value in (*tree_leaves(list(inputs)), *learned)}
    leaves = [value for value in given.values() if isinstance(value, torch.Tensor) and value.requires_grad]
    if outputs and leaves:
        torch.autograd.grad(outputs, leaves, [torch.ones_like(output) for output in outputs], allow_unused=True)


class _Listed(CompiledGraph):
    """A graph that is imported to be listed, its parameters frozen as the backend would, and run by torch."""

    def __init__(self, *arguments: Any, graphs: list[_Listed], eager: EagerOps, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.eager = eager
        self.found: Imported | None = None
        self.places: tuple[Place, ...] = ()
        graphs.append(self)

    def __call__(self, *arguments: Any) -> Any:
        values = unboxed(arguments)
        if self.found is None:
            frozen = self.frozen(values)
            self.found = self.import_graph(frozen)
            self.places = tuple(place_of(value) for value in frozen.values())
        with self.eager.paused():
            return self.graph_module(*values)

    def seen(self) -> Imported:
        """What was imported; a graph that nobody ran, such as a backward one, with nothing frozen."""
        if self.found is None:
            self.found = self.import_graph({})
        return self.found

    def leaves(self, error: Exception) -> bool:
        """Whether torch runs the graph if planning fails, as compiling would."""
        if may_leave(error, self.options):
            self.found = left(self.graph_module, tell_left(error, self.graph_module, self.options))
        return self.found is not None and self.found.is_left


def _report(graphs: Sequence[_Listed], breaks: Sequence[Break], eager: EagerOps, wants_gradients: bool) -> Report:
    rows: list[tuple[str | int, ...]] = []
    lines: list[tuple[str | int, ...]] = []
    fallbacks: list[tuple[str | int, ...]] = []
    notes: list[str] = []
    planned, plans = _Planned(), list[_Plan]()
    # Where graphs are whole, what runs beside them is torch's own care of inputs and outputs.
    outside = eager.count if breaks or not graphs else 0
    for number, listed in enumerate(graphs):
        compiled = [place_text(op.source) for op in listed.seen().module.main if op.name != "aten_call"]
        plan = planned.plan(number, listed)
        plans.append(plan)
        imported = listed.seen()
        compiled = [] if imported.is_left else compiled
        notes += [f"graph {number}: {row}" for row in plan.kept]
        notes += [f"graph {number}: {GRAPHS}"] if is_replayed(listed.options, plan.launches) else []
        kind = "inference" if listed.is_inference else "training"
        count = len(imported.fallbacks)
        rows.append((number, kind, len(compiled), plan.kernels, plan.launches, count, ", ".join(imported.module.symbols), plan.engine))
        fallbacks += [(number, each.operator, str(each.source), each.why) for each in imported.fallbacks]
        called = [place_text(each.source) for each in imported.fallbacks]
        lines += [(number, place, compiled.count(place), called.count(place)) for place in dict.fromkeys([*compiled, *called])]
    columns = ("graph", "kind", "compiled ops", "kernels", "launches", "aten calls", "symbols", "engine")
    why = ("graph", "op", "source", "why")
    tables = [
        Wrapped("each graph", columns, tuple(rows), (*_notes(graphs, wants_gradients), *notes)),
        *([Wrapped("each line", ("graph", "line", "compiled ops", "aten calls"), tuple(lines))] if lines else []),
        Wrapped("fallbacks", why, tuple(fallbacks), tuple(_fallback_notes(bool(fallbacks), breaks, outside))),
        *_fusion(plans),
    ]
    if outside:
        tables.append(Wrapped("ran in eager, in no graph", ("line", "ops", "which"), tuple(eager.lines())))
    if breaks:
        tables.append(Wrapped("reasons of graph breaks", ("line", "reason"), tuple((each.where or "-", each.reason) for each in breaks)))
    sums = {column: sum(int(row[place]) for row in rows) for place, column in enumerate(columns) if place in (2, 3, 4, 5)}
    return Report({"graphs": len(graphs), **sums, "graph breaks": len(breaks), "eager ops": outside}, tuple(tables))


def _fallback_notes(any_falls_back: bool, breaks: Sequence[Break], outside: int) -> Iterator[str]:
    """What the list of fallbacks, which are in graphs, does not show."""
    if outside:
        first = "" if any_falls_back else "no op of a graph falls back, but "
        yield f"{first}{outside} ops ran in eager outside of every graph: see below"
    elif breaks and not any_falls_back:
        yield "no op of a graph falls back; between the graphs Python runs, without an op of torch in this call"
    elif not any_falls_back:
        yield "nothing falls back"


def _notes(graphs: Sequence[_Listed], wants_gradients: bool) -> Iterator[str]:
    """What else may happen, and what would make it better."""
    sizes = {number: len(listed.seen().module.symbols) for number, listed in enumerate(graphs)}
    for number, count in sizes.items():
        if count:
            yield (
                f"graph {number} has {count} symbolic sizes: torch makes up to {2**count} such graphs, since it "
                "compiles size 1 apart; those that differ in sizes only run one engine, and all share packed weights"
            )
    if graphs and not any(sizes.values()):
        yield "all sizes are fixed: at the first call with other ones torch compiles again, with symbols for those that changed"
    if not graphs:
        yield "torch made no graph of it: all of it stays Python"
    if wants_gradients and any(not listed.is_inference for listed in graphs):
        yield (
            "gradients are on and parameters require them: they are read where they lie, and a backward graph is made; "
            "under torch.no_grad() parameters are folded and packed"
        )


def place_text(source: Source | None) -> str:
    """The line of an op: `file:line`."""
    return f"{source.file}:{source.line}" if source is not None and source.file is not None else "-"


@dataclass(frozen=True)
class Wrapped(Table):
    """A table of 80 columns: the text in its last column goes on below, as notes do."""

    def __str__(self) -> str:
        cells = [self.columns, *(tuple("-" if cell is None else str(cell) for cell in row) for row in self.rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.columns))]
        start = 2 + sum(width + 2 for width in widths[:-1])
        lines = [f"{self.name}:"]
        for row in cells:
            head = "  " + "".join(text.ljust(width + 2) for text, width in zip(row[:-1], widths, strict=False))
            if start + widths[-1] <= WIDTH:
                lines.append((head + row[-1]).rstrip())
            elif start > WIDTH // 2:
                lines += [head.rstrip(), *textwrap.wrap(row[-1], WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)]
            else:
                lines += textwrap.wrap(row[-1], WIDTH, initial_indent=head, subsequent_indent=" " * start) or [head.rstrip()]
        for note in self.notes:
            lines += textwrap.wrap(f"({note})", WIDTH, initial_indent="  ", subsequent_indent="   ")
        return "\n".join(lines)


def _fusion(plans: Sequence[_Plan]) -> list[Table]:
    """Where values are: counts by verdict, the largest in memory and why, and the patterns that were nearly recognised."""
    rows = [[{**vars(row), "graph": number} for row in plan.decisions] for number, plan in enumerate(plans)]
    counts = [Counter(row["verdict"] for row in of_graph) for of_graph in rows]
    largest = largest_kept([row for of_graph in rows for row in of_graph])
    missed = [(number, row.pattern, row.source, row.why) for number, plan in enumerate(plans) for row in plan.missed]
    tables = [
        Wrapped("fusion", ("graph", *VERDICTS), tuple((n, *(count[v] for v in VERDICTS)) for n, count in enumerate(counts) if count)),
        Wrapped("largest in memory", LARGEST_COLUMNS, tuple(tuple(row[column] for column in LARGEST_COLUMNS) for row in largest)),
        Wrapped("patterns not recognised", ("graph", "pattern", "source", "why"), tuple(missed)),
    ]
    return [table for table in tables if table.rows]


@dataclass(frozen=True)
class _Plan:
    """What becomes of a graph: kernels, launches, whose engine it runs, what fusion had to keep and what it decided."""

    kernels: int = 0
    launches: int = 0
    engine: str = "none"
    kept: tuple[Kept, ...] = ()
    decisions: tuple[Decision, ...] = ()
    missed: tuple[Missed, ...] = ()


class _Planned:
    """The programs that are planned so far, with the number of their graph and their launches."""

    def __init__(self) -> None:
        self.known: list[tuple[SharedProgram, int, int]] = []

    def plan(self, number: int, listed: _Listed) -> _Plan:
        """The plan of a graph on the first target, by the cost model's schedules."""
        if not listed.seen().module.main.outputs:
            return _Plan()
        try:
            return self._plan(number, listed)
        except Exception as error:
            if not listed.leaves(error):
                raise
            return _Plan()

    def _plan(self, number: int, listed: _Listed) -> _Plan:
        module, options = listed.seen().module, listed.options
        missed = simplify(module, options).missed
        program = SharedProgram.of(module, options, listed.places)
        for earlier, owner, launches in self.known:
            if earlier.serves(program):
                return _Plan(0, launches, f"shared with graph {owner}")
        if program.is_shareable:
            admit_ones(module)
        lowered = lower(module, options.targets[0], options.within(module.facts).reckoned(module).workload)
        launches = sum(1 for _ in lowered.launches)
        self.known.append((program, number, launches))
        return _Plan(len(lowered.kernels), launches, "its own", lowered.kept, lowered.decisions, missed)


def explain_module(module: Module, options: BuildOptions) -> Report:
    """What is in an imported program, all of which is compiled, or the import would have failed; and what becomes of its values."""
    kinds: dict[str, int] = {}
    for op in module.main:
        kinds[op.name] = kinds.get(op.name, 0) + 1
    rows = tuple(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))
    missed = simplify(module, options).missed
    lowered = lower(module, options.targets[0], options.reckoned(module).workload_for(module.facts))
    launches = sum(1 for _ in lowered.launches)
    plan = _Plan(len(lowered.kernels), launches, "its own", lowered.kept, lowered.decisions, missed)
    facts = {"graphs": 1, "compiled ops": sum(kinds.values()), "kernels": plan.kernels, "launches": launches, "aten calls": 0}
    notes = (GRAPHS,) if is_replayed(options, launches) else ()
    return Report(facts, (Table("ops", ("op", "count"), rows, notes), *_fusion([plan])))


def is_replayed(options: BuildOptions, launches: int) -> bool:
    """Whether so many launches of the first target may become a CUDA graph."""
    return options.targets[0].replays and options.environment.graphs and launches >= FEWEST
