"""Rows of windows summed at once: the same sums on several levels, zeros that reach no other sum, what is left alone and why."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ourcc.compiler.backends import cpu
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.target import AMX_BF16, AMX_I8, AMX_U8, AVX2, AVX512_AMX, CpuLevel
from ourcc.ir.types import DType, TensorType, bf16, f32, i8, u8
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline
from ourcc.passes.weights.merge_windows import MOST, MergedWindow
from ourcc.runtime.engine import Engine
from ourcc.runtime.native import cpu_flags, withheld

MODEL = replace(AVX2, name="x86-64-v3-model", instructions=(*AVX2.instructions, AMX_U8, AMX_I8, AMX_BF16))
"""A level whose machines have no tiles: the instructions are functions."""
FACTORS = [(u8, i8), (i8, i8), (bf16, bf16)]


def runs(level: CpuLevel) -> bool:
    return cpu_flags().issuperset(level.features) and withheld(level.features) is None


LEVELS = [level for level in (AVX2, MODEL, AVX512_AMX) if runs(level)]


def values(shape: tuple[int, ...], dtype: DType, seed: int) -> np.ndarray[Any, Any]:
    draw = np.random.default_rng(seed)
    if dtype.is_integer:
        bounds = np.iinfo(dtype.numpy)
        return draw.integers(bounds.min, bounds.max + 1, shape, dtype.numpy)
    return draw.standard_normal(shape, np.float32).astype(dtype.numpy)


def image(left: DType, right: DType, *, channels: int = 3, filters: int = 32, window: tuple[int, ...] = (7, 7), **attrs: Any) -> Module:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    rank = len(window)
    x = graph.add_input("x", TensorType(left, attrs.pop("shape", (2, channels, *(19, 26)[-rank:]))))
    w = values((filters, channels // attrs.get("groups", 1), *window), right, 1)
    kept = module.add_constant("w", w) if attrs.pop("constant", True) else graph.add_input("w", TensorType(right, w.shape))
    given: dict[str, Any] = {"strides": (1,) * rank, "dilations": (1,) * rank, "before": (0,) * rank, "after": (0,) * rank, "groups": 1}
    graph.set_outputs([Builder(module, graph).conv(x, kept, None, **{**given, "wide": left == bf16, **attrs})])
    return module


def why_not(module: Module) -> str | None:
    return next(MergedWindow().check(op, module) for op in module.main if op.name == "conv")


def answer(module: Module, level: CpuLevel, x: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch) -> np.ndarray[Any, Any]:
    monkeypatch.setattr(cpu, "levels_for", lambda target, module: [level])
    return np.asarray(Engine(compile_module(module, build_options({"target": "native", "tune": "off"})), threads=1)(x))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("left", "right"), FACTORS, ids=str)
def test_merged_windows_give_the_same_sums(left: DType, right: DType, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    rank = draw.choice((1, 2, 2, 2))
    drawn = {
        "channels": draw.randint(1, MOST),
        "filters": draw.choice((16, 33, 64)),
        "window": (*tuple(draw.randint(1, 5) for _ in range(rank - 1)), draw.randint(4, 9)),
        "strides": tuple(draw.randint(1, 3) for _ in range(rank)),
        "dilations": (*tuple(draw.randint(1, 2) for _ in range(rank - 1)), 1),
        "before": (*tuple(draw.randint(0, 3) for _ in range(rank - 1)), draw.randint(1, 3)),
        "after": tuple(draw.randint(0, 3) for _ in range(rank)),
    }
    plain, merged = image(left, right, **drawn), image(left, right, **drawn)
    x = values(tuple(int(str(size)) for size in plain.main.inputs[0].shape), left, seed)
    (expected,), (exact,) = interpret(plain, [x]), interpret(plain, [x], wide=True)
    assert why_not(merged) is None
    PassManager(parse_pipeline("merge_windows, fold_constants, eliminate_dead_code"), strict=True).run(merged)
    assert [op.name for op in merged.main] == ["pad", "transpose", "reshape", "conv"] and why_not(merged) == "it is merged"
    found = [*interpret(merged, [x]), *(answer(image(left, right, **drawn), level, x, monkeypatch) for level in LEVELS)]
    for each in found:
        if left.is_integer:
            np.testing.assert_array_equal(each, expected)
        else:
            assert judge(each, expected, exact).passed


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_what_is_not_finite_reaches_its_own_windows_alone(bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements that are added to a row of the window are 0 in the image too: no neighbour is multiplied with 0."""
    pads = {"strides": (2, 2), "before": (3, 3), "after": (3, 3)}
    x = values((2, 3, 19, 26), bf16, 2)
    x[0, 1, 7, 11] = x[1, 2, 0, 25] = x[1, 0, 18, 0] = bad
    with np.errstate(all="ignore"):
        (expected,) = interpret(image(bf16, bf16, **pads), [x])
    assert 0 < np.isfinite(expected).sum() < expected.size
    for level in LEVELS:
        np.testing.assert_array_equal(np.isfinite(answer(image(bf16, bf16, **pads), level, x, monkeypatch)), np.isfinite(expected))


def test_an_image_is_rounded_after_it_is_padded() -> None:
    """One kernel pads, rounds and turns: what is rounded first would be tested once more."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = b.cast(graph.add_input("x", TensorType(f32, (1, 3, 16, 16))), dtype=bf16)
    w = module.add_constant("w", values((16, 3, 7, 7), bf16, 1))
    pads = {"strides": (2, 2), "dilations": (1, 1), "before": (3, 3), "after": (3, 3)}
    graph.set_outputs([b.conv(x, w, None, groups=1, wide=True, **pads)])
    PassManager(parse_pipeline("merge_windows, fold_constants, eliminate_dead_code"), strict=True).run(module)
    assert [op.name for op in module.main] == ["pad", "cast", "transpose", "reshape", "conv"]


def test_what_is_left_alone_says_why() -> None:
    for module, why in (
        (image(f32, f32), "factors of f32 and f32 are multiplied one by one"),
        (image(u8, i8, constant=False), "the filters are not constant: to rearrange them costs a kernel in each call"),
        (image(u8, i8, dilations=(1, 2)), "a row of the window is no stretch of memory"),
        (image(u8, i8, channels=4, groups=2), "a row of the window is no stretch of memory"),
        (image(u8, i8, channels=MOST + 4), "an image of 12 channels is not copied for 32 filters"),
        (image(u8, i8, filters=8), "an image of 3 channels is not copied for 8 filters"),
        (image(u8, i8, window=(7, 1)), "a row of 1 places with 3 channels takes nearly as many steps as its places do"),
        (image(u8, i8, before=(0, -1)), "the image is cut, or may be"),
        (image(u8, i8, shape=(0, 3, 19, 26)), "sizes of the filters are not known, or there are no elements"),
    ):
        assert why_not(module) == why


def test_images_of_any_size() -> None:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    size = module.declare("S", 16, 64)
    x = graph.add_input("x", TensorType(bf16, (module.declare("B", 1, 8), 3, size, size)))
    w = module.add_constant("w", values((16, 3, 7, 7), bf16, 1))
    pads = {"strides": (2, 2), "dilations": (1, 1), "before": (3, 3), "after": (3, 3)}
    graph.set_outputs([Builder(module, graph).conv(x, w, None, groups=1, wide=True, **pads)])
    engine = Engine(compile_module(module, build_options({"target": "native", "tune": "off"})), threads=1)
    for batch, side in ((1, 16), (3, 33), (2, 64)):
        given = values((batch, 3, side, side), bf16, 5)
        (expected,), (exact,) = interpret(module, [given]), interpret(module, [given], wide=True)
        assert judge(np.asarray(engine(given)), expected, exact).passed
