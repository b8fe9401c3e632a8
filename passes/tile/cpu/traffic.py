"""What a tile program moves between the levels of memory, in lines of cache, by the addresses of its accesses.

Each loop adds to what its body touches. What a body touches is there again in the next step as far as a cache holds it: it holds
so many lines in all, and so many of those that lie a power of two apart. A program is reckoned with as run again and again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ....ir import dims
from ....ir.dims import Dim
from ....ir.target import Cache, CpuLevel
from ....ir.tile.address import flatten
from ....ir.tile.program import (
    AxisDecl,
    Dot,
    Expand2to4,
    For,
    If,
    Launch,
    Let,
    Load,
    Local,
    Param,
    Statement,
    Store,
    TileType,
    Unpack,
    Value,
    parts,
)
from .work import factors_of, opened, range_of, summed_axes, value_of

LINE = 64
"""Bytes of a line of memory."""
PANELS = (16, 32, 64)
"""Lanes after which packed columns may lie elsewhere."""


@dataclass(frozen=True)
class _Access:
    """An access: the bytes of an element, (bytes apart, elements) of a tile's axes, and (bytes apart, steps) of each loop that moves it:
    first those of a panel, if steps are parts of one, then from panel to panel.
    """

    operand: str
    subscripts: tuple[Dim, ...]
    size: int
    tile: tuple[tuple[int, int], ...]
    steps: Mapping[tuple[str, bool], tuple[tuple[int, float], ...]]


@dataclass
class _Node:
    """A loop with its trips, how many whole steps they cover, what it reads and writes, and the loops inside.

    One along a sum, `is_summed`, may have the name of a loop around it, whose steps it takes apart.
    """

    name: str
    trips: int
    covered: float
    step: int
    is_summed: bool = False
    accesses: list[_Access] = field(default_factory=list)
    inner: list[_Node] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, bool]:
        """By which it is told from the loops around it."""
        return self.name, self.is_summed


def _trips(length: int, rungs: Sequence[int]) -> int:
    """The steps of a ladder over so many elements."""
    found = 0
    for rung in rungs:
        whole, length = divmod(length, rung)
        found += whole
    return max(1, found + (length > 0))


def lines_moved(launch: Launch, sizes: Mapping[str, int], target: CpuLevel) -> list[float]:
    """Lines that each of the caches does not hold when they are asked for, in one run of a launch."""
    return _moved(_Reader(launch, sizes, target).read(), target.rates.caches)


class _Reader:
    """Reads the accesses of a launch in their loops, at these sizes."""

    def __init__(self, launch: Launch, sizes: Mapping[str, int], target: CpuLevel) -> None:
        self.launch, self.sizes, self.target = launch, sizes, target
        self.operands: dict[str, Param | Local] = {param.name: param for param in launch.params}
        self.inside: dict[str, set[str]] = {}
        """The axes that walk each axis, by its name."""
        self.root = _Node("", 1, 1.0, 0)
        self.met: set[tuple[int, int]] = set()
        """Values and the loops in which they were read: one that is used several times is read once."""

    def read(self) -> _Node:
        """A tree of the grid's loops and the body's."""
        root = node = self.root
        env, lengths, loops = dict(self.sizes), dict[str, int](), list[_Node]()
        for axis in self.launch.grid:
            low, step = value_of(axis.low, env), axis.step or 1
            length = max(0, value_of(axis.high, env) - low)
            # Tiles of the grid are reckoned with as equally long.
            trips = max(1, -(-length // step))
            step = max(1, -(-length // trips))
            env, lengths[axis.name] = opened(env, axis.name, low), step
            node.inner.append(_Node(axis.name, trips, float(trips), step))
            node = node.inner[-1]
            loops.append(node)
        self._body(self.launch.body, env, lengths, node, loops)
        return root

    def _body(self, body: Sequence[Statement], env: dict[str, int], lengths: dict[str, int], node: _Node, loops: list[_Node]) -> None:
        for statement in body:
            if isinstance(statement, For):
                self._for(statement, env, lengths, node, loops)
            elif isinstance(statement, AxisDecl):
                low, high = range_of(statement.low, statement.high, env)
                env, length = opened(env, statement.name, low), high - low
                lengths = lengths | {statement.name: max(0, min(statement.extent, length))}
            elif isinstance(statement, Local):
                self.operands[statement.name] = statement
            elif isinstance(statement, If) and not statement.seldom:
                self._body(statement.body, env, lengths, node, loops)
            elif isinstance(statement, (Let, Store)):
                self._value(statement.value, env, lengths, node, loops)
                if isinstance(statement, Store):
                    self._access(statement.operand, statement.subscripts, statement.value.type, env, lengths, node, loops)

    def _for(self, loop: For, env: dict[str, int], lengths: dict[str, int], node: _Node, loops: list[_Node]) -> None:
        if loop.kind == "walk" and loop.parent is not None:
            low, length, walked = env[f"{loop.parent}.first"], lengths[loop.parent], {loop.parent}
        else:
            low, high = range_of(loop.low, loop.high, env)
            length = high - low
            # A loop that begins where a tile does moves with it.
            walked = {outer.name for outer in loops if f"{outer.name}.first" in dims.symbols(loop.low)}
        rungs = (loop.step, *loop.tail)
        step = next((rung for rung in rungs if rung <= length), rungs[-1])
        for parent in walked:
            for walkers in (self.inside.setdefault(parent, set()), *(w for w in self.inside.values() if parent in w)):
                walkers.add(loop.name)
        if length > 0:
            node.inner.append(_Node(loop.name, _trips(length, rungs), max(1.0, length / step), step))
            deeper = [*loops, node.inner[-1]]
            self._body(loop.body, opened(env, loop.name, low), lengths | {loop.name: min(step, length)}, node.inner[-1], deeper)

    def _value(self, value: Value, env: dict[str, int], lengths: dict[str, int], node: _Node, loops: list[_Node]) -> None:
        if (id(value), id(node)) in self.met:
            return
        self.met.add((id(value), id(node)))
        if isinstance(value, Load):
            self._access(value.operand, value.subscripts, value.type, env, lengths, node, loops)
        elif isinstance(value, Dot):
            self._value(value.acc, env, lengths, node, loops)
            _, _, depth, matrix = factors_of(value, self.operands, self.target)
            if matrix is None:
                self._summed((value.left, value.right), value, depth, env, lengths, node, loops)
            else:
                # It reads rows of its left factor at once.
                self._summed((value.left,), value, depth * matrix.groups, env, lengths, node, loops)
                self._summed((value.right,), value, depth, env, lengths, node, loops)
        elif isinstance(value, (Expand2to4, Unpack)) and any(loop.name == value.after for loop in loops):
            loops = self._beside(value.after, value.before, lengths, loops)
            for part in parts(value):
                self._value(part, env, lengths | {value.before: 1}, loops[-1], loops)
        else:
            for part in parts(value):
                self._value(part, env, lengths, node, loops)

    def _summed(
        self,
        sides: Sequence[Value],
        dot: Dot,
        step: int,
        env: dict[str, int],
        lengths: dict[str, int],
        node: _Node,
        loops: list[_Node],
    ) -> None:
        """Factors of a product in a loop along its sum, in steps of so many neighbours."""
        *outer, inner = summed_axes(dot)
        for axis, own in (*((axis, 1) for axis in outer), (inner, step)):
            node.inner.append(_Node(axis, max(1, -(-lengths[axis] // own)), max(1.0, lengths[axis] / own), own, True))
            node, lengths = node.inner[-1], lengths | {axis: min(own, lengths[axis])}
            loops = [*loops, node]
        for side in sides:
            self._value(side, env, lengths, node, loops)

    def _beside(self, after: str, before: str, lengths: dict[str, int], loops: list[_Node]) -> list[_Node]:
        """The loops that hold one along `after`, with one along `before` in its place: what is expanded is read in steps of its own."""
        place = next(n for n, loop in enumerate(loops) if loop.name == after)
        found = loops[:place]
        for loop in (_Node(before, max(1, lengths[before]), max(1.0, lengths[before]), 1), *loops[place + 1 :]):
            found.append(_Node(loop.name, loop.trips, loop.covered, loop.step, loop.is_summed))
            (found[-2] if len(found) > 1 else self.root).inner.append(found[-1])
        return found

    def _access(
        self,
        operand: str,
        subscripts: tuple[Dim, ...],
        type_: TileType,
        env: dict[str, int],
        lengths: dict[str, int],
        node: _Node,
        loops: list[_Node],
    ) -> None:
        held = self.operands[operand]
        size, address = max(1, held.dtype.bits // 8), flatten(held, subscripts)
        if isinstance(address, int):
            node.accesses.append(_Access(operand, subscripts, size, (), {}))
            return
        names = dims.symbols(address)
        here = {name: env.get(name, 0) for name in names}
        base = value_of(address, here)

        def apart(moved: set[str], by: int) -> int:
            there = {name: value + by if name in moved else value for name, value in here.items()}
            return (value_of(address, there) - base) * size if moved & names else 0

        def strides(moved: set[str], step: int, count: float) -> list[tuple[int, float]]:
            """(bytes apart, steps) of so many steps: within a panel and from one to the next, where columns lie in panels."""
            stride = apart(moved, step)
            for width in PANELS if stride else ():
                if width % step == 0 and step * count > width > step and (panel := apart(moved, width)) != width // step * stride:
                    return [(stride, width // step), (panel, step * count / width)]
            return [(stride, count)]

        tile: list[tuple[int, int]] = []
        for axis in type_.axes:
            if lengths[axis] > 1:
                tile += [(stride, math.ceil(count)) for stride, count in strides({axis, f"{axis}.lane"}, 1, lengths[axis])]
        steps = {}
        for loop in loops:
            moved = {loop.name, *self.inside.get(loop.name, ())}
            found = strides(moved | {f"{name}.first" for name in moved}, loop.step, loop.covered)
            if found[0][0]:
                steps[loop.key] = tuple(found)
        node.accesses.append(_Access(operand, subscripts, size, tuple(tile), steps))


@dataclass
class _Touched:
    """What an access touches in a part of the program: (bytes apart, elements) along axes, and lines.

    For each cache `lost` is the part of them that have no place there, since too many lie in the same sets, and `missed` are
    the lines that it had not.
    """

    access: _Access
    axes: tuple[tuple[int, float], ...]
    lines: float
    lost: list[float]
    missed: list[float]


def _moved(root: _Node, caches: Sequence[Cache]) -> list[float]:
    """The lines that each cache does not hold when they are asked for."""
    found = _touched(root, caches)
    crowded = _crowded(found, caches)
    missed: dict[tuple[str, tuple[Dim, ...]], list[float]] = {}
    for each in found:
        # What is still there from the run before is not moved again.
        kept = [each.lines * (1 - max(pair)) for pair in zip(crowded, each.lost, strict=True)]
        left = [max(0.0, lines - there) for lines, there in zip(each.missed, kept, strict=True)]
        before = missed.get((each.access.operand, each.access.subscripts), left)
        missed[each.access.operand, each.access.subscripts] = [max(pair) for pair in zip(before, left, strict=True)]
    return [sum(column) for column in zip(*missed.values(), strict=True)] or [0.0] * len(caches)


def _touched(node: _Node, caches: Sequence[Cache]) -> list[_Touched]:
    found = []
    for access in node.accesses:
        lines, lost = _lines(access.size, access.tile, caches)
        found.append(_Touched(access, access.tile, lines, lost, [lines] * len(caches)))
    for inner in node.inner:
        found += _touched(inner, caches)
    if node.trips == 1:
        return found
    crowded = _crowded(found, caches)
    for each in found:
        steps = each.access.steps.get(node.key, ())
        axes = (*each.axes, *steps)
        lines, lost = _lines(each.access.size, axes, caches) if steps else (each.lines, each.lost)
        trips = node.covered if steps else node.trips
        again = min(trips, lines / each.lines)
        for place, pair in enumerate(zip(crowded, each.lost, strict=True)):
            each.missed[place] *= again + (trips - again) * max(pair)
        each.axes, each.lines, each.lost = axes, lines, lost
    return found


def _crowded(found: Sequence[_Touched], caches: Sequence[Cache]) -> list[float]:
    """The part of what is touched that each cache has no room for."""
    held: dict[str, float] = {}
    for each in found:
        held[each.access.operand] = max(held.get(each.access.operand, 0.0), each.lines)
    total = max(1.0, sum(held.values()))
    return [max(0.0, 1 - cache.bytes / LINE / total) for cache in caches]


def _lines(size: int, axes: Sequence[tuple[int, float]], caches: Sequence[Cache]) -> tuple[float, list[float]]:
    """The lines that elements touch which lie so far apart along axes, and the part of them that each cache has no place for."""
    extents: dict[int, float] = {}
    for stride, extent in axes:
        if stride and extent > 1:
            extents[abs(stride)] = extents.get(abs(stride), 1) + extent - 1
    run, apart = float(size), list[tuple[int, float]]()
    for stride, extent in sorted(extents.items()):
        if not apart and stride <= max(run, LINE):
            run += (extent - 1) * stride
        else:
            apart.append((stride, extent))
    each = -(-run // LINE)
    lines = each * math.prod(extent for _, extent in apart)
    return lines, [_lost(each, apart, lines, cache) if apart else 0.0 for cache in caches]


def _lost(run: float, apart: Sequence[tuple[int, float]], lines: float, cache: Cache) -> float:
    """The part of lines that have no place in a cache, since strides put them into few of its sets."""
    sets = cache.bytes // LINE // cache.ways
    used = run
    for stride, extent in apart:
        used = min(sets, used * min(extent, extent if stride % LINE else sets // math.gcd(stride // LINE, sets)))
    return max(0.0, 1 - min(sets, used) * cache.ways / lines)
