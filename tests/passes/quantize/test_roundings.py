"""Activations in small floats: what the formats' papers say, number for number; products of them; what stays and why."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

import ourcc
from ourcc.compiler.contract import stored_for_all
from ourcc.compiler.importers.torch.export import import_exported
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module, weight_passes
from ourcc.ir.errors import UsageError
from ourcc.ir.formats import format_of
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.types import DType, TensorType, bf16, f8e8m0, f32
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline
from ourcc.passes.quantize import INTEGERS, QUANTIZATIONS, SCALES, STORABLE
from ourcc.passes.quantize.roundings import ROUNDINGS, in_format, rounded
from ourcc.runtime.engine import Engine

FLOATS = tuple(name for name in ROUNDINGS if name != "int8")
E4M3, E2M1 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float4_e2m1fn)


def stated(x: np.ndarray, name: str) -> np.ndarray:
    """Rows f32[n, k] rounded as the papers have it, in numpy alone: a scale for so many numbers, the nearest codes, and back."""
    block = {"fp8": x.shape[1], "fp8-block": 128, "mxfp8": 32, "mxfp4": 32, "nvfp4": 16}[name]
    code, most = (E4M3, np.float32(448)) if "8" in name else (E2M1, np.float32(6))
    blocks = x.reshape(len(x), -1, block)
    largest = np.abs(blocks).max(-1, keepdims=True)
    if name.startswith("mx"):
        # OCP MX v1.0, 6.3: the largest power of two in the block over that of the element's format.
        exponent = np.floor(np.log2(np.where(largest == 0, 1, largest).astype(np.float64))) - (8 if code is E4M3 else 2)
        scale = np.where(largest == 0, 1, np.exp2(np.maximum(exponent, -126))).astype(np.float32)
    elif name == "nvfp4":
        token = np.maximum(np.abs(x).max(-1)[:, None, None] / np.float32(6 * 448), np.float32(2.0**-126))
        held = np.clip(largest / np.float32(6) / token, -448, 448).astype(E4M3).astype(np.float32)
        scale = held * token
    else:
        scale = np.maximum(largest / most, np.float32(2.0**-126))
    with np.errstate(divide="ignore", invalid="ignore"):
        # NVFP4 multiplies by the inverse of the scale, which loses nothing of the powers of two of MX.
        numbers = blocks * (np.float32(1) / scale) if name == "nvfp4" else blocks / scale
        codes = np.where(scale == 0, 0, np.clip(numbers, -most, most)).astype(code).astype(np.float32)
    return (codes * scale).reshape(x.shape)


def rounding(name: str, dtype: DType = f32) -> Module:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(dtype, (module.declare("B", 1, 64), 256)))
    graph.set_outputs([rounded(b, x, name, ROUNDINGS[name].block)])
    return module


def rows(seed: int) -> np.ndarray:
    """Rows of every size: of numbers that differ by 2^20, beside powers of two, on ties, least ones, zeros."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((24, 256)) * np.exp2(random.integers(-10, 10, (24, 256)))
    x[1] = np.exp2(random.integers(-3, 4, 256)) * random.choice([1, 1 - 2.0**-24, 1 + 2.0**-23], 256)
    x[2] = random.integers(-24, 25, 256) / 4
    x[3], x[4, 64:] = 0, 0
    x[5:8] *= np.array([[1e-30], [1e30], [1e-36]])
    x[8] = random.integers(-12, 13, 256)
    return x.astype(np.float32)


@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
@pytest.mark.parametrize("name", FLOATS)
def test_what_the_papers_say(name: str, target: str) -> None:
    engine = Engine(compile_module(rounding(name), build_options({"target": target})), threads=1)
    for seed in range(6):
        x = rows(seed)
        (read,) = interpret(rounding(name), [x])
        np.testing.assert_array_equal(read, stated(x, name))
        np.testing.assert_array_equal(np.asarray(engine(x)), read)


def as_weights(name: str, dtype: DType = f32) -> Module:
    """Rows as weights of the format are stored, and back."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(dtype, (module.declare("B", 1, 64), 256)))
    numbers, rest = in_format(b, x, name)
    assert (rest is None) == name.startswith("mx")
    graph.set_outputs([numbers if rest is None else b.mul(numbers, rest)])
    return module


@pytest.mark.parametrize("name", STORABLE)
def test_what_is_stored_as_weights_are_is_the_same(name: str) -> None:
    for seed in range(6):
        x = rows(seed)
        (read,) = interpret(as_weights(name), [x])
        # The scale of a token is multiplied last.
        np.testing.assert_allclose(read, stated(x, name), rtol=0 if name.startswith("mx") else 3e-7, atol=0)
    module = as_weights(name)
    (decoded,) = (op for op in module.main if op.name == "decode")
    fields = [field.dtype.bits for field in format_of(name if name != "mxfp8" else "mxfp8.e4m3").fields]
    assert [value.dtype.bits for value in decoded.operands if value is not None] == fields
    for value in (np.nan, np.inf, -np.inf):
        x = rows(0)
        x[9, 40] = value
        (read,) = interpret(as_weights(name), [x])
        first, size = (32, ROUNDINGS[name].block) if name.startswith("mx") else (0, 256)
        assert not np.isfinite(read[9, first : first + size]).any()
        assert np.isfinite(np.delete(read, 9, 0)).all()


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4"])
def test_scales_that_are_stored_lose_nothing(name: str) -> None:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(f32, (module.declare("B", 1, 64), 256)))
    graph.set_outputs([rounded(b, x, name, 32, SCALES)])
    (read,) = (op for op in graph if op.name == "dequantize")
    assert read.operands[1] is not None and read.operands[1].dtype == f8e8m0
    for seed in range(6):
        np.testing.assert_array_equal(interpret(module, [rows(seed)])[0], stated(rows(seed), name))


@pytest.mark.parametrize(("target", "stored"), [("native", ""), ("sm_90a", "scales"), ("sm_100a", "codes"), ("sm_100a,native", "")])
def test_what_is_stored_is_what_all_targets_take(target: str, stored: str) -> None:
    steps = weight_passes(build_options({"targets": target.split(","), "quantize": "mxfp4"}))
    assert [step for step in steps if step.startswith("quantize_activations")] == [
        f"quantize_activations{{format=mxfp4{f', stored={stored}' if stored else ''}}}"
    ]
    assert not any("stored" in step for step in weight_passes(build_options({"targets": ["sm_100a"], "quantize": "fp8"})))


def test_who_would_be_faster_alone_is_told() -> None:
    for targets, name, told in (
        (["sm_100a", "native"], "nvfp4", True),
        (["sm_100a", "sm_90a"], "mxfp8", True),
        (["sm_100a"], "nvfp4", False),
        (["sm_90a", "native"], "nvfp4", False),
        (["sm_100a", "native"], "fp8", False),
    ):
        notes = list(stored_for_all(build_options({"targets": targets, "quantize": name})))
        assert [f"activations in {name}" in note and "sm_100a would be faster" in note for note in notes] == [True] * told
    contents = compile_module(linear(256), build_options({"targets": ["sm_100a", "native"], "quantize": "nvfp4"}))
    assert any("sm_100a would be faster in an engine without the others" in note for note in contents.report["notes"])


def test_what_cannot_be_stored_so_is_refused() -> None:
    with pytest.raises(UsageError, match="stored is 'all', expected one of '', 'scales', 'codes'"):
        parse_pipeline("quantize_activations{format=mxfp4, stored=all}")
    with pytest.raises(UsageError, match="fp8 has no scales of 8 bits"):
        parse_pipeline("quantize_activations{format=fp8, stored=codes}")


@pytest.mark.parametrize("name", STORABLE)
def test_the_contract_says_the_same_of_all_targets(name: str) -> None:
    layer, said = torch.nn.Linear(256, 24).eval(), []
    for target in ("native", "sm_90a", "sm_100a"):
        program = torch.export.export(layer, (torch.zeros(4, 256),))
        said.append(compile_module(import_exported(program), build_options({"targets": [target], "quantize": name})).report["contract"])
    (row,) = said[0]
    assert row["realised"] == row["requested"] == f"fp32, {name}-weight, {name}-activation"
    assert said[0] == said[1] == said[2]


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_block_that_is_not_finite_stays_so(name: str, value: float) -> None:
    engine, x = Engine(compile_module(rounding(name), build_options({})), threads=1), rows(0)
    plain = np.asarray(engine(x))
    x[9, 40] = value
    got = np.asarray(engine(x))
    block = ROUNDINGS[name].block if name not in ("fp8", "nvfp4") else 256
    first = 40 // block * block
    assert not np.isfinite(got[9, first : first + block]).any()
    got[9, first : first + block] = plain[9, first : first + block]
    np.testing.assert_array_equal(got, plain)


def linear(k: int, dtype: DType = f32) -> Module:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(dtype, (module.declare("B", 1, 64), 3, k)))
    weight = np.random.default_rng(0).standard_normal((24, k)).astype(dtype.numpy)
    graph.set_outputs([b.matmul(x, module.add_constant("w", weight), transpose_b=True)])
    return module


@pytest.mark.parametrize("target", ["native", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
@pytest.mark.parametrize("name", FLOATS)
def test_products_are_those_of_what_is_rounded(name: str, dtype: DType, target: str) -> None:
    module, format = linear(256, dtype), format_of(ROUNDINGS[name].format or "")
    weight = next(iter(module.constants.values())).constant
    assert weight is not None
    fields = format.encoded(weight.array.astype(np.float32), 1)
    x = np.random.default_rng(1).standard_normal((5, 3, 256)).astype(dtype.numpy)
    expected = stated(x.astype(np.float32).reshape(15, 256), name).astype(np.float64) @ format.decoded(fields, 1).astype(np.float64).T
    built_for = {"target": "native"} if target == "native" else {"targets": ["native"], "emulate": target}
    engine = Engine(compile_module(module, build_options({**built_for, "quantize": name})), threads=1)
    (step,), (exact,) = interpret(module, [x]), interpret(module, [x], wide=True)
    verdict = judge(np.asarray(engine(x)), step, exact)
    assert verdict.passed, verdict.reason
    np.testing.assert_allclose(
        step.reshape(15, 24).astype(np.float64), expected, rtol=0, atol=np.abs(expected).max() / (128 if dtype == bf16 else 1e5)
    )


@pytest.mark.parametrize("name", FLOATS)
def test_the_contract_names_what_activations_are_rounded_to(name: str) -> None:
    programs = {k: torch.export.export(torch.nn.Linear(k, 24), (torch.zeros(3, k),)) for k in (256, 200)}
    words = ("fp32", *QUANTIZATIONS[name].promises)
    for k, done in ((256, True), (200, name == "fp8")):
        (row,) = ourcc.build(programs[k], quantize=name, tune="off").contract
        assert row.requested == ", ".join(words)
        assert (row.realised == row.requested) is done and ("expected a multiple" in row.why) is not done
    wanted = [f"linear:{name}-activation"]
    ourcc.build(programs[256], quantize=name, require=wanted, tune="off")
    with pytest.raises(ourcc.ContractError, match=wanted[0]):
        ourcc.build(programs[256], require=wanted, tune="off")


@pytest.mark.parametrize("name", INTEGERS)
def test_codes_that_are_integers_are_multiplied_as_integers(name: str) -> None:
    contents = compile_module(linear(256), build_options({"target": "x86-64-v4-vnni", "quantize": name, "tune": "off"}))
    rows = [row for row in contents.report["kernels"]["x86-64-v4-vnni"] if "matmul" in str(row["source_ops"])]
    assert rows and all(" dot" in row["instructions"] for row in rows)


def test_the_table_says_which_codes_are_integers() -> None:
    assert set(INTEGERS) == {name for name, each in ROUNDINGS.items() if each.is_integer}
    served = {each.activations: each for each in QUANTIZATIONS.values() if each.name == each.activations}
    assert set(served) == set(ROUNDINGS) and all(ROUNDINGS[name].format in (None, each.format) for name, each in served.items())


def test_weights_in_another_format_are_left_alone() -> None:
    module = linear(256)
    PassManager(parse_pipeline("encode_weights{format=int4.g32}, quantize_activations{format=mxfp4}"), strict=True).run(module)
    assert [op.name for op in module.main] == ["decode", "matmul"]
    with pytest.raises(ourcc.UsageError, match="format is 'fp9', expected one of int8, fp8"):
        parse_pipeline("quantize_activations{format=fp9}")
