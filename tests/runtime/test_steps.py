"""Host steps: an op's own body on the buffers of a call, new symbols, strings, narrow floats, absent operands."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.errors import EngineError
from ourcc.ir.plan import Buffer, Host, Plan, Slot, from_json, storage, to_json
from ourcc.ir.types import TensorType, bf16, f32, i4, i64, string
from ourcc.runtime import Engine, EngineContents, PartContents

B, K = dims.symbol("B"), dims.symbol("K")


def engine_of(plan: Plan, weights=None) -> Engine:
    return Engine(EngineContents.of({"cpu": PartContents({"main": from_json(to_json(plan))})}, weights))


def test_nonzero_binds_the_size_it_finds():
    found = TensorType(i64, (2, K))
    buffers = (
        Buffer("x", TensorType(f32, (B, 3)), storage.Input()),
        Buffer("d", found, storage.Dynamic()),
        Buffer("s", found, storage.Dynamic()),
    )
    step = Host("nonzero", {"count": K}, ("x",), ("d",), (("K", 0, 1),))
    facts = dims.Facts({"B": dims.Range(0, 9), "K": dims.Range(0, None)})
    plan = Plan("cpu", facts, (("x", "x"),), (("d", "d"),), buffers, (), (step,))
    engine = engine_of(plan)
    with pytest.raises(
        EngineError, match=r"host step nonzero failed: zip.. argument 2 is longer than argument 1\n  note: it computes NonZero_3"
    ):
        two = replace(step, writes=("d", "s"), sources=("NonZero_3",))
        engine_of(replace(plan, steps=(two,)))(np.zeros((1, 3), np.float32))
    for rows in (4, 0, 1):
        x = np.random.default_rng(rows).integers(0, 2, (rows, 3)).astype(np.float32)
        assert np.array_equal(engine(x), np.array(np.nonzero(x)))


def test_arena_constants_and_narrow_types():
    kind, small, found = TensorType(bf16, (B, 4)), TensorType(i4, (3,)), TensorType(i64, (3,))
    buffers = (
        Buffer("x", kind, storage.Input()),
        Buffer("v", kind, storage.Arena("s0")),
        Buffer("i", TensorType(i64, (B,)), storage.Arena("s1")),
        Buffer("c", small, storage.Constant("c")),
        Buffer("y", small, storage.Output()),
        *(Buffer(name, found, storage.Output()) for name in "fpn"),
    )
    steps = (
        Host("neg", {}, ("x",), ("v",)),
        Host("argmax", {"axis": 1, "keepdims": False}, ("v",), ("i",)),
        Host("unique", {"count": 3}, ("c",), ("y", "f", "p", "n")),
    )
    outputs = tuple((name, name) for name in "viyfpn")
    plan = Plan(
        "cpu",
        dims.Facts({"B": dims.Range(1, 9)}),
        (("x", "x"),),
        outputs,
        buffers,
        (Slot("s0", (B * 8,)), Slot("s1", (B * 8,), ("s0",))),
        steps,
    )
    engine = engine_of(plan, {"cpu": {"c": np.array([3, -8, 1], ml_dtypes.int4)}})
    x = np.array([[1, 4, 3, 2], [0, 0, 7, 9]], ml_dtypes.bfloat16)
    values, indices, ordered, first, places, counts = engine(x)
    assert values.tolist() == (-x).tolist() and values.dtype == x.dtype and indices.tolist() == [0, 0]
    assert ordered.astype(int).tolist() == [-8, 1, 3] and places.tolist() == [2, 0, 1]
    assert first.tolist() == [1, 2, 0] and counts.tolist() == [1, 1, 1]


def test_strings():
    kind = TensorType(string, (2,))
    buffers = (
        Buffer("x", kind, storage.Input()),
        Buffer("c", kind, storage.Constant("suffix")),
        Buffer("t", kind, storage.Dynamic()),
        Buffer("y", kind, storage.Output()),
    )
    steps = (Host("string_concat", {}, ("x", "c"), ("t",)), Host("string_concat", {}, ("c", "t"), ("y",)))
    plan = Plan("cpu", dims.NO_FACTS, (("x", "x"),), (("y", "y"), ("t", "t")), buffers, (), steps)
    engine = engine_of(plan, {"shared": {"suffix": np.array(["-1", "-2"], dtype=object)}})
    y, t = engine(np.array(["a", "b"]))
    assert y.tolist() == ["-1a-1", "-2b-2"] and t.tolist() == ["a-1", "b-2"]


def test_a_routine_this_version_lacks():
    buffers = (Buffer("x", TensorType(f32, (1,)), storage.Input()), Buffer("y", TensorType(f32, (1,)), storage.Output()))
    plan = Plan("cpu", dims.NO_FACTS, (("x", "x"),), (("y", "y"),), buffers, (), (Host("no_such_op", {}, ("x",), ("y",)),))
    with pytest.raises(EngineError, match=r"engine needs the host routine no_such_op, which ourcc.ir.ops lacks"):
        engine_of(plan)
