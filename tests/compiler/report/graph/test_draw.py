"""Pictures and pages: every op is in them, names stay text whatever they are, and the same program gives the same bytes."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from ourcc.compiler.report.graph.diagram import diagram_of
from ourcc.compiler.report.graph.draw import Function, svg
from ourcc.compiler.report.graph.vertices import of_graph
from ourcc.compiler.report.graph.viewer import SCRIPT, html
from ourcc.ir.errors import Source
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.text import op_text
from ourcc.ir.types import TensorType, f32

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = (
    "</title><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "]]><!--",
    "&lt;b&gt;",
    "a\u202eb\x00c\x1b[31m",
    "\ud800",
    "</script>",
    "${alert(1)}",
)


def layers(count: int, names: tuple[str, ...] = ()) -> Module:
    """A stack of equal layers with a mask that all read; inputs and sources are called by `names`."""
    module = Module("m")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input(names[0] if names else "x", TensorType(f32, (4, 8)))
    mask = graph.add_input("mask", TensorType(f32, (4, 8)))
    for number in range(count):
        b.source = Source(names[number % len(names)] if names else f"layer{number}", "model.onnx")
        h = b.mul(b.relu(b.exp(x)), mask)
        x = b.add(x, b.tanh(h))
    graph.set_outputs([x], [names[-1] if names else "y"])
    return module


def functions(module: Module) -> list[Function]:
    return [(name, *diagram_of(of_graph(graph))) for name, graph in module.functions.items()]


class Page(HTMLParser):
    """The tags of a page, and the text of its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and data.strip():
            self.scripts.append(data)


def test_layers_are_drawn_once_and_every_op_is_in_the_text() -> None:
    module = layers(12)
    root = ElementTree.fromstring(svg("m", functions(module)))
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    said = "\n".join(titles).split("\n")
    assert [said.count(op_text(op)) for op in module.main] == [1] * 60
    shown = [text.text for text in root.iter(f"{SVG}text")]
    assert "x 12" in shown and shown.count("tanh") == 1 and "then v6 of the copy before" in shown
    assert shown[0] == "main: 63 nodes, 8 drawn, 55 are copies of these, folded"


@pytest.mark.parametrize("name", HOSTILE)
def test_names_stay_text(name: str) -> None:
    module = layers(3, (name, f"{name}2", name[::-1]))
    picture, page = svg(name, functions(module)), html(name, functions(module))
    root = ElementTree.fromstring(picture.encode())
    known = {f"{SVG}{tag}" for tag in ("svg", "style", "defs", "marker", "path", "g", "title", "rect", "text")}
    assert {element.tag for element in root.iter()} <= known
    read = Page()
    read.feed(page.encode().decode())
    assert read.tags.count("script") == 1 and read.scripts == [SCRIPT] and "img" not in read.tags
    assert {each for each in read.attributes if each.startswith("on")} == set()


def test_a_page_asks_nobody() -> None:
    page = html("m", functions(layers(2)))
    assert "default-src 'none'" in page
    assert page.count("http") == page.count("http-equiv") + page.count("http://www.w3.org/2000/svg")


def test_the_same_program_gives_the_same_bytes() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_draw as t; import hashlib;"
        "print(hashlib.sha256((t.svg('m', t.functions(t.layers(7))) + t.html('m', t.functions(t.layers(7)))).encode()).hexdigest())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code, str(__file__).rpartition("/")[0]],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_a_function_without_ops_has_a_picture() -> None:
    module = Module("m")
    module.functions["main"] = Graph("main")
    assert "main: 0 nodes, 0 drawn" in svg("m", functions(module))
