"""Codes that are read back in the kernel that makes them: the same numbers, nothing packed; what lies between kernels stays a code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module, stage_text
from ourcc.ir.expression import Apply, Constant
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.reference import interpret
from ourcc.ir.region import Load, Scalar
from ourcc.ir.types import DType, TensorType, f32, i8, i16, i32, u8
from ourcc.passes.regions.round_trips import without_code
from ourcc.runtime.engine import Engine

CODES = [u8, i8, i16]


def chain(dtype: DType, zero: int | None, read: Callable[[Builder, Value, Value], Value]) -> Module:
    """x as a code, and what is read of it."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(f32, (40, 50)))
    more = [] if zero is None else [module.add_constant("z", np.asarray(zero, dtype.numpy))]
    code = b.quantize(x, module.add_constant("s", np.float32(0.1)), *more, dtype=dtype)
    graph.set_outputs([read(b, code, b.dequantize(code, module.add_constant("t", np.float32(0.3)), *more, dtype=f32))])
    return module


@pytest.mark.parametrize("zero", [None, 0, 7, -5])
@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_numbers_are_those_of_their_codes(dtype: DType, zero: int | None) -> None:
    if zero is not None and zero < 0 and dtype == u8:
        zero = 250
    x = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32) * 30
    x[0, :6] = (np.inf, -np.inf, 1e30, -1e30, 0.05, -0.0)
    module = chain(dtype, zero, lambda b, code, number: b.add(number, b.tanh(number)))
    engine = Engine(compile_module(module, build_options({"target": "native", "tune": "off"})), threads=1)
    (expected,) = interpret(module, [x])
    np.testing.assert_allclose(np.asarray(engine(x)), expected, rtol=1e-6, atol=1e-6)
    text = stage_text(chain(dtype, zero, lambda b, code, number: b.tanh(number)), build_options({"target": "native"}), "tiles")
    assert f": {dtype}[" not in text.split("store")[1] and ": i32" not in text


def test_a_code_that_the_caller_gets_is_stored_as_one() -> None:
    module = chain(u8, 3, lambda b, code, number: code)
    x = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32) * 30
    (answer,) = interpret(module, [x])
    np.testing.assert_array_equal(np.asarray(Engine(compile_module(module, build_options({"tune": "off"})), threads=1)(x)), answer)


def apply(primitive: str, *args: Scalar, dtype: DType = f32) -> Apply[Scalar]:
    return Apply(primitive, args, dtype)


def read(whole: Scalar, code: DType = u8, zero: Scalar | None = None) -> Scalar:
    """An expression that is made a code, and its number."""
    number: Scalar = apply("cast", apply("cast", whole, dtype=code), dtype=i32)
    return apply("cast", number if zero is None else apply("sub", number, zero, dtype=i32))


def held(value: Scalar, low: float = 0.0, high: float = 255.0) -> Scalar:
    return apply("min", apply("max", value, Constant(low, f32)), Constant(high, f32))


def test_what_is_no_whole_number_in_range_stays_a_code() -> None:
    x, z = Load("x", (0,), f32), Load("z", (), u8)
    whole = held(apply("round_even", x))
    assert without_code(read(whole)) == whole
    wide = apply("cast", z, dtype=i32)
    assert without_code(read(whole, zero=wide)) == apply("sub", whole, apply("cast", z))
    moved = held(apply("add", apply("round_even", x), apply("cast", z)))
    assert without_code(read(moved)) == moved
    for other in (
        read(held(x)),
        read(held(apply("round_even", x), high=256.0)),
        read(held(apply("round_even", x), low=-1.0)),
        read(held(apply("round_even", x), high=254.5)),
        read(held(apply("add", apply("round_even", x), Load("y", (0,), f32)))),
        read(apply("round_even", x)),
        read(whole, zero=Load("y", (0,), i32)),
        read(whole, code=i32),
        apply("cast", read(whole), dtype=i32),
    ):
        assert without_code(other) == other
