"""Codes that are made numbers and codes again: the same ones for every scale, sign and width; what must stay."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.reference import interpret
from ourcc.ir.types import DType, TensorType, f16, f32, f64, i8, i16, u8, u16
from ourcc.passes.rules.casts import CodeOfItself

SCALES = [1.0, 0.1, 1 / 3, 0.0078431375, 3e-30, -0.7, 1e30, float(np.finfo(np.float32).tiny), 1e-42]


def again(
    code: DType, scale: object, zero: int | None = None, wide: DType = f32, other: object = None, to: DType | None = None
) -> tuple[Module, Value]:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(code, (1 << code.bits,)))
    known = module.add_constant("scale", np.asarray(scale, np.float32))
    second = known if other is None else module.add_constant("other", np.asarray(other, np.float32))
    more = [] if zero is None else [module.add_constant("zero", np.asarray(zero).astype(code.numpy))]
    kept = [] if to is not None and to != code else more
    value = b.quantize(b.dequantize(x, known, *more, dtype=wide), second, *kept, dtype=to or code)
    graph.set_outputs([value])
    return module, value


def reason(module: Module, value: Value) -> str | None:
    assert value.op is not None
    return CodeOfItself().check(value.op, module)


@pytest.mark.parametrize("wide", [f32, f64], ids=str)
@pytest.mark.parametrize("code", [u8, i8, u16, i16], ids=str)
def test_every_code_comes_back(code: DType, wide: DType) -> None:
    every = np.arange(1 << code.bits).astype(f"u{code.bits // 8}").view(code.numpy)
    for scale in SCALES:
        for zero in (None, 0, 1, 117):
            module, value = again(code, scale, zero, wide)
            assert reason(module, value) is None, scale
            np.testing.assert_array_equal(interpret(module, [every])[0], every)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: again(u8, 0.1, other=0.2), "the scales differ"),
        (lambda: again(u8, 0.1, to=i8), "the codes differ"),
        (lambda: again(u8, 0.1, wide=f16), "floats do not hold them"),
        (lambda: again(u8, 0.0), "zero"),
        (lambda: again(u8, np.nan), "no number"),
        (lambda: again(u8, np.inf), "too large"),
        (lambda: again(u16, 1e34), "too large"),
    ],
    ids=["scale", "sign", "half", "zero", "nan", "infinite", "overflow"],
)
def test_what_stays(made: object, why: str) -> None:
    found = reason(*made())  # type: ignore[operator]
    assert found is not None and why in found
