"""`ourcc tune`: what it says of what changed and how much was gained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ourcc.autotune.store import open_store
from ourcc.compiler.commands.build import build
from ourcc.compiler.commands.tune import tune
from ourcc.compiler.environment import environment
from ourcc.compiler.options import TuneOptions, build_options
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
