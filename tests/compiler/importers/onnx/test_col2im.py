"""Col2Im in its three ways, on drawn blocks, against the onnx package's evaluator: ONNX Runtime differs beside two axes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ourcc.compiler.importers.onnx import import_onnx
from ourcc.ir.graph.reference import interpret


def drawn(seed: int, way: str) -> tuple[list[int], list[int], list[int], list[int], list[int], list[int]]:
    """Image, block, strides, dilations, pads and how many blocks."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    block = [int(n) for n in rng.integers(1, 5, rank)]
    strides, dilations = [int(n) for n in rng.integers(1, 4, rank)], [int(n) for n in rng.integers(1, 3, rank)]
    if way == "side by side":
        strides, dilations = list(block), [1] * rank
    if way == "scattered":
        block[0] = 70
    pads = [int(n) for n in rng.integers(0, 3, 2 * rank)]
    around = [pads[a] + pads[a + rank] for a in range(rank)]
    image = [max(1, dilations[a] * (block[a] - 1) + 1 - around[a]) + int(rng.integers(0, 9)) for a in range(rank)]
    counts = [(image[a] + around[a] - dilations[a] * (block[a] - 1) - 1) // strides[a] + 1 for a in range(rank)]
    return image, block, strides, dilations, pads, counts


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("way", ["added", "side by side", "scattered"])
def test_blocks_are_laid_over_an_image(seed: int, way: str) -> None:
    image, block, strides, dilations, pads, counts = drawn(seed, way)
    x = np.random.default_rng(seed).standard_normal((2, 3 * int(np.prod(block)), int(np.prod(counts)))).astype(np.float32)
    node = helper.make_node("Col2Im", ["x", "image", "block"], ["y"], strides=strides, dilations=dilations, pads=pads)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)
    held = [numpy_helper.from_array(np.array(sizes, np.int64), name) for name, sizes in (("image", image), ("block", block))]
    graph = helper.make_graph([node], "g", [given], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    (got,) = interpret(import_onnx(model), [x])
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
