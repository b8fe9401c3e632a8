"""The picture of an engine: every step of its plan is a node, each kernel holds the ops that it computes, and layers are folded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ourcc.compiler.cli.main import run
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.compiler.report.graph.kernels import of_plan
from ourcc.ir.errors import Source
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.types import TensorType, f32
from ourcc.runtime import EngineContents
from ourcc.runtime.file import write_engine

LAYERS = 4


@pytest.fixture(scope="module")
def contents() -> EngineContents:
    module = Module("m")
    graph = module.functions["main"] = Graph("main")
    b, random = Builder(module, graph), np.random.default_rng(0)
    x = graph.add_input("x", TensorType(f32, (module.declare("B", 1, 64), 16)))
    for number in range(LAYERS):
        b.source = Source(f"layer{number}", "model.onnx")
        weight = module.add_constant(f"w{number}", random.standard_normal((16, 16)).astype(np.float32))
        x = b.add(x, b.tanh(b.matmul(b.softmax(x, axis=1), weight)))
    graph.set_outputs([x], ["y"])
    return compile_module(module, build_options({}))


def test_every_step_is_a_node_and_kernels_hold_all_ops(contents: EngineContents) -> None:
    (part,) = contents.parts
    nodes = of_plan(contents, part, "main")
    kernels = [node for node in nodes if node.kind == "kernel"]
    assert len(nodes) == len(contents.parts[part].plan.steps) + 2
    held = {name for node in kernels for inner in node.inside for name in inner.writes}
    assert held == {value.name for op in parse_module(contents.graph).main for value in op.results}
    assert all(any(line.endswith("us predicted") for line in node.lines) for node in kernels)


def test_a_step_reads_what_was_written_before_it(contents: EngineContents) -> None:
    nodes = of_plan(contents, next(iter(contents.parts)), "main")
    written: set[str] = set()
    for node in nodes:
        assert set(node.reads) <= written and written.isdisjoint(node.writes)
        written |= set(node.writes)
    assert nodes[-1].kind == "output" and nodes[-1].reads


def test_inspect_draws_an_engine_and_a_model_alike(contents: EngineContents, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine, picture, page = tmp_path / "m.ourcc", tmp_path / "m.svg", tmp_path / "m.html"
    write_engine(engine, contents)
    assert run(["inspect", str(engine), "--graph", str(picture)]) == 0
    assert f"x {LAYERS}" in picture.read_text() and "folded" in capsys.readouterr().out
    assert run(["inspect", str(engine), "--graph", str(page), "--ir", "simplify", "--json"]) == 0
    assert '"stage": "simplify"' in capsys.readouterr().out and "<script>" in page.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--graph", "{}/m.png"], "has the suffix .png, and gets an SVG picture or a page of HTML"),
        (["--graph", "{}/m.svg", "--kernels"], "got --graph and --kernels, expected --graph alone"),
        (["--graph", "{}/m.svg", "--ir", "tiles"], "got --graph and --ir tiles, expected one of import, simplify, plan"),
        (["--graph", "{}/m.svg", "--ir", "import"], "stage import needs the model"),
        (["--graph", "{}/m.ourcc"], "has the suffix .ourcc, and gets an SVG picture or a page of HTML"),
        (["--graph", "{}/m.svg", "--diff", "{}/m.ourcc"], "got --graph and --diff, expected --graph, --diff alone"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    contents: EngineContents, words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = tmp_path / "m.ourcc"
    write_engine(engine, contents)
    assert run(["inspect", str(engine), *(word.format(tmp_path) for word in words)]) in (1, 2)
    assert said in capsys.readouterr().err and not (tmp_path / "m.svg").exists()
