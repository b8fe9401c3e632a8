"""`ourcc build`: from a model, or from an engine that keeps its program, to an engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...ir.workload import parse_workload
from ...runtime.contents import EngineContents
from ...runtime.engine import Engine
from ...runtime.language import engine_class
from ...runtime.replace import replace_file
from ..backends.tuning import write_journal
from ..engines.outputs import check_places
from ..engines.trust import open_contents
from ..models.importing import import_model
from ..options import BuildOptions
from ..pipeline import compile_again, compile_module
from ..progress import SILENT, Progress


def build(model: Any, options: BuildOptions, progress: Progress = SILENT, *, example_inputs: Sequence[Any] | None = None) -> Engine:
    """Compile a model into an engine: a path (.onnx, .pt2), an ONNX ModelProto, an exported program, a torch module, or functions
    by name, each a path to a .pt2 or an exported program.
    """
    if isinstance(model, (str, os.PathLike)):
        check_places({"report": options.report}, {"the model": Path(model)})
    module = import_model(model, options, progress, example_inputs=example_inputs)
    if module.workload and options.workload is None:
        options = replace(options, workload=parse_workload(module.workload))
    return _finish(compile_module(module, options, progress), options, progress, module.name)


def rebuild(engine: str | os.PathLike[str], options: BuildOptions, progress: Progress = SILENT) -> Engine:
    """An engine file with the targets of the options made new from the program that it holds; the others stay."""
    check_places({"report": options.report}, {"the engine": Path(engine)})
    progress.stage("read the engine")
    contents = open_contents(engine, options.environment.directory, options.trust, progress)
    return _finish(compile_again(contents, options, progress), options, progress, Path(engine).stem)


def _finish(contents: EngineContents, options: BuildOptions, progress: Progress, name: str) -> Engine:
    """Leave the journal and the page that was asked for; the engine."""
    write_journal(contents, options.environment, progress)
    if options.report is not None:
        from ..report.page import page

        replace_file(options.report, [page(contents, name).encode()])
    return engine_class(contents)(
        contents,
        threads=options.threads or options.environment.threads,
        graphs=options.graphs and options.environment.graphs,
        must_run=False,
    )
