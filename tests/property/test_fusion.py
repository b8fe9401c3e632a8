"""Drawn programs that fusion finds hard.

Each is composed and run region by region, computed by engines, and built once more with a compiler that fails at random.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from fusing import KINDS, Sketch, draw
from generator import Case
from harness import compared, failing

from ourcc.codegen.c.printer import SourceFile
from ourcc.codegen.c.weight import HEAVIEST, weigh
from ourcc.compiler.backends.cpu import lower_cpu
from ourcc.ir.dims import Dim
from ourcc.ir.graph import Module, Value
from ourcc.ir.graph.reference import Array, bind_symbols
from ourcc.ir.plan import Copy
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.verify import verify_region
from ourcc.ir.target import AVX2, AVX512
from ourcc.ir.types import f32
from ourcc.passes.fusion.partition import GROUP_OPS, Fusion
from ourcc.passes.lower import schedule as scheduling
from ourcc.passes.lower.build_plan import Lowered
from ourcc.passes.lower.lower import BadKernels, fuse, lower_printed
from ourcc.passes.lower.schedule import Scheduler, cheapest
from ourcc.passes.regions.compose import Group
from ourcc.passes.tile.cpu import STRATEGIES
from ourcc.passes.tile.schedule import Match

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(scope="module")
def drawn_cases(request: pytest.FixtureRequest) -> list[tuple[str, Case]]:
    count, seed = request.config.getoption("--cases"), request.config.getoption("--seed", 0)
    return [draw(number, seed) for number in range(max(5 * len(KINDS), count // 4))]


def test_a_step_in_which_rounding_shows_is_not_kept() -> None:
    sketch = Sketch(random.Random(1))
    assert sketch.dtype == f32
    far = sketch.kept(partial(sketch.builder.add, sketch.x, sketch.number(1e6)))
    assert far is not None and [op.name for op in sketch.graph] == ["add"]
    assert sketch.kept(partial(sketch.builder.sub, far, sketch.number(1e6))) is None
    assert sketch.kept(partial(sketch.builder.sub, far, sketch.number(1))) is not None
    assert [op.name for op in sketch.graph] == ["add", "sub"]


def interpreted(module: Module, groups: Sequence[Group], inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a graph, each group run as its region says."""
    graph = module.main
    symbols = bind_symbols(graph.inputs, list(inputs))
    values: dict[Value, Array] = dict(zip(graph.inputs, inputs, strict=True))
    values |= {value: value.constant.array for value in module.constants.values() if value.constant is not None}
    for group in groups:
        region = group.region
        shapes = [tuple(_size(size, symbols) for size in operand.type.shape) for operand in region.inputs]
        arrays = {o.name: values[v].reshape(s) for o, v, s in zip(region.inputs, group.inputs, shapes, strict=True)}
        results = run_region(region, arrays, symbols)
        for operand, value in zip(region.outputs, group.outputs, strict=True):
            values[value] = results[operand.name].reshape([_size(size, symbols) for size in value.shape])
    return [values[value] for value in graph.outputs]


def _size(size: Dim, symbols: dict[str, int]) -> int:
    from ourcc.ir import dims

    return dims.evaluate(size, symbols)


def wrong(case: Case, groups: Sequence[Group]) -> str | None:
    """What is wrong with a partition: its form, or the numbers that its regions give."""
    for group in groups:
        verify_region(group.region, case.module.facts)
    found = (compared(case, run, interpreted(case.module, groups, inputs)) for run, inputs in enumerate(case.inputs))
    return next((why for why in found if why is not None), None)


def groups_of(units: Sequence[Any]) -> list[Group]:
    return [unit if isinstance(unit, Group) else unit.group for unit in units]


def test_groups_are_right_and_of_bounded_size(drawn_cases: list[tuple[str, Case]]) -> None:
    found = Counter[str]()
    for kind, case in drawn_cases:
        try:
            groups = groups_of(Fusion(case.module, case.module.main).units(lambda group: group))
            statements = sum(len(group.region.body) for group in groups)
            assert wrong(case, groups) is None
            assert all(len(group.ops) <= GROUP_OPS for group in groups)
            # Each op is computed at no more than a few places, whatever reads it.
            assert statements <= 16 * len(case.module.main) + 16
        except Exception as error:  # noqa: BLE001 - whatever fusion does wrong is what this is looking for
            found[f"{kind}: {type(error).__name__}: {str(error)[:80]}"] += 1
    assert not found, f"{found.total()} of {len(drawn_cases)} programs fail: {dict(found)}"


def weights(lowered: Lowered) -> Iterator[int]:
    """What the kernels of more than one op cost the C compiler."""
    for name, launch in lowered.kernels.items():
        file, symbols = SourceFile(AVX512), lowered.scheduled[name].problem.symbols
        kernel = file.add(launch, name, tuple(symbols.ranges), symbols)
        if len(lowered.scheduled[name].group.ops) > 1:
            yield weigh(kernel.source, file.library)


def test_kernels_are_of_bounded_weight(drawn_cases: list[tuple[str, Case]]) -> None:
    # Steps of 5 meet every kind.
    heaviest = {kind: max(weights(lower_cpu(case.module, AVX512, cheapest(AVX512))), default=0) for kind, case in drawn_cases[::5]}
    assert set(heaviest) == set(KINDS)
    assert max(heaviest.values()) <= HEAVIEST, heaviest


@pytest.mark.timeout(3600)
def test_engines_are_right(drawn_cases: list[tuple[str, Case]]) -> None:
    share = [case for _, case in drawn_cases[: max(len(KINDS), len(drawn_cases) // 8)]]
    found = failing(share)
    assert not found, f"{len(found)} of {len(share)} programs fail, the first: {found[0][1]}"


@dataclass(frozen=True)
class Flaky:
    """A strategy that fails for some problems and schedules; which ones, its texts decide."""

    inner: Any
    seed: int

    @property
    def name(self) -> str:
        return str(self.inner.name)

    def _fail(self, where: str, *what: object) -> None:
        if random.Random(f"{self.seed} {where} {' '.join(map(str, what))}").random() < 0.3:
            raise random.Random(self.seed).choice((RuntimeError, KeyError, AssertionError, RecursionError, ZeroDivisionError))(where)

    def _fail_but_last(self, where: str, problem: Any, schedule: Any) -> None:
        if (schedule.strategy, dict(schedule.parameters).get("vectors")) != ("nest", 1):
            self._fail(where, problem.region, schedule)

    def match(self, problem: Any, target: Any) -> Any:
        self._fail("match", problem.region)
        found = self.inner.match(problem, target)
        return replace(found, strategy=self) if isinstance(found, Match) else found

    def space(self, match: Any, target: Any) -> Iterator[Any]:
        self._fail("space", match.problem.region)
        return self.inner.space(match, target)  # type: ignore[no-any-return]

    def cost(self, match: Any, schedule: Any, target: Any) -> float:
        self._fail_but_last("cost", match.problem, schedule)
        return self.inner.cost(match, schedule, target)  # type: ignore[no-any-return]

    def order(self, match: Any, schedule: Any, target: Any) -> Any:
        self._fail_but_last("order", match.problem, schedule)
        return self.inner.order(match, schedule, target)

    def tile(self, match: Any, schedule: Any, target: Any) -> Any:
        self._fail_but_last("tile", match.problem, schedule)
        return self.inner.tile(match, schedule, target)


def broken_build(case: Case, seed: int, patch: pytest.MonkeyPatch) -> tuple[Lowered, list[str]]:
    """A plan by a compiler that fails at composing, scheduling, tiling and printing, but for single ops; and where it did."""
    choices, failed = random.Random(seed), []
    schedule = Scheduler.schedule

    def fail(where: str) -> None:
        failed.append(where)
        raise RuntimeError(f"injected into {where}")

    def scheduled(self: Scheduler, group: Group, symbols: Any) -> Any:
        if len(group.ops) > 1 and choices.random() < 0.4:
            fail("scheduling")
        return schedule(self, group, symbols)

    def printed(lowered: Lowered) -> int:
        for name, unit in lowered.scheduled.items():
            if len(unit.group.ops) > 1 and choices.random() < 0.1:
                failed.append("printing")
                raise BadKernels({name: "injected into printing"})
        return len(lowered.kernels)

    patch.setattr(Scheduler, "schedule", scheduled)
    # The last schedule of the last strategy takes everything: what it cannot do as one op is an error, not injected here.
    strategies = [*(Flaky(strategy, seed) for strategy in STRATEGIES), *STRATEGIES]
    scheduler = Scheduler(strategies, AVX2, cheapest(AVX2), lambda region, constants: {})
    return lower_printed(fuse(case.module), scheduler, "cpu", printed)[0], failed


@pytest.mark.faults
def test_a_compiler_that_fails_at_random_still_builds_what_is_right(
    drawn_cases: list[tuple[str, Case]], request: pytest.FixtureRequest
) -> None:
    injected = 0
    share = drawn_cases[:: max(1, len(drawn_cases) // max(len(KINDS), len(drawn_cases) // 4))]
    for number, (kind, case) in enumerate(share):
        with pytest.MonkeyPatch.context() as patch:
            lowered, failed = broken_build(case, request.config.getoption("--seed", 0) + number, patch)
        # What only hands an input on is a copy.
        assert lowered.kernels or all(isinstance(step, Copy) for step in lowered.plan.steps), kind
        reasons = " ".join(row.why for row in lowered.kept)
        assert failed.count("scheduling") == 0 or "injected into scheduling" in reasons
        fusion = Fusion(case.module, case.module.main)
        with pytest.MonkeyPatch.context() as patch:
            choices = random.Random(number)
            groups = groups_of(fusion.units(lambda group, choices=choices: _sometimes(group, choices)))  # type: ignore[misc]
        assert wrong(case, groups) is None, kind
        injected += len(failed)
    assert injected > len(share) // 2


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_engines_of_a_compiler_that_fails_at_random_are_right(
    drawn_cases: list[tuple[str, Case]], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices, schedule, failed = random.Random(request.config.getoption("--seed", 0)), Scheduler.schedule, Counter[str]()

    def scheduled(self: Scheduler, group: Group, symbols: Any) -> Any:
        if len(group.ops) > 1 and (not failed or choices.random() < 0.3):
            failed["scheduling"] += 1
            raise RuntimeError("injected into scheduling")
        return schedule(self, group, symbols)

    monkeypatch.setattr(Scheduler, "schedule", scheduled)
    share = [case for _, case in drawn_cases[-max(len(KINDS), len(drawn_cases) // 16) :]]
    found = failing(share)
    assert not found, f"{len(found)} of {len(share)} programs fail, the first: {found[0][1]}"
    assert failed


def _sometimes(group: Group, choices: random.Random) -> Group:
    if len(group.ops) > 1 and choices.random() < 0.5:
        raise RuntimeError("injected")
    return group


def test_nothing_of_this_is_needed_where_nothing_fails() -> None:
    _, case = draw(2, 0)
    assert lower_cpu(case.module, AVX2, scheduling.cheapest(AVX2)).kept == ()
