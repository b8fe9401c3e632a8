"""Where the boxes of a diagram stand: in layers along the flow of values, ordered so that few arrows cross."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .diagram import NAMED, Arrow, Box, Diagram

LETTER, LINE, PADDING = 6.7, 15.0, 9.0
"""Of text, in points: the width of a letter, the height of a line, and the room around a text."""
WIDEST = 44
"""Letters of a line that are shown."""
GAP, RISE = 18.0, 34.0
"""Between boxes of a layer, and between layers."""
LONG = 16
"""An arrow over more layers is said in words where it ends."""
CROWD = 8
"""Layers that arrows go over, for each box, before they are too many."""
SWEEPS = 8


@dataclass(frozen=True)
class Placed:
    """A box in its place, with the lines that it shows, its title first; what is inside is placed from `inner`, its own corner."""

    box: Box
    x: float
    y: float
    width: float
    height: float
    lines: tuple[str, ...]
    inside: Drawing | None = None
    inner: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Line:
    """An arrow as points from its begin to its end."""

    names: tuple[str, ...]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Drawing:
    """A diagram in its place."""

    boxes: tuple[Placed, ...]
    lines: tuple[Line, ...]
    width: float
    height: float


@dataclass
class _Item:
    """A box, or the way of an arrow through a layer that it does not end in."""

    box: Box | None
    width: float
    height: float
    lines: tuple[str, ...] = ()
    inside: Drawing | None = None
    x: float = 0.0
    y: float = 0.0
    bottom: float = 0.0


def place(diagram: Diagram) -> Drawing:
    """The diagram with a place for each box."""
    layers = _layers(diagram)
    spans = [layers[arrow.target] - layers[arrow.source] for arrow in diagram.arrows]
    most = _longest(spans, len(diagram.boxes))
    short = [arrow for arrow, span in zip(diagram.arrows, spans, strict=True) if span <= most]
    said: dict[int, dict[str, None]] = {}
    for arrow, span in zip(diagram.arrows, spans, strict=True):
        if span > most:
            said.setdefault(arrow.target, {}).update(dict.fromkeys(arrow.names))
    items = [_item(box, tuple(said.get(number, ()))) for number, box in enumerate(diagram.boxes)]
    rows: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for number, layer in enumerate(layers):
        rows[layer].append(number)
    ways = _ways(short, layers, items, rows)
    edges = [pair for way in ways.values() for pair in pairwise(way)]
    _ordered(rows, edges)
    width = _across(rows, edges, items)
    height = _down(rows, items)
    boxes = tuple(_placed(item) for item in items[: len(diagram.boxes)])
    lines = tuple(_line(arrow, way, items) for arrow, way in ways.items())
    return Drawing(boxes, lines, width, height)


def _layers(diagram: Diagram) -> list[int]:
    """The layer of each box: below all that it reads from, and what reads nothing right above its first reader."""
    import networkx

    graph: networkx.DiGraph[int] = networkx.DiGraph()
    graph.add_nodes_from(range(len(diagram.boxes)))
    graph.add_edges_from((arrow.source, arrow.target) for arrow in diagram.arrows)
    found = [0] * len(diagram.boxes)
    for layer, members in enumerate(networkx.topological_generations(graph)):
        for member in members:
            found[member] = layer
    for number in range(len(diagram.boxes)):
        if not graph.pred[number] and graph.succ[number]:
            found[number] = min(found[reader] for reader in graph.succ[number]) - 1
    return found


def _longest(spans: Sequence[int], boxes: int) -> int:
    """Over how many layers arrows are drawn: fewer where there are so many that nobody could follow them."""
    longest = LONG
    while longest > 1 and sum(span for span in spans if span <= longest) > CROWD * boxes:
        longest //= 2
    return longest


def _item(box: Box, said: Sequence[str]) -> _Item:
    far = [f"reads {name}" for name in said[:NAMED]] + ([f"reads {len(said) - NAMED} more"] if len(said) > NAMED else [])
    lines = tuple(shortened(line) for line in (box.title, *box.lines, *far))
    width, height = max(map(len, lines)) * LETTER + 2 * PADDING, len(lines) * LINE + PADDING
    inside = place(box.inside) if box.inside is not None else None
    if inside is not None:
        width, height = max(width, inside.width + 2 * PADDING), height + inside.height + 2 * PADDING
    return _Item(box, width, height, lines, inside)


def shortened(text: str) -> str:
    """A text on one line that has room in a box."""
    line = plain(" ".join(text.split()))
    return line if len(line) <= WIDEST else f"{line[: WIDEST - 1]}…"


def plain(text: str) -> str:
    """A text whose characters can all be seen: others are spelled out, so that no name hides or turns what stands beside it."""
    return "".join(letter if letter.isprintable() or letter == "\n" else letter.encode("unicode_escape").decode("ascii") for letter in text)


def _ways(arrows: Sequence[Arrow], layers: Sequence[int], items: list[_Item], rows: list[list[int]]) -> dict[Arrow, list[int]]:
    """The items that each arrow goes by; arrows of one value go together as far as they can."""
    ways: dict[Arrow, list[int]] = {}
    passed: dict[tuple[int, tuple[str, ...], int], int] = {}
    for arrow in arrows:
        way = [arrow.source]
        for layer in range(layers[arrow.source] + 1, layers[arrow.target]):
            key = (arrow.source, arrow.names, layer)
            if key not in passed:
                passed[key] = len(items)
                rows[layer].append(len(items))
                items.append(_Item(None, 2.0, 0.0))
            way.append(passed[key])
        ways[arrow] = [*way, arrow.target]
    return ways


def _ordered(rows: list[list[int]], edges: Sequence[tuple[int, int]]) -> None:
    """Order each layer by the middle of what its items are tied to, downwards and upwards in turn."""
    above, below = _neighbours(edges)
    for sweep in range(SWEEPS):
        ties, order = (above, rows) if sweep % 2 == 0 else (below, rows[::-1])
        at = {item: place for row in rows for place, item in enumerate(row)}
        for row in order:
            row.sort(key=lambda item: _middle([at[other] for other in ties.get(item, ())], at[item]))
            at |= {item: place for place, item in enumerate(row)}


def _neighbours(edges: Sequence[tuple[int, int]]) -> tuple[Mapping[int, Sequence[int]], Mapping[int, Sequence[int]]]:
    above: dict[int, list[int]] = {}
    below: dict[int, list[int]] = {}
    for upper, lower in edges:
        above.setdefault(lower, []).append(upper)
        below.setdefault(upper, []).append(lower)
    return above, below


def _middle(places: Sequence[float], otherwise: float) -> float:
    return sum(places) / len(places) if places else otherwise


def _across(rows: Sequence[Sequence[int]], edges: Sequence[tuple[int, int]], items: Sequence[_Item]) -> float:
    """Move the items of each layer towards what they are tied to; the width of it all."""
    above, below = _neighbours(edges)
    for row in rows:
        _spaced(row, [0.0] * len(row), items)
    for sweep in range(SWEEPS):
        ties, order = (above, rows) if sweep % 2 == 0 else (below, rows[::-1])
        for row in order:
            _spaced(row, [_middle([items[other].x for other in ties.get(item, ())], items[item].x) for item in row], items)
    left = min((item.x - item.width / 2 for item in items), default=0.0)
    for item in items:
        item.x -= left
    return max((item.x + item.width / 2 for item in items), default=0.0)


def _spaced(row: Sequence[int], wished: Sequence[float], items: Sequence[_Item]) -> None:
    """Centres that keep the order and the gaps of a layer and are nearest to the wished ones."""
    offsets, pools = [0.0], list[tuple[float, int]]()
    for left, right in pairwise(row):
        offsets.append(offsets[-1] + (items[left].width + items[right].width) / 2 + GAP)
    for wish, offset in zip(wished, offsets, strict=False):
        total, count = wish - offset, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            more, number = pools.pop()
            total, count = total + more, count + number
        pools.append((total, count))
    centres = [total / count for total, count in pools for _ in range(count)]
    for item, centre, offset in zip(row, centres, offsets, strict=False):
        items[item].x = centre + offset


def _down(rows: Sequence[Sequence[int]], items: Sequence[_Item]) -> float:
    """Give each layer its height; an arrow's way is as high as its layer. The height of it all."""
    y = 0.0
    for row in rows:
        height = max(items[item].height for item in row)
        for item in row:
            items[item].y, items[item].bottom = y, y + height
            items[item].height = items[item].height if items[item].box is not None else height
        y += height + RISE
    return max(0.0, y - RISE)


def _placed(item: _Item) -> Placed:
    box = item.box or Box("way", "")
    inner = ((item.width - (item.inside.width if item.inside else 0.0)) / 2, len(item.lines) * LINE + 2 * PADDING)
    return Placed(box, item.x - item.width / 2, item.y, item.width, item.height, item.lines, item.inside, inner)


def _line(arrow: Arrow, way: Sequence[int], items: Sequence[_Item]) -> Line:
    """The way of an arrow: down to the end of its layer first, so that it crosses no higher box beside it."""
    begin, end = items[way[0]], items[way[-1]]
    points = [(begin.x, begin.y + begin.height)]
    points += [(begin.x, begin.bottom)] if begin.y + begin.height < begin.bottom else []
    for number in way[1:-1]:
        points += [(items[number].x, items[number].y), (items[number].x, items[number].y + items[number].height)]
    return Line(arrow.names, (*points, (end.x, end.y)))


__all__ = ["Drawing", "Line", "Placed", "place", "plain"]
