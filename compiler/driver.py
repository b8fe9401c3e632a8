"""The driver: what the command line, the Python API and the torch backend call to get from a model to an engine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..ir.errors import UnsupportedError, UsageError
from ..ir.graph import Module
from ..runtime.contents import EngineContents
from ..runtime.engine import Engine
from ..runtime.replace import replace_file
from .kinds import check_engine, is_engine
from .options import (
    BenchOptions,
    BuildOptions,
    CacheOptions,
    InspectOptions,
    OptimizeOptions,
    TuneOptions,
    VerifyOptions,
    environment,
)
from .outputs import check_places
from .progress import SILENT, Progress
from .report.table import Report
from .targets import loaded_as
from .trust import open_contents, records_of_checks, watch


def build(model: Any, options: BuildOptions, progress: Progress = SILENT, *, example_inputs: Sequence[Any] | None = None) -> Engine:
    """Compile a model into an engine: a path (.onnx, .pt2), an ONNX ModelProto, an exported program, a torch module, or functions
    by name, each a path to a .pt2 or an exported program.
    """
    from .pipeline import compile_module

    if isinstance(model, (str, os.PathLike)):
        check_places({"report": options.report}, {"the model": Path(model)})
    module = import_model(model, options, progress, example_inputs=example_inputs)
    return _finish(compile_module(module, options, progress), options, progress, module.name)


def rebuild(engine: str | os.PathLike[str], options: BuildOptions, progress: Progress = SILENT) -> Engine:
    """An engine file with the targets of the options made new from the program that it holds; the others stay."""
    from .pipeline import compile_again

    check_places({"report": options.report}, {"the engine": Path(engine)})
    progress.stage("read the engine")
    contents = open_contents(engine, options.environment.directory, options.trust, progress)
    return _finish(compile_again(contents, options, progress), options, progress, Path(engine).stem)


def _finish(contents: EngineContents, options: BuildOptions, progress: Progress, name: str) -> Engine:
    """Leave the journal and the page that was asked for; the engine."""
    from .tuning import write_journal

    write_journal(contents, options.environment, progress)
    if options.report is not None:
        from .report.page import page

        replace_file(options.report, [page(contents, name).encode()])
    return Engine(contents, threads=options.threads or options.environment.threads, must_run=False)


def load(
    path: str | os.PathLike[str],
    *,
    target: str | None = None,
    threads: int | None = None,
    verify: bool = False,
    trusted_keys: Iterable[bytes] | None = None,
    copy_weights: bool = False,
    progress: Progress = SILENT,
) -> Engine:
    """Open an engine file for this machine."""
    settings = environment()
    check_engine(path)
    return Engine.load(
        path,
        target=None if target is None else loaded_as(target),
        threads=threads or settings.threads,
        verify=verify,
        trusted_keys=trusted_keys,
        checked=records_of_checks(settings.directory),
        copy_weights=copy_weights,
        watch=watch(progress),
    )


def verify(options: VerifyOptions, progress: Progress = SILENT) -> Report:
    """Compare an engine with its model."""
    from . import verification

    return verification.verify(options, progress)


def bench(options: BenchOptions, progress: Progress = SILENT) -> Report:
    """Measure an engine or a model, alone or against others."""
    from . import benchmark

    return benchmark.bench(options, progress)


def inspect(options: InspectOptions, progress: Progress = SILENT) -> Report:
    """Show what is in an engine or a model."""
    from . import inspection

    return inspection.inspect(options, progress)


def optimize(options: OptimizeOptions, progress: Progress = SILENT) -> Report:
    """Run passes on a program."""
    from . import optimization

    return optimization.optimize(options, progress)


def tune(options: TuneOptions, progress: Progress = SILENT) -> Report:
    """Measure schedules and improve an engine."""
    from . import retune

    return retune.tune(options, progress)


def cache(options: CacheOptions, progress: Progress = SILENT) -> Report:
    """One action on the tuning stores."""
    from .records import cache as act

    return act(options, progress)


def import_model(model: Any, options: BuildOptions, progress: Progress = SILENT, *, example_inputs: Sequence[Any] | None = None) -> Module:
    """The graph module of a model, whatever it comes as."""
    progress.stage("import")
    if isinstance(model, Mapping):
        return _import_functions(model, options)
    if isinstance(model, (str, os.PathLike)) and Path(model).suffix == ".onnx":
        return _import_onnx(model, options)
    if isinstance(model, (str, os.PathLike)) and Path(model).suffix != ".pt2":
        hint = "an engine is built already: ourcc build --rebuild makes its kernels anew" if is_engine(Path(model)) else None
        raise UsageError(f"cannot tell what {str(model)!r} is: got the suffix {Path(model).suffix!r}, expected .onnx or .pt2", hint=hint)
    if type(model).__module__.split(".")[0] == "onnx":
        return _import_onnx(model, options)
    return _import_torch(model, options, example_inputs)


def explain(model: Any, inputs: Sequence[Any], options: BuildOptions) -> Report:
    """What would be compiled of a model, what would fall back, and why."""
    from .explain import explain_module, explain_torch

    is_program = (
        isinstance(model, (str, os.PathLike)) or hasattr(model, "graph_signature") or type(model).__module__.split(".")[0] == "onnx"
    )
    if is_program:
        return explain_module(import_model(model, options), options)
    return explain_torch(model, inputs, options)


def _import_functions(functions: Mapping[str, Any], options: BuildOptions) -> Module:
    """One module of several exported programs, which share parameters and the buffers that they write."""
    from .importers.torch.export import import_functions, input_shapes
    from .shapes import dimension_wishes

    if not functions:
        raise UsageError("got no function, expected at least one", hint='ourcc.build({"append": program, "read": program})')
    for name, model in functions.items():
        if not isinstance(name, str) or _FUNCTION.fullmatch(name) is None:
            raise UsageError(f"function {name!r}: got no plain name, expected letters, digits and underscores")
        if not hasattr(model, "graph_signature") and not (isinstance(model, (str, os.PathLike)) and Path(model).suffix == ".pt2"):
            raise UsageError(f"function {name!r} is a {type(model).__name__}, expected an exported program or a .pt2 file")
    programs = {name: _program(model, options) for name, model in functions.items()}
    found = {name: shape for program in programs.values() for name, shape in input_shapes(program).items()}
    return import_functions(programs, dimension_wishes(options.shapes, found) if options.shapes else None)


_FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def _program(model: Any, options: BuildOptions) -> Any:
    """An exported program, or the one in a .pt2 file."""
    if not isinstance(model, (str, os.PathLike)):
        return model
    from .importers.torch.pt2.program import read_program

    return read_program(model, trust_pickle=options.trust_pickle)


def _import_torch(model: Any, options: BuildOptions, example_inputs: Sequence[Any] | None) -> Module:
    """A .pt2 file, an exported program, or a torch module with example inputs."""
    from .importers.torch.export import export_module, import_exported, input_shapes
    from .shapes import dimension_wishes

    if isinstance(model, (str, os.PathLike)) or hasattr(model, "graph_signature"):
        program = _program(model, options)
    elif example_inputs is None:
        raise UsageError(
            f"got a {type(model).__name__} without example inputs, expected inputs to export it with", hint="ourcc.build(model, (x,))"
        )
    else:
        program = export_module(model, example_inputs, {request.name: request.axes for request in options.shapes})
    wishes = dimension_wishes(options.shapes, input_shapes(program)) if options.shapes else None
    return import_exported(program, shapes=wishes)


def _import_onnx(model: Any, options: BuildOptions) -> Module:
    from .importers.onnx import import_onnx, input_shapes
    from .shapes import dimension_wishes, in_options

    wishes = dimension_wishes(options.shapes, input_shapes(model)) if options.shapes else None
    try:
        return import_onnx(model, shapes=wishes)
    except UnsupportedError as error:
        if error.hint is not None:
            error.hint = in_options(error.hint, input_shapes(model))
        raise
