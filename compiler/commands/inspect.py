"""`ourcc inspect`: what is in an engine, or what a model becomes on its way to one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...ir.errors import EngineError, UsageError
from ...ir.graph import Module
from ...ir.graph.parse import parse_module
from ...ir.graph.text import module_text
from ...ir.spelling import nearest
from ...runtime.again import again, read_from
from ...runtime.contents import Contract, EngineContents
from ...runtime.families import why_not
from ...runtime.replace import replace_file
from ..contract import FP32, IN_PARTS, MERGED, products_of
from ..engines.kinds import is_engine
from ..engines.recorded import boards_of, kept_precision, recorded_workload, spoken, workload_of
from ..engines.trust import open_contents
from ..options import BuildOptions, InspectOptions
from ..progress import SILENT, Progress
from ..report.engine import describe_engine, describe_module
from ..report.fusion import fusion_tables
from ..report.kernels import arena_bytes, kernel_table, memory_tables
from ..report.repeated import fold
from ..report.table import Cell, Report, Table
from ..targets.registry import loaded_as, parse_target, target_of_part
from ..targets.target import LANGUAGES, CudaTarget

if TYPE_CHECKING:
    from ..report.graph.vertices import Vertex

PICTURES = (".svg", ".html")
DRAWN = ("import", "simplify", "plan")
"""The stages that can be drawn."""
COMPARED = ("import", "simplify")
"""The stages that can be compared."""
STAGES = ("import", "simplify", "regions", "tiles", "plan", *LANGUAGES)


def inspect(options: InspectOptions, progress: Progress = SILENT) -> Report:
    """The summary, or what the options choose; of a model the engine is built in memory and written nowhere."""
    if options.ir is not None and options.ir not in STAGES:
        raise UsageError(f"unknown stage: got {options.ir!r}, expected one of {', '.join(STAGES)}", hint=nearest(options.ir, STAGES))
    _check_views(options)
    is_built = is_engine(options.subject)
    if is_built and options.build.shapes:
        raise UsageError("got --shape for an engine, expected none: its sizes are settled", hint="inspect the model with that --shape")
    if is_built and options.build.workload is not None:
        with read_from(options.subject):
            raise UsageError("got --workload for an engine, expected none: it has its own", hint=f"{again()} --workload ...")
    if options.explain:
        return _explanation(options, progress)
    if options.diff is not None:
        return _difference(options, options.diff, progress)
    if options.graph is not None:
        return _graph(options, options.graph, progress)
    if options.ir is not None:
        return Report(text=_engine_text(options, progress) if is_built else _model_text(options, options.ir, progress))
    looks = options.kernels or options.memory or options.fusion or options.precision or options.source is not None
    if is_built:
        # Any part can be looked at, whether it runs here or not.
        contents = _contents(options, progress)
        return _look(options, contents) if looks else _summary(options, contents)
    return _look(options, _built(options, progress)) if looks else _model_summary(options, progress)


def _check_views(options: InspectOptions) -> None:
    """Tables of an engine are shown together; pictures, comparisons, a program's text, and a kernel's, stand alone."""
    drawn = {"--graph": options.graph is not None, "--diff": options.diff is not None, "--explain": options.explain}
    # A picture, or a comparison, is of a stage: there --ir only chooses.
    texts = drawn | {
        "--ir": options.ir is not None and options.graph is None and options.diff is None,
        "--source": options.source is not None,
    }
    flags = {"--kernels": options.kernels, "--memory": options.memory, "--fusion": options.fusion, "--precision": options.precision}
    asked = [name for name, is_asked in (texts | flags).items() if is_asked]
    if any(texts.values()) and len(asked) > 1:
        alone = ", ".join(name for name in asked if texts.get(name))
        raise UsageError(f"got {' and '.join(asked)}, expected {alone} alone", hint="ask for one after the other")
    if options.graph is not None and options.graph.suffix not in PICTURES:
        raise UsageError(f"--graph {str(options.graph)!r}: expected a name that ends in {' or '.join(PICTURES)}", hint="name a picture")
    if options.graph is not None and options.ir not in (None, *DRAWN):
        raise UsageError(f"got --graph and --ir {options.ir}, expected one of {', '.join(DRAWN)}", hint="other stages are text alone")


def _contents(options: InspectOptions, progress: Progress) -> EngineContents:
    """The engine as data: nothing here may load its code."""
    return open_contents(options.subject, options.build.environment.directory, options.trust, progress)


def _look(options: InspectOptions, contents: EngineContents) -> Report:
    """What the options choose of an engine's contents."""
    name = _part(options, contents)
    if options.source is not None:
        return Report(text=_source(options, contents, name, options.source))
    tables: list[Table] = []
    arenas, numbers = dict[str, str](), dict[str, Mapping[str, Cell]]()
    if options.kernels:
        rows = contents.report.get("kernels", {}).get(name, [])
        tables.append(kernel_table(name, rows, workload_of(contents), on_cpu=contents.parts[name].is_level))
    if options.memory:
        plans, sizes = contents.parts[name].plans, workload_of(contents).sizes
        for function, plan in plans.items():
            arena = "arena" if len(plans) == 1 else f"arena of {function}"
            arenas[arena], numbers[arena] = arena_bytes(plan, sizes)
            tables += memory_tables(plan, function if len(plans) > 1 else None)
    if options.fusion:
        if name not in contents.report.get("fusion", {}):
            hint = f"{again()} decides again and keeps why"
            with read_from(options.subject):
                raise EngineError(f"engine does not say what fusion decided for {name}: an earlier version built it", hint=hint)
        tables += fusion_tables(name, contents.report["fusion"][name], contents.report.get("missed", []), workload_of(contents))
    if options.precision:
        tables.append(describe_engine_contract(contents.report, has_gpu=any(not part.is_level for part in contents.parts.values())))
    what = "engine" if is_engine(options.subject) else "model"
    others, boards = spoken(contents, (other for other in contents.parts if other != name)), boards_of(contents)
    facts = {what: str(options.subject), "part": spoken(contents, [name]), **({"other_parts": others} if others else {}), **arenas}
    numbers |= {"boards": boards} if boards else {}
    return Report(facts, tuple(tables), numbers=numbers)


def _summary(options: InspectOptions, contents: EngineContents) -> Report:
    _part(options, contents)
    return describe_engine(contents, options.subject, _wanted(options))


def _part(options: InspectOptions, contents: EngineContents) -> str:
    """The part of an engine to show: of those that are meant the best that runs here, else the best of all."""
    wanted = _wanted(options)
    names = tuple(contents.parts) if wanted is None else contents.named(wanted)
    if not names:
        held = spoken(contents, dict.fromkeys([*contents.targets, *contents.parts]))
        raise EngineError(f"engine holds no target {wanted}, expected one of {held}")
    _check_board(options, contents)
    return next((name for name in names if why_not(contents, name) is None), names[0])


def _check_board(options: InspectOptions, contents: EngineContents) -> None:
    """UsageError for a board that is not the one whose times an engine tells."""
    target = None if options.target is None else parse_target(options.target)
    if not isinstance(target, CudaTarget) or target.name == target.loaded_as:
        return
    board = boards_of(contents)[target.loaded_as]
    if board != target.name:
        hint = f"--target {target.loaded_as} shows it; an engine for another board is built from the model"
        raise UsageError(f"--target {target.name}: the engine's {target.loaded_as} was made for {board}", hint=hint)


def _wanted(options: InspectOptions) -> str | None:
    return None if options.target is None else loaded_as(options.target)


def describe_engine_contract(report: Mapping[str, Any], *, has_gpu: bool = False) -> Table:
    """The contract as a table."""
    rows = report.get("contract", [])
    columns = ("source", "op", "requested", "realised", "runs", "stored", "summed", "why")
    cells = tuple(tuple(row.get(column) or None for column in columns) for row in rows)
    notes: tuple[str, ...] = (
        "stored: how a weight lies in memory, or a cache that attention reads; summed: the precision that sums are added up in",
    )
    if has_gpu and FP32 in (products_of(Contract.from_json(rows)) or ""):
        notes = (*notes, f"{FP32}: {IN_PARTS}")
    table = Table("contract", columns, cells, notes, ("source", "op", "requested", "realised", "runs", "why"))
    left = tuple(cell for row, cell in zip(rows, cells, strict=True) if row.get("why") != MERGED)
    if len(left) == len(cells):
        return fold(table, ("source", "why"), any_of="source")
    merged = f"{len(cells) - len(left)} ops are {MERGED}; --wide and --json have them"
    shown = fold(replace(table, rows=left, notes=(*notes, merged)), ("source", "why"), any_of="source")
    return replace(table, folded=shown.folded or shown)


def _source(options: InspectOptions, contents: EngineContents, part: str, kernel: str) -> str:
    """The text of one kernel among the source members of a part."""
    found = _texts(contents.parts[part].files, kernel)
    if found:
        return "\n".join(found)
    rows = contents.report.get("kernels", {}).get(part, [])
    known = [row["kernel"] for row in rows if row.get("kind", "kernel") == "kernel"]
    others = [row["kernel"] for row in rows if row.get("kind", "kernel") != "kernel"]
    if kernel in others:
        hint = f"ourcc inspect {options.subject} --kernels lists what does"
        raise UsageError(f"{kernel} has no source: it runs outside of kernels", hint=hint)
    hint = nearest(kernel, known) or f"ourcc inspect {options.subject} --kernels lists them"
    raise UsageError(f"there is no kernel {kernel!r} in the engine", hint=hint)


def _texts(files: Mapping[str, bytes], kernel: str) -> list[str]:
    """The printed kernel, of a GPU also the one for aligned operands, each below the name of its file."""
    from ...codegen.c.printer import kernels_of

    named = {
        name: bytes(files[name]).decode(errors="replace")
        for name in (f"{kernel}.c", f"{kernel}.py", f"{kernel}_aligned.py")
        if name in files
    }
    return [f"// {name}\n{kernels_of(text)}" if name.endswith(".c") else f"# {name}\n{text}" for name, text in named.items()]


# --- models -----------------------------------------------------------------------------------------------------------


def _build_options(options: InspectOptions) -> BuildOptions:
    return options.build if options.target is None else replace(options.build, targets=(parse_target(options.target),))


def _built(options: InspectOptions, progress: Progress) -> EngineContents:
    from ..models.importing import import_model
    from ..pipeline import compile_module

    build = _build_options(options)
    return compile_module(import_model(options.subject, build, progress), build, progress)


def _model_summary(options: InspectOptions, progress: Progress) -> Report:
    from ..models.importing import import_model

    return describe_module(import_model(options.subject, _build_options(options), progress), options.subject)


def _explanation(options: InspectOptions, progress: Progress) -> Report:
    """What `ourcc.explain` says of a model in a file."""
    if is_engine(options.subject):
        hint = "--kernels, --fusion and --precision show what became of it"
        raise UsageError("got --explain for an engine, expected a model: it is built already", hint=hint)
    from ..models.importing import import_model
    from .explain import explain_module

    build = _build_options(options)
    report = explain_module(import_model(options.subject, build, progress), build)
    return replace(report, facts={"model": str(options.subject), **report.facts})


def _engine_text(options: InspectOptions, progress: Progress) -> str:
    """The program, the plan or the sources that an engine keeps; regions and tiles are made anew, by the cost model's schedules."""
    if options.ir == "import":
        hint = "ourcc inspect MODEL --ir import; all later stages are made from the engine"
        raise UsageError("stage import needs the model: an engine keeps its simplified program", hint=hint)
    contents = _contents(options, progress)
    name = _part(options, contents)
    if options.ir == "simplify" or options.ir is None:
        return contents.graph
    from ..backends.reopen import module_of
    from ..pipeline import plans_text, sources_text, stage_text

    part = contents.parts[name]
    if options.ir == "plan":
        return plans_text(part.plans)
    if options.ir == target_of_part(name).language and options.ir in LANGUAGES:
        ending = {"c": ".c", "triton": ".py"}[options.ir]
        files = (file for file in part.files if file.endswith(ending))
        return sources_text({file: bytes(part.files[file]).decode(errors="replace") for file in files})
    workload, precision = recorded_workload(contents), kept_precision(contents)
    build = replace(options.build, targets=(target_of_part(name),), workload=workload, precision=precision)
    return stage_text(module_of(contents), build, options.ir)


def _model_text(options: InspectOptions, stage: str, progress: Progress) -> str:
    from ..pipeline import stage_text

    module = _model(options, options.subject, stage, progress)
    return module_text(module) if stage in ("import", "simplify") else stage_text(module, _build_options(options), stage)


def _model(options: InspectOptions, path: Path, stage: str, progress: Progress) -> Module:
    """A model as it is imported, or simplified for all stages that follow."""
    from ..models.importing import import_model
    from ..pipeline import simplify

    build = _build_options(options)
    module = import_model(path, build, progress)
    if stage != "import":
        simplify(module, build, progress)
    return module


# --- pictures and comparisons -----------------------------------------------------------------------------------------


def _graph(options: InspectOptions, picture: Path, progress: Progress) -> Report:
    """Draw the functions of a program, or of a plan, below each other."""
    from ..report.graph.diagram import diagram_of
    from ..report.graph.draw import svg
    from ..report.graph.viewer import html

    stage, programs = _drawn(options, progress)
    progress.stage("draw")
    functions = [(name, *diagram_of(nodes)) for name, nodes in programs.items()]
    title = f"{options.subject.name}, {stage}"
    text = (svg if picture.suffix == ".svg" else html)(title, functions)
    replace_file(picture, [text.encode()])
    accounts = {name: str(account) for name, _, account in functions}
    return Report({"graph": str(picture), "stage": stage, **accounts})


def _drawn(options: InspectOptions, progress: Progress) -> tuple[str, dict[str, tuple[Vertex, ...]]]:
    """The stage that is drawn, and the nodes of each of its functions."""
    from ..report.graph.kernels import of_plan
    from ..report.graph.vertices import of_graph

    is_built = is_engine(options.subject)
    stage = options.ir or ("plan" if is_built else "import")
    if stage == "plan":
        contents = _contents(options, progress) if is_built else _built(options, progress)
        part = _part(options, contents)
        return f"kernels for {part}", {name: of_plan(contents, part, name) for name in contents.parts[part].plans}
    module = parse_module(_engine_text(options, progress)) if is_built else _model(options, options.subject, stage, progress)
    return stage, {name: of_graph(graph) for name, graph in module.functions.items()}


def _difference(options: InspectOptions, other: Path, progress: Progress) -> Report:
    """Two programs beside each other, simplified as an engine keeps its own, unless models are asked for as they are imported."""
    from ..report.difference import differences

    paths = (options.subject, other)
    stage = options.ir or "simplify"
    if stage not in COMPARED or (stage == "import" and any(map(is_engine, paths))):
        hint = "an engine keeps its simplified program" if stage == "import" else "other stages are text alone"
        raise UsageError(f"got --diff and --ir {stage}, expected {' or '.join(COMPARED)} of two models, simplify of engines", hint=hint)
    left, right = (_program(options, path, stage, progress) for path in paths)
    report = differences(left, right, (str(options.subject), str(other)))
    return replace(report, facts={"stage": stage, **report.facts})


def _program(options: InspectOptions, path: Path, stage: str, progress: Progress) -> Module:
    if is_engine(path):
        from ..backends.reopen import module_of

        return module_of(_contents(replace(options, subject=path), progress))
    return _model(options, path, stage, progress)
