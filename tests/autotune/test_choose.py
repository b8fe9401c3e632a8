"""Choices: from records, by measuring, from a lock; each of them one that a strategy offers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ourcc.autotune.choose import Chooser, Shelves
from ourcc.autotune.lock import Lock, LockedLevel, LockError
from ourcc.autotune.problem import bucket, problem_data, problem_id
from ourcc.autotune.record import Failure, Record, Sample, Trial
from ourcc.autotune.search import is_tie, leader, rank, shortlist
from ourcc.autotune.store import open_store
from ourcc.ir.dims import Facts
from ourcc.ir.region.text import parse_region
from ourcc.ir.target import AVX2, gpu_target
from ourcc.passes.lower.schedule import cheapest
from ourcc.passes.tile.schedule import Candidate, Problem, Schedule

from .conftest import MATMUL, Fake, Oracle, make_problem

ENVIRONMENT = {"architecture": "x", "device": "cpu", "features": [], "compiler": "cc 1", "producer": "ourcc 0", "policy": {}}
FIRST = Fake("first", (3.0, 1.0, 2.0))
SECOND = Fake("second", (0.5, 9.0))


def families() -> Iterator[Sequence[Candidate]]:
    return iter([FIRST.candidates(), SECOND.candidates()])


def texts(candidates: Sequence[Candidate]) -> list[str]:
    return [str(schedule) for _, schedule in candidates]


def chooser(folder: Path, oracle: Oracle | None = None, count: int = 4, **more: Any) -> tuple[Chooser, list[str]]:
    notes: list[str] = []
    shelves = Shelves([open_store(str(folder))], notes.append)
    return Chooser(AVX2, dict(ENVIRONMENT), shelves, count, oracle, note=notes.append, **more), notes


TRUTH = {"first{n=0}": 900_000, "first{n=1}": 1000_000, "first{n=2}": 700_000, "second{n=0}": 800_000, "second{n=1}": 100_000}


# --- search -----------------------------------------------------------------------------------------------------------


def test_off_takes_the_cheapest_of_all_strategies_where_prices_compare(problem: Problem) -> None:
    assert str(cheapest(AVX2)(problem, families())[1]) == "second{n=0}"
    assert str(cheapest(gpu_target("sm_90a"))(problem, families())[1]) == "first{n=1}"


def test_candidates_of_all_strategies_are_ranked_together(problem: Problem) -> None:
    ranked = rank(list(families()), None)
    assert texts(ranked) == ["second{n=0}", "first{n=1}", "first{n=2}", "first{n=0}", "second{n=1}"]


def test_the_shortlist_spans_two_strategies(problem: Problem) -> None:
    ranked = rank([Fake("first", (1, 2, 3)).candidates(), Fake("second", (8, 9)).candidates()], None)
    assert texts(shortlist(ranked, 3)) == ["first{n=0}", "first{n=1}", "second{n=0}"]
    assert texts(shortlist(ranked, 1)) == ["first{n=0}"]
    assert texts(shortlist(ranked[:3], 2)) == ["first{n=0}", "first{n=1}"]
    warm = [Schedule("second", (("n", 1),))]
    assert texts(shortlist(ranked, 4, warm)) == ["first{n=0}", "first{n=1}", "second{n=1}", "second{n=0}"]


def test_inside_the_noise_the_predicted_cost_decides(problem: Problem) -> None:
    ranked = rank(list(families()), None)

    def best(times: dict[str, tuple[int, ...]]) -> tuple[str, int]:
        trials = tuple(Trial(schedule, (Sample("0" * 16, times[str(schedule)]),)) for _, schedule in ranked if str(schedule) in times)
        found = leader(Record(problem_data(problem), ENVIRONMENT, trials), ranked, None)
        assert found is not None
        return str(found.candidate[1]), len(found.ties)

    assert best({"second{n=1}": (100, 101), "first{n=1}": (101, 102)}) == ("first{n=1}", 2)
    assert best({"second{n=1}": (100, 101), "first{n=1}": (120, 121)}) == ("second{n=1}", 1)
    # A machine this restless cannot tell them apart.
    assert best({"second{n=1}": (100, 130, 140, 150), "first{n=1}": (120, 150, 160, 170)}) == ("second{n=1}", 1)
    assert best({"second{n=1}": (100, 130, 140, 150, 160), "first{n=1}": (120, 150, 160, 170, 180)}) == ("first{n=1}", 2)
    assert is_tie([102], [100])
    assert not is_tie([103], [100])


def test_schedules_outside_the_space_are_not_believed(problem: Problem) -> None:
    ranked = rank(list(families()), None)
    trials = (Trial(Schedule("first", (("n", 77),)), (Sample("0" * 16, (1,)),)), Trial(Schedule("evil"), (Sample("0" * 16, (1,)),)))
    assert leader(Record(problem_data(problem), ENVIRONMENT, trials), ranked, None) is None


def test_a_candidate_that_was_ever_wrong_is_out(problem: Problem) -> None:
    ranked = rank(list(families()), None)
    wrong = Trial(Schedule("first", (("n", 1),)), (Sample("0" * 16, (1,)),), (Failure("wrong", "got 1, expected 2"),))
    assert leader(Record(problem_data(problem), ENVIRONMENT, (wrong,)), ranked, None) is None


# --- problems ---------------------------------------------------------------------------------------------------------


def test_the_users_names_do_not_matter_and_all_else_does(problem: Problem) -> None:
    assert problem_id(make_problem("batch")) == problem_id(problem)
    assert problem_id(make_problem(high=None)) != problem_id(problem)
    unpacked = Problem(problem.region, problem.symbols, {}, problem.constants)
    assert problem_id(unpacked) != problem_id(problem)
    unused = Problem(problem.region, problem.symbols.with_range("Z", 1, 1), problem.layouts, problem.constants)
    assert "Z" not in str(problem_data(unused))


def test_buckets_lie_in_the_ranges_and_stay_small() -> None:
    problem = make_problem(high=None)
    assert bucket(problem) == {"B": 128}
    both = Problem(problem.region, problem.symbols.with_range("S", 1, 100), problem.layouts, problem.constants)
    assert bucket(both) == {"B": 1, "S": 100}
    divided = Problem(problem.region, Facts().with_range("B", 1, 100, 24), problem.layouts, problem.constants)
    assert bucket(divided) == {"B": 96}
    region = parse_region(MATMUL.replace("64", "65536"))
    large = Problem(region, problem.symbols, {}, problem.constants)
    assert bucket(large)["B"] == 128
    region = parse_region(MATMUL.replace("64", "65536").replace("48", "4096"))
    assert bucket(Problem(region, problem.symbols, {}, problem.constants))["B"] == 1


# --- measuring and records --------------------------------------------------------------------------------------------


def test_measuring_once_is_enough(problem: Problem, tmp_path: Path) -> None:
    oracle = Oracle(TRUTH)
    first, _ = chooser(tmp_path, oracle)
    assert str(first(problem, families())[1]) == "first{n=2}"
    assert oracle.asked == [["second{n=0}", "first{n=1}", "first{n=2}", "first{n=0}"]]
    (decision,) = first.decisions.values()
    assert (str(decision.schedule), decision.source, decision.tried) == ("first{n=2}", "measured", 4)
    again, _ = chooser(tmp_path, oracle)
    assert str(again(problem, families())[1]) == "first{n=2}"
    (decision,) = again.decisions.values()
    assert (decision.source, decision.tried) == ("record", 0)
    assert decision.record == next(open_store(str(tmp_path)).list()).id
    cached, _ = chooser(tmp_path, None, count=0)
    assert str(cached(problem, families())[1]) == "first{n=2}"
    assert len(oracle.asked) == 1


def test_more_is_measured_beside_the_best_that_is_known(problem: Problem, tmp_path: Path) -> None:
    oracle = Oracle(TRUTH)
    chooser(tmp_path, oracle, count=4)[0](problem, families())
    wider, _ = chooser(tmp_path, oracle, count=5)
    assert str(wider(problem, families())[1]) == "second{n=1}"
    assert oracle.asked[1] == ["first{n=2}", "second{n=1}"]
    (record,) = open_store(str(tmp_path)).list()
    assert len(record.trials) == 5


def test_another_environment_is_a_warm_start_and_no_hit(problem: Problem, tmp_path: Path) -> None:
    chooser(tmp_path, Oracle(TRUTH), count=5)[0](problem, families())
    oracle = Oracle(TRUTH)
    other, _ = chooser(tmp_path, oracle, count=3)
    other.environment = {**ENVIRONMENT, "compiler": "cc 2"}
    assert str(other(problem, families())[1]) == "second{n=1}"
    assert oracle.asked == [["second{n=0}", "second{n=1}", "first{n=2}"]]
    other, _ = chooser(tmp_path, None, count=0)
    other.environment = {**ENVIRONMENT, "compiler": "cc 3"}
    assert str(other(problem, families())[1]) == "second{n=0}"
    (decision,) = other.decisions.values()
    assert decision.why == "no record of this problem on such a machine: least predicted cost"


def test_failures_are_recorded_and_bugs_are_noted(problem: Problem, tmp_path: Path) -> None:
    failures = {"first{n=2}": Failure("crashed", "ended by signal 11"), "first{n=1}": Failure("unsupported", "too large")}
    oracle = Oracle(TRUTH, failures=failures)
    tuned, notes = chooser(tmp_path, oracle)
    assert str(tuned(problem, families())[1]) == "second{n=0}"
    assert any("candidate first{n=2}" in note and "crashed: ended by signal 11" in note for note in notes)
    assert not any("first{n=1}" in note for note in notes)
    chooser(tmp_path, oracle)[0](problem, families())
    assert len(oracle.asked) == 1
    (record,) = open_store(str(tmp_path)).list()
    assert sum(len(trial.failures) for trial in record.trials) == 2


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"oracle": None}, "this machine cannot run x"),
        ({"oracle": Oracle(TRUTH), "deadline": time.monotonic() - 1}, "the time for measuring was spent"),
    ],
)
def test_what_is_not_measured_says_why(problem: Problem, tmp_path: Path, more: dict[str, Any], why: str) -> None:
    tuned, _ = chooser(tmp_path, **more)
    assert str(tuned(problem, families())[1]) == "second{n=0}"
    (decision,) = tuned.decisions.values()
    assert (decision.source, decision.why) == ("cost", f"{why}: least predicted cost")


def test_a_store_that_fails_is_told_once_and_left_alone(problem: Problem, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    tuned, notes = chooser(tmp_path / "file", Oracle(TRUTH))
    for _ in range(2):
        assert str(tuned(problem, families())[1]) == "first{n=2}"
    assert [record.levelname for record in caplog.records if "is not used: not a directory" in record.message] == ["WARNING"]
    assert not any("is not used" in note for note in notes)


def test_nothing_is_written_to_anothers_store_where_the_own_one_fails(problem: Problem, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "team").mkdir()
    tuned, _ = chooser(tmp_path / "file", Oracle(TRUTH))
    assert tuned.shelves is not None
    tuned.shelves.stores.append(open_store(str(tmp_path / "team")))
    tuned(problem, families())
    assert not list((tmp_path / "team").iterdir())


@pytest.mark.parametrize("place", ["absent", "file"])
def test_a_store_that_is_not_there_is_told_once(place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    others = str(tmp_path / place)
    for _ in range(2):
        own = open_store(str(tmp_path / "own"))
        assert Shelves([own, open_store(others)], print).checked(makes_own=True).stores == [own]
        assert (tmp_path / "own").is_dir()
    assert [record.message.split(": ")[0] for record in caplog.records] == [f"store {others} is not used"]
    # What cannot be made is no place to keep anything.
    assert Shelves([open_store(str(tmp_path / "file" / "own"))], print).checked(makes_own=True).stores == []
    assert Shelves([open_store(str(tmp_path / "later"))], print).checked(makes_own=False).stores and not (tmp_path / "later").exists()


def test_a_damaged_record_is_a_miss_with_a_note(problem: Problem, tmp_path: Path) -> None:
    chooser(tmp_path, Oracle(TRUTH))[0](problem, families())
    (file,) = tmp_path.iterdir()
    file.write_bytes(b"{}")
    cached, notes = chooser(tmp_path, None, count=0)
    assert str(cached(problem, families())[1]) == "second{n=0}"
    assert "is passed over" in notes[0]


def test_the_second_store_serves_what_the_first_lacks(problem: Problem, tmp_path: Path) -> None:
    chooser(tmp_path / "team", Oracle(TRUTH))[0](problem, families())
    shelves = Shelves([open_store(str(tmp_path / "own")), open_store(str(tmp_path / "team"))], lambda note: None)
    cached = Chooser(AVX2, dict(ENVIRONMENT), shelves)
    assert str(cached(problem, families())[1]) == "first{n=2}"


# --- locks ------------------------------------------------------------------------------------------------------------


def test_a_lock_leaves_no_choice(problem: Problem) -> None:
    lock = Lock("ourcc 0", {"x": LockedLevel("cc 1", {problem_id(problem): Schedule("second", (("n", 1),))})})
    assert Lock.parse(lock.text()) == lock
    locked = Chooser(AVX2, locked=Lock.parse(lock.text()).level("x", "cc 1", "ourcc 0"))
    assert str(locked(problem, families())[1]) == "second{n=1}"


def test_what_the_lock_does_not_know_is_an_error(problem: Problem) -> None:
    locked = Chooser(AVX2, locked=LockedLevel("cc 1"))
    with pytest.raises(LockError, match=r"no choice for problem .* for other sizes or with other options") as error:
        locked(problem, families())
    assert "region" not in str(error.value) and "--shape" in str(error.value.hint)
    locked = Chooser(AVX2, locked=LockedLevel("cc 1", {problem_id(problem): Schedule("second", (("n", 5),))}))
    with pytest.raises(LockError, match=r"chooses second\{n=5\} .* which no strategy offers"):
        locked(problem, families())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("y", "cc 1", "ourcc 0"), "no choices for y"),
        (("x", "cc 2", "ourcc 0"), "another compiler: got 'cc 2', expected 'cc 1'"),
        (("x", "cc 1", "ourcc 1"), "another producer"),
    ],
)
def test_a_lock_of_other_programs_is_an_error(given: tuple[str, str, str], message: str) -> None:
    with pytest.raises(LockError, match=message):
        Lock("ourcc 0", {"x": LockedLevel("cc 1")}).level(*given)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not json"),
        ("[]", "not of schema 1"),
        ('{"schema": 1, "producer": "", "targets": []}', "got targets of another kind"),
        ('{"schema": 1, "producer": "", "targets": {"x": {}}}', "other keys than compiler and choices"),
        ('{"schema": 1, "producer": "", "targets": {"x": {"compiler": "", "choices": {"1": "a{b}"}}}}', "expected name=number"),
        (" " * (16 << 20) + "{}", "expected at most 16777216"),
    ],
)
def test_damaged_locks_are_errors(text: str, message: str) -> None:
    with pytest.raises(LockError, match=message):
        Lock.parse(text)
