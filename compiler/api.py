"""What Python users call: options by name as on the command line, handed to the driver as one frozen value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Unpack

from .environment import parse_threads
from .progress import SILENT, Progress

if TYPE_CHECKING:
    from ..runtime.engine import Engine
    from .options import Options
    from .report.table import Report


def build(model: Any, example_inputs: Sequence[Any] | None = None, *, progress: Progress = SILENT, **options: Unpack[Options]) -> Engine:
    """Compile a model into an engine.

    `model` is a path to an .onnx, .pt2 or .gguf file or to a folder with config.json and safetensors, an ONNX ModelProto, a torch
    ExportedProgram, or a torch module (then `example_inputs` are needed to export it). `{"append": program, "read": program}`
    (exported programs or .pt2 files) makes one engine with these functions, the first of which is its entry: they share equal
    parameters, and the buffers that any of them writes are states, which live in `engine.session()`. Options are those of
    `ourcc.Options`, with the names of the command line's: targets, shapes, quantize, sparsity, require, tune, locked, report, threads, ...
    """
    from .commands import build as command
    from .options import build_options

    read = build_options(options, "ourcc.build")
    return command.build(model, read, progress, example_inputs=example_inputs)


def load(
    path: str | PathLike[str],
    *,
    target: str | None = None,
    threads: int | None = None,
    verify: bool = False,
    trusted_keys: Iterable[bytes] | None = None,
    copy_weights: bool = False,
    graphs: bool = True,
) -> Engine:
    """Open an engine file for this machine, to run on `threads` (default: all that this process may use); every byte is checked.

    That of a language model is an `ourcc.LanguageModel`.
    Weights are hashed and plans verified when a file is first loaded, and again when it changed since; `verify` does both in any case.
    `trusted_keys` (raw Ed25519 public keys) refuses what none of them signed; an empty list trusts nobody. Weights stay
    mapped: a file that is cut off or overwritten in place takes the process with it, unless `copy_weights` has put them
    into memory. Without `graphs` a GPU's kernels are launched one by one; else runs of them that come again with the same sizes and
    places are replayed as CUDA graphs, which were never executed on hardware. `OURCC_CUDA_GRAPHS=0` turns them off everywhere.
    """
    count = None if threads is None else parse_threads(threads)
    from .commands import load as command

    trust: Any = {"verify": verify, "trusted_keys": trusted_keys, "copy_weights": copy_weights}
    return command.load(path, target=target, threads=count, graphs=graphs, **trust)


def explain(model: Any, *inputs: Any, **options: Unpack[Options]) -> Report:
    """What would be compiled for these inputs, what would fall back to ATen, and why; nothing is built."""
    from .commands import explain as command
    from .options import build_options

    read = build_options(options, "ourcc.explain")
    return command.explain(model, inputs, read)
