"""Results that a model reads for their size alone: what finds the size stays, whatever op it is."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, parser

from ourcc.compiler.api import build
from ourcc.compiler.importers.onnx import import_onnx
from ourcc.ir.graph.reference import interpret
from ourcc.ir.graph.verify import verify

X = np.array([0, 1, 2, 0, 5], np.float32)

MODELS = {
    "nonzero": ("z = NonZero(x)  y = Shape(z)", [1, 3]),
    "twice": ("z = NonZero(x)  s = Shape(z)  f = ConstantOfShape(s)  w = NonZero(f)  y = Shape(w)", [2, 0]),
    "unique": ("z, i, j, k = Unique<sorted = 1>(x)  y = Shape(i)", [4]),
    "compress": ("b = Cast<to = 9>(x)  z = Compress<axis = 0>(x, b)  y = Shape(z)", [3]),
    "branch": (
        "zero = Constant<value = float {0}>()  s = ReduceSum<keepdims = 0>(x)  c = Greater(s, zero)"
        "  z = If (c) <then_branch = t () => (float[A] a) { n = NonZero(x)  f = Cast<to = 1>(n)  m = Constant<value_ints = [-1]>()"
        "  a = Reshape(f, m) }, else_branch = e () => (float[C] b) { b = Identity(x) }>  y = Shape(z)",
        [3],
    ),
    "carried": (
        "n = Constant<value = int64 {2}>()  g = Constant<value = bool {1}>()"
        "  z = Loop (n, g, x) <body = b (int64 i, bool c, float[K] v) => (bool d, float[L] w) {"
        " d = Identity(c)  w = Concat<axis = 0>(v, v) }>  y = Shape(z)",
        [20],
    ),
    "rows": (
        "zero = Constant<value = float {0}>()  s = ReduceSum<keepdims = 0>(x)  n = Cast<to = 7>(s)  g = Constant<value = bool {1}>()"
        "  last, z = Loop (n, g, zero) <body = b (int64 i, bool c, float v) => (bool d, float w, float r) {"
        " d = Identity(c)  w = Add(v, v)  r = Identity(v) }>  y = Shape(z)",
        [8],
    ),
}


def model(nodes: str) -> ModelProto:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["" : 19]> g (float[N] x) => (int64[K] y) {{ {nodes} }}')


@pytest.mark.parametrize("name", MODELS)
def test_a_size_that_is_all_that_is_read(name: str) -> None:
    nodes, expected = MODELS[name]
    module = import_onnx(model(nodes))
    verify(module)
    assert interpret(module, [X])[0].tolist() == expected


def test_engines_find_sizes_whose_elements_nobody_reads() -> None:
    for name in ("nonzero", "twice", "carried"):
        nodes, expected = MODELS[name]
        assert build(model(nodes), targets=["native"], tune="off")(X).tolist() == expected


def test_boxes_that_are_only_counted() -> None:
    nodes = "z = NonMaxSuppression(boxes, scores, most, overlap)  y = Shape(z)"
    head = "float[1, 3, 4] boxes, float[1, 1, 3] scores) => (int64[2] y) <int64[1] most = {9}, float[1] overlap = {0.5}>"
    module = import_onnx(parser.parse_model(f'<ir_version: 9, opset_import: ["" : 19]> g ({head} {{ {nodes} }}'))
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3]]], np.float32)
    assert interpret(module, [boxes, np.array([[[3, 2, 1]]], np.float32)])[0].tolist() == [2, 3]


def test_what_finds_a_size_that_nobody_needs_goes() -> None:
    module = import_onnx(model("z = NonZero(x)  s = Shape(z)  y = Shape(x)"))
    assert "nonzero" not in [op.name for op in module.main]
