"""Where pools find their elements: windows of infinities and NaNs, in which padding takes no part."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch.nn import functional as F

import ourcc
from ourcc.compiler.importers.torch.export import import_exported
from ourcc.compiler.importers.torch.tensors import array_of
from ourcc.compiler.torch import backend
from ourcc.ir.graph.reference import interpret

LOW = float("-inf")
ODD = (lambda u, x: torch.where(u < 0.8, LOW, x), lambda u, x: torch.where(u < 0.4, float("nan"), torch.where(u < 0.8, LOW, x)))
EVEN = (lambda u, x: torch.full_like(x, LOW), lambda u, x: torch.full_like(x, float("nan")), lambda u, x: x)


class Pool(torch.nn.Module):
    """A pool of drawn geometry."""

    def __init__(self, draw: random.Random, rank: int) -> None:
        super().__init__()
        window = [draw.randint(1, 4) for _ in range(rank)]
        padding = [draw.randint(0, size // 2) for size in window]
        strides, dilations = [draw.randint(1, 3) for _ in window], [draw.randint(1, 2) for _ in window]
        self.arguments: Any = (window, strides, padding, dilations, draw.random() < 0.3, True)
        self.function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, *self.arguments)


@pytest.mark.parametrize("seed", range(60))
def test_places_are_those_of_eager(seed: int) -> None:
    draw = random.Random(seed)
    rank = draw.randint(1, 3)
    model = Pool(draw, rank)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 2, *(draw.randint(7, 9) for _ in range(rank)), generator=generator)
    x = draw.choice((*ODD, *EVEN))(torch.rand(x.shape, generator=generator), x)
    expected = [array_of(part) for part in model(x)]
    module = import_exported(torch.export.export(model, (x,), strict=False))
    results = [interpret(module, [array_of(x)])]
    if seed % 6 == 0:
        torch._dynamo.reset()
        results.append([array_of(part) for part in torch.compile(model, backend=backend.ourcc)(x)])
    for result in results:
        for got, wanted in zip(result, expected, strict=True):
            assert np.array_equal(got, wanted, equal_nan=True)


@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_places_of_an_onnx_pool_leave_the_padding_out(dtype: Any) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[3], strides=[1], pads=[1, 1])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", kind, [1, 1, 5])],
        [helper.make_tensor_value_info("y", kind, [1, 1, 5]), helper.make_tensor_value_info("i", TensorProto.INT64, [1, 1, 5])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)
    onnx.checker.check_model(model)
    lowest = LOW if dtype is np.float32 else -128
    engine = ourcc.build(model, targets=["cpu"])
    _, places = engine(np.full((1, 1, 5), lowest, dtype=dtype))
    assert places.reshape(-1).tolist() == [0, 0, 1, 2, 3]
