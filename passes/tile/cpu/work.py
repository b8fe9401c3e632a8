"""The work of a tile program: a tree of its loops with the cycles of what stands in each, by the rates of the target.

The tree is made once for a program, and asked at any sizes of its symbols. Whole tiles and the last one, which may be ragged, and
the rungs of a ladder are told apart. Straight code takes as long as the busiest unit, a step of a loop at least as long as what it
hands on takes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ....ir import dims
from ....ir.codes import FOUR, LOOKUPS, tabulate
from ....ir.dims import Dim, Facts, Function
from ....ir.exactness import multiply_add
from ....ir.target import CpuInstruction, CpuLevel, CpuRates
from ....ir.tile.address import Rearranged, flatten, rearranged
from ....ir.tile.program import (
    AxisDecl,
    Dot,
    Expand2to4,
    For,
    GridAxis,
    If,
    Index,
    Launch,
    Let,
    Load,
    Local,
    Param,
    Reduce,
    Ref,
    Rename,
    Scan,
    Statement,
    Store,
    TileApply,
    TileType,
    Unpack,
    Value,
    parts,
    walk,
)

TILES_BEGIN = 100
"""Cycles that a block of tiles takes to begin and to end."""
JOINED = 1
"""Operations that put a vector of halves beside another one."""
DECODED = 5
"""Operations that make a number of a float of a byte or less."""
EXPAND = 6
"""Operations that find which of two kept numbers a place holds, if any."""
NARROWEST = 32
"""Bits of an element in a register, however few it has in memory."""
MOST = 1 << 40
"""More elements than any axis has."""


@dataclass
class Work:
    """Cycles of straight code on each unit, how long a step waits for the one before it, and the loops inside."""

    arithmetic: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    waits: float = 0.0
    loops: list[Loop] = field(default_factory=list)

    def add(self, other: Work, share: float) -> None:
        """Put a share of other straight code beside this."""
        self.arithmetic += share * other.arithmetic
        self.loads += share * other.loads
        self.stores += share * other.stores

    @property
    def straight(self) -> float:
        """Units work side by side."""
        return max(self.arithmetic, self.loads, self.stores, self.waits)


@dataclass(frozen=True)
class Loop:
    """A loop, or an axis along which a product is summed (`kind` "sum"): its range, and each rung's step and body."""

    name: str
    kind: str
    low: Dim
    high: Dim
    parent: str
    rungs: tuple[tuple[int, Work], ...]


@dataclass(frozen=True)
class Counted:
    """A launch with its work at one point of the grid."""

    grid: tuple[GridAxis, ...]
    work: Work
    rates: CpuRates

    def cycles(self, sizes: Mapping[str, int]) -> float:
        """What all points take together."""
        return self._grid(self.grid, dict(sizes), {})

    def _grid(self, grid: tuple[GridAxis, ...], env: dict[str, int], lengths: dict[str, int]) -> float:
        if not grid:
            return self._cycles(self.work, env, lengths) + self.rates.point
        axis, total = grid[0], 0.0
        for first, length, times in tiles(value_of(axis.low, env), value_of(axis.high, env), axis.step):
            total += times * self._grid(grid[1:], opened(env, axis.name, first), lengths | {axis.name: length})
        return total

    def _cycles(self, work: Work, env: dict[str, int], lengths: dict[str, int]) -> float:
        return work.straight + sum(self._loop(loop, env, lengths) for loop in work.loops)

    def _loop(self, loop: Loop, env: dict[str, int], lengths: dict[str, int]) -> float:
        if loop.kind == "walk":
            return self._ladder(loop, env[f"{loop.parent}.first"], lengths[loop.parent], env, lengths)
        low, high = range_of(loop.low, loop.high, env)
        step, work = loop.rungs[0]
        if loop.kind == "sum":
            return 2 * self.rates.latency + max(0, high - low) / step * work.straight
        if loop.kind == "scalar":
            trips = max(0, -(-(high - low) // step))
            middle = env | {loop.name: low + trips // 2 * step}
            return trips * (self._cycles(work, middle, lengths) + self.rates.step) if trips else 0.0
        if len(loop.rungs) > 1:
            return self._ladder(loop, low, max(0, high - low), env, lengths)
        return sum(
            times * (self._cycles(work, opened(env, loop.name, first), lengths | {loop.name: length}) + self.rates.step)
            for first, length, times in tiles(low, high, step)
        )

    def _ladder(self, loop: Loop, first: int, left: int, env: dict[str, int], lengths: dict[str, int]) -> float:
        total = 0.0
        for step, work in loop.rungs:
            whole, rest = divmod(left, step)
            is_ragged = rest and (step, work) == loop.rungs[-1]
            for length, times in ((step, whole), (rest, 1 if is_ragged else 0)):
                if times:
                    inner = opened(env, loop.name, first)
                    total += times * (self._cycles(work, inner, lengths | {loop.name: length}) + self.rates.step)
            first, left = first + whole * step, rest
        return total


def value_of(dim: Dim, env: Mapping[str, int]) -> int:
    """An index expression as a number; 0 where it divides by a size that is 0 here, as the period of a reflection of one element is."""
    try:
        return dim if isinstance(dim, int) else dims.evaluate(dim, env)
    except ZeroDivisionError:
        return 0


def range_of(low: Dim, high: Dim, env: Mapping[str, int]) -> tuple[int, int]:
    """The ends of a range as numbers. One that begins where a value of the program says begins at 0, one that ends where such a value
    says is as long as what else is said of its end allows.
    """
    values = {name: MOST for name in dims.symbols(high) if name.startswith("%")}
    values |= {name: 0 for name in dims.symbols(low) if name.startswith("%")}
    return value_of(low, {**env, **values}), value_of(high, {**env, **values})


def opened(env: Mapping[str, int], name: str, first: int) -> dict[str, int]:
    """The names of an axis that starts here, its first lane."""
    return {**env, name: first, f"{name}.first": first, f"{name}.lane": 0}


def tiles(low: int, high: int, step: int | None) -> list[tuple[int, int, int]]:
    """(start, elements, how many) of tiles: the whole ones at the one in the middle, then what is left."""
    if step is None:
        return [(low + (high - low - 1) // 2, 1, high - low)] if high > low else []
    whole, left = divmod(max(0, high - low), step)
    found = [(low + (whole - 1) // 2 * step, step, whole)] if whole else []
    return [*found, (low + whole * step, left, 1)] if left else found


def count(launch: Launch, sizes: Mapping[str, int], facts: Facts, target: CpuLevel) -> Counted:
    """The work of a launch; at these sizes it is looked at how lanes step through memory."""
    counter = _Counter(launch, facts, target)
    env, extents = dict(sizes), {axis.name: axis.step or 1 for axis in launch.grid}
    for axis in launch.grid:
        env = opened(env, axis.name, value_of(axis.low, env))
    return Counted(launch.grid, counter.block(launch.body, env, extents, {}), target.rates)


Late = dict[str, float]
"""Values that the step before hands on, by the cycles until they are there."""


class _Counter:
    """Counts what stands in blocks. `whole` says of open axes whether their tiles need no masks, `steps` how long these are."""

    def __init__(self, launch: Launch, facts: Facts, target: CpuLevel) -> None:
        self.facts, self.target, self.rates = facts, target, target.rates
        self.operands: dict[str, Param | Local] = {param.name: param for param in launch.params}
        self.steps = {axis.name: axis.step or 1 for axis in launch.grid}
        self.whole = {axis.name: self._divides(axis.step or 1, axis.high - axis.low) for axis in launch.grid}
        self.divisors = {f"{axis.name}.first": axis.step or 1 for axis in launch.grid}
        """What the first lanes of open axes are multiples of."""
        self.axes: dict[str, AxisDecl] = {}
        self.summed: tuple[str, int] | None = None
        """The axis along which products are summed here, and its steps."""
        self.kept = 1
        """The steps of that sum for which what is counted stays as it is."""
        self.counted: set[int] = set()
        """The values that this straight code has computed: one that is used several times is computed once."""
        self.steady: dict[int, int] = {}

    def _divides(self, step: int, length: Dim) -> bool:
        return step == 1 or dims.divides(step, length, self.facts) is True

    # --- statements ---

    def block(self, body: Sequence[Statement], env: dict[str, int], extents: Mapping[str, float], late: Late) -> Work:
        """The work of statements where axes have these extents."""
        work, carried, outside = Work(), set(late), self.counted
        self.counted = set()
        for statement in body:
            if isinstance(statement, For):
                work.loops.append(self._for(statement, env, extents))
            elif isinstance(statement, AxisDecl):
                env = opened(env, statement.name, range_of(statement.low, statement.high, env)[0])
                extents = {**extents, statement.name: statement.extent}
                self.axes[statement.name], self.steps[statement.name] = statement, statement.extent
                self.whole[statement.name] = True
            elif isinstance(statement, Local):
                self.operands[statement.name] = statement
            elif isinstance(statement, Let):
                self._value(statement.value, work, env, extents)
                wait = self._wait(statement.value, late, {})
                if wait is not None:
                    late = late | {statement.name: wait}
                    work.waits = max(work.waits, wait if statement.name in carried else 0.0)
            elif isinstance(statement, Store) and (grouped := self._grouped(statement, extents)) is not None:
                lane, own = statement.value.type.axes[-1], {**extents, grouped: extents[grouped] / FOUR}
                self._value(statement.value, work, env, own, lane, FOUR)
                work.stores += self._count(statement.value.type, own, NARROWEST, lane) / self.rates.stores
            elif isinstance(statement, Store):
                self._value(statement.value, work, env, extents)
                self._access(statement.operand, statement.subscripts, statement.value.type, work, env, extents, is_store=True)
            elif isinstance(statement, If) and not statement.seldom:
                work.loops.append(Loop("", "scalar", 0, 1, "", ((1, self.block(statement.body, env, extents, {})),)))
        self.counted = outside
        return work

    def _for(self, loop: For, env: dict[str, int], extents: Mapping[str, float]) -> Loop:
        start = env[f"{loop.parent}.first"] if loop.kind == "walk" else range_of(loop.low, loop.high, env)[0]
        inner, late, rungs = opened(env, loop.name, start), dict.fromkeys(loop.carries, 0.0), []
        divisor = self.divisors.get(f"{loop.parent}.first", 1) if loop.kind == "walk" else loop.low if isinstance(loop.low, int) else 1
        self.divisors[f"{loop.name}.first"] = math.gcd(divisor, loop.step, *loop.tail[:-1])
        parent = loop.parent or ""
        for step in (loop.step, *loop.tail):
            if loop.kind == "walk":
                is_whole = self.whole[parent] and self.steps[parent] % step == 0
            else:
                is_whole = self._divides(step, loop.high - loop.low)
            self.whole[loop.name] = is_whole or step == 1 or step != (loop.step, *loop.tail)[-1]
            self.steps[loop.name] = step
            own = extents if loop.kind == "scalar" else {**extents, loop.name: step}
            rungs.append((step, self.block(loop.body, inner, own, late)))
        kind, ends = loop.kind, (loop.low, loop.high)
        if (walked := self.axes.get(parent)) is not None:
            kind, ends = "tile", (walked.low, dims.minimum(walked.high, walked.low + walked.extent))
        # An axis without a loop is no part of the tree.
        firsts = {f"{axis.name}.first": axis.low for axis in self.axes.values()}
        low, high = (dims.substitute(end, firsts) for end in ends)
        return Loop(loop.name, kind, low, high, parent, tuple(rungs))

    def _wait(self, value: Value, late: Late, known: dict[int, float | None]) -> float | None:
        """How long after the step before a value is there; None if it does not depend on that."""
        if isinstance(value, Ref):
            return late.get(value.name)
        if id(value) not in known:
            waits = [wait for part in parts(value) if (wait := self._wait(part, late, known)) is not None]
            known[id(value)] = max(waits) + self._latency(value) if waits else None
        return known[id(value)]

    def _latency(self, value: Value) -> float:
        if isinstance(value, TileApply):
            quick = not value.type.dtype.is_float or value.primitive == "where"
            return 1.0 if quick else max(self.rates.latency, self.rates.of(value.primitive))
        return self.rates.fold if isinstance(value, Reduce) else 0.0

    # --- values ---

    def _steady(self, value: Value) -> int:
        """For how many steps of the sum around it a value stays as it is."""
        if self.summed is None:
            return 1
        if id(value) not in self.steady:
            self.steady[id(value)] = self._found_steady(value, *self.summed)
        return self.steady[id(value)]

    def _found_steady(self, value: Value, axis: str, most: int) -> int:
        if isinstance(value, (Load, Index)):
            subscripts = value.subscripts if isinstance(value, Load) else (value.value,)
            return min((_steps(subscript, axis, most) for subscript in subscripts), default=most)
        if isinstance(value, (Dot, Ref, Reduce, Scan, Expand2to4, Unpack, Rename)):
            return 1
        return min((self._steady(part) for part in parts(value)), default=most)

    def _count(self, type_: TileType, extents: Mapping[str, float], bits: int, lane: str | None) -> float:
        """Vectors of a tile whose elements lie side by side along `lane`; single elements where it has no such axis."""
        total, width = 1.0, max(1, self.target.vector_bits // max(NARROWEST, bits))
        for axis in type_.axes:
            total *= -(-extents[axis] // width) if axis == lane else extents[axis]
        return total

    def _value(
        self, value: Value, work: Work, env: dict[str, int], extents: Mapping[str, float], lane: str | None = None, depth: int = 1
    ) -> None:
        """Count a value and its parts; those of a sum of products have the lanes of its result, `depth` neighbours to each."""
        if id(value) in self.counted:
            return
        steady = self._steady(value)
        if steady > self.kept:
            # What stays as it is for some steps of a sum is computed once for these.
            once, kept, self.kept = Work(), self.kept, steady
            self._value(value, once, env, extents, lane, depth)
            self.kept = kept
            work.add(once, kept / steady)
            return
        self.counted.add(id(value))
        if isinstance(value, Dot):
            self._dot(value, work, env, extents)
            return
        axes = value.type.axes
        along = lane or (axes[-1] if axes else None)
        if isinstance(value, TileApply) and axes:
            table = tabulate(value, max(LOOKUPS))
            least, taken = LOOKUPS[max(min(LOOKUPS), table.bits)] if table is not None else (0, 0)
            if table is not None and table.operations >= least:
                work.arithmetic += taken * self._count(value.type, extents, NARROWEST, along) / self.rates.arithmetic
                self._value(table.code, work, env, extents, lane, depth)
                return
        before, summed = _before(value, extents), self.summed
        self.summed = None if before else summed
        fused = multiply_add(value)
        for part in parts(value) if fused is None else (fused.left, fused.right, fused.rest):
            self._value(part, work, env, {**extents, **before}, lane, depth)
        self.summed = summed
        if isinstance(value, Load):
            self._access(value.operand, value.subscripts, value.type, work, env, extents, along, depth)
            if axes and value.type.dtype.is_float and value.type.dtype.bits <= 8:
                work.arithmetic += DECODED * self._count(value.type, extents, NARROWEST, along) / self.rates.arithmetic
        elif isinstance(value, TileApply) and value.primitive != "bitcast":
            dtypes = (value.type.dtype, *(arg.type.dtype for arg in value.args))
            bits = max((dtype.bits for dtype in dtypes if dtype.kind != "bool"), default=NARROWEST)
            work.arithmetic += self._count(value.type, extents, bits, along) * self.rates.of(value.primitive) / self.rates.arithmetic
        elif isinstance(value, Index) and axes:
            work.arithmetic += self._count(value.type, extents, 64, along) / self.rates.arithmetic
        elif isinstance(value, Reduce):
            source = value.value.type
            work.arithmetic += self._count(source, extents, source.dtype.bits, source.axes[-1]) / self.rates.arithmetic
            work.arithmetic += self._count(value.type, extents, 0, None) * self.rates.fold
        elif isinstance(value, Scan):
            work.arithmetic += self._count(value.type, extents, NARROWEST, along) * self.rates.latency
        elif isinstance(value, Expand2to4):
            work.arithmetic += self._count(value.type, extents, NARROWEST, along) * EXPAND / self.rates.arithmetic

    def _access(
        self,
        operand: str,
        subscripts: tuple[Dim, ...],
        type_: TileType,
        work: Work,
        env: dict[str, int],
        extents: Mapping[str, float],
        lane: str | None = None,
        depth: int = 1,
        is_store: bool = False,
    ) -> None:
        """Whole vectors where lanes are neighbours in memory, single elements where they are not, or where there are no lanes."""
        lane = lane or (type_.axes[-1] if type_.axes else None)
        elements, rates = self._count(type_, extents, 0, None), self.rates
        if lane in type_.axes and lane is not None:
            is_near = abs(self._stride(operand, subscripts, lane, env)) <= depth
            # In groups the first two lanes are neighbours, and those after them are not.
            is_laid = self.operands[operand].layout is not None
            way = self._rearranged(operand, subscripts, type_, extents) if is_store and (is_laid or not is_near) else None
            if way is not None:
                vectors = self._count(type_, extents, NARROWEST, lane)
                work.arithmetic += vectors * (math.log2(self.target.lanes) if way.turned else 0)
                work.arithmetic += vectors * JOINED if way.grouped else 0
                work.stores += vectors / way.count / rates.stores
                return
            if is_near:
                vectors = self._count(type_, extents, type_.dtype.bits, lane)
                if not self.whole[lane] and any(lane in dims.symbols(subscript) for subscript in subscripts):
                    work.arithmetic += vectors * rates.masked / rates.arithmetic
                work.loads += 0.0 if is_store else vectors / rates.loads
                work.stores += vectors / rates.stores if is_store else 0.0
                return
            work.arithmetic += elements * (rates.strided / 2 if is_store else rates.strided)
        work.loads += 0.0 if is_store else elements / rates.single_loads
        work.stores += elements / rates.single_stores if is_store else 0.0

    def _grouped(self, store: Store, extents: Mapping[str, float]) -> str | None:
        """The axis of which four bytes lie together where a store puts them, and in all that they are computed from."""
        value = store.value
        if value.type.dtype.bits != 8 or not value.type.axes:
            return None
        reads = [self.operands[part.operand] for part in walk(value) if isinstance(part, Load)]
        if any(each.layout is None or each.dtype.bits != 8 for each in reads):
            return None
        way = self._rearranged(store.operand, store.subscripts, value.type, extents)
        return None if way is None or way.turned is not None or way.count != FOUR else way.grouped

    def _rearranged(self, operand: str, subscripts: tuple[Dim, ...], type_: TileType, extents: Mapping[str, float]) -> Rearranged | None:
        """How lanes that lie apart are stored in whole vectors, if they are."""
        whole = {axis: int(extents[axis]) for axis in type_.axes}
        return rearranged(self.operands[operand], subscripts, type_, whole, self.target.lanes, Facts({}, self.divisors))

    def _stride(self, operand: str, subscripts: tuple[Dim, ...], axis: str, env: Mapping[str, int]) -> int:
        """Elements from one lane of an axis to the next; in a layout in groups, where most are near and some are not, the most."""
        held = self.operands[operand]
        address = flatten(held, subscripts)
        if isinstance(address, int):
            return 0
        here = dict.fromkeys(dims.symbols(address), 0) | dict(env)
        first, lane = here.get(axis, 0), f"{axis}.lane"
        count = 2 if held.layout is None else 2 + FOUR
        places = [value_of(address, here | {axis: first + n, lane: n}) for n in range(count)]
        return max((after - before for before, after in itertools.pairwise(places)), key=abs)

    def _dot(self, dot: Dot, work: Work, env: dict[str, int], extents: Mapping[str, float]) -> None:
        """A loop along the contracted axis: multiply-adds, what they read, and what is computed for them."""
        self._value(dot.acc, work, env, extents)
        lane = dot.type.axes[-1] if dot.type.axes else None
        inner = summed_axes(dot)
        left, right, depth, instruction = factors_of(dot, self.operands, self.target)
        each, inside = {**extents, **dict.fromkeys(inner, 1)}, Work(waits=self.rates.latency)
        if instruction is not None:
            self._matrix(dot, instruction, extents[inner[-1]] / depth, work, inside, extents)
        else:
            inside.arithmetic = self._count(dot.type, extents, dot.type.dtype.bits, lane) / self.rates.multiply_adds
            outside, self.counted, self.steady = self.counted, set(), {}
            self.summed = inner[-1], int(extents[inner[-1]])
            for factor in (left, right):
                self._value(factor, inside, env, each, lane, depth)
            self.summed, self.counted = None, outside
        low, high = (self.axes[inner[-1]].low, self.axes[inner[-1]].high) if inner[-1] in self.axes else (0, int(extents[inner[-1]]))
        work.loops.append(Loop(inner[-1], "sum", low, high, "", ((depth, inside),)))

    def _matrix(self, dot: Dot, instruction: CpuInstruction, groups: float, work: Work, inside: Work, extents: Mapping[str, float]) -> None:
        """The products of matrices, for each group of `depth` that they sum: rows of tiles by columns of them, however full they are."""
        sides = [extents[axis] for axis in dot.type.axes]
        down, across = -(-sides[0] // instruction.rows) if len(sides) > 1 else 1, -(-sides[-1] // instruction.lanes)
        taken = groups / max(1, math.ceil(groups / instruction.groups))
        inside.arithmetic = down * across * instruction.rows / taken
        inside.loads = (down + across) * instruction.rows / 2 / taken
        # Sums lie in tiles, from which they are stored and read again.
        work.stores += TILES_BEGIN + 2 * self._count(dot.type, extents, dot.type.dtype.bits, dot.type.axes[-1]) / self.rates.stores


def summed_axes(dot: Dot) -> list[str]:
    """The axes along which a product is summed, the innermost one last."""
    return [axis for axis in dict.fromkeys((*dot.left.type.axes, *dot.right.type.axes)) if axis not in dot.type.axes]


def factors_of(dot: Dot, operands: Mapping[str, Param | Local], target: CpuLevel) -> tuple[Value, Value, int, CpuInstruction | None]:
    """The factors of a product as the instruction takes them, how many products it adds up at once, and which one it is if it takes
    matrices.
    """
    left, right = _narrow(dot.left), _narrow(dot.right)
    names = left.type.dtype.name, right.type.dtype.name, dot.type.dtype.name
    held = operands.get(right.operand) if isinstance(right, Load) else None
    layout = None if held is None else held.layout
    matrix = target.matrix(*names)
    if matrix is not None and layout is not None and layout.in_groups(matrix.lanes, matrix.depth) and isinstance(left, Load):
        return left, right, matrix.depth, matrix
    if dot.type.dtype.name == "i32" and left.type.dtype.bits == right.type.dtype.bits == 8:
        return left, right, 4, None
    found = target.dot(*names)
    if found is not None and layout is not None and layout.in_groups(found.lanes, found.depth):
        return left, right, found.depth, None
    return dot.left, dot.right, 1, None


def _steps(dim: Dim, axis: str, most: int) -> int:
    """For how many steps along an axis an index expression stays as it is."""
    if isinstance(dim, int) or not {axis, f"{axis}.lane"} & dims.symbols(dim):
        return most
    found = most
    for atom in (atom for monomial, _ in dim.terms for atom in monomial):
        if isinstance(atom, Function):
            left = _steps(atom.left, axis, most)
            right = _steps(atom.right, axis, most)
            divided = atom.kind == "div" and isinstance(atom.right, int) and left < most
            found = min(found, left * atom.right if divided and isinstance(atom.right, int) else left, right)
        elif atom.name in (axis, f"{axis}.lane"):
            found = 1
    return found


def _before(value: Value, extents: Mapping[str, float]) -> dict[str, float]:
    """How far a value's parts reach along axes that it has under other names, however far those were declared."""
    if isinstance(value, Rename) and len(value.before) == len(value.after) == 1:
        return {value.before[0]: extents[value.after[0]]}
    if isinstance(value, Unpack):
        return {value.before: extents[value.after] * value.bits / 8}
    if isinstance(value, Expand2to4):
        return {value.before: extents[value.after] / 2}
    return {}


def _narrow(value: Value) -> Value:
    """A factor before it was widened from 8 or 16 bits."""
    while isinstance(value, TileApply) and value.primitive in ("cast", "round") and value.type.dtype.bits > 8:
        value = value.args[0]
    return value
