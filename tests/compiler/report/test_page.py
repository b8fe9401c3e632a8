"""The page of `--report`: well-formed, about this engine, and safe for names that are markup."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ourcc.compiler.commands.build import build
from ourcc.compiler.options import build_options
from ourcc.ir.plan import slot_offsets, storage


class Reader(HTMLParser):
    """Text of cells and titles, boxes by class; every element must be closed where it was opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.boxes: list[dict[str, str]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "b")
        if tag != "meta":
            self.open.append(tag)
        if tag == "rect":
            self.boxes.append(dict(attrs))

    def handle_startendtag(self, tag, attrs):
        self.boxes.append(dict(attrs))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def model() -> onnx.ModelProto:
    """Two products with something between that goes through memory; a node's name is markup."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.standard_normal((32, 32), dtype=np.float32), name) for name in ("w1", "w2")]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], name="<b>first</b>"),
        helper.make_node("Softmax", ["h"], ["s"]),
        helper.make_node("MatMul", ["s", "w2"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", 32]) for name in ("x", "y")]
    return helper.make_model(helper.make_graph(nodes, "m", ports[:1], ports[1:], weights), opset_imports=[helper.make_opsetid("", 18)])


def test_the_page_shows_kernels_memory_and_contract(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    engine = build(model(), build_options({"targets": ["native"], "quantize": "int8-weight", "report": str(path)}))
    reader = Reader(path.read_text(encoding="utf-8"))
    rows = engine.contents.report["kernels"][engine.parts[0]]
    bars = [box for box in reader.boxes if box["class"] == "bar"]
    assert len(bars) == len(rows)
    longest = max(row["predicted_us"] * row["calls"] for row in rows)
    assert max(float(box["width"]) for box in reader.boxes if box["class"] == "slack") == 430 and longest > 0
    plan = engine.contents.best.plan
    arena = [buffer for buffer in plan.buffers if isinstance(buffer.storage, storage.Arena)]
    slots = [box for box in reader.boxes if box["class"] == "slot"]
    assert len(slots) == len(arena) > 0 and slot_offsets(plan.slots, {"B": 1})[1] > 0
    assert all(0 <= float(box["y"]) and float(box["y"]) + float(box["height"]) <= 260.5 for box in slots)
    text = " ".join(reader.texts)
    assert "<b>first</b>" in text and "int8-weight" in text and "B = 1" in text
