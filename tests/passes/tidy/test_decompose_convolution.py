"""Transposed convolutions as plain ones: the same results, and what stays as it is."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ourcc.ir.graph import Builder, ConstantData, Graph, Module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.graph.verify import verify
from ourcc.ir.types import TensorType, f32, i32, u8
from ourcc.passes.base import PassContext
from ourcc.passes.manager import PassManager
from ourcc.passes.quantize.integer_products import IntegerProducts
from ourcc.passes.tidy.decompose import Decompose
from ourcc.passes.tidy.decompose_convolution import TransposedConvolution
from ourcc.passes.tidy.eliminate_dead_code import EliminateDeadCode
from ourcc.passes.tidy.fold_constants import FoldConstants


def transposed(constant: bool = True, groups: int = 1, bias: bool = False, symbol: bool = False, **changes: object) -> Module:
    """conv_transpose of [2, 4, spatial ...] with a drawn window."""
    module = Module("m")
    graph = module.functions["main"] = Graph("main")
    window = changes.pop("window", (3, 2))
    assert isinstance(window, tuple)
    rank = len(window)
    image = changes.pop("image", (6, 5, 4))
    assert isinstance(image, tuple)
    places = (module.declare("H", 1, 9), *(5,) * (rank - 1)) if symbol else image[:rank]
    x = graph.add_input("x", TensorType(f32, (2, 4, *places)))
    numbers = np.random.default_rng(0).normal(size=(4, 3, *window)).astype(np.float32)
    numbers[0, 0] = changes.pop("first", numbers[0, 0])
    w = module.add_constant("w", ConstantData(numbers)) if constant else graph.add_input("w", TensorType(f32, numbers.shape))
    b = module.add_constant("b", ConstantData(np.arange(3 * groups, dtype=np.float32))) if bias else None
    ones, zeros = (1,) * rank, (0,) * rank
    attrs = {"strides": ones, "dilations": ones, "before": zeros, "after": zeros, "output_padding": zeros, **changes}
    graph.set_outputs([Builder(module, graph).conv_transpose(x, w, b, groups=groups, **attrs)], ["y"])
    return module


def names(module: Module) -> list[str]:
    return [op.name for op in module.main]


UNKNOWN = "the filters are not constant, nor codes with scales for each result: to rearrange them costs a kernel in each call"
MANY = "there are more than 16 phases, and some have fewer elements of the window"

CASES = {
    "no stride": {},
    "cut and holes": {"before": (1, 2), "after": (2, 0), "dilations": (2, 3)},
    "one window for each place": {"window": (2, 2), "strides": (2, 2)},
    "phases of several elements": {"window": (4, 6), "strides": (2, 3), "before": (1, 0), "after": (1, 2)},
    "one stride of two": {"strides": (1, 2), "dilations": (2, 1), "before": (1, 1), "output_padding": (0, 0)},
    "phases of more elements and of fewer": {"window": (3, 4), "strides": (2, 3), "before": (1, 0), "output_padding": (1, 0)},
    "phases of none": {"window": (2, 1), "strides": (3, 2), "after": (0, 0), "output_padding": (1, 1)},
    "five by two": {"window": (5, 5), "strides": (2, 2), "before": (2, 2), "after": (2, 2), "output_padding": (1, 1)},
    "a stride and holes beside it": {"window": (3, 3), "strides": (2, 1), "dilations": (1, 2), "before": (1, 1), "after": (0, 1)},
    "one dimension": {"window": (4,), "strides": (2,), "before": (1,), "after": (1,)},
    "three dimensions": {"window": (2, 3, 2), "strides": (2, 1, 2)},
}


@pytest.mark.parametrize("symbol", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_the_phases_of_the_strides_are_channels_of_one_convolution(changes: dict[str, object], groups: int, symbol: bool) -> None:
    module = transposed(groups=groups, bias=groups != 4, symbol=symbol, **changes)
    shape = tuple(7 if not isinstance(size, int) else size for size in module.main.inputs[0].shape)
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    stepwise, wide = interpret(module, [x]), interpret(module, [x], wide=True)
    assert Decompose().run(module, PassContext())
    EliminateDeadCode().run(module, PassContext())
    verify(module)
    equal = all(size % stride == 0 for size, stride in zip(changes.get("window", (3, 2)), changes.get("strides", (1, 1, 1)), strict=False))  # type: ignore[call-overload]
    assert (names(module).count("conv") == 1) is equal
    assert "conv_transpose" not in names(module)
    verdict = judge(interpret(module, [x])[0], stepwise[0], wide[0])
    assert verdict.passed, verdict.reason


def test_drawn_windows() -> None:
    draw = random.Random(0)
    decomposed = 0
    for _ in range(60):
        strides = (draw.choice((1, 2, 3)), draw.choice((1, 2, 3)))
        even = tuple(stride * draw.choice((1, 2, 3, 4) if stride == 1 else (1, 1, 2)) for stride in strides)
        pair = {"window": even if draw.random() < 0.5 else (draw.randint(1, 5), draw.randint(1, 5)), "strides": strides}
        more = {name: (draw.choice((0, 1)), draw.choice((0, 1))) for name in ("before", "after")}
        module = transposed(groups=draw.choice((1, 2)), bias=draw.random() < 0.5, **pair, **more)
        x = np.random.default_rng(1).normal(size=(2, 4, 6, 5)).astype(np.float32)
        if draw.random() < 0.5:
            # What is infinite or no number reaches its own places, and no others.
            x[0, draw.randrange(4), draw.randrange(6), draw.randrange(5)] = draw.choice((np.inf, -np.inf, np.nan))
        stepwise, wide = interpret(module, [x]), interpret(module, [x], wide=True)
        decomposed += Decompose().run(module, PassContext()) > 0
        verdict = judge(interpret(module, [x])[0], stepwise[0], wide[0])
        assert verdict.passed, f"{pair} {more}: {verdict.reason}"
    assert decomposed > 50


@pytest.mark.parametrize("axis", [None, 1, 0])
@pytest.mark.parametrize("seed", range(8))
def test_filters_may_be_codes(seed: int, axis: int | None) -> None:
    """With one scale and zero point, or one for each channel of results; those of inputs vary along the sum."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    strides = (draw.choice((1, 2, 3)), draw.choice((1, 2)))
    window = tuple(stride * draw.choice((1, 2)) if seed % 2 else draw.choice((1, 2, 3, 5)) for stride in strides)
    groups, outputs = draw.choice((1, 2)), draw.choice((1, 3))
    module = Module("m")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(u8, (2, 4, 6, 5)))
    codes = module.add_constant("w", numbers.integers(-128, 128, (4, outputs, *window)).astype(np.int8))
    count = () if axis is None else (codes.shape[axis],)
    scale = module.add_constant("s", numbers.uniform(0.1, 1.0, count).astype(np.float32))
    zero = module.add_constant("z", numbers.integers(-9, 9, count).astype(np.int8)) if draw.random() < 0.5 else None
    bias = module.add_constant("b", numbers.normal(size=groups * outputs).astype(np.float32)) if draw.random() < 0.5 else None
    filters = b.dequantize(codes, scale, zero, axis=axis, dtype=f32)
    attrs = {"strides": strides, "dilations": (1, 1), "before": (0, 1), "after": (0, 0), "output_padding": (0, 0), "groups": groups}
    graph.set_outputs([b.conv_transpose(b.dequantize(x, np.float32(0.5), np.uint8(7), dtype=f32), filters, bias, **attrs)], ["y"])
    given = numbers.integers(0, 256, (2, 4, 6, 5)).astype(np.uint8)
    stepwise, wide = interpret(module, [given]), interpret(module, [given], wide=True)
    assert Decompose().run(module, PassContext()) == (axis != 0)
    EliminateDeadCode().run(module, PassContext())
    verify(module)
    verdict = judge(interpret(module, [given])[0], stepwise[0], wide[0])
    assert verdict.passed, verdict.reason
    if axis != 0:
        PassManager([FoldConstants(), IntegerProducts()], strict=True).run(module)
        assert {op.result.dtype for op in module.main if op.name == "conv"} == {i32}
        verdict = judge(interpret(module, [given])[0], stepwise[0], wide[0])
        assert verdict.passed, verdict.reason


def test_drawn_images_that_are_cut_down_to_nothing() -> None:
    draw, empty = random.Random(0), 0
    while empty < 20:
        pair = {
            name: (draw.choice(few), draw.choice(few))
            for name, few in (("window", (1, 2, 3)), ("strides", (1, 1, 2)), ("image", (1, 2, 3)))
        }
        more = {name: (draw.choice((0, 1, 2)), draw.choice((0, 1, 2))) for name in ("before", "after")}
        sizes = [
            (size - 1) * stride + window - before - after
            for size, stride, window, before, after in zip(pair["image"], pair["strides"], pair["window"], *more.values(), strict=True)
        ]
        if min(sizes) < 0:
            continue
        empty += min(sizes) == 0
        module = transposed(**pair, **more)
        x = np.random.default_rng(1).normal(size=(2, 4, *pair["image"])).astype(np.float32)
        stepwise, wide = interpret(module, [x]), interpret(module, [x], wide=True)
        Decompose().run(module, PassContext())
        verify(module)
        verdict = judge(interpret(module, [x])[0], stepwise[0], wide[0])
        assert verdict.passed, f"{pair} {more}: {verdict.reason}"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"constant": False}, UNKNOWN),
        ({"strides": (2, 2), "dilations": (1, 2)}, "the window has both strides and holes"),
        ({"window": (4, 2), "strides": (2, 2), "before": (-1, 0)}, "the result reaches beyond the phases"),
        ({"window": (4, 2), "strides": (2, 2), "output_padding": (2, 0)}, "the result reaches beyond the phases"),
        ({"window": (6, 5), "strides": (5, 4)}, MANY),
        ({"window": (3, 4), "strides": (2, 3), "dilations": (2, 1)}, "the window has both strides and holes"),
        ({"first": np.inf}, "an element of the filters is not finite"),
        ({"first": np.nan, "strides": (1, 2)}, "an element of the filters is not finite"),
        ({"window": (1, 2), "image": (2, 5), "before": (1, 0), "after": (1, 0)}, "an operand or the result has no elements"),
    ],
)
def test_what_is_left_alone(changes: dict[str, object], why: str) -> None:
    module = transposed(**changes)  # type: ignore[arg-type]
    (op,) = module.main
    assert TransposedConvolution().check(op, module) == why
