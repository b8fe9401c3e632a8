"""Engines that keep state: functions that share it, sessions in threads, failures, and what stands in the plan."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from ourcc.compiler.options import BuildOptions
from ourcc.compiler.pipeline import compile_module
from ourcc.compiler.requests import parse_measuring
from ourcc.compiler.targets.registry import TARGETS
from ourcc.ir.errors import EngineError, IndexRangeError, InputError, VerifyError
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import interpret
from ourcc.ir.graph.text import module_text
from ourcc.ir.graph.verify import verify
from ourcc.ir.plan import Copy, from_json, to_json
from ourcc.ir.plan.text import print_plan
from ourcc.ir.types import TensorType, f32, i64
from ourcc.passes.manager import PassManager
from ourcc.passes.tidy.canonicalize import Canonicalize
from ourcc.passes.tidy.eliminate_dead_code import EliminateDeadCode
from ourcc.runtime import Engine
from ourcc.runtime.saved import Saved, write_saved

ROWS, WIDTH = 8, 4


def cache(total: float = 1) -> Module:
    """A key-value cache in small: `append` writes rows at positions and gives their running sum, `read` gathers rows."""
    module = Module("cache")
    kv = module.add_state("kv", TensorType(f32, (ROWS, WIDTH)))
    sums = module.add_state("total", TensorType(f32, (WIDTH,)), module.add_constant("ones", np.full(WIDTH, total, np.float32)))
    append = module.functions["append"] = Graph("append")
    x = append.add_input("x", TensorType(f32, (module.declare("N", 1, ROWS), WIDTH)))
    positions = append.add_input("positions", TensorType(i64, (x.shape[0],)))
    held, before = append.add_state(kv), append.add_state(sums)
    b = Builder(module, append)
    checked = b.check_index(positions, size=ROWS, negative=True)
    rows = b.scatter_nd(held, b.reshape(checked, shape=(x.shape[0], 1)), x)
    after = b.add(before, b.sum(x, axes=(0,)))
    append.set_outputs([after], ["running"], {"kv": rows, "total": after})
    read = module.functions["read"] = Graph("read")
    where = read.add_input("where", TensorType(i64, (2,)))
    b = Builder(module, read)
    read.set_outputs([b.take(read.add_state(kv), b.check_index(where, size=ROWS, negative=True), axis=0)], ["rows"])
    return module


def built(module: Module, target: str = "native") -> Engine:
    """The module's engine, as it comes out of a file."""
    return Engine(compile_module(module, BuildOptions(targets=(TARGETS[target],), tune=parse_measuring("off"))), threads=1)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    path = tmp_path_factory.mktemp("sessions") / "cache.ourcc"
    built(cache()).save(path)
    return Engine.load(path, threads=1)


def drawn(seed: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng([seed, step])
    count = int(random.integers(1, ROWS + 1))
    return random.random((count, WIDTH), dtype=np.float32), random.permutation(ROWS)[:count]


def test_states_stand_in_the_text_and_are_verified() -> None:
    module = cache()
    verify(module)
    text = module_text(module)
    assert "state @kv : f32[8, 4]\n" in text and "state @total : f32[4] = @ones\n" in text
    assert "%kv: f32[8, 4] state @kv" in text and module_text(parse_module(text)) == text
    assert [value.name for value in module.main.arguments] == ["x", "positions"] and module.main.result_names == ["running"]
    for old, new, message in (
        ("state @total : f32[4] = @ones", "state @total : f32[4] = @nothing", "@nothing is not defined"),
        ("state @kv : f32[8, 4]\n", "state @kv : f32[8, 5]\n", r"%kv is f32\[8, 4\], expected f32\[8, 5\], as the state @kv is"),
        ("state @kv : f32[8, 4]\n", "state @kv : f32[N, 4]\n", "expected known sizes, and no strings"),
        ("%total: f32[4] state @total", "%total: f32[4] state @kv", "append has one state twice"),
        ("%kv: f32[8, 4] state @kv, %total", "%kv: f32[8, 4] state @none, %total", "state @none is not declared"),
        ("  state @kv : f32[8, 4]\n", "  state @kv : f32[8, 4]\n  state @kv : f32[8, 4]\n", "state @kv is declared twice"),
        ("= @ones", "= @ones2", "@ones2 is not defined"),
    ):
        assert old in text
        with pytest.raises((VerifyError, Exception), match=message):
            verify(parse_module(text.replace(old, new, 1)))


def test_passes_see_states_as_inputs_and_outputs() -> None:
    module = cache()
    before = module_text(module)
    PassManager((EliminateDeadCode(), Canonicalize()), strict=True).run(module)
    assert "state @total : f32[4] = @ones" in module_text(module) and "const @ones" in before
    states: dict[str, np.ndarray] = {}
    x, positions = drawn(0, 0)
    (running,) = interpret(module, [x, positions], states=states)
    expected = np.zeros((ROWS, WIDTH), np.float32)
    expected[positions] = x
    assert np.array_equal(states["kv"], expected) and np.allclose(running, 1 + x.sum(0)) and np.array_equal(states["total"], running)


def test_an_engine_with_state_is_right_against_numpy(engine: Engine) -> None:
    sessions = [engine.session() for _ in range(3)]
    expected = [(np.zeros((ROWS, WIDTH), np.float32), np.ones(WIDTH, np.float32)) for _ in sessions]
    for step in range(12):
        for seed, (session, (rows, total)) in enumerate(zip(sessions, expected, strict=True)):
            x, positions = drawn(seed, step)
            running = (
                session(x, positions=positions)
                if step % 2
                else session.functions["append"].run({"x": x, "positions": positions})["running"]
            )
            rows[positions] = x
            total += x.sum(0)
            assert np.allclose(running, total, atol=1e-5)
            where = np.array([step % ROWS, -1])
            assert np.array_equal(session.functions["read"](where), rows[where])
            assert np.array_equal(session.state("kv"), rows) and np.allclose(session.state("total"), total, atol=1e-5)


def test_the_cache_is_written_where_it_lies(engine: Engine) -> None:
    parts = engine.contents.best
    append, read = parts.plans["append"], parts.plans["read"]
    assert [
        step for step in append.steps if isinstance(step, Copy) and append.moves(step) and append.named[step.target].type.rank == 2
    ] == []
    assert not any(isinstance(step, Copy) for step in read.steps) and read.first_write == len(read.steps)
    assert from_json(to_json(append)) == append and "session  total: f32[4] = @ones" in print_plan(append)


def test_what_is_wrong_is_one_clear_error_each(engine: Engine) -> None:
    x, positions = drawn(1, 0)
    with pytest.raises(EngineError, match=r"function 'append' keeps state \('kv', 'total'\), which lives in a session") as error:
        engine(x, positions)
    assert "engine.session()" in str(error.value)
    session = engine.session()
    session(x, positions)
    kept = session.state("kv")
    with pytest.raises(InputError, match="there is no state 'cache', the engine has kv, total"):
        session.state("cache")
    for wrong in (np.zeros((ROWS, WIDTH)), np.zeros((WIDTH, ROWS), np.float32), "text", None):
        with pytest.raises(InputError, match=r"state 'kv': got .*, expected f32\[8, 4\]"):
            session.set_state("kv", wrong)  # type: ignore[arg-type]
    # Refused before the first write: nothing has changed, and the session goes on.
    with pytest.raises(IndexRangeError, match="8"):
        session(x[:1], np.array([ROWS]))
    with pytest.raises(InputError, match=r"N = 9, expected N in 1\.\.8"):
        session(np.zeros((9, WIDTH), np.float32), np.zeros(9, np.int64))
    assert np.array_equal(session.state("kv"), kept)
    session.set_state("kv", 2 * kept)
    assert np.array_equal(session.functions["read"](np.array([0, 1])), 2 * kept[:2])
    session.reset()
    assert not session.state("kv").any() and np.array_equal(session.state("total"), np.ones(WIDTH))


def test_a_state_takes_what_an_input_takes(engine: Engine) -> None:
    torch = pytest.importorskip("torch")
    session = engine.session()
    session.set_state("kv", torch.full((ROWS, WIDTH), 2.0, requires_grad=True))
    assert (session.state("kv") == 2).all()
    session.set_state("kv", np.full((2 * ROWS, WIDTH), 3, np.float32)[::2])
    assert (session.state("kv") == 3).all()
    for wrong in ([[1.0], [1.0, 2.0]], object(), {"a": 1}):
        with pytest.raises(InputError, match=r"state 'kv': got .*, expected f32\[8, 4\]"):
            session.set_state("kv", wrong)
    for copied in (session, engine):
        with pytest.raises(TypeError, match="is neither copied nor pickled"):
            copy.deepcopy(copied)


def test_a_part_of_a_state_is_read_and_written(engine: Engine) -> None:
    session = engine.session()
    session.set_state("kv", [[1.0, 2.0], [3.0, 4.0]], where=(slice(2, 4), slice(None, None, 2)))
    expected = np.zeros((ROWS, WIDTH), np.float32)
    expected[2:4, ::2] = [[1, 2], [3, 4]]
    assert np.array_equal(session.state("kv"), expected) and np.array_equal(session.state("kv", (3,)), expected[3])
    session.state("kv", (3,))[:] = 9
    assert np.array_equal(session.state("kv"), expected)
    for where in ((ROWS,), (-1,), (0, 0, 0), 3, ("a",), (slice(0, "a"),), (slice(0, 2, 0),), (True,), [0]):
        with pytest.raises(InputError, match=r"state 'kv': got the part .* of f32\[8, 4\]"):
            session.state("kv", where)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"state 'kv': got float32\[2\], expected f32\[4\]"):
        session.set_state("kv", np.zeros(2, np.float32), (1,))


def test_forks_go_ways_of_their_own(engine: Engine) -> None:
    session = engine.session()
    session(*drawn(3, 0))
    kept = session.state("kv")
    forks = [session.fork(), session.fork()]
    forks.append(forks[0].fork())
    memory = {id(each._kept.memory._memory["kv"]) for each in (session, *forks)}  # type: ignore[attr-defined]
    assert len(memory) == 1, "nothing is copied before somebody writes"
    for number, each in enumerate((session, *forks)):
        assert np.array_equal(each.state("kv"), kept)
        each(*drawn(4 + number, 0))
    alone = [engine.session() for _ in range(4)]
    for number, each in enumerate(alone):
        each(*drawn(3, 0))
        each(*drawn(4 + number, 0))
    for each, expected in zip((session, *forks), alone, strict=True):
        assert all(np.array_equal(each.state(name), expected.state(name)) for name in each.states)
    # The last that holds a memory writes it where it lies.
    before = id(forks[2]._kept.memory._memory["kv"])  # type: ignore[attr-defined]
    forks[2](*drawn(5, 1))
    assert id(forks[2]._kept.memory._memory["kv"]) == before  # type: ignore[attr-defined]


def test_a_fork_that_is_gone_costs_no_copy(engine: Engine) -> None:
    session = engine.session()
    before = id(session._kept.memory._memory["kv"])  # type: ignore[attr-defined]
    session.fork()
    session(*drawn(3, 0))
    assert id(session._kept.memory._memory["kv"]) == before  # type: ignore[attr-defined]


def test_sessions_are_saved_and_taken_up_again(engine: Engine, tmp_path: Path) -> None:
    session, other = engine.session(), built(cache()).session()
    session(*drawn(3, 0))
    session.save(tmp_path / "s")
    other.load(tmp_path / "s")
    session(*drawn(4, 0))
    other(*drawn(4, 0))
    assert all(np.array_equal(session.state(name), other.state(name)) for name in session.states)
    with pytest.raises(EngineError, match="is one of another engine"):
        built(cache(total=2)).session().load(tmp_path / "s")
    write_saved(tmp_path / "part", Saved(session.program, {}, {"kv": np.zeros((1, WIDTH), np.float32)}))
    kept = session.state("kv")
    with pytest.raises(EngineError, match="does not hold state 'kv' whole"):
        session.load(tmp_path / "part")
    assert np.array_equal(session.state("kv"), kept)


def test_a_call_that_fails_midway_poisons_its_session(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    session, other = engine.session(), engine.session()
    x, positions = drawn(2, 0)
    executor = engine._part.executor("append")  # type: ignore[attr-defined]
    native = executor.loaded.steps

    def fails(*_: object) -> int:
        raise KeyboardInterrupt

    from dataclasses import replace

    monkeypatch.setattr(executor.loaded, "steps", (*native[:-1], replace(native[-1], segment=fails)))
    with pytest.raises(KeyboardInterrupt):
        session(x, positions)
    monkeypatch.setattr(executor.loaded, "steps", native)
    for use in (lambda: session(x, positions), lambda: session.functions["read"](np.array([0, 1])), lambda: session.state("kv")):
        with pytest.raises(EngineError, match="states are of no use since a call failed") as error:
            use()
        assert "function 'append' failed midway: KeyboardInterrupt" in str(error.value)
    other(x, positions)
    session.reset()
    session(x, positions)
    assert np.array_equal(session.state("kv"), other.state("kv"))


def test_sessions_run_in_threads_and_one_takes_one_call_at_a_time(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[str] = []

    def work(seed: int) -> None:
        session, rows = engine.session(), np.zeros((ROWS, WIDTH), np.float32)
        for step in range(40):
            x, positions = drawn(seed, step)
            session(x, positions)
            rows[positions] = x
            if not np.array_equal(session.state("kv"), rows):
                failures.append(f"{seed} {step}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []

    session, inside, go = engine.session(), threading.Event(), threading.Event()
    executor = engine._part.executor("append")  # type: ignore[attr-defined]
    run: Callable[..., list[np.ndarray]] = executor.run

    def slow(*arguments: object) -> list[np.ndarray]:
        inside.set()
        go.wait()
        return run(*arguments)

    x, positions = drawn(9, 0)
    monkeypatch.setattr(executor, "run", slow)
    first = threading.Thread(target=session, args=(x, positions))
    first.start()
    inside.wait()
    try:
        for use in (lambda: session(x, positions), lambda: session.state("kv"), session.reset):
            with pytest.raises(EngineError, match="a session serves one call at a time, and another thread is using it"):
                use()
    finally:
        go.set()
        first.join()
    assert np.array_equal(session.state("kv")[positions], x)


def swapping(ties: Mapping[str, str], returned: str) -> Module:
    """Three states of one type, tied as asked: each to another's old value, to a sum or to a constant."""
    module = Module("swap")
    graph = module.functions["main"] = Graph("main")
    type = TensorType(f32, (3,))
    values = {
        name: graph.add_state(module.add_state(name, type, module.add_constant(f"{name}0", np.full(3, n, np.float32))))
        for n, name in enumerate("abc")
    }
    x = graph.add_input("x", type)
    b = Builder(module, graph)
    values |= {"x": x, "sum": b.add(values["a"], x), "seven": module.add_constant("seven", np.full(3, 7, np.float32))}
    graph.set_outputs([values[returned]], ["y"], {state: values[after] for state, after in ties.items()})
    return module


@pytest.mark.parametrize(
    "ties", [{"a": "b", "b": "a"}, {"a": "b", "b": "c", "c": "a"}, {"a": "sum", "b": "a", "c": "sum"}, {"a": "x", "c": "seven"}, {}]
)
@pytest.mark.parametrize("returned", ["a", "sum", "x"])
def test_states_may_take_each_others_values(ties: dict[str, str], returned: str) -> None:
    module = swapping(ties, returned)
    session, states = built(module).session(), dict[str, np.ndarray]()
    for step in range(3):
        x = np.arange(3, dtype=np.float32) + step
        (expected,) = interpret(module, [x], states=states)
        assert np.array_equal(session(x), expected)
        for name in "abc":
            assert np.array_equal(session.state(name), states[name]), name
