"""`ourcc inspect`: what is in an engine, or what a model becomes on its way to one."""

from __future__ import annotations

from collections.abc import Mapping

from ..ir.errors import EngineError, UsageError
from ..ir.text import module_text
from ..runtime.contents import EngineContents
from .options import InspectOptions, build_options
from .report.engine import describe_engine
from .report.kernels import kernel_table, memory_tables
from .report.table import Report, Table
from .trust import open_contents

STAGES = ("import", "simplify", "regions", "tiles", "plan", "c")


def inspect(options: InspectOptions) -> Report:
    """The summary, or what the options choose."""
    if options.ir is not None:
        return _program(options)
    if options.subject.suffix != ".ourcc":
        return Report({"model": str(options.subject)}, text=_text(options, "import"))
    # Any target can be looked at, whether it runs here or not.
    contents = _contents(options)
    names = [options.target] if options.target else list(contents.targets)
    for name in names:
        if name not in contents.targets:
            raise EngineError(f"engine holds no target {name}, expected one of {', '.join(contents.targets)}")
    if options.source is not None:
        return Report(text="\n".join(_source(contents.targets[name].files, options.source) for name in names))
    tables: list[Table] = []
    kernels = contents.report.get("kernels", {})
    for name in names:
        if options.kernels:
            tables.append(kernel_table(name, kernels.get(name, [])))
        if options.memory:
            tables += memory_tables(contents.targets[name].plan)
    if options.kernels or options.memory:
        return Report({"engine": str(options.subject)}, tuple(tables))
    if options.precision:
        contract = describe_engine_contract(contents.report)
        return Report({"engine": str(options.subject)}, (contract,))
    return describe_engine(contents, options.subject, options.target)


def _contents(options: InspectOptions) -> EngineContents:
    """The engine as data: nothing here may load its code."""
    return open_contents(options.subject, options.environment.directory, options.trust)


def describe_engine_contract(report: object) -> Table:
    """The contract as a table."""
    rows = report.get("contract", []) if isinstance(report, dict) else []
    columns = ("source", "op", "requested", "realised", "why")
    return Table("contract", columns, tuple(tuple(row.get(c) for c in columns) for row in rows))


def _source(files: Mapping[str, bytes], kernel: str) -> str:
    """The text of one kernel among the source members of a target."""
    found = []
    for name, data in files.items():
        if not name.endswith((".c", ".py")):
            continue
        text = bytes(data).decode(errors="replace")
        if name.endswith(f"{kernel}.py"):
            return text
        start = text.find(f"void {kernel}(")
        while start >= 0:
            end = text.find("\n}\n", start)
            if ";" not in text[start : text.find("\n", start)]:
                found.append(f"// {name}\n{text[start : end + 3]}")
            start = text.find(f"void {kernel}(", start + 1)
    if not found:
        raise UsageError(f"there is no kernel {kernel!r} in the engine", hint="ourcc inspect --kernels lists them")
    return "\n".join(found)


def _program(options: InspectOptions) -> Report:
    if options.ir not in STAGES:
        raise UsageError(f"unknown stage: got {options.ir!r}, expected one of {', '.join(STAGES)}")
    return Report(text=_text(options, options.ir))


def _text(options: InspectOptions, stage: str) -> str:
    if options.subject.suffix == ".ourcc":
        if stage not in ("simplify", "import"):
            raise UsageError(
                f"stage {stage} needs the model: an engine keeps its simplified program", hint="ourcc inspect MODEL --ir " + stage
            )
        return _contents(options).graph
    from .driver import import_model
    from .pipeline import simplify, stage_text

    build = build_options({"targets": [options.target]} if options.target else {})
    module = import_model(options.subject, build)
    if stage == "import":
        return module_text(module)
    simplify(module, build)
    return module_text(module) if stage == "simplify" else stage_text(module, build, stage)
