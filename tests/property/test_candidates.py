"""Drawn programs with folds of folds over sizes without bounds: whatever a strategy offers for a problem can be made.

Tuning asks every strategy for candidates, a build the first that applies alone: so each is made here.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest

from ourcc.autotune.candidates import print_candidates
from ourcc.autotune.problem import bucket
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.target import AVX2, AVX512
from ourcc.ir.types import TensorType, f32
from ourcc.passes.lower.layout import constant_layouts
from ourcc.passes.lower.lower import fuse, lower
from ourcc.passes.lower.schedule import Scheduler, cheapest
from ourcc.passes.tile.cpu import STRATEGIES
from ourcc.passes.tile.schedule import Candidate, Problem

MOST = 2
"""Candidates of a strategy: all its schedules of one problem go the same ways."""
SHARE = 32
"""One program for so many modules that the other drawn tests compile."""


SIZES = (("B", 2, 0.7), ("S", 8, 0.7), ("T", 16, 0.3))


def normalized(b: Builder, x: Value, choices: random.Random) -> Value:
    return b.softmax(x, axis=choices.randrange(3))


def centred(b: Builder, x: Value, choices: random.Random) -> Value:
    return b.sub(x, b.mean(x, axes=(choices.randrange(3),), keepdims=True))


def running(b: Builder, x: Value, choices: random.Random) -> Value:
    return b.cumsum(x, axis=choices.randrange(3))


def product(b: Builder, x: Value, choices: random.Random) -> Value:
    return b.matmul(x, b.transpose(b.relu(x), permutation=(0, 2, 1)))


def attended(b: Builder, x: Value, choices: random.Random) -> Value:
    if not isinstance(x.shape[-1], int):
        return b.relu(x)  # recognized for heads of known size alone
    return b.attention(x, b.relu(x), x, scale=0.5, causal=choices.random() < 0.3)


def turned(b: Builder, x: Value, choices: random.Random) -> Value:
    return b.transpose(b.exp(x), permutation=(0, 2, 1))


STEPS: tuple[Callable[[Builder, Value, random.Random], Value], ...] = (normalized, centred, running, product, attended, attended, turned)


def draw(choices: random.Random) -> Module:
    """A program of a few folds, its sizes symbols or numbers."""
    module, graph = Module("case"), Graph("main")
    module.functions["main"] = graph
    sizes = [module.declare(name) if choices.random() < share else size for name, size, share in SIZES]
    value: Value = graph.add_input("x", TensorType(f32, tuple(sizes)))
    builder = Builder(module, graph)
    for _ in range(choices.randrange(1, 4)):
        value = choices.choice(STEPS)(builder, value, choices)
    if choices.random() < 0.7:
        last = choices.choice((builder.sum, builder.mean, builder.reduce_max))
        value = last(value, axes=(choices.randrange(3),), keepdims=choices.random() < 0.5)
    graph.set_outputs([value], ["y"])
    return module


def unmade(module: Module, level: object) -> list[str]:
    """What could not be made of all that the strategies offer."""
    found: list[str] = []

    def choose(problem: Problem, families: Iterator[Sequence[Candidate]]) -> Candidate:
        every = [candidate for family in families for candidate in [*family][:: max(1, len(family) // MOST)]]
        sources = print_candidates(problem, every, level, bucket(problem))  # type: ignore[arg-type]
        assert set(sources.files) | set(sources.failures) == set(range(len(every)))
        found.extend(failure.reason for failure in sources.failures.values() if failure.is_bug)
        return cheapest(level)(problem, iter([every]))

    lower(fuse(module), Scheduler(STRATEGIES, level, choose, constant_layouts), "cpu")
    return found


def test_what_strategies_offer_can_be_made(request: pytest.FixtureRequest) -> None:
    count, seed = request.config.getoption("--cases") // SHARE, request.config.getoption("--seed", 0)
    found, programs = Counter[str](), 0
    for number in range(max(8, count)):
        choices = random.Random(f"{seed} {number}")
        try:
            reasons = unmade(draw(choices), choices.choice((AVX2, AVX512)))
        except Exception as error:  # noqa: BLE001 - whatever making candidates does wrong is what this is looking for
            reasons = [f"{type(error).__name__}: {str(error)[:100]}"]
        found.update(reasons)
        programs += bool(reasons)
    assert not found, f"{programs} of {max(8, count)} programs: {dict(found)}"
