"""Small ONNX models for the importer's tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

# What quantizes models is shared with the drawn tests.
sys.path.insert(0, str(Path(__file__).parents[3] / "property"))

Shape = Sequence[int | str | None]


def build_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Shape | None]],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    opset: int = 21,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [
            value if isinstance(value, TensorProto) else numpy_helper.from_array(np.asarray(value), name)
            for name, value in (constants or {}).items()
        ],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, version) for domain, version in (domains or {}).items())]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


@pytest.fixture
def model() -> Callable[..., onnx.ModelProto]:
    return build_model
