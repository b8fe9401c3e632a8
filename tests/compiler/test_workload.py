"""The workload from its option to the schedules, the reports, the engine that keeps it, and the sizes that `bench` runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ourcc
from ourcc.compiler.cli.main import run
from ourcc.compiler.engines.recorded import recorded_workload, workload_of
from ourcc.compiler.options import build_options
from ourcc.ir.errors import EngineError, UsageError
from ourcc.ir.workload import parse_workload
from ourcc.runtime import read_engine

WANTED = ["B=4,S=32", "B=2,S=64:0.5"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product over two symbols."""
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((48, 40)).astype(np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", "S", width]) for name, width in (("x", 48), ("y", 40)))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")], "m", [x], [y], [weight])
    path = tmp_path_factory.mktemp("workload") / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def engine(model: Path, cache_at: Callable[[Path], str]) -> Path:
    path = model.with_suffix(".ourcc")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OURCC_CACHE_DIR", cache_at(model.parent / "cache"))
        options = [text for point in WANTED for text in ("--workload", point)]
        assert run(["build", str(model), "-o", str(path), "--shape", "B=1..8", "--shape", "S=1..64", *options, "-q"]) == 0
    return path


@pytest.fixture(autouse=True)
def here(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURCC_CACHE_DIR", str(model.parent / "cache"))
    monkeypatch.chdir(model.parent)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert run([*arguments, "--json"]) == 0, capsys.readouterr()
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("given", [WANTED, tuple(WANTED)])
def test_python_takes_what_the_command_line_takes(given: Any) -> None:
    assert build_options({"workload": given}).workload == parse_workload(WANTED)
    assert build_options({"workload": {"B": 4, "S": 32}}).workload == parse_workload(["B=4,S=32"])
    assert build_options({"workload": "B=4"}, "torch.compile").workload == parse_workload(["B=4"])
    assert build_options({"workload": None}).workload is None


def test_an_engine_keeps_its_workload_and_shows_it(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contents = read_engine(engine)
    assert recorded_workload(contents) == parse_workload(WANTED)
    assert said(capsys, "inspect", "m.ourcc")["workload"] == "B=4,S=32 B=2,S=64:0.5"
    assert run(["inspect", "m.ourcc", "--kernels", "-q"]) == 0
    assert "sizes are those of the workload: B=4,S=32 B=2,S=64:0.5" in " ".join(capsys.readouterr().out.split())


def test_kernels_are_reckoned_with_at_the_workload(model: Path, engine: Path) -> None:
    row = next(iter(read_engine(engine).report["kernels"].values()))[0]
    assert row["megaflop"] == pytest.approx(2 * 128 * 48 * 40 / 1e6, rel=1e-3)
    other = next(iter(ourcc.build(str(model), shapes={"B": "1..8", "S": "1..64"}, workload="B=8,S=64").contents.report["kernels"].values()))
    assert other[0]["megaflop"] == pytest.approx(2 * 512 * 48 * 40 / 1e6, rel=1e-3)


def test_the_report_draws_memory_at_the_workload(model: Path) -> None:
    ourcc.build(str(model), shapes={"B": "1..8", "S": "1..64"}, workload={"B": 3, "S": 17}, report="r.html")
    assert "B = 3, S = 17" in Path("r.html").read_text()


def test_bench_runs_the_points_of_the_workload(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, "bench", "m.ourcc", "--rounds", "1")
    assert found["sizes"] == "4x32x48; 2x64x48"
    (first,), (second,) = found["times at B=4,S=32"], found["times at B=2,S=64:0.5"]
    (mean,) = found["times over the workload"]
    assert mean["min_ms"] == pytest.approx((first["min_ms"] + 0.5 * second["min_ms"]) / 1.5, abs=2e-4)
    assert said(capsys, "bench", "m.ourcc", "--rounds", "1", "--workload", "B=3,S=7")["sizes"] == "3x7x48"
    assert said(capsys, "bench", "m.ourcc", "--rounds", "1", "--shape", "B=5")["sizes"] == "5x32x48"


def test_making_an_engine_again_keeps_the_workload_or_takes_another(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["build", "m.ourcc", "--rebuild", "-o", "again.ourcc"], ["tune", "m.ourcc", "--budget", "1", "-o", "again.ourcc"]):
        said(capsys, *command)
        assert recorded_workload(read_engine("again.ourcc")) == parse_workload(WANTED)
    said(capsys, "build", "m.ourcc", "--rebuild", "-o", "again.ourcc", "--workload", "S=48")
    assert workload_of(read_engine("again.ourcc")).sizes == {"B": 1, "S": 48}
    problems = read_engine("again.ourcc").report["tuning"]["problems"]
    assert {"N0": 48} in [problem["bucket"] for problem in problems.values()]


def test_an_engine_without_a_workload_has_the_stated_one(model: Path) -> None:
    contents = ourcc.build(str(model), shapes={"B": "1..8", "S": "1..64"}).contents
    assert recorded_workload(contents) is None and "workload" not in contents.provenance
    assert workload_of(contents).sizes == {"B": 1, "S": 64}


@pytest.mark.parametrize("texts", [5, ["B"], ["N=1"]])
def test_a_damaged_workload_is_one_error(engine: Path, texts: Any) -> None:
    contents = read_engine(engine)
    damaged = type(contents)(**{**vars(contents), "provenance": {**contents.provenance, "workload": texts}})
    with pytest.raises(EngineError, match="the engine's workload is damaged"):
        workload_of(damaged)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "m.onnx", "-o", "a.ourcc", "--workload", "N=1"], "workload 'N=1': got N, which is no symbol of the model"),
        (["build", "m.ourcc", "--rebuild", "-o", "a.ourcc", "--workload", "B=9"], "workload 'B=9': got B = 9, expected B in 1..8"),
        (["build", "m.onnx", "-o", "a.ourcc", "--workload", "B=1:0"], "got the weight '0', expected a number above 0"),
        (["bench", "m.ourcc", "--workload", "S=65"], "workload 'S=65': got S = 65, expected S in 1..64"),
        (["bench", "m.ourcc", "--workload", "S=6", "--shape", "S=6"], "got --shape and --workload for an engine, expected one of them"),
        (["inspect", "m.ourcc", "--workload", "S=6"], "got --workload for an engine, expected none: it has its own"),
    ],
)
def test_what_cannot_be_is_said(engine: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*arguments, "-q"]) == 2
    assert " ".join(message.split()) in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("given", [5, [5], ("B=1", 2), object()])
def test_what_is_no_workload_is_a_usage_error(given: Any) -> None:
    with pytest.raises(UsageError, match=r"workload: got .*, expected points"):
        build_options({"workload": given})


def test_an_empty_workload_is_refused() -> None:
    with pytest.raises(UsageError, match="got no sizes, expected at least one point"):
        build_options({"workload": []})


def test_graphs_of_torch_take_what_they_know_of_it() -> None:
    torch = pytest.importorskip("torch")
    from ourcc.compiler.torch.backend import CompiledGraph, aot

    graphs: list[CompiledGraph] = []

    def backend(graph_module: Any, inputs: Any) -> Any:
        def make(*arguments: Any, **keywords: Any) -> CompiledGraph:
            names = [str(size) for size in inputs if isinstance(size, torch.SymInt)]
            workload = {"nobody": 3, **dict.fromkeys(names[:1], 5)}
            graphs.append(CompiledGraph(*arguments, options=build_options({"workload": workload}), **keywords))
            return graphs[-1]

        return aot(graph_module, inputs, make)

    def double(x: Any) -> Any:
        return x.softmax(-1) * 2

    x = torch.randn(3, 7)
    torch.testing.assert_close(torch.compile(double, backend=backend, dynamic=True)(x), double(x))
    (graph,) = graphs
    assert graph.engine is not None
    assert list(workload_of(graph.engine.contents).sizes.values()) == [5, 128]


def test_sizes_that_the_data_decide_are_bounded_by_the_others(tmp_path: Path) -> None:
    """At N = 1 at most 8 elements of x[N, 8] are found: schedules, reports and the engine's own workload reckon with that."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [2, "K"])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["r"]), helper.make_node("NonZero", ["r"], ["y"])], "m", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "m.onnx")
    for given, sizes in (({}, {"N": 1, "found_0": 8}), ({"workload": "N=3"}, {"N": 3, "found_0": 24})):
        contents = ourcc.build(tmp_path / "m.onnx", **given, tune="off").contents  # type: ignore[arg-type]
        assert workload_of(contents).sizes == sizes
