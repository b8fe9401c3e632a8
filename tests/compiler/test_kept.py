"""What fusion keeps in memory reaches the user: the engine's report, `ourcc inspect`, the page, `explain`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ourcc.compiler.commands.explain import explain_torch
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_again, compile_module
from ourcc.compiler.report.engine import describe_engine
from ourcc.compiler.report.page import page
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.types import TensorType, f32
from ourcc.runtime.contents import EngineContents
from ourcc.runtime.engine import Engine

WHY = "the kernel that reads it would have more than 128 ops if it computed it too"


@pytest.fixture(scope="module")
def contents() -> EngineContents:
    module = Module("long")
    graph = Graph("main")
    module.functions["main"] = graph
    value, b = graph.add_input("x", TensorType(f32, (8,))), Builder(module, graph)
    for n in range(150):
        value = b.sin(value) if n % 2 else b.abs(value)
    graph.set_outputs([value], ["y"])
    return compile_module(module, build_options({"targets": ["cpu"], "tune": "off"}))


def test_the_report_has_a_row_for_each_value(contents: EngineContents) -> None:
    assert list(contents.report["kept"]) == ["x86-64-v4", "x86-64-v3"]
    for (row,) in contents.report["kept"].values():
        assert row["why"] == WHY
        assert set(row) == {"value", "source", "why"}


def test_a_target_that_is_made_again_keeps_its_rows(contents: EngineContents) -> None:
    again = compile_again(contents, build_options({"targets": ["native"], "tune": "off"}))
    assert again.report["kept"] == contents.report["kept"]


def test_inspect_shows_it(contents: EngineContents, tmp_path: Path) -> None:
    engine = Engine(contents)
    engine.save(tmp_path / "long.ourcc")
    text = str(describe_engine(contents, tmp_path / "long.ourcc"))
    assert "kept in memory:" in text
    assert WHY in text
    assert WHY in page(contents, "long")


def test_explain_says_it() -> None:
    def long(x: torch.Tensor) -> torch.Tensor:
        for n in range(150):
            x = x.sin() if n % 2 else x.abs()
        return x

    notes = explain_torch(long, [torch.randn(8)], build_options({})).tables[0].notes
    assert any(note.startswith("graph 0: kept %") and note.endswith(WHY) for note in notes)
