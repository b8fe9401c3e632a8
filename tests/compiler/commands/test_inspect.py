"""`ourcc inspect` on an engine for another machine: the summary, and kernels that say why they use no matrix instruction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import ourcc
from ourcc.compiler.commands.build import build
from ourcc.compiler.commands.explain import explain
from ourcc.compiler.commands.inspect import inspect
from ourcc.compiler.options import InspectOptions, build_options
from ourcc.ir.errors import EngineError, UsageError
from ourcc.ir.plan.text import print_plan
from ourcc.passes.tile.cpu.packed import Packed
from ourcc.runtime.captured import TOLD
from ourcc.runtime.reader import read_engine


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product of one row and one of many, for a GPU that is not here."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.standard_normal((256, 512), dtype=np.float32), "w")]
    nodes = [helper.make_node("MatMul", [x, "w"], [y]) for x, y in (("row", "y"), ("rows", "z"))]
    ports = {name: [rows, width] for name, rows, width in (("row", 1, 256), ("rows", 512, 256), ("y", 1, 512), ("z", 512, 512))}
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ports.items()]
    graph = helper.make_graph(nodes, "m", infos[:2], infos[2:], weights)
    path = tmp_path_factory.mktemp("inspect") / "m.ourcc"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    build(model, build_options({"targets": ["sm_90a"]})).save(path)
    return path


def test_the_summary_needs_no_device(engine: Path) -> None:
    report = inspect(InspectOptions(engine))
    assert report.facts["targets"] == report.facts["parts"] == "sm_90a (h200)" and report.to_data()["boards"] == {"sm_90a": "h200"}
    with pytest.raises(EngineError, match="engine holds no target cpu"):
        inspect(InspectOptions(engine, target="cpu"))


def test_the_board_is_told_and_no_other_is_taken_for_it(engine: Path) -> None:
    """An architecture has the figures of its largest board, which is as good a name of it; times of another are not there."""
    for target in (None, "sm_90a", "h200"):
        report = inspect(InspectOptions(engine, kernels=True, target=target))
        assert report.facts["part"] == "sm_90a (h200)" and report.to_data()["boards"] == {"sm_90a": "h200"}
    for options in (InspectOptions(engine, target="h100"), InspectOptions(engine, kernels=True, target="h100")):
        with pytest.raises(UsageError, match="--target h100: the engine's sm_90a was made for h200"):
            inspect(options)
    with pytest.raises(EngineError, match="engine holds no target sm_100a, expected one of sm_90a \\(h200\\)"):
        inspect(InspectOptions(engine, target="b200"))


@pytest.mark.parametrize("board", ["h100", "h200"])
def test_the_board_that_was_asked_for_is_told(board: str, tmp_path: Path) -> None:
    path = tmp_path / "m.ourcc"
    build(layers(1), build_options({"targets": ["native", board]})).save(path)
    assert f"sm_90a ({board})" in str(inspect(InspectOptions(path)).facts["parts"]).split(", ")
    assert inspect(InspectOptions(path, memory=True)).facts["other_parts"] == f"sm_90a ({board})"


@pytest.mark.parametrize(("stage", "shown"), [("tiles", "program @"), ("regions", "region"), ("c", "kernel")])
def test_the_stages_of_programs_that_models_of_instructions_run(stage: str, shown: str, tmp_path: Path) -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "m", [value], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    build(model, build_options({"emulate": "x86-64-v3"})).save(tmp_path / "m.ourcc")
    assert shown in str(inspect(InspectOptions(tmp_path / "m.ourcc", ir=stage)).text)


def test_a_product_without_the_matrix_instruction_says_why(engine: Path) -> None:
    (table,) = inspect(InspectOptions(engine, kernels=True)).tables
    rows = {row["megaflop"]: row for row in table.to_data()}
    one, many = rows[min(rows)], rows[max(rows)]
    assert one["notes"] == "no wgmma: there are no rows of their own (a matrix-vector product)" and "wgmma" not in one["instructions"]
    assert many["notes"] is None and "wgmma" in many["instructions"]
    assert {"source_ops", "strategy", "registers", "shared_bytes", "spills", "predicted_us", "roofline"} <= set(table.columns)


def test_an_engine_shows_what_it_holds_and_not_what_it_would_be_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tuned engine has other schedules than those that the cost model names: its plan and its sources are those in the file."""
    path, usual = tmp_path / "m.ourcc", Packed.space
    monkeypatch.setattr(Packed, "space", lambda *given: iter([list(usual(*given))[-1]]))
    build(layers(3), build_options({"target": "native"})).save(path)
    monkeypatch.setattr(Packed, "space", usual)
    contents = read_engine(path)
    rows = contents.report["kernels"][next(iter(contents.parts))]
    shown, plan = (inspect(InspectOptions(path, ir=stage)).text for stage in ("c", "plan"))
    for kernel in {row["kernel"] for row in rows if row.get("kind", "kernel") == "kernel"}:
        source = inspect(InspectOptions(path, source=kernel)).text
        assert source is not None and source.partition("\n")[2] in (shown or "")
    assert plan == print_plan(next(iter(contents.parts.values())).plans["main"])


def test_engines_say_that_runs_of_kernels_become_graphs(engine: Path, tmp_path: Path) -> None:
    """Five launches may; two are too few, and code for CPUs knows no graphs."""
    assert "graphs" not in inspect(InspectOptions(engine)).facts
    model, path = layers(5), tmp_path / "m.ourcc"
    for targets, is_told in ((["native", "sm_90a"], True), (["native"], False)):
        build(model, build_options({"targets": targets})).save(path)
        assert ("graphs" in inspect(InspectOptions(path)).facts) == is_told
    for target, is_told in (("sm_90a", True), ("native", False)):
        (ops,) = (table for table in explain(model, (), build_options({"target": target})).tables if table.name == "ops")
        assert ops.notes == ((TOLD,) if is_told else ())
    assert "never executed on hardware" in TOLD and "OURCC_CUDA_GRAPHS=0" in TOLD


def layers(count: int) -> Any:
    """Products one after the other, too wide to be one kernel."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.standard_normal((256, 256), dtype=np.float32), f"w{n}") for n in range(count)]
    nodes = [helper.make_node("MatMul", [f"x{n}", f"w{n}"], [f"x{n + 1}"]) for n in range(count)]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 256]) for name in ("x0", f"x{count}"))
    return helper.make_model(helper.make_graph(nodes, "m", [x], [y], weights), opset_imports=[helper.make_opsetid("", 18)])


@pytest.mark.parametrize(("said", "given", "is_on"), [("", True, True), ("", False, False), ("0", True, False)])
def test_graphs_are_turned_off_where_an_engine_is_loaded(
    engine: Path, said: str, given: bool, is_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setenv("OURCC_CUDA_GRAPHS", said)
    monkeypatch.setattr("ourcc.compiler.commands.load.engine_class", lambda _: lambda *_, graphs, **__: asked.append(graphs))
    ourcc.load(engine, graphs=given)
    assert asked == [is_on]
