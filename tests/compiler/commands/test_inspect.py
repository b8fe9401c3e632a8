"""`ourcc inspect` on an engine for another machine: the summary, and kernels that say why they use no matrix instruction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ourcc.compiler.commands.build import build
from ourcc.compiler.commands.inspect import inspect
from ourcc.compiler.options import InspectOptions, build_options
from ourcc.ir.errors import EngineError


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
    assert report.facts["targets"] == "sm_90a"
    with pytest.raises(EngineError, match="engine holds no target cpu"):
        inspect(InspectOptions(engine, target="cpu"))


def test_a_product_without_the_matrix_instruction_says_why(engine: Path) -> None:
    (table,) = inspect(InspectOptions(engine, kernels=True)).tables
    rows = {row["megaflop"]: row for row in table.to_data()}
    one, many = rows[min(rows)], rows[max(rows)]
    assert one["notes"] == "no wgmma: there are no rows of their own (a matrix-vector product)" and "wgmma" not in one["instructions"]
    assert many["notes"] is None and "wgmma" in many["instructions"]
    assert {"source_ops", "strategy", "registers", "shared_bytes", "spills", "predicted_us", "roofline"} <= set(table.columns)
