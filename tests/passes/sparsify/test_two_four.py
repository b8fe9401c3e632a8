"""2:4 weights: which values are kept, how their places are packed, which weights are taken and why others are not."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir.formats.sparse import pruned
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.reference import interpret
from ourcc.ir.ops.table import OPS, run
from ourcc.ir.types import TensorType, f32
from ourcc.passes.base import PassContext
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline
from ourcc.passes.sparsify.two_four import SparsifyTwoFour, why_not
from ourcc.passes.weights.weights import weight_of


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def by_hand(weights: np.ndarray, axis: int) -> np.ndarray:
    """The weights with the two smallest of every four along an axis set to 0."""
    moved = np.moveaxis(weights.copy(), axis, -1)
    for row in moved.reshape(-1, moved.shape[-1]) if moved.flags.c_contiguous else [moved[i] for i in np.ndindex(*moved.shape[:-1])]:
        for first in range(0, len(row), 4):
            group = row[first : first + 4]
            for place in sorted(range(4), key=lambda n: (-abs(group[n]), n))[2:]:
                group[place] = 0
    return np.moveaxis(moved, -1, axis)


def expanded(values: np.ndarray, places: np.ndarray, axis: int) -> np.ndarray:
    shape = tuple(n * 2 if k == axis else n for k, n in enumerate(values.shape))
    attrs = {"format": "2:4.f32", "axis": axis, "dtype": f32}
    (dense,) = run(OPS["decode"], (values, places), attrs, (TensorType(f32, shape),), False)
    return dense


@pytest.mark.parametrize(("shape", "axis"), [((5, 16), 1), ((16, 5), 0), ((3, 12), 1), ((6, 8, 3, 2), 1), ((2, 4), 1)])
def test_the_two_largest_of_every_four_are_kept(shape: tuple[int, ...], axis: int) -> None:
    weights = random(*shape)
    values, places = pruned(weights, axis)
    assert values.shape[axis] == shape[axis] // 2 and places.shape[axis] == -(-shape[axis] // 8) and places.dtype == np.uint8
    np.testing.assert_array_equal(expanded(values, places, axis), by_hand(weights, axis))


def test_of_equals_the_first_are_kept_in_order() -> None:
    values, places = pruned(np.asarray([[1, -1, 1, -1, 0, 0, 0, 0, 3, 1, 2, 4]], np.float32), 1)
    assert values.tolist() == [[1, -1, 0, 0, 3, 4]]
    assert places.tolist() == [[0b0100_0100, 0b0000_1100]]


def test_a_matmul_reads_its_weight_expanded() -> None:
    module = Module("m")
    b = Builder(module, module.functions.setdefault("main", Graph("main")))
    x, weights = b.graph.add_input("x", TensorType(f32, (3, 16))), random(16, 5)
    b.graph.set_outputs([b.matmul(x, module.add_constant("w", weights))])
    PassManager(parse_pipeline("sparsify_two_four, eliminate_dead_code"), strict=True).run(module)
    assert [op.name for op in module.main] == ["decode", "matmul"]
    assert {name: str(value.type) for name, value in module.constants.items()} == {"w.kept": "f32[8, 5]", "w.places": "u8[2, 5]"}
    data = random(3, 16)
    np.testing.assert_allclose(interpret(module, [data])[0], data @ by_hand(weights, 0), rtol=1e-5, atol=1e-6)
    assert not SparsifyTwoFour().run(module, PassContext())


def test_why_a_weight_stays_dense() -> None:
    def reason(values: np.ndarray, *, also_read: bool = False, first: str = "") -> str | None:
        module = Module("m")
        b = Builder(module, module.functions.setdefault("main", Graph("main")))
        x = b.graph.add_input("x", TensorType(f32, (3, values.shape[0])))
        w = module.add_constant("w", values)
        result = b.matmul(x, w)
        b.graph.set_outputs([result, b.exp(w)] if also_read else [result])
        if first:
            PassManager(parse_pipeline(first)).run(module)
        assert result.op is not None
        weight = weight_of(result.op)
        assert weight is not None
        assert SparsifyTwoFour().run(module, PassContext()) == (why_not(weight) is None)
        return why_not(weight)

    broken = random(8, 4)
    broken[0, 0] = np.inf
    assert reason(random(8, 4)) is None
    assert reason(random(6, 4)) == "the contracted axis has 6 elements, expected a multiple of 4"
    assert reason(random(8, 4), also_read=True) == "the weight is also read by exp, and would be stored twice"
    assert reason(broken) == "the weight holds infinities or NaN"
    assert reason(random(8, 4), first="sparsify_two_four") == "the weight is 2:4 sparse already"
    quantized = reason(random(8, 4), first="quantize_int8_weight")
    assert quantized == "the weight is quantized already, to i8; prune before quantizing"
    coded = reason(random(32, 4), first="encode_weights")
    assert coded == "the weight is quantized already, to int4.g32; prune before quantizing"


def test_integers_and_missing_values_stay_dense() -> None:
    from ourcc.ir.graph import ConstantData
    from ourcc.ir.types import i8

    module = Module("m")
    b = Builder(module, module.functions.setdefault("main", Graph("main")))
    x8, x = b.graph.add_input("a", TensorType(i8, (2, 4))), b.graph.add_input("b", TensorType(f32, (2, 4)))
    missing = ConstantData(load=lambda: random(4, 3), available=False)
    integers = b.matmul(x8, module.add_constant("w", np.ones((4, 3), np.int8)))
    b.graph.set_outputs([integers, b.matmul(x, module.add_constant("v", missing, type=TensorType(f32, (4, 3))))])
    reasons = [why_not(weight) for op in b.graph if (weight := weight_of(op)) is not None]
    assert reasons == ["the weight is i8, expected a float", "the values of the weight are not given"]
