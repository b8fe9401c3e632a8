"""Who takes part in `make bench-cpu`: for each precision our engines and the peers, each of the same model, at a size that all are told."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from bench_files import Files

from ourcc.compiler.commands.build import build
from ourcc.compiler.commands.peers import onnxruntime_run, openvino_run, torch_run
from ourcc.compiler.options import build_options

Array = np.ndarray[Any, Any]
Run = Callable[[Sequence[Array]], list[Array]]


@dataclass(frozen=True)
class Setting:
    """What a contender is made for: a model's files, the arrays of one call, sizes by symbol, threads."""

    files: Files
    arrays: Sequence[Array]
    sizes: dict[str, int]
    threads: int

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [array.shape for array in self.arrays]


@dataclass(frozen=True)
class Contender:
    """Its name, how it is made, and what it stands for: `ours`, a `peer`, or our own float32 engine as a `reference`."""

    name: str
    make: Callable[[Setting], Run]
    side: str = "peer"


def ours(file: Callable[[Files], Path] = lambda files: files.floats, **options: Any) -> Callable[[Setting], Run]:
    """An engine for this machine, with options as `ourcc build` has them."""

    def make(setting: Setting) -> Run:
        shapes = [f"{symbol}={size}" for symbol, size in setting.sizes.items()]
        given = {"targets": ["native"], "shapes": shapes, "threads": setting.threads, **options}
        engine = build(str(file(setting.files)), build_options(given))

        def run(arrays: Sequence[Array]) -> list[Array]:
            found = engine(*arrays)
            return [*found] if isinstance(found, tuple) else [found]

        return run

    return make


def onnxruntime(file: Callable[[Files], Path]) -> Callable[[Setting], Run]:
    return lambda setting: onnxruntime_run(file(setting.files), setting.threads, setting.sizes)


def openvino(model: Callable[[Files], Any], precision: str = "f32") -> Callable[[Setting], Run]:
    return lambda setting: openvino_run(model(setting.files), setting.threads, precision, setting.shapes)


def in_torch(*, compiled: bool, narrow: bool = False) -> Callable[[Setting], Run]:
    """The module itself, eager or by Inductor with freezing; `narrow` is the module in bf16, whose float inputs are bf16 too."""

    def make(setting: Setting) -> Run:
        # What Inductor learned of another size or number of threads would make it compile for all.
        torch._dynamo.reset()
        module = setting.files.model.module
        run = torch_run(copy.deepcopy(module).bfloat16() if narrow else module, compiled, setting.threads)
        if not narrow:
            return run
        given = [array.astype(ml_dtypes.bfloat16) if array.dtype == np.float32 else array for array in setting.arrays]
        return lambda arrays: run(given)

    return make


def _floats(files: Files) -> Path:
    return files.floats


def _coded(files: Files) -> Path:
    return files.coded


OWN_FLOATS = Contender("ourcc f32", ours(), "reference")
CONTENDERS: dict[str, tuple[Contender, ...]] = {
    "f32": (
        Contender("ourcc", ours(), "ours"),
        Contender("eager", in_torch(compiled=False)),
        Contender("Inductor", in_torch(compiled=True)),
        Contender("ONNX Runtime", onnxruntime(_floats)),
        Contender("OpenVINO", openvino(_floats)),
    ),
    "bf16": (
        Contender("ourcc", ours(precision="bf16"), "ours"),
        OWN_FLOATS,
        Contender("eager", in_torch(compiled=False, narrow=True)),
        Contender("Inductor", in_torch(compiled=True, narrow=True)),
        Contender("OpenVINO", openvino(_floats, "bf16")),
    ),
    "int8": (
        Contender("ourcc QDQ", ours(_coded), "ours"),
        Contender("ourcc int8", ours(quantize="int8"), "ours"),
        Contender("ourcc int8, bf16", ours(quantize="int8", precision="bf16"), "ours"),
        OWN_FLOATS,
        Contender("ONNX Runtime QDQ", onnxruntime(_coded)),
        Contender("ONNX Runtime dynamic", onnxruntime(lambda files: files.dynamic)),
        Contender("OpenVINO QDQ", openvino(_coded)),
        Contender("OpenVINO NNCF", openvino(lambda files: files.nncf_int8)),
        Contender("OpenVINO NNCF, bf16", openvino(lambda files: files.nncf_int8, "bf16")),
    ),
    "int4": (
        Contender("ourcc int4", ours(quantize="int4-weight"), "ours"),
        Contender("ourcc int4-a8", ours(quantize="int4-a8"), "ours"),
        OWN_FLOATS,
        Contender("ONNX Runtime int4", onnxruntime(lambda files: files.blocks)),
        Contender("ONNX Runtime int4-a8", onnxruntime(lambda files: files.blocks_int8)),
        Contender("OpenVINO NNCF", openvino(lambda files: files.nncf_int4)),
    ),
}
"""What is not in the precision's own type is in float32 for everybody, or in bf16 where the name says so, but for what tools quantize
besides."""
