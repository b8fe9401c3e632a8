"""The best that peers have for each problem of the list: every kernel of theirs judged by the estimator that judges ours.

python benchmarks/kernels/peers.py --machine H100                       everything; goes on where it was cut off
python benchmarks/kernels/peers.py --machine B200 --only "rows" --most 8  some problems; at most 8 choices of templates each

It pretends that the machine is there, so it is a process of its own; what it finds lies in the cache, which measure.py reads.
Peers are installed by `make kernels-peers`; nothing of theirs is in this project.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf, prod
from pathlib import Path
from typing import Any
from unittest import mock

import believe
import faked
import inductor
import ours
import recorded
import torch
from counted import row_of
from cubins import FOLDER
from estimate import estimate
from launches import NotEstimated, Wanted, compiled
from machines import MACHINES, Machine
from trips import UnknownTrips

Steps = list[list[Wanted]]
PARTS = (
    "estimate.py",
    "walk.py",
    "machines.py",
    "trips.py",
    "cubins.py",
    "launches.py",
    "inductor.py",
    "recorded.py",
    "peers.py",
    "ours.py",
    "believe.py",
)
SPLITS, PAGE = (16, 64), 32
"""Splits of a context that are tried with paged attention, and keys of a page as vLLM has them."""


@dataclass(frozen=True)
class Road:
    """One way of a peer to solve a problem: kernels in order, each with the configurations that it is tuned over."""

    peer: str
    title: str
    steps: Steps


def path_of(problem: ours.Problem, machine: Machine) -> Path:
    """Where the result for a problem lies."""
    here = Path(__file__).parent
    own = b"".join((here / name).read_bytes() for name in (*PARTS, "equivalents.py"))
    names = (problem.group, problem.name, problem.shapes, str(problem.dtype), problem.quantize, problem.window, machine.name)
    return FOLDER / "judged" / f"{hashlib.sha256(own + repr(names).encode()).hexdigest()}.json"


def judge(problem: ours.Problem, machine: Machine, most: int | None) -> dict[str, Any]:
    """The best road of each peer for a problem, and how many configurations were judged or refused."""
    path = path_of(problem, machine)
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if found["whole"] or (most is not None and found["most"] is not None and found["most"] >= most):
            return found
    best: dict[str, dict[str, Any]] = {}
    refused: dict[str, int] = {}
    judged = 0
    whole = True
    for peer, make in peers_of(problem):
        try:
            done = 0
            for road in make():
                if most is not None and done >= most:
                    whole = False
                    break
                row, times = judged_road(road, machine, refused)
                judged += times
                if row is None:
                    continue
                if (why := believe.doubt(problem, machine, row["us"], row["kernels"])) is not None:
                    _count(refused, f"{peer}: {why.split(',')[0]}")
                    continue
                done += 1
                if row["us"] < best.get(peer, {"us": inf})["us"]:
                    best[peer] = row
        except Exception as error:  # noqa: BLE001 - what a peer cannot do is a line of the result
            _count(refused, f"{peer}: {type(error).__name__}: {error}".splitlines()[0][:160])
    result = {"best": best, "judged": judged, "refused": refused, "whole": whole, "most": most}
    path.parent.mkdir(parents=True, exist_ok=True)
    own = path.with_suffix(f".{os.getpid()}")
    own.write_text(json.dumps(result), encoding="utf-8")
    own.replace(path)
    return result


def judged_road(road: Road, machine: Machine, refused: dict[str, int]) -> tuple[dict[str, Any] | None, int]:
    """The sum of a road's kernels, each at its best configuration; None if one of them has none."""
    kernels = []
    judged = 0
    for choices in road.steps:
        best: tuple[float, Wanted, Any] | None = None
        for wanted in choices:
            try:
                launch = compiled(wanted, faked.capability_of(machine))
                seconds = estimate(launch, machine).seconds
            except (NotEstimated, UnknownTrips, ValueError) as error:
                _count(refused, f"{road.peer}: {error}"[:160])
                continue
            judged += 1
            if best is None or seconds < best[0]:
                best = seconds, wanted, launch
        if best is None:
            return None, judged
        kernels.append(row_of(best[2], machine) | {"configuration": best[1].title()})
    us = round(sum(each["us"] for each in kernels), 2)
    return {"us": us, "title": road.title, "kernels": kernels}, judged


def _count(refused: dict[str, int], reason: str) -> None:
    refused[reason] = refused.get(reason, 0) + 1


def peers_of(problem: ours.Problem) -> Iterator[tuple[str, Callable[[], Iterator[Road]]]]:
    """Peers that have kernels for a problem."""
    if problem.group == "attention prefill":
        yield "tutorial attention, rewritten", lambda: _rewritten(problem)
        return
    if problem.group == "attention decode":
        yield "conch paged attention", lambda: _paged(problem)
        return
    if problem.quantize is None or problem.quantize in NARROW:
        yield "Inductor", lambda: _inductor(problem)
    if problem.quantize == "nvfp4" and torch.cuda.get_device_capability()[0] >= 10:
        yield "tutorial product of blocks, rewritten", lambda: _of_small_floats(problem)
    if (problem.quantize or "").startswith("int4-weight"):
        yield "conch", lambda: _mixed(problem)
    if problem.weight is None and "products" in problem.group and problem.dtype == torch.bfloat16:
        yield "tutorial products, rewritten", lambda: _rewritten_products(problem)
    for peer, run, again in _packaged(problem):
        yield peer, lambda peer=peer, run=run, again=again: _recorded(peer, run, {}, again)  # type: ignore[misc]


def _inductor(problem: ours.Problem) -> Iterator[Road]:
    inputs = [(shape, torch.int64 if _is_table(problem, at) else problem.dtype) for at, shape in enumerate(problem.shapes)]
    if problem.weight is not None:
        (depth, width), (function, codes, scales) = problem.weight, NARROW[problem.quantize or ""]
        inputs += [((width, depth), codes), ((width,), scales)]
    else:
        function, weights = with_weights(problem.module().eval(), len(problem.shapes))
        inputs += weights
    for title, steps in inductor.roads(function, inputs):
        yield Road("Inductor", title, steps)


def _of_integers(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, codes.to(x.dtype)) * scales


def _of_bytes(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """A product of floats of 8 bits, each row of both factors with a scale of its own."""
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True) / torch.finfo(codes.dtype).max
    return torch._scaled_mm((wide / scale).to(codes.dtype), codes.t(), scale, scales.unsqueeze(0), out_dtype=x.dtype)


NARROW: dict[str, tuple[Callable[..., torch.Tensor], torch.dtype, torch.dtype]] = {
    "int8-weight": (_of_integers, torch.int8, torch.bfloat16),
    "fp8": (_of_bytes, torch.float8_e4m3fn, torch.float32),
}
"""Products of coded weights as users of torch write them: the function, the dtype of codes and that of scales."""


def _mixed(problem: ours.Problem) -> Iterator[Road]:
    """conch's product of 4-bit weights in groups, at the tiles that it has and at others."""
    import conch.kernels.quantization.gemm as gemm

    ((rows, depth),), (_, width) = problem.shapes, problem.weight or (0, 0)
    group = 128 if (problem.quantize or "").endswith("g128") else 32

    def run(tuning: dict[str, int]) -> None:
        def made(*shape: int, dtype: torch.dtype = problem.dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device="cuda")

        narrow = dict.fromkeys(("input_dtype", "output_dtype", "meta_dtype"), problem.dtype)
        modes = {"channel_scale_mode": gemm.ChannelScaleMode.NONE, "weight_group_mode": gemm.WeightGroupMode.SYMMETRIC_NO_SHIFT}
        coding = {"weight_size_bits": 4, "weight_bias": 8, "group_size": group, "elements_per_sample": 8, "unpack_mask": 15}
        sizes = {"m_dim": rows, "k_dim": depth, "n_dim": width, "zero_is_scalar": True, "data_contiguous": True}
        metadata = gemm.MixedPrecisionMatmulMetadata(**sizes, **coding, **narrow, **modes, acc_dtype=torch.float32)
        codes, scales = made(depth // 8, width, dtype=torch.int32), made(depth // group, width)
        with mock.patch.object(gemm, "_get_tuning_parameters", lambda: tuning):
            gemm.mixed_precision_gemm_launcher(made(rows, width), made(rows, depth), codes, scales, made(1, 1, dtype=torch.int32), metadata)

    usual = gemm._get_tuning_parameters()
    for tall, wide, warps, stages in itertools.product((128, 16, 64), (64, 128), (8, 4), (2, 4)):
        changed = {"cxpr_block_size_m": tall, "cxpr_block_size_n": wide, "num_warps": warps, "num_stages": stages}
        changed["cxpr_block_size_k"] = min(usual["cxpr_block_size_k"], group)
        if tall <= max(16, 2 * rows):
            yield from _recorded("conch", lambda changed=changed: run(usual | changed), {})  # type: ignore[misc]


def with_weights(module: torch.nn.Module, taken: int) -> tuple[Callable[..., Any], list[tuple[tuple[int, ...], torch.dtype]]]:
    """A module that takes so many inputs as a function of them and of its weights; the weights' shapes and dtypes."""
    weights = dict(module.named_parameters())

    def function(*given: torch.Tensor) -> Any:
        return torch.func.functional_call(module, dict(zip(weights, given[taken:], strict=True)), given[:taken])

    return function, [(tuple(each.shape), each.dtype) for each in weights.values()]


def _is_table(problem: ours.Problem, at: int) -> bool:
    return problem.group == "data movement" and at == 0 and len(problem.shapes) == 2


def _recorded(peer: str, run: Callable[[], Any], known: dict[str, int], again: float = 0.0) -> Iterator[Road]:
    """What a function launches; `again` are bytes that it writes where it read them, which move twice."""
    found = [replace(each, unique=each.unique + again) for each in recorded.recorded(run, known)]
    yield Road(peer, ", ".join(each.function.__name__ for each in found), [[each] for each in found])


def _packaged(problem: ours.Problem) -> Iterator[tuple[str, Callable[[], Any], float]]:
    """Functions of packages for rows and gates, by the first word of the problem's name, and bytes that they write in place."""
    kind = problem.name.split(" ")[0]
    whole = float(prod(problem.shapes[0]) * problem.dtype.itemsize)

    def made() -> list[torch.Tensor]:
        return [torch.empty(shape, dtype=problem.dtype, device="cuda") for shape in problem.shapes]

    def liger_rms() -> Any:
        from liger_kernel.ops.rms_norm import rms_norm_forward

        return rms_norm_forward(*made(), 1e-6, 0.0, "llama", True)

    def conch_rms() -> Any:
        from conch.kernels.normalization.rms_norm import rms_norm_launcher

        x, weight = made()
        return rms_norm_launcher(torch.empty_like(x), x, weight, 1e-6)

    def liger_layer() -> Any:
        from liger_kernel.ops.layer_norm import layer_norm_forward

        return layer_norm_forward(*made(), 1e-5)

    def liger_softmax() -> Any:
        from liger_kernel.ops.softmax import _softmax_forward

        return _softmax_forward(*made())

    def liger_gate() -> Any:
        from liger_kernel.ops.swiglu import swiglu_forward

        return swiglu_forward(*made())

    def conch_gate() -> Any:
        from conch.kernels.activation.silu_and_mul import silu_and_mul_launcher

        gate, _ = made()
        joined = torch.empty((gate.shape[0], 2 * gate.shape[1]), dtype=gate.dtype, device="cuda")
        return silu_and_mul_launcher(torch.empty_like(gate), joined)

    def liger_residual() -> Any:
        from liger_kernel.ops.fused_add_rms_norm import fused_add_rms_norm_forward

        return fused_add_rms_norm_forward(*made(), 1e-6, 0.0, "llama")

    def conch_residual() -> Any:
        from conch.kernels.normalization.rms_norm import fused_add_rms_norm_launcher

        return fused_add_rms_norm_launcher(*made(), 1e-6)

    table: dict[tuple[str, str], list[tuple[str, Callable[[], Any], float]]] = {
        ("rows", "RMS"): [("liger", liger_rms, 0.0), ("conch", conch_rms, 0.0)],
        ("rows", "layer"): [("liger", liger_layer, 0.0)],
        ("rows", "softmax"): [("liger", liger_softmax, 0.0)],
        ("elementwise", "SwiGLU"): [("liger", liger_gate, 0.0), ("conch", conch_gate, 0.0)],
        ("elementwise", "residual"): [("liger", liger_residual, 0.0), ("conch", conch_residual, 2 * whole)],
    }
    yield from table.get((problem.group, kind), ())


def _paged(problem: ours.Problem) -> Iterator[Road]:
    """Paged attention over a cache without gaps."""
    (batch, heads, _, deep), (_, kept, context, _), _ = problem.shapes

    def run(splits: int) -> None:
        from conch.kernels.attention.paged_attention import paged_attention_launcher

        def made(*shape: int, dtype: torch.dtype = problem.dtype) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device="cuda")

        pages = context // PAGE
        cache = (batch * pages, PAGE, kept, deep)
        paged_attention_launcher(
            made(batch, heads, deep),
            made(batch, heads, deep),
            made(*cache),
            made(*cache),
            made(batch, splits, heads, deep),
            made(batch, splits, heads),
            made(batch, pages, dtype=torch.int32),
            made(batch, dtype=torch.int32),
        )

    for splits in SPLITS:
        known = {"current_sequence_length": context}
        yield from _recorded("conch paged attention", lambda splits=splits: run(splits), known)  # type: ignore[misc]


ROUNDED = ((128, 64), (32, 128), (16, 256), (4, 512), (1, 1024))
"""Rows and columns of a program that rounds to small floats."""


def _of_small_floats(problem: ours.Problem) -> Iterator[Road]:
    """The tutorial's product of two NVFP4 factors as our own text has it; rows are rounded before, by the largest of all and of each 16."""
    import equivalents

    ((rows, depth),), (_, width) = problem.shapes, problem.weight or (0, 0)
    elements, padded = rows * depth, -(-rows // 128) * 128
    coded = depth // 2 + depth // 16

    def wanted(
        function: Any, types: dict[str, str], constants: dict[str, int], grid: tuple[int, ...], unique: float, **more: int
    ) -> Wanted:
        return Wanted(function, types, constants, frozenset(types), {"num_stages": 2, "num_warps": 4, **more}, grid, unique)

    whole = {"x": "*bf16", "result": "*i32"}
    tall = {"x": "*bf16", "most": "*i32", "codes": "*u8", "scales": "*fp8e4nv"}
    both = {"a": "*u8", "b": "*u8", "scales_a": "*fp8e4nv", "scales_b": "*fp8e4nv", "most_a": "*i32", "most_b": "*fp32", "c": "*bf16"}
    largest = [
        wanted(equivalents.largest, whole, {"BLOCK": block}, (elements // block,), 2.0 * elements, num_warps=8)
        for block in (2048, 4096, 8192, 16384)
        if elements % block == 0
    ]
    rounded = [
        wanted(
            equivalents.rounded_blocks,
            tall,
            {"M": rows, "K": depth, "BM": m, "BK": k},
            (-(-rows // m), depth // k),
            rows * (2.0 * depth + coded),
        )
        for m, k in ROUNDED
        if depth % k == 0
    ]
    unique = rows * coded + width * coded + 2.0 * rows * width
    for n, k, stages in itertools.product((256, 128), (256, 128), (4, 3, 2)):
        sizes = {"M": rows, "N": width, "K": depth, "BM": 128, "BN": n, "BK": k}
        product = wanted(equivalents.product_of_blocks, both, sizes, (padded // 128 * (width // n),), unique, num_stages=stages)
        yield Road("tutorial product of blocks, rewritten", f"128 x {n} x {k}", [largest, rounded, [product]])


POINTED = ((128, 256, 64, 3, 8), (64, 256, 32, 4, 4), (128, 128, 32, 4, 4), (128, 64, 32, 4, 4), (64, 128, 32, 4, 4), (128, 32, 32, 4, 4))
DESCRIBED = tuple((128, wide, deep, stages, warps) for wide in (256, 128) for deep in (64, 128) for stages in (3, 4, 2) for warps in (8, 4))
"""Tiles of Triton's tutorials on products (rows, columns, depth, stages, warps): by pointers, and persistent by descriptors."""


def _rewritten_products(problem: ours.Problem) -> Iterator[Road]:
    """The tutorials' products as our own text has them, over the tutorials' tiles, where those divide the sizes."""
    import equivalents

    (rows, depth), (width, _) = problem.shapes
    processors = torch.cuda.get_device_properties().multi_processor_count
    unique = 2.0 * (rows * depth + depth * width + rows * width)
    both = ((equivalents.product_by_descriptors, DESCRIBED, {"PROGRAMS": processors}), (equivalents.product, POINTED, {}))
    for function, tiles, more in both:
        for tall, wide, deep, stages, warps in tiles:
            if rows % tall or width % wide or depth % deep:
                continue
            constants = {"M": rows, "N": width, "K": depth, "BM": tall, "BN": wide, "BK": deep, "GROUP": 8} | more
            programs = rows // tall * (width // wide)
            grid = (min(programs, processors) if more else programs,)
            types, options = dict.fromkeys("abc", "*bf16"), {"num_warps": warps, "num_stages": stages}
            wanted = Wanted(function, types, constants, frozenset("abc"), options, grid, unique)
            yield Road("tutorial products, rewritten", f"{tall} x {wide} x {deep}{', descriptors' if more else ''}", [[wanted]])


def _rewritten(problem: ours.Problem) -> Iterator[Road]:
    """The tutorial's attention as our own text has it, over the tutorial's tiles."""
    import equivalents

    (batch, heads, length, deep), (_, kept, _, _), _ = problem.shapes
    causal = "causal" in problem.name or problem.window is not None
    function = equivalents.attention_causal if causal else equivalents.attention
    tiles = itertools.product((128, 64), (128, 64, 32), (8, 4), (3, 2, 4))
    names = ("q", "k", "v", "y") if causal else ("q", "k", "v", "y", "largest")
    unique = 2.0 * batch * length * deep * (2 * heads + 2 * kept)
    for rows, columns, warps, stages in tiles:
        if columns > rows or rows * deep > 128 * 256:
            continue
        constants = {"S": length, "D": deep, "BM": rows, "BN": columns, "SCALE": deep**-0.5 * 1.4426950408889634}
        constants |= {"SHARED": heads // kept, "WINDOW": problem.window or 0} if causal else {"DESCRIPTORS": False}
        types = {name: "*fp32" if name == "largest" else "*bf16" for name in names}
        for described in (False,) if causal else (False, True):
            chosen = constants if causal else constants | {"DESCRIPTORS": described}
            options = {"num_warps": warps, "num_stages": stages}
            grid = (length // rows, prod(problem.shapes[0][:2]))
            title = f"{rows} x {columns}, {warps} warps, {stages} stages{', descriptors' if described else ''}"
            wanted = Wanted(function, types, chosen, frozenset(names), options, grid, unique)
            yield Road("tutorial attention, rewritten", title, [[wanted]])


def main() -> int:
    """Judge, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", choices=sorted(MACHINES), required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--most", type=int)
    parser.add_argument("--minutes", type=float, default=inf, help="begin no further problem after so long")
    arguments = parser.parse_args()
    machine = MACHINES[arguments.machine]
    faked.pretend(machine)
    inductor.configure()
    listed = [each for each in ours.problems() if arguments.only in f"{each.group} {each.name}"]
    begun = time.monotonic()
    for at, problem in enumerate(listed):
        if time.monotonic() - begun > 60 * arguments.minutes:
            print(f"stopped after {arguments.minutes} minutes: {len(listed) - at} problems are left", flush=True)
            break
        started = time.monotonic()
        found = judge(problem, machine, arguments.most)
        shown = ", ".join(f"{peer} {row['us']}" for peer, row in found["best"].items()) or str(found["refused"])[:120]
        took = time.monotonic() - started
        print(f"{at + 1}/{len(listed)} {problem.group}: {problem.name}: {shown} ({found['judged']} judged, {took:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
