"""Drawn sizes up to 2^63 in every place of an ONNX model that takes one: an answer as numpy gives it, or one clear error."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import ourcc
from ourcc.ir.errors import CompilerError
from ourcc.ir.graph.reference import judge

ODD = (0, 1, 2, 3, 5, 7, 64, 2**15, 2**31 - 1, 2**31, 2**32, 2**40, 2**47, 2**48, 2**61, 2**62, 2**63 - 1)
ELEMENTS = 1 << 20
"""The reference is asked only where the answer is small."""
MOST = 1 << 28
"""Larger answers are built and not asked for: nobody compares them, and one of gigabytes fills the memory for a minute."""


def odd(draw: random.Random, negative: bool = True) -> int:
    """A small or a terrible integer."""
    value = draw.choice(ODD) if draw.random() < 0.7 else draw.randrange(0, 2**63)
    return -value if negative and draw.random() < 0.4 else value


def model(node: onnx.NodeProto, inputs: dict[str, tuple[str | int, ...]], **constants: list[int]) -> onnx.ModelProto:
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def shape_of(draw: random.Random) -> tuple[str | int, ...]:
    return (draw.choice(("N", 5)), draw.choice(("M", 3)))


def sliced(draw: random.Random) -> onnx.ModelProto:
    node = helper.make_node("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"])
    return model(node, {"x": shape_of(draw)}, starts=[odd(draw)], ends=[odd(draw)], axes=[draw.randrange(2)], steps=[odd(draw) or 1])


def padded(draw: random.Random) -> onnx.ModelProto:
    return model(helper.make_node("Pad", ["x", "pads"], ["y"]), {"x": shape_of(draw)}, pads=[0, odd(draw), 0, odd(draw)])


def expanded(draw: random.Random) -> onnx.ModelProto:
    return model(helper.make_node("Expand", ["x", "s"], ["y"]), {"x": (1, draw.choice(("M", 1)))}, s=[odd(draw, False), odd(draw, False)])


def tiled(draw: random.Random) -> onnx.ModelProto:
    return model(helper.make_node("Tile", ["x", "r"], ["y"]), {"x": shape_of(draw)}, r=[odd(draw, False), odd(draw, False)])


def reshaped(draw: random.Random) -> onnx.ModelProto:
    return model(helper.make_node("Reshape", ["x", "s"], ["y"]), {"x": shape_of(draw)}, s=[odd(draw), draw.choice((-1, odd(draw)))])


def filled(draw: random.Random) -> onnx.ModelProto:
    return model(helper.make_node("ConstantOfShape", ["s"], ["y"]), {"x": (1,)}, s=[odd(draw), odd(draw)])


def ranged(draw: random.Random) -> onnx.ModelProto:
    proto = model(helper.make_node("Range", ["a", "b", "c"], ["y"]), {"x": (1,)})
    for name, value in (("a", odd(draw)), ("b", odd(draw)), ("c", odd(draw) or 1)):
        proto.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
    return proto


def convolved(draw: random.Random) -> onnx.ModelProto:
    attributes = {name: [odd(draw, False), 1] for name in ("strides", "dilations") if draw.random() < 0.5}
    pads = [odd(draw), 1, 1, 1] if draw.random() < 0.6 else [0, 0, 0, 0]
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[draw.choice((2, odd(draw, False))), 2], pads=pads, **attributes)
    return model(node, {"x": (1, 1, 6, draw.choice(("M", 6)))})


def resized(draw: random.Random) -> onnx.ModelProto:
    node = helper.make_node("Resize", ["x", "", "", "s"], ["y"], mode=draw.choice(("nearest", "linear")))
    return model(node, {"x": (1, 1, 4, 4)}, s=[1, 1, odd(draw, False), draw.choice((4, odd(draw, False)))])


def hot(draw: random.Random) -> onnx.ModelProto:
    proto = model(helper.make_node("OneHot", ["i", "d", "v"], ["y"]), {"x": (1,)}, i=[0, 1, 2], d=[odd(draw, False)])
    proto.graph.initializer.append(numpy_helper.from_array(np.array([0, 1], np.float32), "v"))
    return proto


DRAWN: tuple[Callable[[random.Random], onnx.ModelProto], ...] = (
    *(sliced, padded, expanded, tiled, reshaped, filled, ranged, convolved, resized, hot),
)


def verdict_of(proto: onnx.ModelProto) -> str | None:
    """What is wrong with the build or the answer; None where both are right or refused."""
    try:
        engine = ourcc.build(proto, targets=["native"], tune="off", threads=1)
        if math.prod(s if isinstance(s, int) else 5 for s in engine.outputs[0].type.shape) > MOST:
            return None
        feeds = {p.name: np.ones([s if isinstance(s, int) else 5 for s in p.type.shape], np.float32) for p in engine.inputs}
        answer = next(iter(engine.run(feeds).values()))
    except CompilerError:
        return None
    except Exception as error:  # noqa: BLE001 - whatever else comes out is what this is looking for
        return f"{type(error).__name__}: {str(error)[:200]}"
    if answer.size > ELEMENTS:
        return None
    try:
        (expected,) = ReferenceEvaluator(proto).run(None, {"x": np.ones((1,), np.float32), **feeds})
    except Exception:  # noqa: BLE001 - the reference cannot do it, so nobody knows
        return None
    found = judge(answer, expected, expected)
    if found.passed or (proto.graph.node[0].op_type == "Slice" and judge(answer, runtime_answer(proto, feeds), expected).passed):
        # The reference slices as numpy does; the text of Slice puts a start before the first element onto it, as ONNX Runtime does.
        return None
    return found.reason


def runtime_answer(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """What ONNX Runtime makes of it."""
    import onnxruntime

    (answer,) = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
    return answer


def test_terrible_sizes_are_answered_or_refused(request: pytest.FixtureRequest) -> None:
    draw = random.Random(request.config.getoption("--seed", 0))
    count = request.config.getoption("--cases") // 5
    wrong = []
    for number in range(count):
        make = DRAWN[number % len(DRAWN)]
        proto = make(draw)
        verdict = verdict_of(proto)
        if verdict is not None:
            wrong.append(f"{make.__name__}: {verdict}\n{onnx.printer.to_text(proto)}")
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:5])
