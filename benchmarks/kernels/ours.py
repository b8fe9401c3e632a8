"""The fixed list of problems, compiled by this compiler's public road, and their kernels as launches to be estimated.

What was built is kept by content: a digest of the compiler's sources, of Triton's version and of the problem.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from cubins import FOLDER, Cubin, columns_of, marks_of, registers_of, warps_of
from estimate import Launch
from torch import nn

from ourcc.codegen.triton.compile import disassemble
from ourcc.compiler.importers.torch.export import import_exported
from ourcc.compiler.options import BuildOptions
from ourcc.compiler.pipeline import compile_module
from ourcc.compiler.targets.registry import parse_targets
from ourcc.ir import dims
from ourcc.ir.plan import Launch as Step
from ourcc.ir.plan import Plan
from ourcc.runtime.contents import EngineContents

ROOT = Path(__file__).parents[2]
ROOMS = ("ir", "passes", "codegen", "autotune", "compiler")


@dataclass(frozen=True)
class Problem:
    """A class of the list at one size: a module and its inputs, and the options of its build; `weight` is that of a product whose
    weights are coded, as (depth, width), `window` how many keys up to its own a query of attention looks at."""

    group: str
    name: str
    module: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype
    quantize: str | None = None
    weight: tuple[int, int] | None = None
    window: int | None = None


@dataclass(frozen=True)
class Built:
    """A problem's launches in order for one architecture, or why there is none."""

    problem: Problem
    launches: tuple[Launch, ...]
    refused: str | None = None


class Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """What the function gives."""
        return self.function(*inputs)


def _function(function: Callable[..., torch.Tensor]) -> Callable[[], nn.Module]:
    return functools.partial(Function, function)


def _product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return nn.functional.linear(x, weight)


def _experts(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return torch.bmm(x, weights.transpose(1, 2))


def _attention(causal: bool) -> Callable[..., torch.Tensor]:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

    return run


def _window(span: int) -> Callable[..., torch.Tensor]:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        rows, columns = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]
        kept = (columns <= rows) & (columns > rows - span)
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=kept, enable_gqa=q.shape[1] != k.shape[1])

    return run


def _rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return nn.functional.rms_norm(x, (x.shape[-1],), weight)


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return nn.functional.layer_norm(x, (x.shape[-1],), weight, bias)


def _residual_norm(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return nn.functional.rms_norm(x + y, (x.shape[-1],), weight)


def _gate(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return nn.functional.silu(gate) * up


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def _max_pool(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.max_pool2d(x, 3, 2, 1)


def _turned(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(-1, -2).contiguous()


def _narrow(group: str, name: str, rows: int, quantize: str, weight: tuple[int, int]) -> Problem:
    return Problem(group, name, _linear(*weight), ((rows, weight[0]),), BF16, quantize, weight)


def _linear(depth: int, width: int) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(depth, width, bias=False, dtype=torch.bfloat16)


def _depthwise(channels: int, taps: int) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(channels, channels, taps, padding=taps // 2, groups=channels)


LLAMA = {"qkv": (4096, 6144), "output": (4096, 4096), "gate and up": (4096, 28672), "down": (14336, 4096)}
LLAMA_70B = {"qkv": (8192, 10240), "down": (28672, 8192)}
BF16, F32 = torch.bfloat16, torch.float32


def problems() -> Iterator[Problem]:
    """The list, in groups that are summed up together."""
    for size in (1024, 2048, 4096, 8192):
        yield Problem("square products", f"bf16 {size}", _function(_product), ((size, size), (size, size)), BF16)
    yield Problem("square products", "float32 4096", _function(_product), ((4096, 4096), (4096, 4096)), F32)
    for rows in (1, 8, 64, 512, 4096):
        for title, (depth, width) in LLAMA.items():
            yield Problem("Llama-3-8B products", f"{title}, {rows} tokens", _function(_product), ((rows, depth), (width, depth)), BF16)
    for rows in (1, 512, 4096):
        for title, (depth, width) in LLAMA_70B.items():
            yield Problem("Llama-3-70B products", f"{title}, {rows} tokens", _function(_product), ((rows, depth), (width, depth)), BF16)
    for rows in (1, 16, 512):
        for quantize in ("int8-weight", "int4-weight"):
            yield _narrow("products of narrow weights", f"{quantize} 4096 x 4096, {rows} tokens", rows, quantize, (4096, 4096))
    for quantize in ("int4-weight-g128", "fp8", "nvfp4"):
        for rows in (1, 64, 512, 4096):
            for title in ("qkv", "down"):
                yield _narrow("Llama-3-8B products, narrow", f"{quantize}: {title}, {rows} tokens", rows, quantize, LLAMA[title])
    for rows in (16, 512):
        for title in ("gate and up", "down"):
            depth, width = LLAMA[title]
            shapes = ((8, rows, depth), (8, width, depth))
            yield Problem("Mixtral's experts", f"{title}, 8 of {rows} tokens", _function(_experts), shapes, BF16)
    for dtype in (F32, BF16):
        title = "float32" if dtype == F32 else "bf16"
        for depth, width in ((768, 2304), (768, 3072), (3072, 768)):
            yield Problem(
                "BERT-base and ViT products",
                f"{title} {depth} x {width}, 2048 rows",
                _function(_product),
                ((2048, depth), (width, depth)),
                dtype,
            )
    for deep, heads in ((64, 32), (128, 32), (256, 16)):
        for causal in (False, True):
            shape = (1, heads, 4096, deep)
            title = f"D {deep}, 1 x {heads} x 4096{', causal' if causal else ''}"
            yield Problem("attention prefill", title, _function(_attention(causal)), (shape, shape, shape), BF16)
    grouped = (1, 8, 4096, 128)
    yield Problem(
        "attention prefill", "D 128, 32 heads on 8, causal", _function(_attention(True)), ((1, 32, 4096, 128), grouped, grouped), BF16
    )
    for span, length in ((1024, 8192), (4096, 32768)):
        shapes = ((1, 32, length, 128), (1, 8, length, 128), (1, 8, length, 128))
        title = f"D 128, 32 heads on 8, {span} of {length}"
        yield Problem("attention prefill", title, _function(_window(span)), shapes, BF16, window=span)
    for batch, context in ((1, 1024), (1, 8192), (1, 131072), (64, 8192)):
        kept = (batch, 8, context, 128)
        yield Problem(
            "attention decode", f"batch {batch}, context {context}", _function(_attention(False)), ((batch, 32, 1, 128), kept, kept), BF16
        )
    for columns in (4096, 16384, 131072):
        rows = 2**26 // columns // 4
        yield Problem("rows", f"RMS norm {rows} x {columns}", _function(_rms_norm), ((rows, columns), (columns,)), BF16)
        yield Problem("rows", f"layer norm {rows} x {columns}", _function(_layer_norm), ((rows, columns), (columns,), (columns,)), BF16)
        yield Problem("rows", f"softmax {rows} x {columns}", _function(_softmax), ((rows, columns),), BF16)
    yield Problem("elementwise", "SwiGLU 4096 x 14336", _function(_gate), ((4096, 14336), (4096, 14336)), BF16)
    yield Problem(
        "elementwise", "residual and RMS norm 4096 x 4096", _function(_residual_norm), ((4096, 4096), (4096, 4096), (4096,)), BF16
    )
    yield Problem("pooling and depthwise", "max-pool 3x3, 8 x 64 x 112 x 112", _function(_max_pool), ((8, 64, 112, 112),), F32)
    yield Problem("pooling and depthwise", "depthwise 3x3, 8 x 144 x 56 x 56", _depthwise(144, 3), ((8, 144, 56, 56),), F32)
    yield Problem("pooling and depthwise", "depthwise 7x7, 8 x 96 x 56 x 56", _depthwise(96, 7), ((8, 96, 56, 56),), F32)
    yield Problem("data movement", "embedding 8192 of 128256 x 4096", _function(nn.functional.embedding), ((8192,), (128256, 4096)), BF16)
    yield Problem("data movement", "transpose 8192 x 8192", _function(_turned), ((8192, 8192),), BF16)


def build(problem: Problem, architecture: str) -> Built:
    """A problem compiled for an architecture, or taken from what was built before; a refusal of the compiler is kept as such."""
    path = FOLDER / "built" / f"{digest_of(problem, architecture)}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # Two processes may build the same: each writes a file of its own and renames it.
        own = path.with_suffix(f".{os.getpid()}")
        own.write_text(json.dumps(_compiled(problem, architecture)), encoding="utf-8")
        own.replace(path)
    found = json.loads(path.read_text(encoding="utf-8"))
    return Built(problem, tuple(_launch(row) for row in found["launches"]), found["refused"])


@functools.cache
def _sources() -> str:
    """A digest of what kernels depend on; the reader of machine code is no part of it."""
    digest = hashlib.sha256()
    for room in ROOMS:
        for path in sorted(path for path in (ROOT / room).rglob("*.py") if path.parent != ROOT / "codegen" / "sass"):
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def digest_of(problem: Problem, architecture: str) -> str:
    """Of all that a problem's kernels depend on."""
    import triton

    names = (problem.group, problem.name, problem.shapes, str(problem.dtype), problem.quantize, architecture, triton.__version__)
    own = Path(__file__).read_bytes() + Path(__file__).with_name("cubins.py").read_bytes()
    return hashlib.sha256(repr(names).encode() + own + _sources().encode()).hexdigest()


def contents_of(problem: Problem, architecture: str) -> EngineContents:
    """A problem as an engine's contents; raises what the compiler refuses it with."""
    torch.manual_seed(0)
    return contents_of_module(problem.module(), inputs_of(problem), architecture, problem.quantize)


def contents_of_module(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], architecture: str, quantize: str | None = None
) -> EngineContents:
    """A module as an engine's contents."""
    program = torch.export.export(module.eval(), inputs)
    return compile_module(import_exported(program), BuildOptions(targets=parse_targets([architecture]), quantize=quantize))


def launches_of(contents: EngineContents, architecture: str) -> tuple[Launch, ...]:
    """The launches of an engine in order, as they are to be estimated."""
    return tuple(_launch(row) for row in _rows(contents, architecture))


def _compiled(problem: Problem, architecture: str) -> dict[str, Any]:
    from ourcc.ir.errors import CompilerError

    try:
        contents = contents_of(problem, architecture)
    except CompilerError as error:
        return {"launches": [], "refused": str(error).splitlines()[0]}
    return {"launches": _rows(contents, architecture), "refused": None}


def _launch(row: Mapping[str, Any]) -> Launch:
    return Launch(Cubin(**row["cubin"]), tuple(row["grid"]), row["unique"])


def inputs_of(problem: Problem) -> tuple[torch.Tensor, ...]:
    """Inputs to export it with."""
    return tuple(_input(problem, at, shape) for at, shape in enumerate(problem.shapes))


def _input(problem: Problem, at: int, shape: tuple[int, ...]) -> torch.Tensor:
    if problem.group == "data movement" and at == 0 and len(problem.shapes) == 2:
        return torch.zeros(shape, dtype=torch.int64)
    return torch.zeros(shape, dtype=problem.dtype)


def _rows(contents: EngineContents, architecture: str) -> list[dict[str, Any]]:
    part = contents.parts[architecture]
    told = contents.report["kernels"][architecture]
    groups = Counter((row["source_ops"], row["megabytes"]) for row in told)
    alone = {row["kernel"]: 1e6 * row["megabytes"] for row in told if groups[row["source_ops"], row["megabytes"]] == 1}
    return [_row(step, plan, part.files, alone) for plan in part.plans.values() for step in plan.steps if isinstance(step, Step)]


def _row(step: Step, plan: Plan, files: Mapping[str, bytes], alone: Mapping[str, float]) -> dict[str, Any]:
    """The first variant of a launch, which serves aligned buffers, as a cubin with its grid.

    Of a table whose rows are chosen nobody reads all: what a kernel that is its ops' only one moves is what the compiler says of it.
    """
    variant = step.variants[0]
    cubin, ptx, source = (bytes(files[f"{variant.kernel}.{ending}"]) for ending in ("cubin", "ptx", "py"))
    row = cubin_of(variant.kernel, cubin, ptx.decode(), source.decode(), variant.shared)
    moved = min(_unique(step, plan), alone.get(variant.kernel.removesuffix("_aligned"), float("inf")))
    return {"cubin": asdict(row), "grid": [_known(size) for size in variant.grid], "unique": moved}


def cubin_of(name: str, code: bytes, ptx: str, source: str, shared: int) -> Cubin:
    """A kernel as it was built, to be estimated."""
    return Cubin(name, disassemble(code, name), source, 1, {}, warps_of(ptx), registers_of(code), shared, marks_of(ptx), columns_of(ptx))


def _unique(step: Step, plan: Plan) -> float:
    """Bytes that a launch reads and writes, each buffer once."""
    types = {buffer.name: buffer.type for buffer in plan.buffers}
    names = dict.fromkeys((*step.reads, *step.writes))
    return float(sum(_known(types[name].nbytes) for name in names))


def _known(size: Any) -> int:
    value = dims.substitute(size, {}) if not isinstance(size, int) else size
    return int(value)
