"""Casts to and from the 8-bit floats: every number of 16 bits, the edges of wider ones, drawn chains, by each source's own rule.

torch is asked itself (eager and aot_eager); ONNX by its reference implementation, with and without `saturate`. NaN is NaN whatever
its bits are, and what a cast of NaN or of a number out of range to an integer gives is nobody's business.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import ourcc
from ourcc.compiler.importers.torch import casts
from ourcc.ir.types import f8e4m3, f8e5m2, f16, f32

EIGHT = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
WIDE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int16, torch.int32, torch.uint64)
PLACES = (232, 240, 248, 448, 464, 480, 57344, 61440, 65504, 65520, 2**24 + 1, 2**31 - 1, 2**62)


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """Every number of a type of 8 and 16 bits; of wider ones what lies at and beside the edges of the narrow formats."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if dtype.itemsize <= 2:
        carrier = torch.uint8 if dtype.itemsize == 1 else torch.uint16
        return torch.arange(1 << (8 * dtype.itemsize), dtype=torch.int32).to(carrier).view(dtype)
    if not dtype.is_floating_point:
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        values = {sign * place + by for sign in (1, -1) for place in (0, *PLACES) for by in (-1, 0, 1)}
        exact = np.array(sorted(value for value in {*values, low, high} if low <= value <= high), str(dtype).removeprefix("torch."))
        return torch.from_numpy(exact)
    kind = np.float32 if dtype == torch.float32 else np.float64
    powers = [m * 2.0**e for e in range(-28, 18) for m in (1, 1.0625, 1.125, 1.1875, 1.25, 1.375, 1.5, 1.625, 1.75, 1.9375)]
    around = np.array([*powers, *PLACES, 3e38, np.finfo(kind).max, 0.0, np.inf], kind)
    with np.errstate(over="ignore"):
        around = np.concatenate([around, np.nextafter(around, kind(0)), np.nextafter(around, kind(np.inf)), [np.nan]])
    return torch.from_numpy(np.concatenate([around, -around]).astype(kind))


def same(got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Where two tensors hold the same numbers, signs of zeros included."""
    if got.dtype != wanted.dtype or got.shape != wanted.shape:
        return torch.zeros(wanted.shape, dtype=torch.bool)
    if not wanted.dtype.is_floating_point:
        return got == wanted
    carrier = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[wanted.dtype.itemsize]
    both = torch.isnan(got.double()) & torch.isnan(wanted.double())
    return both | (got.view(carrier) == wanted.view(carrier))


def defined(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers of x that `dtype` has, if it is an integer."""
    if dtype.is_floating_point or dtype == torch.bool or not x.dtype.is_floating_point:
        return x
    wide = x.double()
    return x[torch.isfinite(wide) & (wide > float(torch.iinfo(dtype).min) - 1) & (wide < float(torch.iinfo(dtype).max))]


def check(function: Callable[..., Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], labels: Sequence[str]) -> None:
    """Hold ours to eager and to aot_eager."""
    torch._dynamo.reset()
    got = torch.compile(function, backend="ourcc", dynamic=False)(*inputs)
    torch._dynamo.reset()
    for other in (function(*inputs), torch.compile(function, backend="aot_eager", dynamic=False)(*inputs)):
        wrong = []
        for label, a, b in zip(labels, got, other, strict=True):
            differ = ~same(a, b)
            if bool(differ.any()):
                wrong.append(f"{label}: {int(differ.sum())} differ, got {a[differ][:4].tolist()}, expected {b[differ][:4].tolist()}")
        assert not wrong, "\n".join(wrong)


def pairs() -> list[tuple[torch.dtype, torch.dtype]]:
    """From everything to the narrow floats, and back to everything."""
    narrow = [(s, d) for s in (*WIDE, *EIGHT, *INTEGERS, torch.bool) for d in EIGHT if s != d]
    narrow += [(s, torch.float16) for s in (torch.bfloat16, torch.float32, torch.float64)]
    return narrow + [(s, d) for s in EIGHT for d in (*WIDE, torch.uint8, torch.int32, torch.bool)]


def convert(cases: Sequence[tuple[torch.dtype, ...]]) -> Callable[..., list[torch.Tensor]]:
    def function(*inputs: torch.Tensor) -> list[torch.Tensor]:
        results = []
        for x, (_, *targets) in zip(inputs, cases, strict=True):
            for target in targets:
                x = x.to(target)
            results.append(x)
        return results

    return function


def test_torch_casts_of_every_number(request: pytest.FixtureRequest) -> None:
    count, seed = request.config.getoption("--cases"), request.config.getoption("--seed", 0)
    cases = pairs()
    # What was found, and as many of the others as are asked for.
    wrong = [(s, torch.float8_e4m3fn) for s in (torch.float32, torch.float64, torch.float16, torch.int16)] + [
        (torch.float64, torch.float16)
    ]
    cases = [*wrong, *random.Random(f"pairs {seed}").sample(cases, min(len(cases), count // 25))]
    check(convert(cases), [defined(numbers(s), d) for s, d in cases], [f"{s} to {d}" for s, d in cases])


@pytest.mark.parametrize("value", [1000.0, float("-inf")])
def test_torch_casts_of_one_number(value: float) -> None:
    cases = [(s, d) for s in (torch.float16, torch.float64, torch.float8_e5m2, torch.int16) for d in EIGHT if s != d]
    for shape in ((), (5,)):
        inputs = [torch.full(shape, value if s.is_floating_point else -1000).to(s) for s, _ in cases]
        check(convert(cases), inputs, [f"{s} to {d}" for s, d in cases])


def test_drawn_chains_of_casts(request: pytest.FixtureRequest) -> None:
    count, seed = request.config.getoption("--cases"), request.config.getoption("--seed", 0)
    choices = random.Random(f"float8 {seed}")
    floats = (*WIDE, *EIGHT, *EIGHT)
    cases = [tuple(choices.choice(floats) for _ in range(choices.choice((3, 3, 4, 5)))) for _ in range(max(4, count // 50))]
    for start in range(0, len(cases), 50):
        part = cases[start : start + 50]
        inputs = [
            numbers(case[0])[torch.from_numpy(np.random.default_rng(seed + n).permutation(len(numbers(case[0])))[:3000])]
            for n, case in enumerate(part)
        ]
        check(convert(part), inputs, [" to ".join(map(str, case)) for case in part])


class Constants(torch.nn.Module):
    """Casts of numbers that are known at build, and of Python numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("wide", numbers(torch.float32))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        chosen = [torch.where(x > 0, x.to(torch.float8_e4m3fn), number) for number in (1000.0, -1000.0, float("inf"), 3.3)]
        filled = torch.zeros_like(x, dtype=torch.float8_e4m3fn).copy_(x)
        return [*(self.wide.to(dtype) for dtype in EIGHT), *chosen, filled]


def test_numbers_known_at_build_and_exported_programs() -> None:
    model, x = Constants().eval(), torch.tensor([-1000.0, 1000.0, -1.0, 460.0])
    check(model, [x], [str(n) for n in range(9)])
    exported = ourcc.build(torch.export.export(model, (x,)))
    for got, wanted in zip(exported(x), model(x), strict=True):
        assert bool(same(torch.as_tensor(got), wanted).all())


@pytest.mark.parametrize("is_saturating", [True, False])
def test_the_release_that_is_installed_is_asked(is_saturating: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(casts, "saturates", lambda dtype: is_saturating and dtype == f8e4m3)
    torch._dynamo.reset()
    got = torch.compile(lambda x: x.to(torch.float8_e4m3fn).float(), backend="ourcc")(torch.tensor([1000.0, 1.0]))
    assert got.nan_to_num(-7.0).tolist() == [448.0 if is_saturating else -7.0, 1.0]


def test_the_probe_sees_what_torch_does() -> None:
    for ours, theirs in ((f8e4m3, torch.float8_e4m3fn), (f8e5m2, torch.float8_e5m2)):
        assert casts.saturates(ours) == bool(torch.tensor(1e6).to(theirs).float().isfinite())
    assert not casts.saturates(f16) and not casts.saturates(f32)


# --- ONNX -------------------------------------------------------------------------------------------------------------

TARGETS = (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2FNUZ)
SOURCES = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.UINT8)


def array(number: int) -> np.ndarray[Any, Any]:
    """Numbers of an ONNX element type."""
    dtype = helper.tensor_dtype_to_np_dtype(number)
    wide = numbers(getattr(torch, str(dtype)))
    return wide.view(torch.uint16).numpy().view(dtype) if dtype.name == "bfloat16" else wide.numpy()


def nodes(source: int, name: str, scale: str) -> list[onnx.NodeProto]:
    """Each conversion of one source, with and without saturation."""
    made = []
    for target in TARGETS:
        for saturate in (0, 1):
            end = f"{name}_{target}_{saturate}"
            made.append(helper.make_node("Cast", [name], [f"cast_{end}"], to=target, saturate=saturate))
            made.append(helper.make_node("CastLike", [name, f"zero_{target}"], [f"like_{end}"], saturate=saturate))
            if source in (TensorProto.FLOAT16, TensorProto.FLOAT):
                made.append(helper.make_node("QuantizeLinear", [name, scale, f"zero_{target}"], [f"quantized_{end}"], saturate=saturate))
    return made


@pytest.mark.parametrize(
    ("source", "is_known"),
    [*((source, True) for source in SOURCES), (TensorProto.FLOAT16, False)],
)
def test_onnx_conversions_of_every_number(source: int, is_known: bool) -> None:
    values = array(source)
    made = nodes(source, "x", "scale")
    zeros = [helper.make_tensor(f"zero_{target}", target, [], b"\0", raw=True) for target in TARGETS]
    constants = [*zeros, numpy_helper.from_array(np.asarray(0.5, values.dtype if source != TensorProto.UINT8 else np.float32), "scale")]
    if is_known:
        constants.append(numpy_helper.from_array(values, "x"))
    inputs = [] if is_known else [helper.make_tensor_value_info("x", source, [len(values)])]
    outputs = [helper.make_empty_tensor_value_info(node.output[0]) for node in made]
    graph = helper.make_graph(made, "casts", inputs, outputs, constants)
    model = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10))
    given = {} if is_known else {"x": values}
    with np.errstate(all="ignore"):
        wanted = ReferenceEvaluator(model).run(None, given)
    got = ourcc.build(model)(**given)
    wrong = []
    for node, ours, theirs in zip(made, got if isinstance(got, (tuple, list)) else [got], wanted, strict=True):
        a, b = np.asarray(ours), np.asarray(theirs)
        assert a.dtype == b.dtype
        equal = (a.view(np.uint8) == b.view(np.uint8)) | (np.isnan(a.astype(np.float32)) & np.isnan(b.astype(np.float32)))
        if not equal.all():
            wrong.append(f"{node.output[0]}: {values[~equal][:4]} got {a[~equal][:4]}, expected {b[~equal][:4]} ({(~equal).sum()})")
    assert not wrong, "\n".join(wrong)
