"""Folds over windows of images: every schedule of drawn windows, engines on two levels, and what is no such fold."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ourcc.compiler.backends.cpu import lower_cpu
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir import dims
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.region import Load, walk
from ourcc.ir.region.interpret import run_region
from ourcc.ir.target import AVX2, AVX512, CpuLevel
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.verify import verify
from ourcc.ir.types import DType, TensorType, bf16, f16, f32, i8
from ourcc.passes.lower.schedule import cheapest
from ourcc.passes.tile.cpu.windows import CpuWindows, Windows
from ourcc.passes.tile.schedule import Match, Problem, matches
from ourcc.runtime.engine import Engine


@dataclass(frozen=True)
class Drawn:
    """A fold over windows of an image of one to three dimensions, between two convolutions, so that channels lie innermost."""

    seed: int
    dtype: DType = f32
    is_open: bool = False

    def module(self) -> Module:
        draw, module = random.Random(self.seed), Module("net")
        graph = module.functions["main"] = Graph("main")
        b = Builder(module, graph)
        rank, channels = draw.choice([1, 2, 2, 2, 3]), draw.choice([16, 20, 33])
        taps = [draw.choice([1, 2, 3, 3, 5] if rank < 3 else [1, 2, 3]) for _ in range(rank)]
        dilations = [draw.choice([1, 1, 2]) for _ in range(rank)]
        strides = tuple(draw.choice([1, 1, 2, 3]) for _ in range(rank))
        # No more than half of a window, as pools ask for.
        before = tuple(draw.randint(0, tap // 2) for tap in taps)
        after = tuple(draw.randint(0, tap // 2) for tap in taps)
        sizes: list[dims.Dim] = [draw.randint((tap - 1) * way + 1, 11) for tap, way in zip(taps, dilations, strict=True)]
        if self.is_open:
            sizes[-1] = module.declare("S", (taps[-1] - 1) * dilations[-1] + 1, 60)
        batch: dims.Dim = module.declare("B", 1, 3) if self.is_open else 2
        x = graph.add_input("x", TensorType(self.dtype, (batch, 3, *sizes)))
        around: dict[str, Any] = {"strides": (1,) * rank, "dilations": (1,) * rank, "before": (0,) * rank, "after": (0,) * rank}
        ours: dict[str, Any] = {"strides": strides, "before": before, "after": after}
        numbers = np.random.default_rng(self.seed)

        def constant(name: str, *shape: int) -> Value:
            return module.add_constant(name, numbers.standard_normal(shape).astype(self.dtype.numpy))

        kind = draw.choice(["conv", "conv", "groups", "groups", "max_pool", "avg_pool"])
        # Of each group, results that fill vectors together with those of others, and as many inputs at most.
        groups = channels if kind == "conv" else draw.choice([2, 5, 8])
        results = 1 if kind == "conv" else draw.choice([2, 4, 4])
        inputs = draw.choice([n for n in (1, 2, 3, 4) if n <= results])
        entering, leaving = (groups * inputs, groups * results) if kind in ("conv", "groups") else (channels, channels)
        value = b.conv(x, constant("u", entering, 3, *(1,) * rank), **around)
        if kind in ("conv", "groups"):
            weight = constant("w", leaving, inputs, *taps)
            value = b.conv(value, weight, groups=groups, dilations=tuple(dilations), **ours)
            value = draw.choice([lambda v: v, b.relu, lambda v: b.mul(v, b.sigmoid(v))])(value)
        elif kind == "max_pool":
            value = b.max_pool(value, window=tuple(taps), dilations=tuple(dilations), **ours)
        else:
            value = b.avg_pool(value, window=tuple(taps), count_padding=draw.random() < 0.5, dilations=tuple(dilations), **ours)
        graph.set_outputs([b.conv(value, constant("v", 3, leaving, *(1,) * rank), **around)])
        return module

    def given(self, sizes: dict[str, int]) -> np.ndarray[Any, Any]:
        (value,) = self.module().functions["main"].inputs
        shape = [dims.evaluate(size, sizes) for size in value.type.shape]
        return np.random.default_rng(self.seed).standard_normal(shape).astype(self.dtype.numpy)


def found(module: Module, level: CpuLevel) -> list[tuple[Problem, Match[Windows]]]:
    """The problems of a module that are folds over windows, and what they are."""
    problems = [unit.problem for unit in lower_cpu(module, level, cheapest(level)).scheduled.values()]
    return [(problem, match) for problem in problems for match in matches([CpuWindows()], problem, level)]


def test_nearly_all_that_is_drawn_folds_windows() -> None:
    every = [found(Drawn(seed).module(), AVX512) for seed in range(16)]
    assert sum(map(bool, every)) >= 14
    assert sum(any(match.found.lane in dims.symbols(side.start) for _, match in each for side in match.found.sides) for each in every) >= 3


@pytest.mark.parametrize("level", [AVX2, AVX512], ids=["AVX2", "AVX-512"])
@pytest.mark.parametrize("seed", range(12))
def test_every_schedule_computes_its_windows(seed: int, level: CpuLevel) -> None:
    problems = found(Drawn(seed).module(), level)
    numbers = np.random.default_rng(seed)
    for problem, match in problems:
        region = problem.region
        given = {o.name: numbers.standard_normal([dims.number(d) for d in o.type.shape]).astype(o.type.dtype.numpy) for o in region.inputs}
        given[match.found.image.operand].flat[:3] = np.nan, np.inf, -np.inf
        schedules = list(CpuWindows().space(match, level))[seed % 3 :: 3]
        assert schedules
        packed = {name: problem.layouts[name].pack(array) if name in problem.layouts else array for name, array in given.items()}
        with np.errstate(all="ignore"):
            expected = run_region(region, given, {})
            for schedule in schedules:
                program = CpuWindows().tile(match, schedule, level)
                verify(program, problem.symbols)
                result = run(program, packed, {}, problem.symbols)
                for name, array in expected.items():
                    np.testing.assert_allclose(result[name].reshape(array.shape), array, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
@pytest.mark.parametrize("dtype", [f32, bf16, f16], ids=str)
@pytest.mark.parametrize("seed", range(16, 22))
def test_engines_of_drawn_windows(seed: int, dtype: DType, target: str) -> None:
    """Sizes that are known, and a batch and a length that calls decide, ends of rows of every length among them."""
    drawn = Drawn(seed, dtype, is_open=seed % 2 == 1)
    engine = Engine(compile_module(drawn.module(), build_options({"target": target, "tune": "off"})), threads=1)
    for sizes in ({"B": 1, "S": 9}, {"B": 3, "S": 31}, {"B": 2, "S": 60}) if drawn.is_open else ({},):
        given = drawn.given(sizes)
        (step,), (exact,) = (interpret(drawn.module(), [given], wide=wide) for wide in (False, True))
        verdict = judge(np.asarray(engine(given)), step, exact)
        assert verdict.passed, f"{sizes}: {verdict.reason}"


AS_IS: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "before": (0, 0), "after": (0, 0)}


def an_image(shape: tuple[int, int, int, int]) -> tuple[Module, Graph, Builder, Value, Value]:
    """A network whose input is an image, and the weights of a convolution that gives what it takes with its channels innermost."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    one = module.add_constant("u", np.eye(shape[1], dtype=np.float32).reshape(shape[1], shape[1], 1, 1))
    return module, graph, Builder(module, graph), graph.add_input("x", TensorType(f32, shape)), one


def test_a_window_with_values_that_are_no_numbers_gives_what_the_pool_does() -> None:
    module, graph, b, x, one = an_image((1, 20, 9, 11))
    pooled = b.max_pool(b.relu(b.conv(x, one, **AS_IS)), window=(3, 3), dilations=(1, 1), strides=(2, 2), before=(1, 1), after=(1, 1))
    graph.set_outputs([pooled])
    assert found(module, AVX512)
    given = np.random.default_rng(0).standard_normal((1, 20, 9, 11)).astype(np.float32)
    given[0, 0, 4, 5] = np.nan
    (expected,) = interpret(module, [given])
    assert np.isnan(expected).any()
    np.testing.assert_array_equal(np.asarray(Engine(compile_module(module, build_options({"tune": "off"})), threads=1)(given)), expected)


def test_rows_of_places_are_what_registers_hold_and_images_what_a_cache_does() -> None:
    (pair,) = found(Drawn(3).module(), AVX512) or [None]
    assert pair is not None
    problem, match = pair
    for level in (AVX2, AVX512):
        for schedule in CpuWindows().space(match, level):
            assert 1 < schedule["n"] < level.registers and schedule["across"] % schedule["n"] == 0
    assert any(isinstance(part, Load) for part in walk(match.found.held)) and problem.region.inputs


@pytest.mark.parametrize(("window", "stride", "is_one"), [(2, 2, True), (3, 2, True), (2, 3, False), (1, 16, False)])
def test_windows_that_lie_apart_are_read_where_they_are(window: int, stride: int, is_one: bool) -> None:
    module, graph, b, x, one = an_image((1, 16, 50, 50))
    ways: dict[str, Any] = {"window": (window, window), "strides": (stride, stride)}
    pooled = b.max_pool(b.relu(b.conv(x, one, **AS_IS)), **ways, dilations=(1, 1), before=(0, 0), after=(0, 0))
    graph.set_outputs([b.conv(pooled, one, **AS_IS)])
    assert bool(found(module, AVX512)) == is_one


def test_a_product_is_no_window() -> None:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(f32, (1, 16, 9, 9)))
    weight = module.add_constant("w", np.ones((16, 16, 3, 3), np.float32))
    graph.set_outputs([b.conv(x, weight, strides=(1, 1), dilations=(1, 1), before=(1, 1), after=(1, 1))])
    assert found(module, AVX512) == []


def test_a_pool_of_codes_adds_up_the_numbers_that_they_stand_for() -> None:
    """Scaled before they are added, as in the model: an average beside a tie of codes is on the side where the model has it."""
    module, graph, b, x, one = an_image((2, 32, 16, 5))
    scale = module.add_constant("s", np.float32(0.05))

    def coded(value: Value) -> Value:
        return b.dequantize(b.quantize(value, scale, dtype=i8), scale, dtype=f32)

    ways: dict[str, Any] = {"window": (2, 1), "strides": (1, 1), "dilations": (1, 1), "before": (0, 0), "after": (0, 0)}
    graph.set_outputs([b.conv(coded(b.avg_pool(coded(b.conv(x, one, **AS_IS)), count_padding=True, **ways)), one, **AS_IS)])
    ((_, match), *_) = found(module, AVX512)
    assert [part.dtype for part in walk(match.found.held) if isinstance(part, Load)] == [i8, f32]
    given = np.random.default_rng(0).standard_normal((2, 32, 16, 5)).astype(np.float32)
    (expected,) = interpret(module, [given])
    answer = np.asarray(Engine(compile_module(module, build_options({"tune": "off"})), threads=1)(given))
    assert np.mean(np.abs(answer - expected) > 0.01) < 1e-3
