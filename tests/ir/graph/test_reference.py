"""The reference's modes: what they round."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import Array, interpret, judge

THERE_AND_BACK = """module @m {{
  func @main(%x: f32[5]) -> f32[5] {{
    %a = cast(%x) {{dtype = {0}}} : {0}[5]
    %y = cast(%a) {{dtype = f32}} : f32[5]
    return %y
  }}
}}"""
SQUARE = """module @m {
  func @main(%x: f16[2]) -> (f16[2], f32[2]) {
    %a = mul(%x, %x) : f16[2]
    %y = cast(%a) {dtype = f32} : f32[2]
    return %a, %y
  }
}"""
QUANTIZED = """module @m {
  func @main(%x: f32[5], %s: f32[]) -> f32[5] {
    %a = quantize(%x, %s) {dtype = f8e4m3} : f8e4m3[5]
    %y = dequantize(%a, %s) {dtype = f32} : f32[5]
    return %y
  }
}"""
X = np.asarray([1e6, 3.3, -0.1, 449.0, 1e-9], np.float32)


def both(text: str, *inputs: Array) -> tuple[list[Array], list[Array]]:
    module = parse_module(text)
    return interpret(module, inputs), interpret(module, inputs, wide=True)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f8e4m3", "f8e5m2"])
def test_a_written_cast_rounds_in_both_modes(dtype: str) -> None:
    (stepwise,), (wide,) = both(THERE_AND_BACK.format(dtype), X)
    assert wide.dtype == np.float64
    np.testing.assert_array_equal(stepwise, wide)
    assert not np.array_equal(wide, X)


def test_a_quantization_rounds_and_saturates_in_both_modes() -> None:
    (stepwise,), (wide,) = both(QUANTIZED, X, np.asarray(1.0, np.float32))
    np.testing.assert_array_equal(stepwise, wide)
    assert wide.tolist()[:2] == [448.0, 3.25]


def test_an_own_rounding_is_stepwise_only() -> None:
    x = np.asarray([300.0, 0.1], np.float16)
    stepwise, wide = both(SQUARE, x)
    assert np.isinf(stepwise[0][0]) and np.isinf(stepwise[1][0])
    exact = x.astype(np.float64) ** 2
    np.testing.assert_array_equal(wide[0], exact)
    np.testing.assert_array_equal(wide[1], exact.astype(np.float32).astype(np.float64))


@pytest.mark.parametrize(
    ("got", "step", "wide", "passes"),
    [
        (30.703, np.inf, 30.6964, True),  # left wide on the way, and rounded at its end
        (31.5, np.inf, 30.6964, False),
        (np.inf, np.inf, 30.6964, True),
        (30.703, np.inf, 1e30, False),
        (np.inf, 30.703, 30.6964, False),
        (np.nan, np.inf, 30.6964, False),
        (np.inf, np.nan, 67000.0, True),  # what was left wide is no f16 at its end
        (-np.inf, np.nan, 67000.0, False),
        (np.inf, np.nan, 30.6964, False),
    ],
)
def test_either_answer_about_an_overflow_is_judged(got: float, step: float, wide: float, passes: bool) -> None:
    given, stepwise = (np.asarray([1.0, value], np.float16) for value in (got, step))
    assert judge(given, stepwise, np.asarray([1.0, wide])).passed == passes
