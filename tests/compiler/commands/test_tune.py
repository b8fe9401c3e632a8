"""`ourcc tune`: what it says of what changed and how much was gained."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ourcc.autotune.store import open_store
from ourcc.compiler.cli import output
from ourcc.compiler.commands.build import build
from ourcc.compiler.commands.tune import tune
from ourcc.compiler.environment import environment
from ourcc.compiler.options import TuneOptions, build_options
from ourcc.compiler.progress import Progress
from ourcc.compiler.requests import Measuring


def test_the_gain_is_that_of_the_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURCC_CACHE", str(tmp_path / "records"))
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, size]) for name, size in (("x", 64), ("y", 48)))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    build(tmp_path / "m.onnx", build_options({"tune": "off"})).save(tmp_path / "m.ourcc")
    report = tune(TuneOptions(tmp_path / "m.ourcc", Measuring("count", count=3), environment=environment()))
    records = list(open_store(str(tmp_path / "records")).list())
    (row,) = report.tables[0].to_data()
    (record,) = records
    times = {str(trial.schedule): float(np.median(trial.times)) for trial in record.trials}
    assert row["gain"] == pytest.approx(times[str(row["before"])] / times[str(row["now"])], abs=0.01)
    assert (row["gain"] == 1) or row["before"] != row["now"]


class Notes(Progress):
    """What a command tells while it works."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, message: str) -> None:
        self.told.append(message)


def test_what_takes_longest_is_measured_first_and_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURCC_CACHE", str(tmp_path / "records"))
    sizes = (16, 24, 256, 512)
    generator = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32), f"w{n}") for n, shape in enumerate(pairwise(sizes))
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, size]) for name, size in (("x0", sizes[0]), ("x3", sizes[-1])))
    nodes = [helper.make_node("MatMul", [f"x{n}", f"w{n}"], [f"x{n + 1}"]) for n in range(3)]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    build(tmp_path / "m.onnx", build_options({"tune": "off"})).save(tmp_path / "m.ourcc")
    progress = Notes()
    report = tune(TuneOptions(tmp_path / "m.ourcc", Measuring("count", count=2), environment=environment()), progress)
    told = [note.split(":")[0] for note in progress.told if note.endswith(" us")]
    rows = {row["kernel"]: row for row in report.tables[0].to_data()}
    assert told == [f"{kernel} (matmul)" for kernel in reversed(rows)]
    assert all(row["chosen_by"] == "measured" for row in rows.values()) and report.facts["candidates_measured"] == 6
    # People see the kernels that changed, machines all.
    changed = [kernel for kernel, row in rows.items() if row["before"] != row["now"]]
    folded = report.tables[0].folded
    assert [row[0] for row in folded.rows] == changed if folded is not None else len(changed) == 3
    assert len(rows) == 3 and (folded is None or f"{3 - len(changed)} kernels keep their schedules" in folded.notes[-1])
    output.print_report(report, as_json=False)
