"""Importing: the graph module of a model, whatever it comes as."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...ir.errors import ModelError, UnsupportedError, UsageError
from ...ir.graph import Module
from ...runtime.kinds import CONFIG, FOLDER, SAVED, kind_of
from ..engines.kinds import is_checkpoint, is_engine
from ..options import BuildOptions
from ..progress import SILENT, Progress
from .shapes import renamed


def import_model(model: Any, options: BuildOptions, progress: Progress = SILENT, *, example_inputs: Sequence[Any] | None = None) -> Module:
    """The graph module of a model, whatever it comes as."""
    progress.stage("import")
    _check_inputs(model, example_inputs)
    module = _import(model, options, example_inputs)
    for note in renamed(options.shapes, {value.name for graph in module.functions.values() for value in graph.arguments}):
        progress.note(note)
    return module


def _import(model: Any, options: BuildOptions, example_inputs: Sequence[Any] | None) -> Module:
    path = Path(model) if isinstance(model, (str, os.PathLike)) else None
    if path is not None and is_checkpoint(path):
        _refuse({"trust_pickle": options.trust_pickle}, OF_PROGRAMS)
        return _import_language(path, options)
    asked = {"context": options.context is not None, "cache": options.cache != "f32", "batch": options.batch != 1}
    _refuse(asked, "language models: a .gguf file, or a folder with config.json and .safetensors files")
    if isinstance(model, Mapping):
        return _import_functions(model, options)
    if _is_onnx(model) or (path is not None and path.suffix == ".onnx"):
        _refuse({"trust_pickle": options.trust_pickle}, OF_PROGRAMS)
        return _import_onnx(model, options)
    if path is not None and path.suffix != ".pt2":
        raise UsageError(
            f"cannot tell what {str(model)!r} is: got the suffix {path.suffix!r}, expected .onnx, .pt2, .gguf, or a folder",
            hint=_hint(path),
        )
    return _import_torch(model, options, example_inputs)


def declared_shapes(model: Path, options: BuildOptions) -> dict[str, tuple[str | int | None, ...]]:
    """The inputs of a program in a file by name, each size a number, a name or neither."""
    if model.suffix == ".onnx":
        from ..importers.onnx import input_shapes

        return input_shapes(model)
    if model.suffix != ".pt2":
        return {}
    from ..importers.torch.export import input_shapes as exported_shapes

    return exported_shapes(_program(model, options))


def is_program(model: Any) -> bool:
    """Whether a model is a program by itself: a path, an ONNX model or an exported program, not a module to be run."""
    return isinstance(model, (str, os.PathLike)) or _is_onnx(model) or hasattr(model, "graph_signature")


def _is_onnx(model: Any) -> bool:
    return type(model).__module__.split(".")[0] == "onnx"


def _check_inputs(model: Any, example_inputs: Sequence[Any] | None) -> None:
    """UsageError for example inputs that a model does not take, or that are no sequence of inputs."""
    if example_inputs is None:
        return
    if is_program(model) or isinstance(model, Mapping):
        is_place = isinstance(example_inputs, (str, os.PathLike))
        hint = f"ourcc.build(model).save({str(example_inputs)!r}) writes the engine" if is_place else "leave them out"
        raise UsageError(f"got example inputs with a {type(model).__name__}, expected none: they are for torch modules", hint=hint)
    if not isinstance(example_inputs, (list, tuple)):
        raise UsageError(
            f"got a {type(example_inputs).__name__} for the example inputs, expected a tuple of inputs", hint="ourcc.build(model, (x,))"
        )


OF_PROGRAMS = "programs of torch.export: a .pt2 file"


def _refuse(asked: Mapping[str, bool], what: str) -> None:
    """UsageError for an option that is asked for, and has no effect on a model of this kind."""
    for name in (name for name, given in asked.items() if given):
        raise UsageError(f"{name} is for {what}")


def _hint(path: Path) -> str | None:
    if is_engine(path):
        return "an engine is built already: ourcc build --rebuild makes its kernels anew"
    if path.name == CONFIG or (path.suffix == ".safetensors" and kind_of(path.parent) == FOLDER):
        return f"a language model is the folder of these files: {str(path.parent)!r}"
    if path.suffix in OF_WEIGHTS or kind_of(path) == SAVED:
        return (
            "weights, or a pickled module, are no program: load them into the module, then export it with"
            f" torch.export.save(torch.export.export(module, (x,)), {path.with_suffix('.pt2').name!r}) or torch.onnx.export"
        )
    return None


OF_WEIGHTS = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".safetensors")
"""Suffixes of what torch.save writes, TorchScript too, and of bare weights."""


def _import_language(path: Path, options: BuildOptions) -> Module:
    from ..importers.checkpoints import read_checkpoint
    from ..language.module import language_module

    if options.shapes:
        raise UsageError("shape: the sizes of a language model are its own", hint="context says how many tokens a session holds")
    return language_module(read_checkpoint(path), options.context, options.cache, options.batch)


def _import_functions(functions: Mapping[str, Any], options: BuildOptions) -> Module:
    """One module of several exported programs, which share parameters and the buffers that they write."""
    from ..importers.torch.export import import_functions, input_shapes
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
    from ..importers.torch.pt2.program import read_program

    return read_program(model, trust_pickle=options.trust_pickle)


def _import_torch(model: Any, options: BuildOptions, example_inputs: Sequence[Any] | None) -> Module:
    """A .pt2 file, an exported program, or a torch module with example inputs."""
    from ..importers.torch.export import export_module, import_exported, input_shapes
    from .shapes import dimension_wishes

    if isinstance(model, (str, os.PathLike)) or hasattr(model, "graph_signature"):
        program = _program(model, options)
    elif not callable(model):
        raise UsageError(f"got a {type(model).__name__}, expected a path, an ONNX model, an exported program or a torch module")
    elif type(model).__module__.startswith("torch.jit"):
        raise UsageError(
            f"got a {type(model).__name__}, which is scripted or traced, expected a torch module",
            hint="give the module that it was made of",
        )
    elif example_inputs is None:
        raise UsageError(
            f"got a {type(model).__name__} without example inputs, expected inputs to export it with", hint="ourcc.build(model, (x,))"
        )
    else:
        program = export_module(model, example_inputs, {request.name: request.axes for request in options.shapes})
    wishes = dimension_wishes(options.shapes, input_shapes(program)) if options.shapes else None
    return import_exported(program, shapes=wishes)


def _import_onnx(model: Any, options: BuildOptions) -> Module:
    from ..importers.onnx import import_onnx, input_shapes, open_model
    from .shapes import dimension_wishes, in_options

    opened = open_model(model)
    wishes = dimension_wishes(options.shapes, input_shapes(opened)) if options.shapes else None
    try:
        return import_onnx(opened, shapes=wishes)
    except (ModelError, UnsupportedError) as error:
        if error.hint is not None:
            error.hint = in_options(error.hint, input_shapes(opened))
        raise
