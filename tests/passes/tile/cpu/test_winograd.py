"""Convolutions by Winograd's filtering: every schedule of drawn ones, engines on two levels, what is not finite, and what is refused."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ourcc
from ourcc.compiler.backends.cpu import lower_cpu
from ourcc.compiler.backends.reopen import module_of
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir import dims
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.region import Load, walk
from ourcc.ir.region.interpret import run_region
from ourcc.ir.target import AVX2, AVX512, CpuLevel
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.parse import parse
from ourcc.ir.tile.text import text
from ourcc.ir.tile.verify import verify
from ourcc.ir.types import TensorType, f32
from ourcc.passes.lower.schedule import cheapest
from ourcc.passes.tile.cpu import winograd
from ourcc.passes.tile.cpu.winograd import Winograd
from ourcc.passes.tile.cpu.winograd_sides import Filtered
from ourcc.passes.tile.schedule import Match, Problem, matches
from ourcc.runtime.engine import Engine


@dataclass(frozen=True)
class Drawn:
    """A convolution by windows of three taps along one or two sides, between two others, with what may stand before and behind it."""

    seed: int
    is_open: bool = False

    def module(self) -> Module:
        draw, module = random.Random(self.seed), Module("net")
        graph = module.functions["main"] = Graph("main")
        b = Builder(module, graph)
        rank, channels, filters = draw.choice([1, 2, 2]), draw.choice([16, 20, 33]), draw.choice([16, 32, 48])
        before, after = (tuple(draw.randint(0, 2) for _ in range(rank)) for _ in range(2))
        sizes: list[dims.Dim] = [draw.randint(3, 14) for _ in range(rank)]
        if self.is_open:
            sizes[-1] = module.declare("S", 3, 60)
        batch: dims.Dim = module.declare("B", 1, 3) if self.is_open else draw.choice([1, 2])
        x = graph.add_input("x", TensorType(f32, (batch, 3, *sizes)))
        around: dict[str, Any] = {"strides": (1,) * rank, "dilations": (1,) * rank, "before": (0,) * rank, "after": (0,) * rank}
        numbers = np.random.default_rng(self.seed)

        def constant(name: str, *shape: int) -> Value:
            return module.add_constant(name, (numbers.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))

        value = b.conv(x, constant("u", channels, 3, *(1,) * rank), **around)
        if draw.random() < 0.5:
            value = b.relu(value)
        operands = [value, constant("w", filters, channels, *(3,) * rank)]
        if draw.random() < 0.5:
            operands.append(module.add_constant("bias", numbers.standard_normal(filters).astype(np.float32)))
        value = b.conv(*operands, **{**around, "before": before, "after": after})
        value = draw.choice([lambda v: v, b.relu, lambda v: b.mul(v, b.sigmoid(v))])(value)
        graph.set_outputs([b.conv(value, constant("v", 3, filters, *(1,) * rank), **around)])
        return module

    def given(self, sizes: dict[str, int]) -> np.ndarray[Any, Any]:
        (value,) = self.module().functions["main"].inputs
        shape = [dims.evaluate(size, sizes) for size in value.type.shape]
        return np.random.default_rng(self.seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def small_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are taken that are small enough to be looked at quickly."""
    monkeypatch.setattr(winograd, "FEWEST", 1)


def found(module: Module, level: CpuLevel) -> list[tuple[Problem, Match[Filtered]]]:
    """The problems of a module that windows of three taps are summed in."""
    problems = [unit.problem for unit in lower_cpu(module, level, cheapest(level)).scheduled.values()]
    return [(problem, match) for problem in problems for match in matches([Winograd()], problem, level)]


@pytest.mark.usefixtures("small_images")
def test_all_that_is_drawn_is_taken() -> None:
    assert all(len(found(Drawn(seed).module(), AVX512)) == 1 for seed in range(12))


@pytest.mark.usefixtures("small_images")
@pytest.mark.parametrize("level", [AVX2, AVX512], ids=["AVX2", "AVX-512"])
@pytest.mark.parametrize("seed", range(10))
def test_every_schedule_computes_its_places(seed: int, level: CpuLevel) -> None:
    numbers = np.random.default_rng(seed)
    problems = found(Drawn(seed).module(), level)
    assert problems
    for problem, match in problems:
        region = problem.region
        given = {o.name: numbers.standard_normal([dims.number(d) for d in o.type.shape]).astype(np.float32) for o in region.inputs}
        (image,) = {part.operand for part in walk(match.found.product.left) if isinstance(part, Load)}
        given[image].flat[:3] = np.nan, np.inf, -np.inf
        every = list(Winograd().space(match, level))
        schedules = every[seed % len(every) :: 3]
        assert schedules
        packed = {name: problem.layouts[name].pack(array) if name in problem.layouts else array for name, array in given.items()}
        with np.errstate(all="ignore"):
            expected = run_region(region, given, {})
            for schedule in schedules:
                program = Winograd().tile(match, schedule, level)
                verify(program, problem.symbols)
                assert parse(text(program)) == program
                result = run(program, packed, {}, problem.symbols)
                for name, array in expected.items():
                    np.testing.assert_allclose(result[name].reshape(array.shape), array, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("small_images")
@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
@pytest.mark.parametrize("seed", range(5, 13))
def test_engines_of_drawn_windows(seed: int, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that are known, and a batch and a length that calls decide; numbers that are none reach what they reach in the sum."""
    drawn = Drawn(seed, is_open=seed % 2 == 1)
    monkeypatch.setattr(Winograd, "cost", lambda self, match, schedule, target: 1e-12)
    contents = compile_module(drawn.module(), build_options({"target": target, "tune": "off"}))
    assert any(row["strategy"].startswith("winograd") for rows in contents.report["kernels"].values() for row in rows)
    engine = Engine(contents, threads=1)
    for sizes in ({"B": 1, "S": 9}, {"B": 3, "S": 31}, {"B": 2, "S": 60}) if drawn.is_open else ({},):
        for strange in ((), (np.nan,), (np.inf, -np.inf, 3e38)):
            given = drawn.given(sizes)
            given.flat[given.size // 2 : given.size // 2 + len(strange)] = strange
            with np.errstate(all="ignore"):
                (step,), (exact,) = (interpret(drawn.module(), [given], wide=wide) for wide in (False, True))
            answer = np.asarray(engine(given))
            assert np.array_equal(np.isnan(answer), np.isnan(step))
            if 3e38 in strange:
                # Sums of terms of either sign may pass the range in one order and not in another, in the convolutions beside it too.
                assert np.isfinite(answer[np.isfinite(step) & (np.abs(step) < 1e30)]).all()
                continue
            verdict = judge(answer, step, exact, factor=4)
            assert verdict.passed, f"{sizes}, {strange}: {verdict.reason}"


def a_network(channels: int, size: int, **changes: Any) -> Module:
    """Convolutions by windows of three taps of a large image."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b, numbers = Builder(module, graph), np.random.default_rng(0)
    x = graph.add_input("x", TensorType(f32, (1, 3, size, size)))

    def constant(name: str, *shape: int) -> Value:
        return module.add_constant(name, (numbers.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))

    ways: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "before": (1, 1), "after": (1, 1), **changes}
    value = b.relu(b.conv(x, constant("u", channels, 3, 3, 3), **{**ways, "strides": (1, 1), "dilations": (1, 1), "groups": 1}))
    graph.set_outputs([b.conv(value, constant("w", channels, channels // ways.get("groups", 1), 3, 3), **ways)])
    return module


def test_large_images_are_filtered_by_choice_and_the_weights_stay_in_the_engine(tmp_path: Path) -> None:
    module = a_network(64, 56)
    contents = compile_module(module, build_options({"target": "x86-64-v4", "tune": "off"}))
    (rows,) = contents.report["kernels"].values()
    assert [row["strategy"].partition("{")[0] for row in rows if row["kernel"]][:2] == ["packed", "winograd"]
    kept = module_of(contents).constants
    for name, value in module.constants.items():
        assert value.constant is not None and kept[name].constant is not None
        np.testing.assert_array_equal(kept[name].constant.array, value.constant.array)


@pytest.mark.usefixtures("small_images")
def judged(module: torch.nn.Module, given: torch.Tensor) -> tuple[bool, str]:
    """Eager's answer, in float32 and float64, beside that of an engine whose kernels filter."""
    engine = ourcc.build(module, (given,), targets=["native"], tune="off", threads=1)
    assert any(row["strategy"].startswith("winograd") for rows in engine.contents.report["kernels"].values() for row in rows)
    with torch.no_grad():
        step, exact = module(given).numpy(), copy.deepcopy(module).double()(given.double()).numpy()
    verdict = judge(np.asarray(engine(given.numpy())), step, exact, factor=4)
    return verdict.passed, verdict.reason


@pytest.mark.parametrize(("channels", "filters"), [(64, 64), (128, 128), (256, 64), (512, 64)])
def test_errors_do_not_grow_with_channels(channels: int, filters: int) -> None:
    torch.manual_seed(channels)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, channels, 1), torch.nn.ReLU(), torch.nn.Conv2d(channels, filters, 3, padding=1)).eval()
    passed, why = judged(module, torch.randn(1, 3, 28, 28))
    assert passed, why


@pytest.mark.parametrize("large", [-1e9, -1e4])
def test_a_large_pixel_leaves_its_neighbours_alone(large: float) -> None:
    """Behind it nothing is left of what is large: the places that do not see it stand by themselves."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 1, bias=False), torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.ReLU()).eval()
    for convolution in (module[0], module[1]):
        convolution.weight.data.abs_()
    given = torch.rand(1, 16, 28, 28)
    given[:, :, 10, 10] = large
    passed, why = judged(module, given)
    assert passed, why


def test_sums_that_pass_the_range_on_the_way_alone_are_made_again() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(32, 32, 1, bias=False), torch.nn.Conv2d(32, 32, 3, bias=False), torch.nn.Conv2d(32, 8, 1)
    ).eval()
    module[0].weight.data = torch.eye(32).reshape(32, 32, 1, 1)
    module[1].weight.data *= 1e-2
    given = torch.randn(1, 32, 30, 30)
    given[0, :, 0, 3], given[0, :, 12, 11] = 2e38 * torch.rand(32), -2e38 * torch.rand(32)
    with torch.no_grad():
        assert module(given).isfinite().all()
    passed, why = judged(module, given)
    assert passed, why


@pytest.mark.parametrize("changes", [{"strides": (2, 2)}, {"dilations": (2, 2)}, {"groups": 2}], ids=str)
def test_other_windows_are_summed_place_by_place(changes: dict[str, Any]) -> None:
    assert found(a_network(32, 12, **changes), AVX512) == []


def test_filters_that_few_tiles_would_read_are_refused() -> None:
    assert found(a_network(32, 8), AVX512) == [] and found(a_network(32, 12), AVX512)


def test_few_channels_and_odd_numbers_of_filters_are_refused() -> None:
    assert found(a_network(8, 12), AVX512) == [] and found(a_network(24, 12), AVX512) == []
    assert len(found(a_network(32, 12), AVX512)) == 1
