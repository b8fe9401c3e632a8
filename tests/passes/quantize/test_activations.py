"""Activations as int8: a scale for each token, which products take part, what stays and why, rows without finite numbers."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.types import DType, TensorType, bf16, f16, f32, i8, i64, u2, u4
from ourcc.passes.fusion.partition import partition
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline
from ourcc.passes.quantize.activations import why_not
from ourcc.passes.regions.compose import Group
from ourcc.passes.weights.weights import weights_of
from ourcc.runtime import native
from ourcc.runtime.engine import Engine

STEPS = "quantize_int8_weight, quantize_activations, eliminate_common_subexpressions, eliminate_dead_code"


def linear(*shape: int, dtype: DType = f32, transposed: bool = True, readers: int = 1, k: int = 64) -> Module:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(dtype, (module.declare("B", 1, 64), *shape[1:], k)))
    random = np.random.default_rng(0)
    results = []
    for n in range(readers):
        values = random.standard_normal((24, k) if transposed else (k, 24)).astype(dtype.numpy)
        results.append(b.matmul(x, module.add_constant(f"w{n}", values), transpose_b=transposed))
    graph.set_outputs(results)
    return module


def data(*shape: int, dtype: DType = f32) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(dtype.numpy)


def run(module: Module, x: np.ndarray, name: str = "int8") -> np.ndarray:
    contents = compile_module(module, build_options({"target": "native", "quantize": name}))
    result = Engine(contents, threads=1)(x)
    return result[0] if isinstance(result, tuple) else result


@functools.cache
def three_rows(name: str) -> tuple[Module, Engine]:
    """A product of three rows as `name` quantizes it, and its engine: made once for all data."""
    module = linear(3)
    return module, Engine(compile_module(module, build_options({"target": "native", "quantize": name})), threads=1)


@pytest.mark.parametrize("shape", [(5,), (2, 7), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
def test_products_of_tokens_are_integer_ones(shape: tuple[int, ...], transposed: bool, dtype: DType) -> None:
    module, x = linear(*shape, dtype=dtype, transposed=transposed), data(*shape, 64, dtype=dtype)
    (dense,) = interpret(module, [x], wide=True)
    got = run(module, x)
    product = next(op for op in module.main if op.name == "matmul")
    assert product.result.dtype.name == "i32" and {v.dtype.bits for v in product.operands if v is not None} == {8}
    (step,), (exact,) = interpret(module, [x]), interpret(module, [x], wide=True)
    verdict = judge(got, step, exact)
    assert verdict.passed, verdict.reason
    # 127 steps for the largest number of a row and of a channel: the error of a sum of 64 such products.
    assert np.abs(got.astype(np.float64) - dense).max() < 0.02 * np.abs(dense).max()


@pytest.mark.parametrize("name", ["int8", "int4-a8", "nvfp4-a8"])
def test_a_row_does_not_depend_on_its_neighbours(name: str) -> None:
    contents = compile_module(linear(6), build_options({"target": "native", "quantize": name}))
    engine, x = Engine(contents, threads=1), data(6, 64)
    x[3] *= 1e6
    together = engine(x)
    for row in range(6):
        np.testing.assert_array_equal(engine(x[row : row + 1])[0], together[row])


def test_what_several_products_read_is_rounded_once() -> None:
    module = linear(4, 9, readers=3)
    PassManager(parse_pipeline(STEPS), strict=True).run(module)
    names = [op.name for op in module.main]
    assert names.count("quantize") == 1 and names.count("matmul") == 3


@pytest.mark.parametrize("name", ["int8", "int4-a8", "mxfp4-a8"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_gives_none_that_is(value: float, name: str) -> None:
    x = data(3, 64)
    x[1, 5] = value
    got = three_rows(name)[1](x)
    assert np.isnan(got[1]).all() and np.isfinite(got[[0, 2]]).all()


@pytest.mark.parametrize("scale", [0.0, 1e-44, 1e-35, 1e-30, 1e30, 1e36])
def test_rows_of_any_size(scale: float) -> None:
    x = (data(3, 64) * np.float32(scale)).astype(np.float32)
    (dense,) = interpret(linear(3), [x], wide=True)
    got = three_rows("int8")[1](x)
    assert np.isfinite(got).all()
    assert np.abs(got - dense).max() <= 0.02 * np.abs(dense).max() + 1e-35


def image(seed: int = 0, *, groups: int = 1, channels: int = 8, rectified: bool = False, dtype: DType = f32, rank: int = 4) -> Module:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b, numbers = Builder(module, graph), np.random.default_rng(seed)
    spatial = rank - 2
    x = graph.add_input("x", TensorType(dtype, (module.declare("B", 1, 8), channels, *(9, 7, 5)[:spatial])))
    read = b.max_pool(b.relu(x), **_windows(spatial, 2)) if rectified else x
    weight = numbers.standard_normal((12, channels // groups, *(3,) * spatial)).astype(dtype.numpy)
    settings = {"strides": (2,) * spatial, "dilations": (1,) * spatial, "before": (1,) * spatial, "after": (2,) * spatial, "groups": groups}
    bias = module.add_constant("bias", numbers.standard_normal(12).astype(dtype.numpy))
    graph.set_outputs([b.conv(read, module.add_constant("w", weight), bias, **settings)])
    return module


def _windows(spatial: int, size: int) -> dict[str, tuple[int, ...]]:
    ones, nothing = (1,) * spatial, (0,) * spatial
    return {"window": (size,) * spatial, "strides": ones, "dilations": ones, "before": nothing, "after": nothing}


@pytest.mark.parametrize(
    ("groups", "channels", "rank", "rectified", "dtype"),
    [
        (1, 8, 4, False, bf16),
        (1, 3, 4, True, f32),
        (2, 8, 4, True, bf16),
        (2, 8, 4, False, f32),
        (1, 6, 3, True, f32),
        (1, 5, 5, False, f32),
    ],
)
def test_convolutions_of_images_are_integer_ones(groups: int, channels: int, rank: int, rectified: bool, dtype: DType) -> None:
    settings = {"groups": groups, "channels": channels, "rectified": rectified, "dtype": dtype, "rank": rank}
    module, x = image(**settings), data(3, channels, *(9, 7, 5)[: rank - 2], dtype=dtype)
    x[1] *= 100
    (dense,) = interpret(module, [x], wide=True)
    got = run(module, x)
    product = next(op for op in module.main if op.name == "conv")
    assert product.result.dtype.name == "i32"
    (step,), (exact,) = interpret(module, [x]), interpret(module, [x], wide=True)
    verdict = judge(got, step, exact)
    assert verdict.passed, verdict.reason
    for number in range(3):  # each image has a scale of its own
        assert np.abs(got[number].astype(np.float64) - dense[number]).max() < 0.02 * np.abs(dense[number]).max()


def test_what_is_rectified_has_unsigned_codes() -> None:
    """They are twice as fine: the last bit is no sign."""
    for rectified, dtype in ((True, "u8"), (False, "i8")):
        module = image(rectified=rectified)
        PassManager(parse_pipeline(STEPS), strict=True).run(module)
        assert [op.result.dtype.name for op in module.main if op.name == "quantize"] == [dtype]


@pytest.mark.parametrize("name", ["abs", "wrapped"])
def test_integers_may_wrap_below_zero(name: str) -> None:
    """abs(-128) of 8 bits is -128, and a cast to fewer bits keeps the low ones: codes behind them have a sign."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b, numbers = Builder(module, graph), np.random.default_rng(0)
    x = graph.add_input("x", TensorType(i8 if name == "abs" else i64, (2, 4, 9, 9)))
    read = b.cast(b.abs(x) if name == "abs" else b.cast(b.relu(x), dtype=i8), dtype=f32)
    settings = {"strides": (1, 1), "dilations": (1, 1), "before": (0, 0), "after": (0, 0), "groups": 1}
    graph.set_outputs([b.conv(read, module.add_constant("w", data(8, 4, 3, 3)), None, **settings)])
    given = numbers.integers(-128, 128, (2, 4, 9, 9)).astype(np.int8) if name == "abs" else numbers.integers(-300, 300, (2, 4, 9, 9))
    given[0, 0, 0, 0] = -128
    (dense,) = interpret(module, [given], wide=True)
    got = run(module, given)
    assert np.abs(got - dense).max() < 0.02 * np.abs(dense).max()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_image_that_is_not_finite_gives_none_that_is(value: float) -> None:
    x = data(3, 8, 9, 7)
    right = run(image(), x)
    x[1, 2, 3, 4] = value
    got = run(image(), x)
    assert np.isnan(got[1]).all()
    np.testing.assert_array_equal(got[[0, 2]], right[[0, 2]])


def test_what_stays_says_why() -> None:
    module = image(groups=4)
    PassManager(parse_pipeline(STEPS), strict=True).run(module)
    assert [op.name for op in module.main] == ["dequantize", "conv"]
    (weight,) = weights_of(module.main)
    assert why_not(weight) == "groups have 2 channels, and no 4 at once: to round it would gain nothing"
    long = linear(2, k=70_000)
    PassManager(parse_pipeline(STEPS), strict=True).run(long)
    assert [op.name for op in long.main] == ["dequantize", "matmul"]


def test_the_contract_says_int8() -> None:
    from ourcc.compiler.contract import contract_of, source_ops
    from ourcc.compiler.pipeline import simplify
    from ourcc.ir.errors import Source

    module = linear(4)
    for op in module.main:
        op.source = Source("fc")
    options = build_options({"target": "native", "quantize": "int8"})
    asked = source_ops(module)
    simplify(module, options)
    (row,) = contract_of(asked, module, options)
    assert (row.requested, row.realised, row.why) == ("fp32, int8", "int8", "")


@pytest.mark.parametrize("sizes", [(0.3, 0.3), (1e3, 1e3), (1e-3, 1e4)])
def test_no_factor_overflows_before_another_one_brings_it_down(sizes: tuple[float, float]) -> None:
    """Channels of small and of large weights, rows near the largest f32 that the product still is one for."""
    module, x = linear(3), data(3, 64)
    values = module.constants["w0"].constant
    assert values is not None
    spread = np.geomspace(*sizes, 24, dtype=np.float32)[:, None]
    wide = np.asarray(values.array) * spread
    b = Builder(module, module.main)
    module.main.set_outputs([b.matmul(module.main.inputs[0], module.add_constant("wide", wide), transpose_b=True)])
    x = x / np.abs(x @ wide.T).max() * np.float32(2e38)
    got = run(module, x.astype(np.float32))
    exact = x.astype(np.float64) @ wide.T.astype(np.float64)
    assert np.isfinite(got).all()
    assert np.abs(got - exact).max() < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize("name", ["int4-a8", "int3-a8", "mxfp6-a8"])
@pytest.mark.parametrize("scale", [0.0, 1e-44, 1e-35, 1.0, 1e30, 1e36])
def test_blocks_of_rows_of_any_size(scale: float, name: str) -> None:
    """What the graph says of the codes is what the kernels give: no sum of a block overflows before a small scale brings it down."""
    x = (data(3, 64) * np.float32(scale)).astype(np.float32)
    module, engine = three_rows(name)
    got = engine(x)
    (step,), (exact,) = interpret(module, [x]), interpret(module, [x], wide=True)
    assert np.isfinite(got).all()
    verdict = judge(got, step, exact)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_narrow_floats_are_no_obstacle_to_integers(dtype: DType) -> None:
    """Decoded weights and rounded activations are f32 there, so that their scales leave the sums."""
    module, x = linear(5, dtype=dtype), data(5, 64, dtype=dtype)
    got = run(module, x, "int4-a8")
    product = next(op for op in module.main if op.name == "matmul")
    assert {v.dtype.name for v in product.operands if v is not None} == {"f32"} and got.dtype == dtype.numpy
    (step,), (exact,) = interpret(module, [x]), interpret(module, [x], wide=True)
    verdict = judge(got, step, exact)
    assert verdict.passed, verdict.reason


def test_codes_are_made_once_and_multiplied_by_another_kernel() -> None:
    module = linear(4, 9, readers=3, k=96)
    steps = "encode_weights{format=int4.g32}, quantize_activations, eliminate_common_subexpressions, eliminate_dead_code"
    PassManager(parse_pipeline(steps), strict=True).run(module)
    groups = [unit for unit in partition(module, module.main) if isinstance(unit, Group)]
    made = [group for group in groups if any(op.name == "quantize" for op in group.ops)]
    products = [group for group in groups if any(op.name == "matmul" for op in group.ops)]
    assert len(made) == 1 and len(products) == 3
    assert all({op.name for op in group.ops} <= {"matmul", "dequantize", "decode", "reshape"} for group in products)


@pytest.mark.parametrize("name", ["int4-a8", "int3-a8", "nvfp4-a8"])
def test_levels_agree_bit_for_bit(name: str) -> None:
    """Sums of integers are exact, and what scales them is the same at each level: with instructions for bytes or without."""
    module, x = linear(40, k=192), data(40, 192)
    contents = compile_module(module, build_options({"target": "cpu", "quantize": name, "tune": "off"}))
    assert len(contents.parts) > 2
    answers = {
        part: Engine(contents, target=part, threads=1)(x)
        for part, held in contents.parts.items()
        if native.cpu_flags().issuperset(held.requires) and native.withheld(held.requires) is None
    }
    first = next(iter(answers.values()))
    for part, answer in answers.items():
        np.testing.assert_array_equal(answer, first, err_msg=part)


def test_the_contract_says_both() -> None:
    from ourcc.compiler.contract import contract_of, source_ops
    from ourcc.compiler.pipeline import simplify
    from ourcc.ir.errors import Source

    rows = []
    for k in (64, 40):
        module = linear(4, k=k)
        for op in module.main:
            op.source = Source("fc")
        options = build_options({"target": "native", "quantize": "int4-a8"})
        asked = source_ops(module)
        simplify(module, options)
        rows += contract_of(asked, module, options)
    assert (rows[0].requested, rows[0].realised, rows[0].why) == (*["fp32, int4-weight, int8-activation"] * 2, "")
    assert rows[1].realised == "fp32" and "the contracted axis has 40 elements, expected a multiple of 32" in rows[1].why


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("zeros", [False, True])
def test_weights_that_come_coded_stay_so(bits: int, zeros: bool) -> None:
    """As MatMulNBits brings them: only activations are rounded, and the sums are integers."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b, random = Builder(module, graph), np.random.default_rng(0)
    x = graph.add_input("x", TensorType(f32, (module.declare("B", 1, 64), 64)))
    narrow = {2: u2, 4: u4}[bits]
    codes = module.add_constant("w", random.integers(0, 1 << bits, (24, 64)).astype(narrow.numpy))
    scale = module.add_constant("s", random.uniform(0.01, 0.1, (24, 2)).astype(np.float32))
    zero = module.add_constant("z", random.integers(0, 1 << bits, (24, 2)).astype(narrow.numpy)) if zeros else None
    weight = b.dequantize(codes, scale, zero, axis=1, block=32, dtype=f32)
    graph.set_outputs([b.matmul(x, weight, transpose_b=True)])
    dense = interpret(module, [data(5, 64)], wide=True)[0]
    got = run(module, data(5, 64), "a8")
    assert sorted(op.name for op in module.main if op.name in ("quantize", "decode", "matmul")) == ["decode", "matmul", "quantize"]
    (step,), (exact,) = interpret(module, [data(5, 64)]), interpret(module, [data(5, 64)], wide=True)
    verdict = judge(got, step, exact)
    assert verdict.passed, verdict.reason
    assert 0 < np.abs(got.astype(np.float64) - dense).max() < 0.02 * np.abs(dense).max()


def test_floats_are_left_alone_where_weights_are_to_stay() -> None:
    module = linear(3)
    PassManager(parse_pipeline("pack_codes, quantize_activations"), strict=True).run(module)
    assert [op.name for op in module.main] == ["matmul"]


@pytest.mark.parametrize(("name", "size"), [("mxfp4-a8", 1e36), ("mxfp6-a8", 1e35)])
def test_weights_too_large_for_sums_of_codes_are_multiplied_in_floats(name: str, size: float) -> None:
    """Scales of weights come first: where these alone would overflow, activations stay as they are."""
    module, x = linear(3), (data(3, 64) * np.float32(1e-30)).astype(np.float32)
    values = module.constants["w0"].constant
    assert values is not None
    b = Builder(module, module.main)
    large = module.add_constant("large", (np.asarray(values.array) * np.float32(size)).astype(np.float32))
    module.main.set_outputs([b.matmul(module.main.inputs[0], large, transpose_b=True)])
    got = run(module, x, name)
    assert "quantize" not in {op.name for op in module.main}
    (step,), (exact,) = interpret(module, [x]), interpret(module, [x], wide=True)
    assert np.isfinite(got).all()
    verdict = judge(got, step, exact)
    assert verdict.passed, verdict.reason
