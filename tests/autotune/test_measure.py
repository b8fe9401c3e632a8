"""Measuring with a real compiler: answers are compared, crashes and delays cost one candidate and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from ourcc.autotune import measure
from ourcc.autotune.candidates import Sources, allowed_ulps, print_candidates, unmeasurable
from ourcc.autotune.measure import Measurer, Policy
from ourcc.autotune.problem import bucket
from ourcc.autotune.record import Trial, scrub
from ourcc.autotune.search import rank, shortlist
from ourcc.autotune.worker import Bench
from ourcc.codegen.c.toolchain import find_compiler
from ourcc.ir.dims import NO_FACTS
from ourcc.ir.errors import InternalError, UnsupportedError
from ourcc.ir.region.text import parse_region
from ourcc.ir.target import AVX2, AVX512, BASELINE, CpuLevel
from ourcc.ir.tile.program import TileProgram
from ourcc.ir.types import f32
from ourcc.passes.lower.layout import constant_layouts
from ourcc.passes.tile.cpu import STRATEGIES
from ourcc.passes.tile.schedule import Candidate, Problem, Schedule, matches
from ourcc.runtime.native import cpu_flags

from .conftest import Fake

LEVEL: CpuLevel = next((level for level in (AVX512, AVX2) if cpu_flags().issuperset(level.features)), BASELINE)
pytestmark = pytest.mark.skipif(LEVEL is BASELINE, reason="this machine runs neither level")
HEAD = '#include "ourcc.h"\nint32_t candidate_{n}_0(void *const *operands, const int64_t *symbols, int64_t first, int64_t last);\n'
HEAD += "const ourcc_kernel candidate_{n}_0_descriptor = {{candidate_{n}_0, 0, 0}};\n"
HEAD += "int32_t candidate_{n}_0(void *const *operands, const int64_t *symbols, int64_t first, int64_t last)"
QUICK = Policy(rounds=3, batch_microseconds=100)


def candidates(problem: Problem, count: int = 3) -> list[Candidate]:
    families = [[(match, x) for x in match.strategy.space(match, LEVEL)] for match in matches(STRATEGIES, problem, LEVEL)]
    return shortlist(rank(families, LEVEL), count)


def run(problem: Problem, chosen: Sequence[Candidate], deadline: float = 20.0) -> tuple[Trial, ...]:
    return Measurer(LEVEL, find_compiler(), QUICK, deadline).measure(problem, chosen)


def test_candidates_of_two_strategies_agree_and_are_timed(problem: Problem) -> None:
    chosen = candidates(problem)
    assert {schedule.strategy for _, schedule in chosen} == {"packed", "nest"}
    trials = run(problem, chosen)
    assert [trial.schedule for trial in trials] == [schedule for _, schedule in chosen]
    assert all(not trial.failures and len(trial.times) == 3 and min(trial.times) > 0 for trial in trials)
    assert len({sample.run for trial in trials for sample in trial.samples}) == 1


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, str]], None]:
    """Replace the C text of some candidates."""

    def set_bodies(bodies: dict[int, str]) -> None:
        def printed(*arguments: object) -> Sources:
            sources = print_candidates(*arguments)  # type: ignore[arg-type]
            sources.files |= {n: HEAD.format(n=n) + body for n, body in bodies.items()}
            return sources

        monkeypatch.setattr(measure, "print_candidates", printed)

    return set_bodies


def test_wrong_crashing_and_refused_candidates_are_bugs_of_their_own(problem: Problem, spoil: Callable[[dict[int, str]], None]) -> None:
    spoil({1: "{ float *y = operands[3]; y[0] = 42.0f; return 0; }", 2: "{ __builtin_trap(); return 0; }", 3: "{ return 1 +; }"})
    trials = run(problem, candidates(problem, 5))
    assert [[failure.kind for failure in trial.failures] for trial in trials] == [[], ["wrong"], ["crashed"], ["internal"], []]
    assert all(failure.is_bug for trial in trials for failure in trial.failures)
    assert trials[2].failures[0].reason.startswith("ended by signal")
    assert trials[0].times
    assert trials[4].times
    assert scrub("cc: /home/me/x.c:3: no such file ~/y") == "cc: ...:3: no such file ..."
    assert not any("/" in failure.reason for trial in trials for failure in trial.failures)


def test_a_candidate_whose_kernel_fails_is_left_out(problem: Problem, spoil: Callable[[dict[int, str]], None]) -> None:
    spoil({0: "{ return 3; }"})
    trials = run(problem, candidates(problem, 2))
    assert [failure.kind for failure in trials[0].failures] == ["crashed"] and not trials[0].times
    assert "a kernel of the candidate failed with status 3" in trials[0].failures[0].reason
    assert trials[1].times


def test_a_candidate_that_never_ends_is_an_expected_failure(problem: Problem, spoil: Callable[[dict[int, str]], None]) -> None:
    spoil({0: '{ for (;;) __asm__ volatile (""); }'})
    trials = run(problem, candidates(problem, 2), deadline=2.0)
    assert [failure.kind for failure in trials[0].failures] == ["timeout"]
    assert not trials[0].failures[0].is_bug
    assert trials[1].times


GATHER = """region @region(%x0: f32[{n}, k 8], %x1: i64[i 16]) -> %y0: f32[i 16, k 8] {{
  axes i: 16, k: 8
  %y0[i, k] = %x0[%g0, k] with (%g0 = {index})
}}
"""


def gather(index: str, n: int = 3) -> Problem:
    return Problem(parse_region(GATHER.format(n=n, index=index)), NO_FACTS, {})


def test_made_up_indices_stay_inside_what_they_index() -> None:
    problem = gather("%x1[i]")
    trials = run(problem, candidates(problem))
    assert all(trial.times and not trial.failures for trial in trials)
    sources = print_candidates(problem, candidates(problem), LEVEL, {})
    assert [buffer.bound for buffer in sources.buffers] == [3, 3, 3]


SPARSE = """region @region(%x0: f32[i 8, k 64], %x1: u8[8, j 32], %x2: f32[32, j 32]) -> %y0: f32[i 8, j 32] {
  axes i: 8, j: 32, k: 64
  %t0 = sum k: mul(%x0[i, k], EXPANDED) : f32[i, j]
  %y0[i, j] = %t0
}
""".replace(
    "EXPANDED",
    "where(eq(bit_and(shift_right(cast(%x1[(k // 8), j], i32), index(4*(((k // 4)) % 2), i32)), i32(3)), index((k % 4), i32)), "
    "%x2[2*(k // 4), j], where(eq(bit_and(shift_right(cast(%x1[(k // 8), j], i32), index(4*(((k // 4)) % 2) + 2, i32)), i32(3)), "
    "index((k % 4), i32)), %x2[2*(k // 4) + 1, j], f32(0.0)))",
)


def test_any_bytes_are_sparse_positions() -> None:
    """Inputs are made up without a look at what they mean: schedules agree on whatever bytes there are."""
    region = parse_region(SPARSE)
    constants = frozenset({"x1", "x2"})
    problem = Problem(region, NO_FACTS, constant_layouts(region, constants), constants)
    sources = print_candidates(problem, candidates(problem), LEVEL, {})
    assert not sources.failures
    trials = run(problem, candidates(problem))
    assert {trial.schedule.strategy for trial in trials} == {"packed", "nest"}
    assert all(trial.times and not trial.failures for trial in trials)


@dataclass(frozen=True)
class Broken(Fake):
    """A strategy that offers schedules and fails to make them."""

    error: Exception = field(default_factory=lambda: InternalError("%t0 varies over j without a bound"))

    def tile(self, problem: Problem, schedule: Schedule, target: object) -> TileProgram:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (InternalError("%t0 varies over j without a bound"), "internal", "%t0 varies over j without a bound"),
        (KeyError("t0"), "internal", "KeyError: 't0'"),
        (UnsupportedError("too large"), "unsupported", "too large"),
    ],
)
def test_a_candidate_that_cannot_be_made_is_left_out(problem: Problem, error: Exception, kind: str, reason: str) -> None:
    broken = Broken("broken", (1.0,), error)
    trials = run(problem, [*broken.candidates(), *candidates(problem, 2)])
    assert [(failure.kind, failure.reason) for failure in trials[0].failures] == [(kind, reason)]
    assert all(trial.times for trial in trials[1:])


def test_what_only_the_machine_can_mend_is_no_failure_of_a_candidate(problem: Problem) -> None:
    with pytest.raises(MemoryError):
        run(problem, Broken("broken", (1.0,), MemoryError()).candidates())


def test_what_cannot_be_measured_says_why(problem: Problem) -> None:
    assert unmeasurable(problem, bucket(problem)) is None
    assert unmeasurable(gather("%x1[i]", 1 << 28), {}) == "its operands take 8.0 GB, expected at most 1"
    text = GATHER.format(n=3, index="cast(%x2[i], i64)").replace("%x1: i64", "%x2: f32")
    assert unmeasurable(Problem(parse_region(text), NO_FACTS, {}), {}) == "an index is computed from numbers that are no integers"


def test_sums_may_differ_by_their_rounding_and_not_by_more(problem: Problem) -> None:
    allowed = allowed_ulps(problem.region, f32, bucket(problem))
    assert allowed == 16 * (1 + np.sqrt(64) / 4)
    assert allowed * 2.0**-23 < 1e-5


def test_the_child_is_data_alone() -> None:
    """The child imports nothing of the package, so that it starts in isolated mode wherever the package lies."""
    text = Path(measure.__file__).with_name("worker.py").read_text()
    assert "from ." not in text
    assert "import ourcc" not in text
    assert "from ourcc" not in text


def rounds(nanoseconds: dict[int, int], seconds: int = 5) -> tuple[dict[int, list[int]], int]:
    """The rounds of a bench whose candidates take known times, and how often it said that it lives."""
    bench = Bench.__new__(Bench)
    bench.job = {"candidates": list(nanoseconds), "batch": 1000, "rounds": 5, "drop": 3, "seconds": seconds}
    bench.nanoseconds = lambda candidate, repeats: nanoseconds[candidate] * repeats  # type: ignore[method-assign]
    lives: list[None] = []
    return bench.rounds(lambda: lives.append(None)), len(lives)


def test_candidates_far_behind_are_not_timed_to_the_end() -> None:
    times, lives = rounds({0: 100, 1: 250, 2: 400, 3: 60_000_000})
    assert times == {0: [100_000] * 5, 1: [250_000] * 5, 2: [400_000] * 3, 3: [60_000_000_000]}
    assert lives == 4 + 5


def test_slow_candidates_show_that_they_live_and_end_early() -> None:
    times, lives = rounds({0: 70_000_000, 1: 60_000_000}, seconds=-1)
    assert [len(found) for found in times.values()] == [3, 3]
    assert lives == 2 + 3 * 3
