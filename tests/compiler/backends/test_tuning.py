"""`--tune`, `--locked`, `ourcc cache` and `ourcc tune`, from the command line and across processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ourcc
from ourcc.autotune.lock import LockError
from ourcc.compiler.backends.tuning import Tuning, read_lock
from ourcc.compiler.cli.main import run as command_line
from ourcc.compiler.environment import environment
from ourcc.compiler.options import build_options
from ourcc.ir.errors import CompilerError, EngineError, UsageError
from ourcc.ir.graph.reference import judge
from ourcc.ir.target import gpu_target
from ourcc.runtime import read_engine

Run = Callable[..., Any]


ROWS = 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One product with a bias and an activation: one problem."""
    return layer(tmp_path_factory.mktemp("model"), ROWS)


@pytest.fixture(scope="module")
def symbolic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same over a symbolic batch: few rows are a problem of their own."""
    return layer(tmp_path_factory.mktemp("symbolic"), "B")


def layer(folder: Path, rows: int | str) -> Path:
    random = np.random.default_rng(0)
    weight = numpy_helper.from_array((random.standard_normal((48, 40)) / 7).astype(np.float32), "weight")
    bias = numpy_helper.from_array(random.standard_normal(40).astype(np.float32), "bias")
    nodes = [helper.make_node("Gemm", ["x", "weight", "bias"], ["h"], name="fc"), helper.make_node("Relu", ["h"], ["y"], name="act")]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 48])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 40])
    graph = helper.make_graph(nodes, "layer", [x], [y], [weight, bias])
    path = folder / "layer.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache_at: Callable[[Path], str]) -> Run:
    """Run a command with --json in a store and cache of its own; its answer, after checking the exit status."""
    monkeypatch.setenv("OURCC_CACHE", str(tmp_path / "store"))
    monkeypatch.setenv("OURCC_CACHE_DIR", cache_at(tmp_path / "cache"))

    def run(*arguments: object, status: int = 0) -> Any:
        capsys.readouterr()
        assert command_line([*map(str, arguments), "--json"]) == status, capsys.readouterr()
        return json.loads(capsys.readouterr().out)

    return run


def schedules_row(report: dict[str, Any]) -> dict[str, Any]:
    (row,) = [row for row in report["contract"] if row["op"] == "schedules"]
    return row  # type: ignore[no-any-return]


def test_tuning_once_serves_another_process_and_cache(ask: Run, model: Path, tmp_path: Path) -> None:
    first = schedules_row(ask("build", model, "-o", tmp_path / "a.ourcc", "--tune", 4))
    assert first["requested"] == "tune 4"
    assert first["realised"] == "1 problems: 1 measured now, 4 candidates timed"
    (record,) = ask("cache", "ls")["records"]
    assert record["candidates"] == 4
    assert record["id"] == ask("cache", "why", "kernel_0")["kernel"][0]["record"]

    command = [sys.executable, "-c", "import sys; from ourcc.compiler.cli.main import run; sys.exit(run(sys.argv[1:]))"]
    variables = {**os.environ, "OURCC_CACHE_DIR": str(tmp_path / "other")}
    arguments = ["build", str(model), "-o", str(tmp_path / "b.ourcc"), "--tune", "4"]
    again = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=True, env=variables)
    assert "1 from records, nothing measured" in again.stderr
    assert "1 from records, nothing measured" in again.stdout
    (row,) = read_engine(tmp_path / "b.ourcc").report["tuning"]["rows"]
    assert (row["source"], row["measured"], row["record"]) == ("record", 0, record["id"])
    assert ask("cache", "ls")["records"] == [record]

    # What is only cached takes the record as well; with tuning off nobody looks.
    assert schedules_row(ask("build", model, "-o", tmp_path / "c.ourcc"))["realised"] == "1 problems: 1 from records, nothing measured"
    off = ask("build", model, "-o", tmp_path / "d.ourcc", "--tune", "off")
    assert not [row for row in off.get("contract", []) if row["op"] == "schedules"]
    x = np.ones((ROWS, 48), np.float32)
    np.testing.assert_array_equal(ourcc.load(tmp_path / "a.ourcc")(x), ourcc.load(tmp_path / "b.ourcc")(x))


def test_a_record_of_two_strategies_holds_every_sample(ask: Run, model: Path, tmp_path: Path) -> None:
    ask("build", model, "-o", tmp_path / "a.ourcc", "--tune", "2")
    (file,) = (tmp_path / "store").iterdir()
    record = json.loads(file.read_bytes())
    assert {candidate["schedule"].split("{")[0] for candidate in record["candidates"]} == {"packed", "nest"}
    assert all(candidate["samples"][0]["picoseconds"] for candidate in record["candidates"])
    text = file.read_text()
    assert os.uname().nodename not in text
    assert str(tmp_path) not in text
    assert str(Path.home()) not in text


def test_a_lock_gives_the_same_bytes(ask: Run, model: Path, tmp_path: Path) -> None:
    ask("build", model, "-o", tmp_path / "a.ourcc", "--tune", "2")
    lock = tmp_path / "ourcc.lock"
    lock.write_text(read_engine(tmp_path / "a.ourcc").lock)
    one = ask("build", model, "-o", tmp_path / "b.ourcc", "--locked", lock)
    assert schedules_row(one)["realised"] == "1 problems: 1 from the lock"
    ask("cache", "prune", tmp_path / "store")
    ask("build", model, "-o", tmp_path / "c.ourcc", "--locked", tmp_path / "a.ourcc", "--tune", "off")
    ask("build", model, "-o", tmp_path / "d.ourcc", "--locked", lock)
    assert (tmp_path / "b.ourcc").read_bytes() == (tmp_path / "d.ourcc").read_bytes()
    assert read_engine(tmp_path / "b.ourcc").lock == read_engine(tmp_path / "c.ourcc").lock == lock.read_text()


def test_classes_of_sizes_are_problems_that_are_measured_and_locked(ask: Run, symbolic: Path, tmp_path: Path) -> None:
    ask("build", symbolic, "-o", tmp_path / "a.ourcc", "--tune", "8", "--shape", "B=1..512")
    rows = read_engine(tmp_path / "a.ourcc").report["tuning"]
    sizes = [problem["symbols"]["N0"] for problem in rows["problems"].values()]
    if all(each == sizes[0] for each in sizes):
        pytest.skip("one kernel is the best for all sizes on this CPU: there are no classes to tell apart")
    # Where classes end is measured, and differs from run to run: each is measured at a size of its own.
    typical = [problem["bucket"]["N0"] for problem in rows["problems"].values()]
    assert all(each["low"] <= size <= each["high"] for each, size in zip(sizes, typical, strict=True))
    assert [row["source"] for row in rows["rows"]] == ["measured"] * len(rows["rows"])
    lock = tmp_path / "ourcc.lock"
    lock.write_text(read_engine(tmp_path / "a.ourcc").lock)
    for name in ("b", "c"):
        ask("build", symbolic, "-o", tmp_path / f"{name}.ourcc", "--locked", lock, "--shape", "B=1..512")
    assert (tmp_path / "b.ourcc").read_bytes() == (tmp_path / "c.ourcc").read_bytes()
    assert read_engine(tmp_path / "b.ourcc").lock == lock.read_text()
    made, again = (read_engine(tmp_path / f"{name}.ourcc").best.plan for name in ("a", "b"))
    assert made == again


def test_a_lock_that_does_not_fit_is_an_error(ask: Run, model: Path, tmp_path: Path) -> None:
    ask("build", model, "-o", tmp_path / "a.ourcc", "--tune", "off")
    text = read_engine(tmp_path / "a.ourcc").lock
    data = json.loads(text)
    (level,) = data["targets"].values()
    level["choices"] = {}
    empty = tmp_path / "empty.lock"
    empty.write_text(json.dumps(data))
    answer = ask("build", model, "-o", tmp_path / "b.ourcc", "--locked", empty, status=1)
    assert f"lock {str(empty)!r} holds no choice for problem" in answer["error"]["message"]
    assert not (tmp_path / "b.ourcc").exists()
    data["producer"] = "ourcc 0"
    empty.write_text(json.dumps(data))
    answer = ask("build", model, "-o", tmp_path / "b.ourcc", "--locked", empty, status=1)
    assert f"lock {str(empty)!r} was made with another producer" in answer["error"]["message"]


def test_what_is_no_lock_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="neither an ourcc"):
        read_lock(path, environment({}))
    path.write_text("<html>")
    with pytest.raises(LockError, match=r"^lock '.*x.lock' is not json"):
        read_lock(path, environment({}))
    path.write_bytes(b"PK\x03\x04 nothing more")
    with pytest.raises(EngineError):
        read_lock(path, environment({}))


def test_an_engine_without_a_lock_says_so(ask: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tuning, "lock_text", lambda self: "")
    ask("build", model, "-o", tmp_path / "a.ourcc", "--tune", "off")
    with pytest.raises(EngineError, match="holds no lock"):
        read_lock(tmp_path / "a.ourcc", environment({}))


def test_why_names_the_nearest_record_and_what_differs(ask: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask("build", model, "-o", tmp_path / "a.ourcc")
    assert ask("cache", "why", "kernel_0")["kernel"][0]["now"] == "no store holds any record"
    ask("build", model, "-o", tmp_path / "a.ourcc", "--tune", "2")
    monkeypatch.setattr("ourcc.compiler.backends.tuning.producer", lambda: "ourcc 99")
    answer = ask("cache", "why", f"{tmp_path / 'a.ourcc'}:kernel_0")
    assert answer["kernel"][0]["now"] == "missed: the nearest record differs in 1 fields"
    (difference,) = answer["nearest record"]
    assert (difference["field"], difference["here"]) == ("environment.producer", "ourcc 99")
    problem = answer["kernel"][0]["problem"]
    assert ask("cache", "why", problem[:8])["kernel"][0]["kernel"] == "kernel_0"
    assert "has no kernel 'kernel_7'" in ask("cache", "why", "kernel_7", status=2)["error"]["message"]


def test_why_without_a_build_asks_for_an_engine(ask: Run) -> None:
    assert "no build is remembered here" in ask("cache", "why", "kernel_0", status=2)["error"]["message"]


def test_records_move_between_stores(ask: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask("build", model, "-o", tmp_path / "a.ourcc", "--tune", "2")
    (record,) = ask("cache", "ls")["records"]
    assert ask("cache", "push", tmp_path / "team")["records"] == 1
    assert ask("cache", "export", tmp_path / "all.jsonl")["records"] == 1
    monkeypatch.setenv("OURCC_CACHE", str(tmp_path / "fresh"))
    assert ask("cache", "ls")["records"] == []
    assert ask("cache", "pull", tmp_path / "team")["records"] == 1
    assert ask("cache", "import", tmp_path / "all.jsonl")["records"] == 1
    assert ask("cache", "merge", tmp_path / "team", tmp_path / "store", tmp_path / "both")["records"] == 2
    for store in ("fresh", "both"):
        assert [row["id"] for row in ask("cache", "ls", tmp_path / store)["records"]] == [record["id"]]
        assert ask("cache", "du", tmp_path / store)["stores"][0]["records"] == 1
    assert ask("cache", "verify", tmp_path / "team")["damaged"] == 0
    assert ask("cache", "prune", tmp_path / "team")["removed"] == 0
    (file,) = (tmp_path / "team").iterdir()
    file.write_bytes(file.read_bytes()[:100])
    assert ask("cache", "verify", tmp_path / "team", status=3)["damaged"] == [
        {
            "store": str(tmp_path / "team"),
            "id": record["id"],
            "object": file.name.split(".")[1],
            "why": "record is not json: JSONDecodeError",
        }
    ]
    assert ask("cache", "prune", tmp_path / "team")["removed"] == 1
    (tmp_path / "all.jsonl").write_text("{}\n")
    assert "all.jsonl, line 1: record: got nothing" in ask("cache", "import", tmp_path / "all.jsonl", status=1)["error"]["message"]


def test_an_engine_is_tuned_without_its_model(ask: Run, model: Path, tmp_path: Path) -> None:
    ask("build", model, "-o", tmp_path / "a.ourcc", "--tune", "off")
    answer = ask("tune", tmp_path / "a.ourcc", "--budget", "2", "-o", tmp_path / "b.ourcc")
    assert answer["candidates_measured"] == 2
    (row,) = answer["schedules"]
    assert row["chosen_by"] == "measured"
    engine = ourcc.load(tmp_path / "b.ourcc", verify=True)
    x = np.random.default_rng(1).standard_normal((ROWS, 48)).astype(np.float32)
    before = ourcc.load(tmp_path / "a.ourcc")(x)
    assert judge(engine(x), before, before.astype(np.float64)).passed
    assert "2 candidates timed" in str(engine.contract)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "cuda"}, "tuning measures cpu kernels: got an engine for x86-64"),
        ({"requires": ("amx_fp4",)}, "was built for another machine\n  note: x86-64[-v0-9]*: it needs amx_fp4, which this cpu lacks"),
        ({"machine": "riscv64"}, "was built for another machine\n  note: x86-64[-v0-9]*: it is for riscv64"),
    ],
)
def test_an_engine_that_cannot_be_tuned_here_says_why(ask: Run, model: Path, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    from dataclasses import replace

    from ourcc.compiler.commands.tune import _levels

    ask("build", model, "-o", tmp_path / "a.ourcc", "--tune", "off")
    contents = read_engine(tmp_path / "a.ourcc")
    with pytest.raises(CompilerError, match=message):
        _levels(replace(contents, parts={name: replace(part, **change) for name, part in contents.parts.items()}))


def test_a_constant_that_the_engine_lacks_is_an_error(ask: Run, model: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    from ourcc.compiler.backends.reopen import module_of

    ask("build", model, "-o", tmp_path / "a.ourcc", "--tune", "off")
    contents = read_engine(tmp_path / "a.ourcc")
    value = module_of(contents).constants["weight"]
    assert value.constant is not None
    np.testing.assert_array_equal(value.constant.array, numpy_helper.to_array(onnx.load(str(model)).graph.initializer[0]))
    plan = contents.best.plan
    bare = replace(
        plan, buffers=tuple(buffer for buffer in plan.buffers if not str(getattr(buffer.storage, "value", "")).startswith("weight"))
    )
    value = module_of(replace(contents, parts={name: replace(contents.best, plans={"main": bare}) for name in contents.parts})).constants[
        "weight"
    ]
    assert value.constant is not None
    with pytest.raises(EngineError, match="holds no values of the constant with digest"):
        _ = value.constant.array


def test_gpu_schedules_are_by_predicted_cost_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURCC_CACHE", str(tmp_path))

    class Notes:
        def __init__(self) -> None:
            self.said: list[str] = []

        def stage(self, name: str, total: int | None = None) -> None: ...

        def advance(self, steps: int = 1) -> None: ...

        def note(self, message: str) -> None:
            self.said.append(message)

    notes = Notes()
    tuning = Tuning(build_options({"targets": ["sm_90a"], "tune": "8"}), notes)
    assert tuning.for_gpu("sm_90a", gpu_target("sm_90a")).measurer is None
    assert notes.said == ["schedules for sm_90a are chosen by predicted cost: measuring is for cpu targets"]


def test_a_cache_folder_that_cannot_be_written_costs_nothing(
    ask: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("a file")
    monkeypatch.setenv("OURCC_CACHE_DIR", str(tmp_path / "file"))
    ask("build", model, "-o", tmp_path / "a.ourcc", "--tune", "off")
    assert (tmp_path / "a.ourcc").exists()
