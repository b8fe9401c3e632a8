"""Whole models by torch.compile: at most 2^k graphs for k symbols, sharing engines, judged against eager and float64; gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from ourcc.compiler.torch import backend
from ourcc.ir.graph.reference import judge
from ourcc.ir.plan import Call, Host

from ..compiler.torch_models import recorded
from . import models

SEEDS = 8
TEXT_POINTS = [(2, 9), (1, 9), (3, 1), (1, 1), (5, 2), (1, 15), (1, 16), (2, 17), (4, 31), (16, 3), (7, 1), (2, 64), (1, 128)]
PLACES = 64


@dataclass(frozen=True)
class Road:
    """The points at which a model is checked (seeds go round them), the graphs that torch makes of it and their engines at most."""

    points: list[tuple[int, int]]
    graphs: int
    engines: int


ROADS = {
    **{name: Road(TEXT_POINTS, 4, 2) for name in ("bert", "gpt2", "minilm")},
    # At one token torch lets ids and mask have different batches, which is another program.
    "llama": Road(TEXT_POINTS, 4, 3),
    # Torch's own rule for convolutions asks whether the batch is below 16: one more graph.
    "resnet50": Road([(2, PLACES), (1, PLACES), (16, PLACES), (3, PLACES), (5, PLACES)], 3, 2),
    "vit": Road([(2, 0), (1, 0), (3, 0)], 2, 2),
}


@dataclass(frozen=True)
class Case:
    """A model, the same in float64, compiled; and every graph that torch handed over, with how many there were at each point."""

    name: str
    model: models.Model
    wide: torch.nn.Module
    fast: Any
    graphs: list[backend.CompiledGraph]
    made: list[int] = field(default_factory=list)


@pytest.fixture(scope="module", params=list(ROADS))
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    """The compiled model, already run at every point of its road."""
    torch._dynamo.reset()
    model = models.make(request.param)
    fast = torch.compile(model.module, backend=backend.ourcc, dynamic=True if model.names == models.TEXT else None, options={"threads": 1})
    with pytest.MonkeyPatch.context() as patch:
        case = Case(request.param, model, copy.deepcopy(model.module).double(), fast, recorded(patch))
        # Each test may run in a process of its own, so none rests on what another one ran.
        with torch.no_grad():
            for number, point in enumerate(ROADS[case.name].points):
                case.fast(*inputs_of(case, point, number))
                case.made.append(len(case.graphs))
        yield case
    torch._dynamo.reset()


def inputs_of(case: Case, point: tuple[int, int], seed: int) -> tuple[torch.Tensor, ...]:
    """Seeded inputs; of an image only the batch is a symbol."""
    inputs = case.model.draw(*point, seed)
    if case.model.names != models.TEXT:
        for x in inputs:
            torch._dynamo.maybe_mark_dynamic(x, 0)
    return inputs


def answers(case: Case, point: tuple[int, int], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compiled, eager, and in float64."""
    inputs = inputs_of(case, point, seed)
    with torch.no_grad():
        eager = case.model.module(*inputs).numpy()
        wide = case.wide(*(x.double() if x.is_floating_point() else x for x in inputs)).numpy()
        ours = case.fast(*inputs).numpy()
    case.made.append(len(case.graphs))
    return ours, eager, wide


def test_every_point_is_right(case: Case) -> None:
    wrong = []
    road = ROADS[case.name]
    for number in range(max(SEEDS, len(road.points))):
        point = road.points[number % len(road.points)]
        verdict = judge(*answers(case, point, number), factor=4, floor=4)
        if not verdict.passed:
            wrong.append(f"{case.name} at (B, S) = {point}, seed {number}: {verdict.reason}")
    assert not wrong, "\n".join(wrong)


def test_the_worst_of_eight_inputs_is_right(case: Case) -> None:
    point = ROADS[case.name].points[0]
    ours, eager, wide = (np.stack(found) for found in zip(*(answers(case, point, seed) for seed in range(SEEDS)), strict=True))
    verdict = judge(ours, eager, wide, factor=4, floor=4)
    assert verdict.passed, verdict.reason
    ours[np.unravel_index(np.abs(wide).argmax(), wide.shape)] *= 1 + 1e-4
    assert not judge(ours, eager, wide, factor=4, floor=4).passed


def test_graphs_are_few_and_made_early(case: Case) -> None:
    """One graph for each kind of size (one, more than one) of each symbol; the first points have all of them."""
    road = ROADS[case.name]
    assert case.made, "the fixture runs the model"
    assert case.made[-1] <= road.graphs
    assert case.made[road.graphs - 1] == case.made[-1]
    assert [graph.builds for graph in case.graphs] == [1] * case.made[-1]


def test_everything_is_compiled(case: Case) -> None:
    for graph in case.graphs:
        assert graph.imported is not None and graph.engine is not None
        assert graph.imported.fallbacks == ()
        (parts,) = graph.engine.contents.parts.values()
        assert not [step for step in parts.plan.steps if isinstance(step, (Call, Host))]


def test_graphs_share_engines(case: Case) -> None:
    """Size 1 is compiled apart by torch and runs the engine of all sizes."""
    assert case.made, "the fixture runs the model"
    assert len({id(graph.engine) for graph in case.graphs}) <= ROADS[case.name].engines
    assert sum(not graph.is_shared for graph in case.graphs) == len({id(graph.engine) for graph in case.graphs})


def test_graphs_share_packed_weights(case: Case) -> None:
    """What each graph holds beyond the first one is less than a tenth of it."""
    held: dict[int, int] = {}
    added = []
    for graph in case.graphs:
        assert graph.engine is not None
        constants = {c.data.ctypes.data: c.data.size for group in graph.engine.contents.weights.values() for c in group.values()}
        added.append(sum(size for place, size in constants.items() if place not in held))
        held |= constants
    assert all(more < added[0] / 10 for more in added[1:])


def gradients(module: torch.nn.Module, call: Any, inputs: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    """The gradients of a weighted sum of the answer, by parameter."""
    module.zero_grad()
    answer = call(*inputs)
    weights = torch.randn(answer.shape, generator=torch.Generator().manual_seed(3)).to(answer.dtype)
    (answer * weights).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in module.named_parameters() if parameter.grad is not None}


def test_gradients_of_minilm_are_those_of_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    graphs = recorded(monkeypatch)
    model = models.make("minilm")
    wide = copy.deepcopy(model.module).double()
    fast = torch.compile(model.module, backend=backend.ourcc, dynamic=True, options={"threads": 1})
    wrong = []
    for seed, point in enumerate([(2, 9), (3, 16)]):
        inputs = model.draw(*point, seed)
        ours, eager = gradients(model.module, fast, inputs), gradients(model.module, model.module, inputs)
        exact = gradients(wide, wide, inputs)
        assert ours.keys() == eager.keys()
        for name, gradient in ours.items():
            verdict = judge(*(t.numpy() for t in (gradient, eager[name], exact[name])), factor=4, floor=4)
            if not verdict.passed:
                wrong.append(f"{name} at {point}: {verdict.reason}")
    assert not wrong, "\n".join(wrong)
    assert len(graphs) == 2
    assert all(graph.build is not None and graph.build.watched == () for graph in graphs)
    torch._dynamo.reset()
