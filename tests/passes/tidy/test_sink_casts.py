"""Casts and codes move to where fewer or narrower elements move: exact, whatever moves; scales of an axis stay with it."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.reference import interpret
from ourcc.ir.ops.table import OPS
from ourcc.ir.types import TensorType, bf16, f32, i8, u8
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline


def started(dtype: object = f32) -> tuple[Module, Graph, Builder, Value]:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    return module, graph, Builder(module, graph), graph.add_input("x", TensorType(dtype, (2, 6, 8)))  # type: ignore[arg-type]


def moved(b: Builder, x: Value) -> Value:
    split = b.reshape(x, shape=(2, 6, 2, 4))
    return b.slice(b.transpose(split, permutation=(0, 2, 1, 3)), starts=(0, 0, 1, 0), sizes=(2, 2, 4, 4), steps=(1, 1, 1, 1))


def ran(module: Module, x: np.ndarray) -> tuple[np.ndarray, list[str]]:
    (before,) = interpret(module, [x])
    PassManager(parse_pipeline("sink_casts, eliminate_dead_code"), strict=True).run(module)
    (after,) = interpret(module, [x])
    assert after.dtype == before.dtype
    np.testing.assert_array_equal(*(array.astype(np.float64) for array in (after, before)))  # numpy knows no NaN of bf16
    return after, [op.name for op in module.main]


@pytest.mark.parametrize("zero", [None, 3])
def test_codes_move_in_the_place_of_numbers(zero: int | None) -> None:
    module, graph, b, x = started(i8)
    scale = module.add_constant("scale", np.float32(0.25))
    more = () if zero is None else (module.add_constant("zero", np.int8(zero)),)
    graph.set_outputs([moved(b, b.dequantize(x, scale, *more, dtype=f32))])
    _, names = ran(module, np.random.default_rng(0).integers(-128, 128, (2, 6, 8)).astype(np.int8))
    assert names == ["reshape", "transpose", "slice", "dequantize"]


def test_numbers_are_rounded_before_they_move() -> None:
    module, graph, b, x = started()
    scale = module.add_constant("scale", np.asarray([0.25], np.float32))
    split = b.transpose(b.reshape(x, shape=(2, 6, 2, 4)), permutation=(0, 2, 1, 3))
    graph.set_outputs([b.quantize(split, scale, dtype=u8)])
    _, names = ran(module, np.random.default_rng(0).standard_normal((2, 6, 8)).astype(np.float32) * 20)
    assert names == ["quantize", "reshape", "transpose"]


def test_scales_of_an_axis_stay_with_it() -> None:
    module, graph, b, x = started(i8)
    scale = module.add_constant("scale", np.linspace(0.1, 1, 6, dtype=np.float32))
    graph.set_outputs([moved(b, b.dequantize(x, scale, axis=1, dtype=f32))])
    _, names = ran(module, np.random.default_rng(0).integers(-128, 128, (2, 6, 8)).astype(np.int8))
    assert names == ["dequantize", "reshape", "transpose", "slice"]


def test_slices_of_packed_codes_each_take_their_own() -> None:
    """Queries, keys and values of one product, rounded together."""
    module, graph, b, x = started(i8)
    whole = b.dequantize(x, module.add_constant("scale", np.float32(0.25)), dtype=f32)
    parts = [b.slice(whole, starts=(0, 0, n), sizes=(2, 6, 4), steps=(1, 1, 1)) for n in (0, 4)]
    graph.set_outputs([b.add(*parts)])
    _, names = ran(module, np.random.default_rng(0).integers(-128, 128, (2, 6, 8)).astype(np.int8))
    assert names == ["slice", "dequantize", "slice", "dequantize", "add"]


def test_attention_of_a_quantizers_model_multiplies_codes() -> None:
    """They lie as codes in between: the kernel of the product before rounds them, that of attention reads them."""
    module, graph, b, x = started()
    scale, zero = module.add_constant("scale", np.float32(0.1)), module.add_constant("zero", np.int8(3))
    numbers, sides = np.random.default_rng(0), []
    for name in "qkv":
        made = b.matmul(x, module.add_constant(name, numbers.standard_normal((8, 8)).astype(np.float32)))
        coded = b.dequantize(b.quantize(made, scale, zero, dtype=i8), scale, zero, dtype=f32) if name != "v" else made
        sides.append(b.transpose(b.reshape(coded, shape=(2, 6, 2, 4)), permutation=(0, 2, 1, 3)))
    graph.set_outputs([b.attention(*sides, None, scale=0.5, causal=False, safe=False)])
    contents = compile_module(module, build_options({"target": "x86-64-v4-vnni"}))
    (kernels,) = contents.report["kernels"].values()
    (row,) = (row for row in kernels if row["kind"] == "kernel" and "attention" in row["source_ops"])
    others = ", ".join(each["source_ops"] for each in kernels if each is not row and "source_ops" in each).split(", ")
    assert "dequantize" in row["source_ops"] and "quantize" in others and "dequantize" not in others


@pytest.mark.parametrize("name", ["take", "take_along_axis", "gather_nd"])
@pytest.mark.parametrize("others", [0, 1])
def test_of_a_table_the_rows_that_are_read_are_widened(name: str, others: int) -> None:
    """Also where the whole is read besides: an embedding that is the head of a language model as well."""
    module, graph, b, x = started(bf16)
    wide = b.cast(x, dtype=f32)
    if name == "take":
        places, more = np.asarray([1, -1, 0, 7]), {"axis": 1}
    elif name == "take_along_axis":
        places, more = np.random.default_rng(1).integers(-6, 6, (2, 3, 8)), {"axis": 1}
    else:
        places, more = np.random.default_rng(1).integers(0, 2, (2, 3, 2)), {"batch_dims": 0}
    read = b.build(OPS[name], (wide, module.add_constant("places", places)), more)[0]
    graph.set_outputs([b.add(read, read), *(b.exp(wide) for _ in range(others))])
    kept = ["cast", "exp"] * others
    (before, *_) = interpret(module, [given := np.random.default_rng(0).standard_normal((2, 6, 8)).astype(np.float32).astype(bf16.numpy)])
    PassManager(parse_pipeline("sink_casts, eliminate_dead_code"), strict=True).run(module)
    (after, *_) = interpret(module, [given])
    np.testing.assert_array_equal(after, before)
    assert sorted(op.name for op in module.main) == sorted([name, "cast", "add", *kept])


@pytest.mark.parametrize("size", [0, 3])
def test_codes_of_a_table_without_elements_are_not_read_as_zeros(size: int) -> None:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b, x = Builder(module, graph), graph.add_input("x", TensorType(i8, (size, 4)))
    codes = b.dequantize(x, module.add_constant("scale", np.float32(0.25)), module.add_constant("zero", np.int8(3)), dtype=f32)
    graph.set_outputs([b.take(codes, module.add_constant("places", np.asarray([0, 0])), axis=0)])
    _, names = ran(module, np.ones((size, 4), np.int8))
    assert names == (["take", "dequantize"] if size else ["dequantize", "take"])


POOL = {"window": (3, 3), "strides": (2, 2), "dilations": (1, 1), "before": (1, 1), "after": (1, 1)}


def pooled(dtype: object = f32) -> tuple[Module, Graph, Builder, Value]:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    return module, graph, Builder(module, graph), graph.add_input("x", TensorType(dtype, (1, 4, 9, 7)))  # type: ignore[arg-type]


@pytest.mark.parametrize(("scale", "sinks"), [(0.25, True), (-0.25, False), (0.0, False)])
def test_the_largest_of_codes_is_the_code_of_the_largest(scale: float, sinks: bool) -> None:
    module, graph, b, x = pooled(i8)
    kept = module.add_constant("scale", np.float32(scale)), module.add_constant("zero", np.int8(3))
    pool = b.max_pool(b.dequantize(x, *kept, dtype=f32), **POOL)
    graph.set_outputs([b.quantize(pool, *kept, dtype=i8)])
    _, names = ran(module, np.random.default_rng(0).integers(-128, 128, (1, 4, 9, 7)).astype(np.int8))
    assert names == (["max_pool", "dequantize", "quantize"] if sinks else ["dequantize", "max_pool", "quantize"])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_the_largest_is_rounded_before(bad: float) -> None:
    module, graph, b, x = pooled()
    graph.set_outputs([b.cast(b.max_pool(x, **POOL), dtype=bf16)])
    given = np.random.default_rng(0).standard_normal((1, 4, 9, 7)).astype(np.float32) * np.float32(1e38)
    given[0, 1, 3:6, 2:5] = bad
    _, names = ran(module, given)
    assert names == ["cast", "max_pool"]


@pytest.mark.parametrize("more", [{"before": (3, 1)}, {"after": (1, 3)}, {"dilations": (2, 1), "before": (2, 1)}])
def test_a_window_of_padding_has_another_least_number(more: dict[str, object]) -> None:
    module, graph, b, x = pooled(i8)
    scale = module.add_constant("scale", np.float32(0.25))
    graph.set_outputs([b.max_pool(b.dequantize(x, scale, dtype=f32), **{**POOL, **more})])
    _, names = ran(module, np.random.default_rng(0).integers(-128, 128, (1, 4, 9, 7)).astype(np.int8))
    assert names == ["dequantize", "max_pool"]
