"""Diagrams: boxes with boxes inside, and arrows between those that stand beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .fold import Part, fold
from .vertices import Vertex

NAMED = 6
"""So many kinds of op are named where ops are only counted, and so many values that come from far off."""


@dataclass(frozen=True)
class Box:
    """A box: its title, what it says below, all that there is to say of it, and what it holds."""

    kind: str
    title: str
    lines: tuple[str, ...] = ()
    text: str = ""
    inside: Diagram | None = None


@dataclass(frozen=True)
class Arrow:
    """Values on their way from one box to another, by their places in the diagram."""

    source: int
    target: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Diagram:
    """Boxes in the order of the program, and arrows, which point from earlier boxes to later ones."""

    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


@dataclass(frozen=True)
class Account:
    """What became of the nodes of a picture: `drawn` have a box, `copies` stand behind such a box, `counted` are in boxes of many."""

    nodes: int
    drawn: int
    copies: int
    counted: int

    def __str__(self) -> str:
        said = [f"{self.nodes:,} nodes", f"{self.drawn:,} drawn"]
        said += [f"{self.copies:,} are copies of these, folded"] if self.copies else []
        said += [f"{self.counted:,} in boxes that only count them"] if self.counted else []
        return ", ".join(said)


def diagram_of(nodes: Sequence[Vertex]) -> tuple[Diagram, Account]:
    """The diagram of a program, and what became of its nodes."""
    parts = fold(nodes)
    made = _Maker(nodes).diagram(parts, (0,))
    drawn, counted = _drawn(parts), _counted(parts, 1)
    return made, Account(len(nodes), drawn, len(nodes) - drawn - counted, counted)


def _drawn(parts: Sequence[Part]) -> int:
    return sum(_drawn(part.parts) if part.copies > 1 else part.period == 1 for part in parts)


def _counted(parts: Sequence[Part], times: int) -> int:
    return sum(_counted(part.parts, times * part.copies) if part.copies > 1 else times * part.period * (part.period > 1) for part in parts)


class _Maker:
    """Boxes and arrows from the parts of one program."""

    def __init__(self, nodes: Sequence[Vertex]) -> None:
        self.nodes = nodes
        self.made = {name: place for place, node in enumerate(nodes) for name in node.writes}
        self.readers: dict[str, list[int]] = {}
        for place, node in enumerate(nodes):
            for name in node.reads:
                self.readers.setdefault(name, []).append(place)

    def diagram(self, parts: Sequence[Part], shifts: tuple[int, ...]) -> Diagram:
        """The diagram of parts; a node in it stands for those at `shifts` from it too."""
        boxes = tuple(self._box(part, shifts) for part in parts)
        return Diagram(boxes, tuple(self._arrows(parts)))

    def _box(self, part: Part, shifts: tuple[int, ...]) -> Box:
        if part.copies > 1:
            return self._copies(part, shifts)
        if part.period > 1:
            return self._many(part, shifts)
        alike = [self.nodes[part.start + shift] for shift in shifts]
        node = alike[0]
        inside = _Maker(node.inside).diagram(fold(node.inside), (0,)) if node.inside else None
        return Box(node.kind, node.title, node.lines, "\n".join(each.text for each in alike), inside)

    def _copies(self, part: Part, shifts: tuple[int, ...]) -> Box:
        own = tuple(shift + copy * part.period for shift in shifts for copy in range(part.copies))
        first = self.diagram(part.parts, own)
        entering, leaving = self._entering(part), self._leaving(part)
        boxes = (*entering, *first.boxes, *leaving)
        moved = [Arrow(a.source + len(entering), a.target + len(entering), a.names) for a in first.arrows]
        moved += self._through(part, entering, leaving)
        count = f"{part.period} nodes" if part.period > 1 else "1 node"
        text = f"{part.copies} copies of {count}, drawn once"
        return Box("copies", f"x {part.copies}", (f"{count} each",), text, Diagram(boxes, tuple(moved)))

    def _entering(self, part: Part) -> tuple[Box, ...]:
        """What the first copy reads from outside; what it is to the next one, where that reads something else."""
        return tuple(self._port(name, self._next(part, name)) for name in self._outside(part))

    def _port(self, name: str, following: str | None) -> Box:
        """A value that enters: by its user's name if it has one, else with what makes it."""
        maker = self.nodes[self.made[name]] if name in self.made else None
        title = name if maker is None or maker.writes == (maker.title,) or maker.inside or maker.reads else maker.title
        said = [f"of {maker.title}"] if maker is not None and title != maker.title else []
        said += [] if following is None else [f"then {following} of the copy before"]
        return Box("port", title, tuple(said), name)

    def _outside(self, part: Part) -> list[str]:
        first = range(part.start, part.start + part.period)
        return list(dict.fromkeys(name for place in first for name in self.nodes[place].reads if self.made.get(name, -1) < part.start))

    def _next(self, part: Part, name: str) -> str | None:
        """What the second copy reads in the place of a value: one of the first copy's, if not the same."""
        place = next(place for place in range(part.start, part.stop) if name in self.nodes[place].reads)
        at = self.nodes[place].reads.index(name)
        other = self.nodes[place + part.period].reads[at]
        return other if other != name and self.made.get(other, -1) >= part.start else None

    def _leaving(self, part: Part) -> tuple[Box, ...]:
        return tuple(Box("port", name, ("to the next copy",), name) for name in self._carried(part))

    def _carried(self, part: Part) -> list[str]:
        """The values of the first copy that the second one reads."""
        first, second = range(part.start, part.start + part.period), range(part.start + part.period, part.start + 2 * part.period)
        read = {name for place in second for name in self.nodes[place].reads}
        return [name for place in first for name in self.nodes[place].writes if name in read]

    def _through(self, part: Part, entering: Sequence[Box], leaving: Sequence[Box]) -> Iterator[Arrow]:
        """The arrows from the values that enter the first copy, and to those that go on to the next."""
        places = _places(part.parts, len(entering))
        for number, name in enumerate(self._outside(part)):
            ends = {places[reader]: None for reader in self.readers[name] if reader in places}
            yield from (Arrow(number, end, (name,)) for end in ends)
        begin = len(entering) + len(part.parts)
        yield from (Arrow(places[self.made[name]], begin + n, (name,)) for n, name in enumerate(self._carried(part)))

    def _many(self, part: Part, shifts: tuple[int, ...]) -> Box:
        held = [node for shift in shifts for node in self.nodes[part.start + shift : part.stop + shift]]
        kinds = Counter(node.title for node in self.nodes[part.start : part.stop]).most_common()
        lines = [f"{count} {title}" for title, count in kinds[:NAMED]]
        lines += [f"and {len(kinds) - NAMED} kinds more"] if len(kinds) > NAMED else []
        return Box("many", f"{part.period} nodes", tuple(lines), "\n".join(node.text for node in held))

    def _arrows(self, parts: Sequence[Part]) -> Iterator[Arrow]:
        """One arrow for each pair of parts of which one reads what the other makes."""
        places = _places(parts, 0)
        found: dict[tuple[int, int], dict[str, None]] = {}
        for number, part in enumerate(parts):
            for place in range(part.start, part.stop):
                for name in self.nodes[place].reads:
                    source = places.get(self.made.get(name, -1))
                    if source is not None and source != number:
                        found.setdefault((source, number), {})[name] = None
        yield from (Arrow(source, target, tuple(names)) for (source, target), names in found.items())


def _places(parts: Sequence[Part], begin: int) -> Mapping[int, int]:
    """The number of the part that each node is in."""
    return {place: begin + number for number, part in enumerate(parts) for place in range(part.start, part.stop)}


__all__ = ["Account", "Arrow", "Box", "Diagram", "diagram_of"]
