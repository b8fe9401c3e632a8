"""Integer products: what the codes give is what the dequantized numbers mean, and where it must not fire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import interpret
from ourcc.ir.graph.text import module_text
from ourcc.ir.types import DType, TensorType, f32, i8, i32, u8
from ourcc.passes.manager import PassManager
from ourcc.passes.quantize.integer_products import IntegerProducts

Array = np.ndarray[Any, Any]
Body = Callable[[Builder, Value, "Drawn"], Value]


class Drawn:
    """Codes, scales and zero points from one seed."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(11)

    def codes(self, dtype: DType, *shape: int) -> Array:
        low, high = (0, 256) if dtype == u8 else (-128, 128)
        return self.random.integers(low, high, shape).astype(dtype.numpy)

    def scales(self, *shape: int) -> Array:
        return self.random.uniform(0.01, 0.1, shape).astype(np.float32)


def program(body: Body, dtype: DType, *shape: int) -> Module:
    module, graph = Module("m"), Graph("main")
    module.functions["main"] = graph
    x = graph.add_input("x", TensorType(dtype, shape))
    graph.set_outputs([body(Builder(module, graph), x, Drawn())], ["y"])
    return module


def linear(
    zero: int | None, weight: DType = i8, weight_zero: int = 0, depth: int = 24, transposed: bool = False, per_row: bool = False
) -> Body:
    def body(b: Builder, x: Value, drawn: Drawn) -> Value:
        scale: Any = drawn.scales(5) if per_row else np.float32(0.05)
        zeros = None if zero is None else np.full((5,) if per_row else (), zero, x.dtype.numpy)
        xf = b.dequantize(x, scale, zeros, axis=0 if per_row else None, dtype=f32)
        codes = drawn.codes(weight, 12, depth) if transposed else drawn.codes(weight, depth, 12)
        if weight == u8 and weight_zero == 128:
            codes = codes.clip(1, 255)
        wf = b.dequantize(codes, drawn.scales(12), np.full(12, weight_zero, weight.numpy), axis=0 if transposed else 1, dtype=f32)
        return b.matmul(xf, wf, transpose_b=transposed)

    return body


def image(
    zero: int | None, channels: int = 8, padding: int = 1, bias: bool = False, groups: int = 1, weight: DType = i8, apart: bool = False
) -> Body:
    """`zero` None is one that a call brings, as the first code of the image; the filters' is one, or one for each channel (`apart`)."""

    def body(b: Builder, x: Value, drawn: Drawn) -> Value:
        first = {"starts": (0,) * 4, "sizes": (1,) * 4, "steps": (1,) * 4}
        zeros = b.reshape(b.slice(x, **first), shape=()) if zero is None else np.asarray(zero, x.dtype.numpy)
        xf = b.dequantize(x, np.float32(0.03), zeros, dtype=f32)
        others = None if weight == i8 else drawn.codes(weight, 6) if apart else np.asarray(117, weight.numpy)
        wf = b.dequantize(drawn.codes(weight, 6, channels // groups, 3, 3), drawn.scales(6), others, axis=0, dtype=f32)
        attrs = {"strides": (2, 1), "dilations": (1, 1), "before": (padding, 0), "after": (0, padding), "groups": groups}
        return b.conv(xf, wf, drawn.scales(6) if bias else None, **attrs)

    return body


def shifted(zero: int, rank: int = 0) -> Body:
    def body(b: Builder, x: Value, drawn: Drawn) -> Value:
        wide = b.sub(b.cast(x, dtype=i32), np.full((1,) * rank, zero, np.int32)) if zero else b.cast(x, dtype=i32)
        return b.matmul(wide, b.cast(drawn.codes(i8, x.shape[-1], 12), dtype=i32))

    return body


def folded(weight_zero: int) -> Body:
    """Codes of weights that are written less their zero points, as a constant of 32 bits."""

    def body(b: Builder, x: Value, drawn: Drawn) -> Value:
        wide = b.sub(b.cast(x, dtype=i32), np.int32(7))
        return b.matmul(wide, drawn.codes(u8, x.shape[-1], 12).astype(np.int32) - weight_zero)

    return body


def apart(rows: tuple[int, ...], columns: tuple[int, ...], fits: bool = True, transposed: bool = False) -> Body:
    """Integers less zero points that vary along an axis of the left or of the right factor, or of both."""

    def body(b: Builder, x: Value, drawn: Drawn) -> Value:
        depth = x.shape[-1]
        low, high = (-100, -28) if x.dtype == i8 else (100, 156)
        left = drawn.random.integers(low, high, rows).astype(np.int32)
        codes = drawn.codes(u8, 12, depth) if transposed else drawn.codes(u8, depth, 12)
        codes = codes.clip(70, 190) if fits else codes
        right = b.cast(drawn.random.integers(100, 130, columns).astype(np.uint8), dtype=i32)
        return b.matmul(b.sub(b.cast(x, dtype=i32), left), b.sub(b.cast(codes, dtype=i32), right), transpose_b=transposed)

    return body


def filters_apart(zero: int) -> Body:
    """Filters less a zero point for each, and an image less one."""

    def body(b: Builder, x: Value, drawn: Drawn) -> Value:
        wide = b.sub(b.cast(x, dtype=i32), np.int32(zero))
        filters = b.sub(b.cast(drawn.codes(u8, 6, 8, 3, 3), dtype=i32), drawn.random.integers(90, 160, (6, 1, 1, 1)).astype(np.int32))
        return b.conv(wide, filters, None, strides=(1, 1), dilations=(1, 1), before=(1, 1), after=(1, 1), groups=1)

    return body


def mixed(left: bool, scales: float = 0.05) -> Body:
    """One scale, and a zero point for each row or each column."""

    def body(b: Builder, x: Value, drawn: Drawn) -> Value:
        rows = drawn.codes(x.dtype, x.shape[0]) if left else np.asarray(3, x.dtype.numpy)
        columns = np.zeros((), np.int8) if left else (np.arange(12) % 5 - 2).astype(np.int8)
        xf = b.dequantize(x, np.float32(scales), rows, axis=0 if left else None, dtype=f32)
        codes = drawn.codes(i8, 24, 12) // 2
        return b.matmul(xf, b.dequantize(codes, np.float32(scales), columns, axis=None if left else 1, dtype=f32))

    return body


def one_row(b: Builder, x: Value, drawn: Drawn) -> Value:
    """A scale and a zero point for each of one row."""
    xf = b.dequantize(x, np.full(1, 0.5, np.float32), np.full(1, 9, x.dtype.numpy), axis=0, dtype=f32)
    return b.matmul(xf, b.dequantize(drawn.codes(i8, 24, 12), np.float32(0.5), dtype=f32))


CASES: dict[str, tuple[Body, DType, tuple[int, ...]]] = {
    "symmetric": (linear(None), i8, (5, 24)),
    "zero point": (linear(131), u8, (5, 24)),
    "signed zero point": (linear(-7), i8, (5, 24)),
    "a scale and a zero point for each row": (linear(9, per_row=True), u8, (5, 24)),
    "transposed weight": (linear(3, transposed=True), u8, (5, 24)),
    "unsigned weight around 128": (linear(3, weight=u8, weight_zero=128), u8, (5, 24)),
    "depth that is no multiple of four": (linear(200, depth=21), u8, (5, 21)),
    "one scale, zero points for each row": (mixed(left=True), u8, (5, 24)),
    "one scale, zero points for each column": (mixed(left=False), u8, (5, 24)),
    "one row that has its own": (one_row, u8, (1, 24)),
    "scales whose product has few digits": (mixed(left=False, scales=1e-20), i8, (5, 24)),
    "batches": (linear(77), u8, (2, 5, 24)),
    "image": (image(0), u8, (2, 8, 9, 7)),
    "image padded with its zero point": (image(128), u8, (2, 8, 9, 7)),
    "signed image": (image(-3, bias=True), i8, (2, 8, 9, 7)),
    "groups": (image(77, groups=2), u8, (2, 8, 9, 7)),
    "three channels": (image(114, channels=3), u8, (1, 3, 9, 7)),
    "groups of two channels": (image(77, channels=6, groups=3), u8, (2, 6, 9, 7)),
    "groups of one channel": (image(-9, channels=6, groups=6, bias=True), i8, (2, 6, 9, 7)),
    "groups of one channel for two results": (image(0, channels=3, groups=3), u8, (2, 3, 9, 7)),
    "padded with what a call brings": (image(None), u8, (2, 8, 9, 7)),
    "padded with what a call brings, for each channel": (image(None, channels=6, groups=6), i8, (2, 6, 9, 7)),
    "zero points that do not fit": (linear(3, weight=u8, weight_zero=7), u8, (5, 24)),
    "zero points that do not fit, fours": (linear(200, weight=u8, weight_zero=140, depth=21), u8, (5, 21)),
    "signed zero points that do not fit": (linear(None, weight=i8, weight_zero=-100), i8, (5, 24)),
    "filters whose zero point does not fit": (image(140, weight=u8), u8, (2, 8, 9, 7)),
    "filters whose zero points do not fit": (image(-3, weight=u8, apart=True, bias=True), i8, (2, 8, 9, 7)),
    "three channels, zero points that do not fit": (image(9, channels=3, weight=u8), u8, (2, 3, 9, 7)),
    "groups, zero points that do not fit": (image(None, groups=2, weight=u8, apart=True), u8, (2, 8, 9, 7)),
    "groups of one, zero points that do not fit": (image(9, channels=6, groups=6, weight=u8, apart=True), u8, (2, 6, 9, 7)),
    "a constant of 32 bits": (folded(128), u8, (5, 24)),
    "a constant of 32 bits that does not fit": (folded(30), u8, (5, 21)),
    "integers": (shifted(0), u8, (5, 24)),
    "integers, a zero point for each column": (apart((), (12,)), u8, (5, 24)),
    "integers, a zero point for each column that does not fit": (apart((1, 1), (1, 12), fits=False), i8, (5, 21)),
    "integers, a zero point for each column of a turned factor": (apart((), (12, 1), transposed=True), u8, (5, 24)),
    "integers, a zero point for each row": (apart((5, 1), ()), u8, (5, 24)),
    "integers, a zero point for each row and column": (apart((5, 1), (12,), fits=False), i8, (2, 5, 24)),
    "integers, a zero point for each matrix": (apart((2, 1, 1), (1,)), u8, (2, 5, 21)),
    "filters less a zero point for each": (filters_apart(117), u8, (2, 8, 9, 7)),
    "integers with a zero point": (shifted(120), u8, (5, 24)),
}


@pytest.mark.parametrize("codes", ["u8", "i8"])
@pytest.mark.parametrize("name", CASES)
def test_the_codes_give_what_the_numbers_mean(name: str, codes: str) -> None:
    body, dtype, shape = CASES[name]
    before, after = program(body, dtype, *shape), program(body, dtype, *shape)
    (record,) = PassManager([IntegerProducts(codes)], strict=True).run(after)
    assert record.changed
    products = [op for op in after.main if op.name in ("matmul", "conv")]
    assert [(operand.dtype.name if operand is not None else "") for operand in products[0].operands[:2]] == [codes, "i8"]
    assert products[0].result.dtype == i32
    x = Drawn().codes(dtype, *shape)
    (got,), (expected,) = interpret(after, [x]), interpret(before, [x], wide=True)
    magnitude = np.abs(expected).max()
    # The sums are exact: what is left are the roundings of two products of floats and of one sum.
    assert np.abs(got.astype(np.float64) - expected).max() <= (0 if got.dtype.kind == "i" else 4 * 2.0**-24 * magnitude)


def test_signs_change_where_codes_are_made() -> None:
    def body(b: Builder, x: Value, drawn: Drawn) -> Value:
        scale, zero = np.float32(0.05), np.asarray(-4, np.int8)
        codes = b.quantize(x, scale, zero, dtype=i8)
        wf = b.dequantize(drawn.codes(i8, 24, 12), drawn.scales(12), axis=1, dtype=f32)
        return b.matmul(b.dequantize(codes, scale, zero, dtype=f32), wf)

    module = program(body, f32, 5, 24)
    PassManager([IntegerProducts("u8")], strict=True).run(module)
    text = module_text(module)
    assert text.count("quantize(") == 1 and "dtype = u8" in text
    random = np.random.default_rng(0)
    x = random.standard_normal((5, 24)).astype(np.float32)
    np.testing.assert_allclose(interpret(module, [x])[0], interpret(program(body, f32, 5, 24), [x])[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "dtype", "shape"),
    [
        (linear(3, weight=u8, weight_zero=7, depth=16_449), u8, (5, 16_449)),
        (folded(300), u8, (5, 24)),
        (lambda b, x, drawn: b.matmul(b.dequantize(x, np.float32(1), dtype=f32), drawn.scales(24, 12)), u8, (5, 24)),
        (
            lambda b, x, drawn: b.matmul(
                b.dequantize(x, drawn.scales(24), axis=1, dtype=f32), b.dequantize(drawn.codes(i8, 24, 12), np.float32(1), dtype=f32)
            ),
            u8,
            (5, 24),
        ),
        (
            lambda b, x, drawn: b.matmul(
                b.dequantize(x, np.float32(1), dtype=f32), b.dequantize(drawn.codes(i8, 24, 12), drawn.scales(24), axis=0, dtype=f32)
            ),
            u8,
            (5, 24),
        ),
        (
            lambda b, x, drawn: b.matmul(
                b.dequantize(x, np.float32(np.inf), dtype=f32), b.dequantize(drawn.codes(i8, 24, 12), np.float32(1), dtype=f32)
            ),
            u8,
            (5, 24),
        ),
        (linear(None, depth=65_797), u8, (5, 65_797)),
        (image(0, channels=3 * 58, groups=3), u8, (2, 3 * 58, 9, 7)),
        (shifted(100_000), u8, (5, 21)),
        (shifted(3, rank=3), u8, (5, 24)),
        (apart((24,), ()), u8, (5, 24)),
        (apart((), (24, 1)), u8, (5, 24)),
        (apart((5, 24), ()), u8, (5, 24)),
        (apart((), (24, 12)), u8, (5, 24)),
    ],
    ids=[
        "zero points that do not fit, and sums that may not",
        "integers of more than 9 bits",
        "a float weight",
        "scales along the left sum",
        "scales along the right sum",
        "infinite scale",
        "sums beyond 32 bits",
        "groups whose sums floats may round",
        "a zero point that is no code",
        "a zero point with more dimensions",
        "zero points along the left sum",
        "zero points along the right sum",
        "zero points of single numbers on the left",
        "zero points of single numbers on the right",
    ],
)
def test_where_it_must_not_fire(body: Body, dtype: DType, shape: tuple[int, ...]) -> None:
    module = program(body, dtype, *shape)
    before = module_text(module)
    (record,) = PassManager([IntegerProducts()], strict=True).run(module)
    assert not record.changed and module_text(module) == before


def test_it_is_read_back() -> None:
    module = program(*CASES["zero point"][:2], *CASES["zero point"][2])
    PassManager([IntegerProducts()], strict=True).run(module)
    again = parse_module(module_text(module), {name: value.constant.array for name, value in module.constants.items() if value.constant})
    assert module_text(again) == module_text(module)
