"""The state of one kernel while it is printed: lines, names, lanes, known values and helpers."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ...ir.digits import is_whole
from ...ir.dims import Dim
from ...ir.errors import UnsupportedError
from ...ir.expression import Constant
from ...ir.tile.program import Launch
from ...ir.tile.ranges import Range
from ...ir.tile.scope import Scope
from ...ir.types import DType
from .primitives import full
from .words import bare, shape_text

# Triton refuses larger tiles.
MAXIMUM_ELEMENTS = 2**20


# Names that printed source itself uses.
RESERVED = frozenset({"tl", "triton", "float", *(f"lane_{2**n}" for n in range(21))})


@dataclass(frozen=True)
class Tile:
    """A printed value: text whose dimensions are `axes` in order (none: a scalar), and the literal if it is one.

    With `wanted` the text is work that must stand once, as what a variable is given: of this name, or of a better one.
    """

    text: str
    axes: tuple[str, ...]
    dtype: DType
    constant: Constant | None = None
    wanted: str | None = None


@dataclass
class Emitter:
    """Lines and names of one kernel; the one mutable thing of a printing. Operands may start `anywhere`, not at 16 bytes alone."""

    launch: Launch
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    taken: set[str] = field(default_factory=lambda: set(RESERVED))
    helpers: set[str] = field(default_factory=set)
    lanes: set[int] = field(default_factory=set)
    values: dict[str, Tile] = field(default_factory=dict)
    ranges: dict[str, Range] = field(default_factory=dict)
    locals: dict[str, str] = field(default_factory=dict)
    starts: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, Dim] = field(default_factory=dict)
    descriptors: dict[tuple[str, tuple[Dim, ...], tuple[int, ...]], str] = field(default_factory=dict)
    preamble: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    anywhere: frozenset[str] = frozenset()
    isa: int = 0

    def line(self, text: str) -> None:
        """One line of the kernel's body at the current depth."""
        self.lines.append("    " * self.depth + text)

    def fresh(self, wanted: str) -> str:
        """A name that no other variable of the kernel has."""
        base = re.sub(r"\W", "_", wanted)
        base = f"v_{base}" if not base or is_whole(base[0]) or base[0] == "_" or keyword.iskeyword(base) else base
        name, n = base, 1
        while name in self.taken:
            n += 1
            name = f"{base}_{n}"
        self.taken.add(name)
        return name

    def assign(self, wanted: str, text: str) -> str:
        """A fresh variable holding `text`."""
        name = self.fresh(wanted)
        self.line(f"{name} = {bare(text)}")
        return name

    def held(self, tile: Tile) -> Tile:
        """The tile in a variable of its own, if its text is work."""
        return tile if tile.wanted is None else replace(tile, text=self.assign(tile.wanted, tile.text), wanted=None)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """An indented block under `header:`; names bound inside are forgotten, rebound ones stay."""
        self.line(f"{header}:")
        self.depth += 1
        values, local, starts, count = dict(self.values), dict(self.locals), dict(self.starts), len(self.lines)
        yield
        if len(self.lines) == count:
            self.line("pass")
        self.depth -= 1
        self.values, self.locals, self.starts = values, local, starts

    def note(self, text: str) -> None:
        """Something that `inspect` should tell."""
        if text not in self.notes:
            self.notes.append(text)

    def shape(self, scope: Scope, axes: tuple[str, ...]) -> tuple[int, ...]:
        """Extents of axes; UnsupportedError where Triton has no such tile."""
        extents = tuple(scope.extent(axis) for axis in axes)
        for axis, extent in zip(axes, extents, strict=True):
            check_extent(self.launch, axis, extent)
        elements = 1
        for extent in extents:
            elements *= extent
        if elements > MAXIMUM_ELEMENTS:
            raise UnsupportedError(
                f"launch {self.launch.name}: a tile over {', '.join(axes)} has {elements} elements, expected at most {MAXIMUM_ELEMENTS}",
                hint="choose smaller steps",
            )
        return extents

    def aligned(self, tile: Tile, axes: tuple[str, ...]) -> str:
        """The tile's text with its dimensions placed among `axes`, missing ones of size 1; scalars stay scalars."""
        if not tile.axes or tile.axes == axes:
            return tile.text
        order = tuple(axis for axis in axes if axis in tile.axes)
        text = tile.text
        if order != tile.axes:
            text = f"tl.permute({text}, {tuple(tile.axes.index(axis) for axis in order)})"
        if order == axes:
            return text
        return f"{text}[{', '.join(':' if axis in order else 'None' for axis in axes)}]"

    def broadcast(self, scope: Scope, tile: Tile, axes: tuple[str, ...]) -> str:
        """The tile's text with exactly the dimensions `axes`."""
        extents = self.shape(scope, axes)
        if not axes:
            return full(tile.constant) if tile.constant is not None else tile.text
        if tile.constant is not None:
            return full(Constant(tile.constant.value, tile.dtype), shape_text(extents))
        text = self.aligned(tile, axes)
        return text if set(tile.axes) == set(axes) else f"tl.broadcast_to({text}, {shape_text(extents)})"


def check_extent(launch: Launch, axis: str, extent: int) -> None:
    """UnsupportedError for an extent that is no power of two."""
    if extent < 1 or extent & (extent - 1):
        raise UnsupportedError(
            f"launch {launch.name}: axis {axis} has extent {extent}, expected a power of two",
            hint="let the schedule choose a power of two and mask the rest",
        )
