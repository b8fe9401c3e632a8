"""int8 weights: rounding, which weights are taken and why others are not, what the graph says afterwards."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.reference import interpret
from ourcc.ir.graph.text import module_text
from ourcc.ir.types import TensorType, f16, f32
from ourcc.passes.base import PassContext
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline
from ourcc.passes.quantize.int8_weight import QuantizeInt8Weight, quantized, why_not
from ourcc.passes.weights.weights import weight_of


def started(*shape: int) -> tuple[Module, Builder]:
    module = Module("m")
    graph = module.functions["main"] = Graph("main")
    graph.add_input("x", TensorType(f32, shape))
    return module, Builder(module, graph)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def finished(module: Module, b: Builder, *values: object) -> Module:
    b.graph.set_outputs(list(values))
    PassManager(parse_pipeline("quantize_int8_weight, eliminate_dead_code"), strict=True).run(module)
    return module


@pytest.mark.parametrize("channel", [0, 1, -1])
def test_each_weight_is_rounded_to_the_nearest_step_of_its_channel(channel: int) -> None:
    weights = random(6, 10) * np.float32(10.0) ** np.arange(-3, 3)[:, None].astype(np.float32)
    codes, scales = quantized(weights, channel % 2)
    spread = scales[:, None] if channel % 2 == 0 else scales[None]
    assert codes.dtype == np.int8 and scales.dtype == np.float32 and scales.shape == (weights.shape[channel],)
    assert np.abs(codes).max(axis=1 - channel % 2).tolist() == [127] * len(scales)
    assert (np.abs(codes * spread - weights) <= spread * 0.5001).all()


def test_channels_without_values_and_with_tiny_ones() -> None:
    codes, scales = quantized(np.asarray([[0.0, 0.0], [1e-44, -1e-44], [2.0, -1.0]], np.float32), 0)
    assert np.isfinite(scales).all() and scales[0] == 1
    assert codes.tolist() == [[0, 0], [0, 0], [127, -64]]
    codes, scales = quantized(np.zeros((0, 4), np.float32), 0)
    assert codes.shape == (0, 4) and scales.shape == (0,)


@pytest.mark.parametrize(("transposed", "channel"), [(False, 1), (True, 0)])
def test_a_matmul_reads_its_weight_dequantized(transposed: bool, channel: int) -> None:
    module, b = started(3, 8)
    w = module.add_constant("w", random(5, 8) if transposed else random(8, 5))
    finished(module, b, b.matmul(b.graph.inputs[0], w, transpose_b=transposed))
    dequantize, matmul = module.main
    assert (dequantize.name, matmul.name) == ("dequantize", "matmul")
    assert dequantize.attrs["axis"] == channel and matmul.operands[1] is dequantize.result
    assert sorted(module.constants) == ["w.int8", "w.scale"]
    assert str(module.constants["w.int8"].type.dtype) == "i8" and module.constants["w.scale"].shape == (5,)
    assert "dequantize(@w.int8, @w.scale)" in module_text(module)
    x = random(3, 8)
    (got,) = interpret(module, [x])
    w8, scale = module.constants["w.int8"].constant, module.constants["w.scale"].constant
    assert w8 is not None and scale is not None
    dense = w8.array * (scale.array[:, None] if transposed else scale.array)
    np.testing.assert_allclose(got, x @ (dense.T if transposed else dense), rtol=1e-5, atol=1e-6)
    assert not QuantizeInt8Weight().run(module, PassContext())


def test_a_convolution_has_a_scale_for_each_output_channel() -> None:
    module, b = started(1, 4, 5, 5)
    w = module.add_constant("w", random(6, 4, 3, 3))
    finished(module, b, b.conv(b.graph.inputs[0], w, None, strides=(1, 1), dilations=(1, 1), before=(0, 0), after=(0, 0)))
    assert module.constants["w.scale"].shape == (6,) and [op.name for op in module.main] == ["dequantize", "conv"]


def test_a_weight_of_two_layers_is_stored_once() -> None:
    module, b = started(3, 8)
    w = module.add_constant("w", random(8, 8))
    finished(module, b, b.matmul(b.matmul(b.graph.inputs[0], w), w))
    assert sorted(module.constants) == ["w.int8", "w.scale"] and [op.name for op in module.main].count("dequantize") == 2


def test_kept_values_are_quantized_below_their_expansion() -> None:
    module, b = started(3, 8)
    b.graph.set_outputs([b.matmul(b.graph.inputs[0], module.add_constant("w", random(8, 5)))])
    PassManager(parse_pipeline("sparsify_two_four, quantize_int8_weight, eliminate_dead_code"), strict=True).run(module)
    assert [op.name for op in module.main] == ["decode", "dequantize", "matmul"]
    assert sorted(module.constants) == ["w.kept.int8", "w.kept.scale", "w.places"]
    assert module.constants["w.kept.int8"].shape == (4, 5)


def test_a_narrow_float_stays_the_type_of_the_product() -> None:
    module = Module("m")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(f16, (2, 8)))
    finished(module, b, b.matmul(x, module.add_constant("w", random(8, 4).astype(np.float16))))
    assert [str(op.result.type) for op in module.main] == ["f16[8, 4]", "f16[2, 4]"]


def test_why_a_weight_stays() -> None:
    def reason(values: np.ndarray, also: str = "") -> str | None:
        module, b = started(3, 4)
        w = module.add_constant("w", values)
        result = b.matmul(b.graph.inputs[0], w)
        others = {
            "": [],
            "exp": [b.exp(w)],
            "other axis": [b.matmul(b.graph.inputs[0], w, transpose_b=True)],
            "both sides": [b.matmul(w, w)],
        }
        b.graph.set_outputs([result, *others[also]])
        PassManager(parse_pipeline("eliminate_dead_code")).run(module)
        op = result.op
        assert op is not None
        weight = weight_of(op)
        assert weight is not None
        found = why_not(weight)
        if found is None:
            QuantizeInt8Weight().run(module, PassContext())
            again = weight_of(op)
            assert again is not None
            return why_not(again)
        assert not QuantizeInt8Weight().run(module, PassContext())
        return found

    broken = random(4, 4)
    broken[1, 2] = np.nan
    assert reason(random(4, 4)) == "the weight is quantized already, to i8"
    assert reason(broken) == "the weight holds infinities or NaN"
    assert reason(np.full((4, 4), 1e-39, np.float32)) == "the largest scale is 7.87e-42, which f32 does not hold"
    assert reason(random(4, 4), "exp") == "the weight is also read by exp, and would be stored twice"
    for other in ("other axis", "both sides"):
        assert reason(random(4, 4), other) == "the weight is also read by matmul, and would be stored twice"


def test_integers_and_missing_values_stay() -> None:
    from ourcc.ir.graph import ConstantData
    from ourcc.ir.types import i8

    module = Module("m")
    b = Builder(module, module.functions.setdefault("main", Graph("main")))
    x8, x = b.graph.add_input("a", TensorType(i8, (2, 4))), b.graph.add_input("b", TensorType(f32, (2, 4)))
    integers = b.matmul(x8, module.add_constant("w", np.ones((4, 3), np.int8)))
    missing = b.matmul(x, module.add_constant("v", ConstantData(load=lambda: random(4, 3), available=False), type=TensorType(f32, (4, 3))))
    b.graph.set_outputs([integers, missing])
    reasons = [why_not(weight) for op in b.graph if (weight := weight_of(op)) is not None]
    assert reasons == ["the weight is i8, expected a float", "the values of the weight are not given"]
    assert not QuantizeInt8Weight().run(module, PassContext())


def test_products_of_inputs_have_no_weight() -> None:
    _, b = started(4, 4)
    x = b.graph.inputs[0]
    b.graph.set_outputs([b.matmul(x, x)])
    assert [weight_of(op) for op in b.graph] == [None]
