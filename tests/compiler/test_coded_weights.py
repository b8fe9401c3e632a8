"""Weights in number formats from the graph to the answer, on the CPU and in Triton's interpreter; a format that is declared here alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

import numpy as np
import pytest

from ourcc.compiler.backends.cuda import lower_cuda
from ourcc.compiler.options import Quantize, build_options
from ourcc.compiler.pipeline import compile_module, simplify
from ourcc.ir import dims
from ourcc.ir.formats import FORMATS, format_of
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.graph.text import module_text
from ourcc.ir.plan import storage
from ourcc.ir.target import gpu_target
from ourcc.ir.types import TensorType, f32, f64
from ourcc.passes.lower.schedule import Scheduler, cheapest
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline
from ourcc.passes.quantize import QUANTIZATIONS, name_of
from ourcc.passes.tile.gpu import STRATEGIES
from ourcc.runtime.engine import Engine

from ..ir.formats.shown import FIVE
from .test_gpu_kernels import run_plan

CODED = {name: each.format for name, each in QUANTIZATIONS.items() if each.is_coded and each.format is not None}
Make = Callable[[], tuple[Module, np.ndarray]]


def started(*shape: int) -> tuple[Module, Builder, Value, np.ndarray]:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    x = graph.add_input("x", TensorType(f32, (module.declare("B", 1, 64), *shape[1:])))
    return module, Builder(module, graph), x, np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def weight(module: Module, name: str, *shape: int) -> Value:
    return module.add_constant(name, np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32) / 8)


def mlp(k: int = 128, hidden: int = 256, n: int = 40) -> tuple[Module, np.ndarray]:
    """Two layers, one weight as [k, n] and one as [n, k]."""
    module, b, x, data = started(7, k)
    h = b.relu(b.add(b.matmul(x, weight(module, "w1", k, hidden)), weight(module, "b1", hidden)))
    module.main.set_outputs([b.matmul(h, weight(module, "w2", n, hidden), transpose_b=True)])
    return module, data


def weight_on_the_left() -> tuple[Module, np.ndarray]:
    module, b, x, data = started(2, 128, 10)
    module.main.set_outputs([b.matmul(weight(module, "w", 24, 128), x)])
    return module, data


def two_readers() -> tuple[Module, np.ndarray]:
    module, b, x, data = started(4, 128)
    w = weight(module, "w", 128, 128)
    module.main.set_outputs([b.matmul(b.tanh(b.matmul(x, w)), w)])
    return module, data


def convolution() -> tuple[Module, np.ndarray]:
    module, b, x, data = started(2, 128, 5, 4)
    settings = {"strides": (1, 1), "dilations": (1, 1), "before": (1, 1), "after": (1, 1)}
    module.main.set_outputs([b.conv(x, weight(module, "w", 20, 128, 3, 3), None, **settings)])
    return module, data


def expect_right(module: Module, data: np.ndarray, got: np.ndarray) -> None:
    (step,), (exact,) = interpret(module, [data]), interpret(module, [data], wide=True)
    verdict = judge(got, step, exact)
    assert verdict.passed, verdict.reason


def stored(contents: Any) -> Mapping[str, TensorType]:
    return {b.storage.value: b.type for b in contents.best.plan.buffers if isinstance(b.storage, storage.Constant)}


@pytest.mark.parametrize(
    ("make", "name"),
    [*((mlp, name) for name in CODED), *((make, "int4-weight") for make in (weight_on_the_left, two_readers, convolution))],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_engine_computes_with_coded_weights(make: Make, name: str) -> None:
    module, data = make()
    dense = interpret(module, [data])[0]
    contents = compile_module(module, build_options({"target": "native", "quantize": name}))
    format = FORMATS[CODED[name]]
    found = [op for op in module.main if op.name == "decode"]
    assert found and all(op.attrs["format"] == format.name for op in found)
    got = Engine(contents, threads=1)(data)
    expect_right(module, data, got)
    # The codes say something of the weights, and are not the weights.
    assert not np.allclose(got, dense, rtol=1e-4, atol=1e-4)
    assert np.corrcoef(got.ravel(), dense.ravel())[0, 1] > (0.9 if name.startswith(("int2-", "int3-")) else 0.98)
    # What is stored narrow is not widened, neither in the engine nor in a buffer.
    assert not {"w", "w1", "w2"} & stored(contents).keys()
    largest = max(int(str(kind.elements)) for op in found for kind in [op.result.type])
    assert not any(isinstance(b.storage, storage.Arena) and b.type.elements == largest for b in contents.best.plan.buffers)


@pytest.mark.parametrize("name", ["int4-weight", "mxfp6-weight"])
def test_sparse_weights_are_coded_as_well(name: str) -> None:
    module, data = mlp(k=256, hidden=256)
    contents = compile_module(module, build_options({"target": "native", "quantize": name, "sparsity": "2:4"}))
    formats = [op.attrs["format"] for op in module.main if op.name == "decode"]
    assert formats == [f"2:4.{CODED[name]}"] * 2
    expect_right(module, data, Engine(contents, threads=1)(data))


SPARSE = ("2:4.f32", "2:4.int8", "2:4.int4.g32", "2:4.uint2.g32", "2:4.fp8.e4m3.block", "2:4.nvfp4", "2:4.q6_k", "2:4.q4_1")


@pytest.mark.parametrize("format", [*FORMATS, *SPARSE])
def test_triton_kernels_read_every_format(format: str) -> None:
    """A product with a weight in each format, made or only read, by the kernel that Triton's interpreter runs."""
    known = format_of(format)
    k = known.group if known.group > 8 else 64
    module, b, x, data = started(5, k)
    random = np.random.default_rng(0)
    if known.encode is not None:
        fields = known.encoded(random.standard_normal((24, k)).astype(np.float32))
    else:
        fields = {field.name: drawn(random, kind) for field, kind in zip(known.fields, known.types((24, k), 1), strict=True)}
    held = [module.add_constant(f"w.{name}", fields[name]) for name in fields]
    order = {field.name: n for n, field in enumerate(known.fields)}
    held.sort(key=lambda value: order[value.name.removeprefix("w.")])
    module.main.set_outputs([b.matmul(x, b.decode(*held, format=format, axis=1), transpose_b=True)])
    device = gpu_target("sm_90a")
    lowered = lower_cuda(module, Scheduler(STRATEGIES, device, cheapest(device), lambda region, constants: {}))
    (got,) = run_plan(module, lowered, [data], {"B": 5})
    expect_right(module, data, got)
    # The same program on the CPU.
    expect_right(module, data, Engine(compile_module(module, build_options({"target": "native"})), threads=1)(data))


@pytest.mark.parametrize("name", [name for name, each in QUANTIZATIONS.items() if each.activations not in (None, "int8")])
def test_triton_kernels_round_activations(name: str) -> None:
    """A product of what is rounded while it runs: kernels that Triton's interpreter runs."""
    module, b, x, data = started(5, 256)
    weight = module.add_constant("w", np.random.default_rng(0).standard_normal((24, 256)).astype(np.float32))
    module.main.set_outputs([b.matmul(x, weight, transpose_b=True)])
    simplify(module, build_options({"target": "sm_90a", "quantize": name, "tune": "off"}))
    assert [op.attrs["format"] for op in module.main if op.name == "decode"] == [QUANTIZATIONS[name].format]
    device = gpu_target("sm_90a")
    lowered = lower_cuda(module, Scheduler(STRATEGIES, device, cheapest(device), lambda region, constants: {}))
    (got,) = run_plan(module, lowered, [data], {"B": 5})
    expect_right(module, data, got)


@pytest.mark.parametrize(("name", "target"), [("fp8", "sm_90a"), ("mxfp4", "sm_100a"), ("nvfp4", "sm_100a")])
def test_activations_are_rounded_in_gpu_engines(name: str, target: str) -> None:
    """Each kernel is compiled for its architecture."""
    module, b, x, _ = started(5, 256)
    weight = module.add_constant("w", np.random.default_rng(0).standard_normal((24, 256)).astype(np.float32))
    module.main.set_outputs([b.matmul(x, weight, transpose_b=True)])
    contents = compile_module(module, build_options({"target": target, "quantize": name, "tune": "off"}))
    assert list(contents.parts) == [target] and contents.report["kernels"][target]


def drawn(random: np.random.Generator, kind: TensorType) -> np.ndarray:
    shape = tuple(int(str(size)) for size in kind.shape)
    if kind.dtype.is_float:
        return random.uniform(0.01, 0.1, shape).astype(kind.dtype.numpy)
    return random.integers(0, 120, shape).astype(kind.dtype.numpy)


# --- one that exists nowhere ----------------------------------------------------------------------------------------------


def test_a_format_that_exists_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declaring it is all: it is coded, decoded, spelled, built for the CPU and run in Triton's interpreter."""
    monkeypatch.setitem(FORMATS, "five", FIVE)
    x = np.random.default_rng(0).standard_normal((9, 192)).astype(np.float32)
    fields = FIVE.encoded(x)
    assert {name: array.shape for name, array in fields.items()} == {"codes": (9, 96), "high": (9, 24), "fine": (9, 4), "upper": (9, 2)}
    assert np.abs(FIVE.decoded(fields) - x).max() < 0.15
    np.testing.assert_allclose(FIVE.decoded(FIVE.encoded(FIVE.decoded(fields))), FIVE.decoded(fields), rtol=2e-3, atol=1e-6)

    module, data = mlp(k=192, hidden=96)
    PassManager(parse_pipeline("encode_weights{format=five}, eliminate_dead_code"), strict=True).run(module)
    assert module_text(parse_module(module_text(module))) == module_text(module)
    expect_right(module, data, Engine(compile_module(module, build_options({"target": "native"})), threads=1)(data))
    device = gpu_target("sm_90a")
    lowered = lower_cuda(module, Scheduler(STRATEGIES, device, cheapest(device), lambda region, constants: {}))
    (got,) = run_plan(module, lowered, [data], {"B": data.shape[0]})
    expect_right(module, data, got)


def test_its_numbers_are_kept_sparse_in_the_packed_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept numbers are found whatever runs of bytes their codes lie in: the product is one of register blocks, built in seconds."""
    monkeypatch.setitem(FORMATS, "five", FIVE)
    module, data = mlp(k=384, hidden=192)
    PassManager(parse_pipeline("sparsify_two_four, encode_weights{format=five}, eliminate_dead_code"), strict=True).run(module)
    assert [op.attrs["format"] for op in module.main if op.name == "decode"] == ["2:4.five"] * 2
    contents = compile_module(module, build_options({"target": "x86-64-v4", "tune": "off"}))
    rows = [row for row in contents.report["kernels"]["x86-64-v4"] if "matmul" in str(row["source_ops"])]
    assert rows and all(row["strategy"].startswith("packed") for row in rows)
    expect_right(module, data, Engine(compile_module(module, build_options({"target": "native"})), threads=1)(data))


# --- the table ------------------------------------------------------------------------------------------------------------


def test_every_name_is_a_format_and_a_type() -> None:
    assert set(get_args(Quantize)) == set(QUANTIZATIONS)
    for name, each in QUANTIZATIONS.items():
        assert each.name == name
        if each.format is None:
            continue
        assert FORMATS[each.format].encode is not None
        # Weights of a format are called alike whatever happens to activations.
        weights = QUANTIZATIONS[name_of(each.format)]
        assert (weights.format, weights.activations) == (each.format, None) and (weights is each or each.activations is not None)
    assert name_of("q4_k") == "q4_k-weight"
    assert name_of("uint4.g16.f32") == name_of("int4.channel.bf16") == "int4-weight"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (np.ones((20, 8), np.float32), "the contracted axis has 20 elements, expected a multiple of 32"),
        (np.full((32, 8), 1e30, np.float32), "a scale of 1.25e+29 is beyond f16"),
        (np.full((32, 8), np.nan, np.float32), "the weight holds infinities or NaN"),
        (np.ones((32, 8), np.int32), "the weight is i32, expected a float"),
    ],
)
def test_what_stays_wide_says_why(values: np.ndarray, why: str) -> None:
    from ourcc.passes.quantize.encode_weights import why_not
    from ourcc.passes.weights.weights import weight_of

    module, b, x, _ = started(2, values.shape[0])
    w = module.add_constant("w", values)
    y = b.matmul(x, w if values.dtype == np.float32 else b.cast(w, dtype=f32))
    module.main.set_outputs([y])
    found = weight_of(list(module.main)[-1])
    if found is None:
        assert values.dtype == np.int32
        return
    assert why_not(found, "int4.g32") == why


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("shape", [(0, 128), (5, 0)])
def test_weights_without_elements_stay(name: str, shape: tuple[int, int]) -> None:
    module, b, x, data = started(3, shape[1])
    module.main.set_outputs([b.matmul(x, weight(module, "w", *shape), transpose_b=True)])
    contents = compile_module(module, build_options({"target": "native", "quantize": name}))
    np.testing.assert_array_equal(Engine(contents, threads=1)(data), np.zeros((3, shape[0]), np.float32))


@pytest.mark.parametrize("name", ["int4-weight", "nvfp4-weight"])
def test_weights_in_f64_stay(name: str) -> None:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    x = graph.add_input("x", TensorType(f64, (3, 64)))
    w = module.add_constant("w", np.random.default_rng(0).standard_normal((64, 5)))
    graph.set_outputs([Builder(module, graph).matmul(x, w)])
    data = np.random.default_rng(1).standard_normal((3, 64))
    contents = compile_module(module, build_options({"target": "native", "quantize": name}))
    np.testing.assert_allclose(Engine(contents, threads=1)(data), data @ w.constant.array, rtol=1e-12)  # type: ignore[union-attr]


@pytest.mark.parametrize("options", [{"quantize": "int8"}, {"quantize": "int4-weight"}, {"sparsity": "2:4"}])
def test_what_changes_weights_is_refused_where_they_are_inputs(options: dict[str, Any]) -> None:
    import torch

    layer, x = torch.nn.Linear(64, 32), torch.randn(2, 64)
    with pytest.raises(Exception, match="has no effect here: parameters are inputs while gradients are on"):
        torch.compile(layer, backend="ourcc", options=options)(x)
    torch._dynamo.reset()
    with torch.no_grad(), pytest.raises(Exception, match=r"has no effect here: parameters are read at every call \(freeze is off\)"):
        torch.compile(layer, backend="ourcc", options={**options, "freeze": False})(x)


@pytest.mark.parametrize(("format", "blocks"), [("q2_k", 4), ("q4_k", 3), ("q5_k", 4)])
def test_few_blocks_of_a_row_are_multiplied_in_register_blocks(format: str, blocks: int) -> None:
    """A row of three or four blocks has few values in every digit of its positions: no kernel is refused for its weight."""
    known = format_of(format)
    module, b, x, _ = started(7, blocks * known.group)
    types = zip(known.fields, known.types((64, blocks * known.group), 1), strict=True)
    fields = [
        module.add_constant(f"w.{field.name}", np.zeros([dims.number(size) for size in kind.shape], kind.dtype.numpy))
        for field, kind in types
    ]
    module.main.set_outputs([b.matmul(x, b.decode(*fields, format=format, axis=1, dtype=f32), transpose_b=True)])
    contents = compile_module(module, build_options({"target": "x86-64-v4", "tune": "off"}))
    rows = [row for row in contents.report["kernels"]["x86-64-v4"] if "matmul" in str(row["source_ops"])]
    assert rows and all(row["strategy"].startswith("packed") for row in rows)
