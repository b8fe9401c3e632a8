"""Where boxes stand: none on another, readers below what they read, and what is inside a box within it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ourcc.compiler.report.graph.diagram import NAMED, Arrow, Box, Diagram, diagram_of
from ourcc.compiler.report.graph.placement import LONG, Drawing, place, plain
from ourcc.compiler.report.graph.vertices import Vertex


@st.composite
def diagrams(draw: st.DrawFn, depth: int = 2) -> Diagram:
    count = draw(st.integers(1, 12))
    boxes = [
        Box("op", draw(st.text(max_size=60)), tuple(draw(st.lists(st.text(max_size=9), max_size=3))), "", inside)
        for inside in [draw(diagrams(depth=depth - 1)) if depth and draw(st.integers(0, 5)) == 0 else None for _ in range(count)]
    ]
    pairs = draw(
        st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda pair: pair[0] < pair[1]), max_size=30)
    )
    return Diagram(tuple(boxes), tuple(Arrow(a, b, (f"v{a}",)) for a, b in sorted(pairs)))


def check(drawing: Drawing) -> None:
    edges = [(box.x, box.y, box.x + box.width, box.y + box.height) for box in drawing.boxes]
    for number, (left, top, right, bottom) in enumerate(edges):
        assert left >= -1e-6 and right <= drawing.width + 1e-6 and top >= 0 and bottom <= drawing.height + 1e-6
        for a, b, c, d in edges[:number]:
            assert right <= a or c <= left or bottom <= b or d <= top
    for line in drawing.lines:
        heights = [y for _, y in line.points]
        assert heights == sorted(heights)
    for box in drawing.boxes:
        if box.inside is not None:
            assert box.inner[0] >= 0 and box.inner[0] + box.inside.width <= box.width + 1e-6
            assert box.inner[1] + box.inside.height <= box.height + 1e-6
            check(box.inside)


@given(diagrams())
def test_boxes_do_not_overlap_and_arrows_point_down(diagram: Diagram) -> None:
    drawing = place(diagram)
    assert len(drawing.boxes) == len(diagram.boxes)
    check(drawing)
    for arrow in diagram.arrows:
        assert drawing.boxes[arrow.source].y + drawing.boxes[arrow.source].height < drawing.boxes[arrow.target].y


def test_an_arrow_from_far_off_is_said_in_words() -> None:
    count = LONG + 4
    nodes = [Vertex("op", f"op{n}", (), "", (f"v{n - 1}",) if n else (), (f"v{n}",), f"op{n}") for n in range(count)]
    nodes.append(Vertex("op", "end", (), "", (f"v{count - 1}", "v0"), ("end",), "end"))
    drawing = place(diagram_of(nodes)[0])
    assert drawing.boxes[-1].lines == ("end", "reads v0") and len(drawing.lines) == count


def test_of_many_far_values_some_are_named() -> None:
    boxes = tuple(Box("op", f"op{n}") for n in range(60))
    chain = [Arrow(n, n + 1, (f"v{n}",)) for n in range(59)]
    drawing = place(Diagram(boxes, (*chain, *(Arrow(n, 59, (f"v{n}",)) for n in range(30)))))
    assert drawing.boxes[-1].lines[-1] == f"reads {30 - NAMED} more"


def test_what_cannot_be_seen_is_spelled_out() -> None:
    assert plain("a\u202eb\x00c\x1b[1m\ud800\nd") == "a\\u202eb\\x00c\\x1b[1m\\ud800\nd"
