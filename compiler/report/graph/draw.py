"""Drawings as SVG: one file that needs nothing else.

What a model says is text in it and nothing more: it is escaped, and what is not printable is spelled out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

from ....runtime.kinds import PICTURE_MARK
from .diagram import Account, Diagram
from .placement import LINE, PADDING, Drawing, Line, Placed, place, plain

STYLE = """
.box rect { fill: #f5f7fb; stroke: #8a97ad; } .box text, .head { font: 11px ui-monospace, Menlo, Consolas, monospace; fill: #1d2330; }
.box .title { font-weight: bold; } .head { font-weight: bold; font-size: 13px; } .arrow { fill: none; stroke: #8a97ad; }
.input > rect, .state > rect { fill: #e3f1e5; } .output > rect, .new-state > rect { fill: #fbeedd; }
.kernel > rect { fill: #e6eefb; stroke: #3b6fb6; } .host > rect, .call > rect, .check > rect { fill: #f7e6ea; stroke: #b0566c; }
.copies > rect { fill: #fffdf2; stroke: #b59a3a; stroke-dasharray: 5 3; } .many > rect { fill: #ececec; }
.port > rect { fill: #ffffff; stroke: #c4ccd9; }
"""
TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#8a97ad"/></marker></defs>'
)
MARGIN = 16.0

Function = tuple[str, Diagram, Account]
"""A function of a program: its name, its diagram, and what became of its nodes."""


def svg(title: str, functions: Sequence[Function]) -> str:
    """The functions of a program below each other, as one SVG file."""
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return f"{head}{picture(title, functions)}\n"


def account_text(name: str, account: Account) -> str:
    """What became of the nodes of a function."""
    return f"{plain(name)}: {account}"


def picture(title: str, functions: Sequence[Function]) -> str:
    """The `svg` element."""
    parts: list[str] = []
    y, width = MARGIN, 0.0
    for name, diagram, account in functions:
        drawing = place(diagram)
        said = account_text(name, account)
        parts.append(f'<text class="head" x="{MARGIN:g}" y="{y + LINE:g}">{escape(said)}</text>')
        parts += _drawing(drawing, MARGIN, y + 2.5 * LINE)
        y += drawing.height + 2.5 * LINE + 2 * MARGIN
        width = max(width, drawing.width, len(said) * 8.0)
    size = f"{width + 2 * MARGIN:.0f} {y:.0f}"
    label = escape(plain(title), quote=True)
    w, h = size.split()
    sized = f'viewBox="0 0 {size}" width="{w}" height="{h}"'
    root = f'<svg xmlns="http://www.w3.org/2000/svg" {PICTURE_MARK} role="img" aria-label="{label}" {sized}>'
    return "\n".join([root, f"<style>{STYLE}</style>{TIP}", *parts, "</svg>"])


def _drawing(drawing: Drawing, x: float, y: float) -> Iterator[str]:
    """Boxes first, so that arrows are seen in front of boxes around them."""
    for placed in drawing.boxes:
        yield from _box(placed, x, y)
    yield from (_arrow(line, x, y) for line in drawing.lines)


def _box(placed: Placed, x: float, y: float) -> Iterator[str]:
    left, top = x + placed.x, y + placed.y
    box = placed.box
    said = f"{box.title}: {box.text}" if box.inside is not None and box.text else box.text
    yield f'<g class="box {box.kind.replace(" ", "-")}"><title>{escape(plain(said))}</title>'
    yield f'<rect x="{left:.1f}" y="{top:.1f}" width="{placed.width:.1f}" height="{placed.height:.1f}" rx="4"/>'
    for number, text in enumerate(placed.lines):
        kind = "" if number else ' class="title"'
        yield f'<text{kind} x="{left + PADDING:.1f}" y="{top + (number + 1) * LINE:.1f}">{escape(text)}</text>'
    if placed.inside is not None:
        yield from _drawing(placed.inside, left + placed.inner[0], top + placed.inner[1])
    yield "</g>"


def _arrow(line: Line, x: float, y: float) -> str:
    points = [(x + a, y + b) for a, b in line.points]
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (a, b), (c, d) in pairwise(points):
        middle = (b + d) / 2
        path += f"L{c:.1f} {d:.1f}" if a == c else f"C{a:.1f} {middle:.1f} {c:.1f} {middle:.1f} {c:.1f} {d:.1f}"
    return f'<path class="arrow" marker-end="url(#tip)" d="{path}"><title>{escape(plain(", ".join(line.names)))}</title></path>'


__all__ = ["Function", "account_text", "picture", "svg"]
