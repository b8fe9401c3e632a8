"""Weights that are decoded in steps: what is read as `dequantize`, to the bit, and what is left."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import ourcc
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.reference import interpret
from ourcc.ir.types import DType, TensorType, bf16, f8e4m3, f16, f32, i4, i8, i32, u4, u8
from ourcc.passes.base import PassContext
from ourcc.passes.recognize.coded_weights import RecognizeCodedWeights
from ourcc.runtime.engine import Engine

ROWS, DEPTH, COLUMNS = 3, 24, 8


def module_of(
    code: np.ndarray, scale: np.ndarray | None, zero: np.ndarray | None, dtype: DType = f32, *, shape: tuple[int, ...] = (), **options: Any
) -> Module:
    """x times a weight of [COLUMNS, DEPTH] that is decoded in steps, all by hand."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(bf16 if options.get("wide") else dtype, (ROWS, math.prod((shape or code.shape)[1:]))))
    value = b.cast(module.add_constant("w", code), dtype=dtype)
    if zero is not None:
        # Zero points that are not small are cast in the program.
        held = module.add_constant("zero", zero.astype(dtype.numpy if options.get("turned") or zero.dtype.kind == "f" else zero.dtype))
        value = b.sub(value, held if held.dtype == dtype else b.cast(held, dtype=dtype))
    if scale is not None:
        held = module.add_constant("scale", scale.astype(dtype.numpy))
        value = b.mul(held, value) if options.get("turned") else b.mul(value, held)
    if options.get("wide"):
        value = b.cast(value, dtype=bf16)
    value = b.reshape(value, shape=shape) if shape else value
    graph.set_outputs([product(b, x, value, options.get("op", "matmul"))])
    return module


def product(b: Builder, x: Value, weight: Value, op: str) -> Value:
    if op == "take":
        result: Value = b.take(weight, b.module.add_constant("rows", np.array([[5, 0], [7, 7]])), axis=0)
    elif op == "conv":
        image = b.reshape(x, shape=(ROWS, x.shape[1], 1, 1))
        result = b.conv(image, weight, strides=(1, 1), before=(0, 0), after=(0, 0), dilations=(1, 1), groups=1)
    else:
        result = b.matmul(x, weight, transpose_b=True)
    return result


def codes(dtype: DType, shape: tuple[int, ...], low: int = -100, high: int = 100) -> np.ndarray:
    low = 0 if dtype in (u8, u4) else low
    return np.random.default_rng(0).integers(low, high, shape).astype(dtype.numpy)


def scales(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).uniform(0.01, 1.0, shape).astype(np.float32)


FLAT, BLOCKED, WHOLE = (COLUMNS, DEPTH), (COLUMNS, 3, 8), (COLUMNS, DEPTH)
CASES: dict[str, tuple[Any, ...]] = {
    "bare": (codes(i8, FLAT), None, None),
    "a scale": (codes(i8, FLAT), scales(), None),
    "channels": (codes(i8, FLAT), scales(COLUMNS, 1), None),
    "along the sum": (codes(i8, FLAT), scales(DEPTH), None),
    "zero points": (codes(u8, FLAT, 0, 200), scales(COLUMNS, 1), codes(u8, (COLUMNS, 1), 0, 255)),
    "one zero point": (codes(u8, FLAT, 0, 200), scales(COLUMNS, 1), np.array(7)),
    "floats": (codes(i8, FLAT).astype(f8e4m3.numpy), scales(COLUMNS, 1), None),
    "blocks": (codes(i8, BLOCKED), scales(COLUMNS, 3, 1), None),
    "blocks of one scale": (codes(i8, BLOCKED), scales(1, 1, 1), None),
    "narrow blocks": (codes(i8, BLOCKED, -8, 8), scales(COLUMNS, 3, 1), None),
    "narrow blocks with zero points": (codes(u8, BLOCKED, 0, 16), scales(COLUMNS, 3, 1), codes(u8, (COLUMNS, 3, 1), 0, 16)),
    "narrow blocks with one of rows": (codes(u8, BLOCKED, 0, 16), scales(1, 3, 1), codes(u8, (COLUMNS, 3, 1), 0, 16)),
}


def names(module: Module) -> list[str]:
    return [op.name for op in module.main]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", [f32, bf16, f16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_what_is_decoded_in_steps_is_read_by_one_op(case: str, dtype: DType, turned: bool) -> None:
    code, scale, zero = CASES[case]
    module = module_of(code, scale, zero, dtype, shape=WHOLE if code.ndim == 3 else (), turned=turned)
    x = np.random.default_rng(2).standard_normal((ROWS, DEPTH)).astype(dtype.numpy)
    (expected,) = interpret(module, [x])
    assert RecognizeCodedWeights().run(module, PassContext())
    (used,) = _used(module)
    assert used.attrs["block"] == (8 if code.ndim == 3 and scale.size > 1 else 0)
    if "narrow" in case:
        assert used.operands[0].dtype in (i4, u4)
    (got,) = interpret(module, [x])
    np.testing.assert_array_equal(got, expected)


def _used(module: Module) -> list[Any]:
    """What the product reads."""
    op = module.main.outputs[0].op
    return [value.op for value in op.operands if value is not None and value.op is not None and value.op.name == "dequantize"]


@pytest.mark.parametrize("op", ["matmul", "take", "conv"])
def test_engines_hold_the_codes(op: str) -> None:
    more = (1, 1) if op == "conv" else ()
    # Sums of few digits are exact in any order.
    powers = np.exp2(np.random.default_rng(1).integers(-2, 2, (256, 1, *more))).astype(np.float32)
    module = module_of(codes(i8, (256, 512, *more)), powers, None, op=op)
    x = np.random.default_rng(2).integers(-4, 5, (ROWS, 512)).astype(np.float32)
    (expected,) = interpret(module, [x])
    engine = Engine(compile_module(module, build_options({"tune": "off"})), threads=1)
    assert " dequantize(" in engine.contents.graph and " cast(" not in engine.contents.graph
    np.testing.assert_array_equal(engine(x), expected)


@pytest.mark.parametrize("case", CASES)
def test_what_is_decoded_in_float32_and_rounded_then(case: str) -> None:
    code, scale, zero = CASES[case]
    module = module_of(code, scale, zero, f32, shape=WHOLE if code.ndim == 3 else (), wide=True)
    x = np.random.default_rng(2).standard_normal((ROWS, DEPTH)).astype(bf16.numpy)
    (expected,) = interpret(module, [x])
    assert RecognizeCodedWeights().run(module, PassContext())
    assert [op.attrs["dtype"] for op in _used(module)] == [bf16]
    np.testing.assert_array_equal(interpret(module, [x])[0], expected)


def test_zero_points_of_zero_are_none() -> None:
    module = module_of(codes(i8, BLOCKED, -8, 8), scales(COLUMNS, 3, 1), np.zeros((COLUMNS, 3, 1), np.int8), shape=WHOLE)
    assert RecognizeCodedWeights().run(module, PassContext())
    assert [len(op.operands) for op in _used(module)] == [2]


GROUPED = (codes(i8, (COLUMNS, 1, DEPTH)), scales(COLUMNS, 1, 1), None)
SHAPES: dict[str, tuple[Any, ...]] = {
    "one block a channel": (GROUPED, FLAT, 0, 0),
    "an axis more": ((codes(i8, (1, *BLOCKED)), scales(1, COLUMNS, 3, 1), None), FLAT, 1, 8),
    "parts of a channel": ((codes(i8, (2, 4, DEPTH)), scales(2, 4, 1), None), FLAT, 0, 0),
    "blocks of rows": ((codes(i8, (2, 4, DEPTH)), scales(2, 1, 1), None), FLAT, 0, 4),
    "blocks of blocks": ((codes(i8, (COLUMNS, 3, 2, 4)), scales(COLUMNS, 3, 1, 1), None), FLAT, 1, 8),
    "scales of places": ((codes(i8, BLOCKED), scales(8), None), FLAT, 1, 0),
    "one scale for all": ((codes(i8, BLOCKED), scales(1), None), FLAT, None, 0),
}


@pytest.mark.parametrize("case", SHAPES)
def test_reshapes_join_axes(case: str) -> None:
    given, shape, axis, block = SHAPES[case]
    module = module_of(*given, shape=shape)
    x = np.random.default_rng(2).standard_normal((ROWS, DEPTH)).astype(np.float32)
    (expected,) = interpret(module, [x])
    assert RecognizeCodedWeights().run(module, PassContext())
    assert [(op.attrs["axis"], op.attrs["block"]) for op in _used(module)] == [(axis, block)]
    np.testing.assert_array_equal(interpret(module, [x])[0], expected)


def apart(draw: random.Random, size: int) -> list[int]:
    """Factors of a size, with ones between them."""
    found = []
    while size > 1 and draw.random() < 0.6:
        factor = draw.choice([n for n in range(2, size + 1) if size % n == 0])
        found.append(factor)
        size //= factor
    found += [size] if size > 1 else []
    for _ in range(draw.choice([0, 0, 1])):
        found.insert(draw.randint(0, len(found)), 1)
    return found


def test_drawn_shapes_of_scales_and_zero_points() -> None:
    """Whatever is joined and wherever parameters vary, what is read is what was there; both are drawn often."""
    fired = 0
    for seed in range(300):
        draw = random.Random(seed)
        before = (*apart(draw, COLUMNS), *apart(draw, DEPTH))
        vary = [draw.random() < 0.4 for _ in before]
        zeros = [size if draw.random() < 0.3 and wide else 1 for size, wide in zip(before, vary, strict=True)]
        sizes = [size if wide else 1 for size, wide in zip(before, vary, strict=True)]
        first = draw.randint(0, len(sizes)) if set(sizes) == {1} else 0
        zero = codes(u8, tuple(zeros), 0, 16) if draw.random() < 0.5 else None
        module = module_of(
            codes(u8, before, 0, draw.choice([16, 256])), scales(*sizes[first:]), zero, shape=FLAT, turned=draw.random() < 0.5
        )
        x = np.random.default_rng(seed).standard_normal((ROWS, DEPTH)).astype(np.float32)
        (expected,) = interpret(module, [x])
        fired += RecognizeCodedWeights().run(module, PassContext())
        np.testing.assert_array_equal(interpret(module, [x])[0], expected)
    assert 100 < fired < 290


@pytest.mark.parametrize("op", ["MatMul", "Conv"])
def test_what_a_transpose_or_a_reshape_stands_before(op: str) -> None:
    """As exporters write linear layers and convolutions of one place."""
    code, numbers = np.random.default_rng(0).integers(-100, 100, (512, 256)).astype(np.int8), np.full((512, 1), 0.25, np.float32)
    kept = {"w": code, "s": numbers, "shape": np.array([512, 256, 1, 1])}
    moved = ("Transpose", ["m"], {"perm": [1, 0]}) if op == "MatMul" else ("Reshape", ["m", "shape"], {})
    steps = [("Cast", ["w"], "c", {"to": 1}), ("Mul", ["c", "s"], "m", {}), (moved[0], moved[1], "t", moved[2]), (op, ["x", "t"], "y", {})]
    shape = ["B", 256] if op == "MatMul" else ["B", 256, 1, 1]
    graph = helper.make_graph(
        [helper.make_node(name, given, [made], **attrs) for name, given, made, attrs in steps],
        "g",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(array, name) for name, array in kept.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    contents = ourcc.build(model, tune="off", shape=["B=1..4"]).contents
    assert " dequantize(" in contents.graph and " cast(" not in contents.graph


LEFT: dict[str, tuple[Any, ...]] = {
    "scales along two axes": (codes(i8, FLAT), scales(COLUMNS, DEPTH), None, f32),
    "a zero point between codes": (codes(i8, FLAT), scales(COLUMNS, 1), np.array(0.5), f32),
    "a zero point that no code is": (codes(i8, FLAT), scales(COLUMNS, 1), np.array(200), f32),
    "wide codes": (codes(i32, FLAT), scales(COLUMNS, 1), None, f32),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_is_another_thing_is_left(case: str) -> None:
    module = module_of(*LEFT[case])
    before = names(module)
    assert not RecognizeCodedWeights().run(module, PassContext())
    assert names(module) == before


def test_scales_of_channels_that_vary_inside_of_blocks_are_left() -> None:
    module = module_of(codes(i8, BLOCKED), scales(COLUMNS, 1, 8), None, shape=WHOLE)
    assert not RecognizeCodedWeights().run(module, PassContext())


@pytest.mark.parametrize(("code", "zero"), list(itertools.product([(-128, 127), (0, 1)], [None, -128])))
def test_extreme_codes(code: tuple[int, int], zero: int | None) -> None:
    """The ends of i8, whose difference needs nine bits."""
    array = np.random.default_rng(3).choice(np.array(code, np.int8), FLAT)
    module = module_of(array, scales(COLUMNS, 1), None if zero is None else np.array(zero))
    x = np.random.default_rng(2).standard_normal((ROWS, DEPTH)).astype(np.float32)
    (expected,) = interpret(module, [x])
    assert RecognizeCodedWeights().run(module, PassContext())
    np.testing.assert_array_equal(interpret(module, [x])[0], expected)
    engine = Engine(compile_module(module, build_options({"tune": "off"})), threads=1)
    np.testing.assert_allclose(engine(x), expected, rtol=1e-5, atol=1e-3)
