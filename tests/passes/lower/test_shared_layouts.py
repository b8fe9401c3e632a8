"""Constants that several kernels read: one memory order for all, where a second copy would not pay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import ourcc
from ourcc.ir.plan import Launch
from ourcc.ir.plan.storage import Constant

RANDOM = np.random.default_rng(3)


def tied(words: int, rows: int) -> tuple[ModelProto, np.ndarray[Any, Any]]:
    """An embedding of `words` that is the weight of a product as well; `rows` of it are looked up."""
    weight = RANDOM.standard_normal((words, 48)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["w", "ids"], ["rows"]),
        helper.make_node("Gemm", ["x", "w"], ["logits"], transB=1),
    ]
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, [rows]),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 48]),
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("rows", "logits")]
    graph = helper.make_graph(nodes, "tied", inputs, outputs, [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), weight


def layouts(engine: ourcc.Engine) -> set[str]:
    """The layouts in which an engine's kernels read the embedding."""
    plan = engine.contents.best.plan
    read = {name for step in plan.steps if isinstance(step, Launch) for variant in step.variants for name in variant.arguments}
    held = (plan.named[name].storage for name in read)
    return {str(storage.layout) for storage in held if isinstance(storage, Constant) and storage.value == "w"}


@pytest.mark.parametrize("words", [8192, 8191])
def test_rows_are_looked_up_in_the_panels_of_the_product(words: int) -> None:
    model, weight = tied(words, 4)
    engine = ourcc.build(model, targets=["native"])
    assert layouts(engine) == {"d0/16 d1 d0%16"}
    ids = np.array([words - 1, 5, -1, 16])
    rows, logits = engine(ids, np.eye(4, 48, dtype=np.float32))
    np.testing.assert_array_equal(rows, weight[ids])
    np.testing.assert_array_equal(logits, weight[:, :4].T)


def test_a_second_copy_is_kept_where_it_pays() -> None:
    model, weight = tied(64, 100_000)
    engine = ourcc.build(model, targets=["native"])
    assert layouts(engine) == {"None", "d0/16 d1 d0%16"}
    ids = RANDOM.integers(-64, 64, 100_000)
    np.testing.assert_array_equal(engine(ids, weight[:4])[0], weight[ids])
