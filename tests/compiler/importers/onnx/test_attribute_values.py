"""Attributes that are numbers, at 0, below it, at the ends of f32 and beyond: right, or refused by their name."""

from __future__ import annotations

import math

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ourcc
from ourcc.compiler.importers.onnx import import_onnx
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import simplify
from ourcc.ir.graph.reference import interpret

MICROSOFT = "com.microsoft"
VALUES = [-0.3, 0.0, -0.0, 1e-45, 1e38, -1e38, math.inf, -math.inf, math.nan]
RANDOM = np.random.default_rng(0)


def floats(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


X, Q, K, V = floats(1, 4, 6, 6), floats(1, 3, 8), floats(1, 5, 8), floats(1, 5, 8)
GROUPED = [Q, floats(1, 3, 4), floats(1, 3, 4), floats(1, 1, 0, 4), floats(1, 1, 0, 4), np.array([2], np.int32), np.array(3, np.int32)]
HEADS = {"q_num_heads": 2, "kv_num_heads": 2}
CASES = {
    "Attention": ("", 23, HEADS, [Q, K, V], ["scale"]),
    "Attention with a cap": ("", 23, {**HEADS, "softcap": 2.0}, [Q, K, V], ["scale", "softcap"]),
    "MultiHeadAttention": (MICROSOFT, 17, {"num_heads": 2}, [Q, K, V], ["scale"]),
    "GroupQueryAttention": (MICROSOFT, 17, {"num_heads": 2, "kv_num_heads": 1}, GROUPED, ["scale"]),
    "GroupQueryAttention with a cap": (MICROSOFT, 17, {"num_heads": 2, "kv_num_heads": 1, "softcap": 2.0}, GROUPED, ["scale", "softcap"]),
    "LRN": ("", 17, {"size": 3}, [X], ["alpha", "beta", "bias"]),
    "Celu": ("", 17, {}, [X], ["alpha"]),
    "Elu": ("", 17, {}, [X], ["alpha"]),
    "Selu": ("", 17, {}, [X], ["alpha", "gamma"]),
    "HardSigmoid": ("", 17, {}, [X], ["alpha", "beta"]),
    "Shrink": ("", 17, {}, [X], ["lambd", "bias"]),
    "Clip": ("", 6, {}, [X], ["min", "max"]),
    "Gemm": ("", 17, {}, [floats(3, 4), floats(4, 2), floats(2)], ["alpha", "beta"]),
    "BatchNormalization": ("", 17, {}, [X, *(floats(4) for _ in range(3)), np.abs(floats(4))], ["epsilon"]),
    "InstanceNormalization": ("", 17, {}, [X, floats(4), floats(4)], ["epsilon"]),
    "LayerNormalization": ("", 17, {}, [X, floats(6), floats(6)], ["epsilon"]),
    "QuickGelu": (MICROSOFT, 17, {}, [X], ["alpha"]),
    "FusedMatMul": (MICROSOFT, 17, {}, [floats(3, 4), floats(4, 2)], ["alpha"]),
}


def answer(what, **attributes):
    """What the node gives after the passes."""
    domain, opset, usual, operands, _ = CASES[what]
    names = [f"x{n}" for n in range(len(operands))]
    outputs = ["y", "k", "v"] if what.startswith("Group") else ["y"]
    node = helper.make_node(what.partition(" ")[0], names, outputs, domain=domain, **{**usual, **attributes})
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in zip(names, operands, strict=True)
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    module = import_onnx(helper.make_model(graph, opset_imports=imports, ir_version=10))
    simplify(module, build_options({"targets": ["x86-64-v3"]}))
    with np.errstate(all="ignore"):
        return interpret(module, operands)[0]


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(("what", "name"), [(what, name) for what, case in CASES.items() for name in case[-1]])
def test_any_number_is_taken_or_refused_by_name(what, name):
    for value in VALUES:
        try:
            found = answer(what, **{name: value})
        except ourcc.ModelError as error:
            assert f"{name} is {value}, expected" in error.message and not math.isfinite(value)
            continue
        assert found.dtype == np.float32
        if (math.isfinite(value) and name == "softcap") or (abs(value) < 1 and name == "scale"):
            assert np.isfinite(found).all()


@pytest.mark.parametrize("what", [what for what in CASES if "Attention" in what])
@pytest.mark.parametrize("scale", [-0.3, -2.0, 0.25, 1e-30, 0.0])
def test_scores_are_multiplied_by_any_scale(what, scale):
    """Against the definition in f64; ONNX Runtime refuses some of these. A scale of 0 asks its own ops for the usual one."""
    domain, _, attributes, operands, _ = CASES[what]
    q, k, v = (each.astype(np.float64) for each in operands[:3])
    q = q.reshape(3, 2, 4).swapaxes(0, 1)
    k, v = (each.reshape(each.shape[1], -1, 4).swapaxes(0, 1) for each in (k, v))
    scores = q @ k.swapaxes(1, 2) * (0.5 if scale == 0 and domain else scale)
    scores = 2 * np.tanh(scores / 2) if attributes.get("softcap") else scores
    scores = np.where(np.tri(3) == 1, scores, -np.inf) if what.startswith("Group") else scores
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    expected = (weights / weights.sum(axis=2, keepdims=True)) @ v
    np.testing.assert_allclose(answer(what, scale=scale), expected.swapaxes(0, 1).reshape(1, 3, 8), atol=1e-5)


@pytest.mark.parametrize("what", ["Attention with a cap", "GroupQueryAttention with a cap"])
@pytest.mark.parametrize("cap", [-3.0, -math.inf, math.nan, 0.0])
def test_a_cap_that_is_not_above_0_is_none(what, cap):
    np.testing.assert_allclose(answer(what, softcap=cap), answer(what.partition(" ")[0]), atol=1e-5)


@pytest.mark.parametrize("edge", [math.inf, math.nan, -1.0])
def test_edges_of_bands_are_numbers(edge):
    node = helper.make_node("MelWeightMatrix", ["n", "l", "r", "low", "high"], ["w"])
    given = {"n": np.int64(4), "l": np.int64(16), "r": np.int64(8000), "low": np.float32(0), "high": np.float32(edge)}
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in given.items()]
    add = helper.make_node("Add", ["w", "x"], ["y"])
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [9, 4])]
    graph = helper.make_graph([node, add], "g", inputs, [helper.make_empty_tensor_value_info("y")], constants)
    with pytest.raises(ourcc.ModelError, match="got 4 bands of 16 points at 8000 from 0 to"):
        import_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
