"""Loads and stores of one vector: contiguous, masked, broadcast, strided and gathered, as the bounds analysis demands."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ...ir import dims
from ...ir.dims import Dim
from ...ir.errors import InternalError, UnsupportedError
from ...ir.expression import Constant
from ...ir.tile import BoundsCheck, Scope, checks_of, flatten
from ...ir.tile.program import Counter, Load, Local, Param, Store
from ...ir.types import DType, bf16, u8
from . import tables
from .basics import register
from .primitives import constant, from_storage, storage_type, to_storage
from .writer import Writer, at_lane, lane_stride

LINE = 64
"""Bytes of a line of cache."""
AHEAD = 4096
"""Bytes that a stream is asked for before they are read: nearer ones come too late, and no machine asks for the next page by itself."""


@dataclass(frozen=True)
class Spot:
    """Where an access happens: the position of every axis (expressions may hold the lane), lanes, valid lanes.

    `limits` are (position, extent) of axes whose last vector is only partly a tile; `loaded` are the subscripts that
    are tiles themselves, as symbols of this position.
    """

    positions: Mapping[str, Dim]
    lanes: int
    limits: tuple[tuple[Dim, int], ...] = ()
    loaded: Mapping[str, Dim] = field(default_factory=dict)


Test: TypeAlias = tuple[Dim, str, Dim]
"""A scalar condition: left, `<=` or `<`, right."""


@dataclass(frozen=True)
class AccessGuard:
    """The run-time tests of one vector: scalar conditions (and what they compare), a span low <= lane < high, tests of single lanes."""

    scalars: tuple[str, ...] = ()
    lows: tuple[str, ...] = ()
    highs: tuple[str, ...] = ()
    each: tuple[tuple[Dim, Dim | None, Dim | None], ...] = ()
    tests: tuple[Test, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether all lanes are treated alike."""
        return not (self.lows or self.highs or self.each)

    @property
    def condition(self) -> str:
        return " && ".join(self.scalars)

    def any_lane(self, lanes: int) -> str:
        """A condition that holds if some lane passes the scalar tests and the span; empty if that is certain."""
        low, high = _extreme(self.lows, ">", "0"), _extreme(self.highs, "<", str(lanes))
        tests = [*self.scalars, *([f"{low} < {lanes}"] if self.lows else []), *([f"{high} > 0"] if self.highs else [])]
        return " && ".join([*tests, *([f"{low} < {high}"] if self.lows and self.highs else [])])

    def span(self, lanes: int) -> tuple[str, str]:
        """The span as two C expressions; the scalar conditions empty it."""
        low, high = _extreme(self.lows, ">", "0"), _extreme(self.highs, "<", str(lanes))
        return low, f"({self.condition} ? {high} : 0)" if self.scalars else high


def _extreme(texts: tuple[str, ...], sign: str, start: str) -> str:
    """The largest or smallest of C expressions; without any, `start`."""
    if not texts:
        return start
    result = texts[0]
    for text in texts[1:]:
        result = f"({result} {sign} {text} ? {result} : {text})"
    return result


@dataclass(frozen=True)
class Stream:
    """What loads ask for: what the innermost loop reads AHEAD bytes, and `steps` of it, later; or what is so far along an axis."""

    steps: int
    axis: str | None = None


class Access:
    """Prints accesses of one kernel."""

    def __init__(self, writer: Writer, pointers: Mapping[str, str]) -> None:
        self.writer = writer
        self.library = writer.library
        self.pointers = pointers
        self._lane: Dim = 0
        self._passed: frozenset[Test] = frozenset()
        self._stream: Stream | None = None
        self._checks: dict[tuple[int, int], tuple[Load | Store, Scope, tuple[BoundsCheck, ...]]] = {}

    def checks(self, scope: Scope, access: Load | Store) -> tuple[BoundsCheck, ...]:
        """What the bounds analysis demands, asked once for all vectors of an access."""
        key = (id(access), id(scope))
        if key not in self._checks:
            self._checks[key] = (access, scope, checks_of(scope, access))  # kept, so that no id is given away
        return self._checks[key][2]

    # --- addresses and tests ----------------------------------------------------------------------------------------

    def place(self, scope: Scope, dim: Dim, spot: Spot) -> Dim:
        """An index expression with every axis at its position; `i` is its start plus the position."""
        names = dims.symbols(dim)
        values: dict[str, Dim] = dict(spot.loaded)
        for name, position in spot.positions.items():
            axis = scope.axes.get(name)
            if axis is not None and axis.kind == "tile" and (name in names or axis.lane in names):
                start: Dim = dims.symbol(axis.first) if axis.modulus else axis.base
                values[name], values[axis.lane] = start + position, position
        return self.tidy(dims.substitute(dim, values), spot.lanes)

    def tidy(self, dim: Dim, lanes: int) -> Dim:
        """Divisions worked out: starts are written as a multiple of their known divisor first."""
        if not dims.has_functions(dim):
            return dim
        facts = self.writer.known(lanes)
        scaled = {name: facts.divisors[name] for name in dims.symbols(dim) if facts.divisors.get(name, 1) > 1}
        back: dict[str, Dim] = {}
        values: dict[str, Dim] = {}
        for name, divisor in scaled.items():
            part = f"{name}/{divisor}"
            bounds = facts.ranges.get(name, dims.UNBOUNDED)
            low, high = (None if end is None else end // divisor for end in (bounds.low, bounds.high))
            facts = facts.with_range(part, low, high)
            values[name] = dims.symbol(part) * divisor
            back[part] = dims.symbol(name) // divisor
        found = dims.simplify(dims.substitute(dim, values), facts)
        return dims.substitute(found, back)

    def guard(self, scope: Scope, checks: tuple[BoundsCheck, ...], spot: Spot) -> AccessGuard:
        """The tests that remain at this position."""
        scalars: list[Test] = []
        lows: list[str] = []
        highs: list[str] = []
        each: list[tuple[Dim, Dim | None, Dim | None]] = []
        bounds = [(check.index, check.low, check.high) for check in checks]
        placed = [(self.place(scope, i, spot), self._side(scope, a, spot), self._side(scope, b, spot)) for i, a, b in bounds]
        placed += [(position, None, extent) for position, extent in spot.limits]
        for index, low, high in placed:
            low = None if low is None or self._proved(low, index, spot.lanes) else low
            high = None if high is None or self._proved(index + 1, high, spot.lanes) else high
            if low is None and high is None:
                continue
            stride = lane_stride(index)
            fixed = all(side is None or lane_stride(side) == 0 for side in (low, high))
            rest = at_lane(index, 0)
            if stride == 0 and fixed:
                scalars += [(low, "<=", rest)] if low is not None else []
                scalars += [(rest, "<", high)] if high is not None else []
            elif isinstance(stride, int) and stride > 0 and fixed:
                lows += [self.writer.index(dims.ceil_div(low - rest, stride))] if low is not None else []
                highs += [self.writer.index(dims.ceil_div(high - rest, stride))] if high is not None else []
            else:
                each.append((index, low, high))
        tests = tuple(test for test in dict.fromkeys(scalars) if test not in self._passed)
        return AccessGuard(tuple(self.test(*test) for test in tests), tuple(lows), tuple(highs), tuple(each), tests)

    def test(self, left: Dim, sign: str, right: Dim) -> str:
        """A test as C."""
        return f"{self.writer.index(left)} {sign} {self.writer.index(right)}"

    @contextmanager
    def passing(self, tests: frozenset[Test]) -> Iterator[None]:
        """Print accesses without these tests, which hold here."""
        before, self._passed = self._passed, self._passed | tests
        yield
        self._passed = before

    @contextmanager
    def streaming(self, way: Stream | None) -> Iterator[None]:
        """Print loads from memory so that they ask for what is read later."""
        before, self._stream = self._stream, way
        yield
        self._stream = before

    def _ask(self, scope: Scope, operand: Param | Local, pointer: str, value: Load, spot: Spot, address: Dim) -> None:
        """Ask for what is read later where this is read now, once for each line."""
        way, first = self._stream, at_lane(address, 0)
        if way is None or not isinstance(operand, Param):
            return
        if way.axis is not None:
            if way.axis not in spot.positions:
                return
            there = replace(spot, positions={**spot.positions, way.axis: spot.positions[way.axis] + way.steps})
            later = at_lane(self._address(scope, operand, value, there), 0)
        else:
            step = self.writer.step_of(first)
            if step is None or step <= 0:
                return
            later = first + step * max(way.steps, -(-AHEAD // (step * operand.dtype.bits // 8)))
        offset = later if isinstance(later, int) else sum(factor for monomial, factor in later.terms if not monomial)
        is_begun = way.axis is None and offset * operand.dtype.bits // 8 % LINE != 0
        if later != first and not is_begun and self.writer.recall(("asked", pointer, later)) is None:
            self.writer.remember(("asked", pointer, later), True)
            self.writer.line(f"__builtin_prefetch({pointer} + {self.writer.index(later)});")

    def _side(self, scope: Scope, side: Dim | None, spot: Spot) -> Dim | None:
        return None if side is None else self.place(scope, side, spot)

    def _proved(self, left: Dim, right: Dim, lanes: int) -> bool:
        return dims.at_most(left, right, self.writer.known(lanes)) is True

    # --- loads ------------------------------------------------------------------------------------------------------

    def load(self, scope: Scope, value: Load, spot: Spot) -> tuple[str, int]:
        """One vector of a load in register form, and its lanes (1 if all lanes are the same element)."""
        operand, pointer = self.operand(scope, value.operand)
        checks = self._padded(scope, operand, value, spot)
        address = self._address(scope, operand, value, spot)
        # Past the end of a local lie the elements of its own padding; elsewhere a partial vector must not be read.
        limits = spot.limits if isinstance(operand, Param) or value.other is not None else ()
        guard = self.guard(scope, checks, replace(spot, limits=limits))
        stride = lane_stride(address) if spot.lanes > 1 else 0
        if operand.dtype.bits < 8:
            return self._each(operand.dtype, pointer, address, guard, value.other, spot.lanes), spot.lanes
        if stride == 0 and (guard.whole or (value.other is None and not guard.each)):
            return self._one(operand.dtype, pointer, address, guard, value.other, spot.lanes), 1
        looked = self._looked_up(scope, operand, pointer, address, guard, spot)
        if looked is not None:
            return looked, spot.lanes
        if stride in (1, 2) and not guard.each and (stride == 1 or not guard.whole):
            self._ask(scope, operand, pointer, value, spot, address)
            return self._contiguous(operand.dtype, pointer, address, guard, value.other, spot.lanes), spot.lanes
        if stride is not None and guard.whole and not guard.scalars:
            return self._strided(operand.dtype, pointer, address, spot.lanes), spot.lanes
        places = _places_within(address, spot.lanes) if stride is None and guard.whole and not spot.loaded else None
        if places is not None:
            return self._moved(operand.dtype, pointer, address, guard, value.other, places), spot.lanes
        return self._each(operand.dtype, pointer, address, guard, value.other, spot.lanes), spot.lanes

    def _looked_up(self, scope: Scope, operand: Param | Local, pointer: str, address: Dim, guard: AccessGuard, spot: Spot) -> str | None:
        """Elements of a table of bytes, each where a loaded one says; None for any other load."""
        index = next((name for name, symbol in spot.loaded.items() if symbol == address), None)
        is_table = (
            operand.dtype.bits == 8 and tuple(extent for _, extent in operand.dims) == (tables.BYTES,) and guard.whole and not guard.scalars
        )
        if index is None or not is_table or spot.lanes == 1:
            return None
        dtype = scope.values[index[1:]].dtype
        code = self.writer.vectors[next(iter(dims.symbols(address)))]
        code = code if dtype == u8 else self.library.call(f"convert_{register(dtype)}_u8", spot.lanes, code)
        storage, _ = storage_type(operand.dtype)
        text = self.library.call(f"lookup{tables.BYTES}_u8", spot.lanes, f"(const uint8_t *){pointer}", code)
        return from_storage(self.library, operand.dtype, spot.lanes, f"({self.library.vector(storage, spot.lanes)}){text}")

    def _address(self, scope: Scope, operand: Param | Local, value: Load | Store, spot: Spot) -> Dim:
        return self.tidy(flatten(operand, tuple(self.place(scope, s, spot) for s in value.subscripts)), spot.lanes)

    def plain(self, scope: Scope, value: Load, spot: Spot) -> tuple[str, Dim, AccessGuard]:
        """Where a load lies: its pointer, the address there of the element at a spot, and the tests that it is read under."""
        operand, pointer = self.operand(scope, value.operand)
        checks = self._padded(scope, operand, value, spot)
        return pointer, self._address(scope, operand, value, spot), self.guard(scope, checks, spot)

    def four(self, scope: Scope, value: Load, spots: Sequence[Spot]) -> tuple[str, int] | None:
        """A group in each 32-bit lane: a load at spots whose elements lie next to each other, lanes one after the other.

        None where they do not, or where they are not all read under the same tests.
        """
        operand, pointer = self.operand(scope, value.operand)
        if value.other is not None and not isinstance(value.other.value, int) and value.other.value != 0:
            return None
        lanes = spots[0].lanes
        first, *others = (self._address(scope, operand, value, spot) for spot in spots)
        apart = lane_stride(first) if lanes > 1 else len(spots)
        if apart != len(spots) or any(other - first != n for n, other in enumerate(others, 1)):
            return None
        checks = self._padded(scope, operand, value, spots[0])
        guards = [self.guard(scope, checks, spot) for spot in spots]
        if any(guard != guards[0] or not guard.whole for guard in guards):
            return None
        at = f"{pointer} + {self.writer.index(at_lane(first, 0))}"
        if lanes == 1:
            text, outside = self.library.call("four_bytes", 1, at), "0"
            if value.other is not None and isinstance(value.other.value, int):
                outside = str(int.from_bytes(bytes([value.other.value & 255] * len(spots)), "little", signed=True))
            condition = guards[0].condition
            return (f"{condition} ? {text} : {outside}" if condition else text), 1
        self._ask(scope, operand, pointer, value, spots[0], first)
        storage, _ = storage_type(operand.dtype)
        text = f"({self.library.vector('i32', lanes)}){self.library.call(f'load_{storage}', lanes * len(spots), at)}"
        nothing = self.library.call("splat_i32", lanes, "0")
        return (f"{guards[0].condition} ? {text} : {nothing}" if guards[0].scalars else text), lanes

    def operand(self, scope: Scope, name: str) -> tuple[Param | Local, str]:
        """An operand that is read or written, and its pointer."""
        operand = scope.operands[name]
        if isinstance(operand, Counter):
            raise UnsupportedError(f"%{name} is a counter and is read like a tensor", hint="use wait")
        return operand, self.pointers[name]

    def _padded(self, scope: Scope, operand: Param | Local, value: Load, spot: Spot) -> tuple[BoundsCheck, ...]:
        """The checks of a load. Lanes inside the padding of a layout, which holds zeros, may be read: there only a vector's first lane
        is tested.
        """
        checks = self.checks(scope, value)
        if not isinstance(operand, Param) or operand.layout is None or spot.lanes == 1 or not _is_padding(value.other):
            return checks
        layout = operand.layout
        known = self.writer.known(spot.lanes)
        result = []
        for check in checks:
            index = self.place(scope, check.index, spot)
            start = at_lane(index, 0)
            along = [a for a, s in zip(layout.axes, value.subscripts, strict=True) if s == check.index]
            inside = along and layout.granule(along[0]) % spot.lanes == 0 and dims.divides(spot.lanes, start, known) is True
            if (
                inside
                and lane_stride(index) == 1
                and check.low is None
                and check.high is not None
                and _within(operand, along[0], check.high)
            ):
                result.append(BoundsCheck(start, None, check.high, ()))
            else:
                result.append(check)
        return tuple(result)

    def _one(self, dtype: DType, pointer: str, address: Dim, guard: AccessGuard, other: Constant | None, lanes: int) -> str:
        text = from_storage(self.library, dtype, 1, f"{pointer}[{self.writer.index(address)}]")
        condition = guard.any_lane(lanes)
        return f"{condition} ? {text} : {_other(other)}" if condition else text

    def _contiguous(self, dtype: DType, pointer: str, address: Dim, guard: AccessGuard, other: Constant | None, lanes: int) -> str:
        """Neighbouring elements, or every second one under a span."""
        storage, _ = storage_type(dtype)
        at = f"{pointer} + {self.writer.index(at_lane(address, 0))}"
        if guard.whole:
            text = from_storage(self.library, dtype, lanes, self.library.call(f"load_{storage}", lanes, at))
            return f"{guard.condition} ? {text} : {self._splat(dtype, other, lanes)}" if guard.scalars else text
        outside = self.library.call(f"splat_{storage}", lanes, self._stored(dtype, other))
        low, high = guard.span(lanes)
        form = "load_part" if lane_stride(address) == 1 else "load_second_part"
        part = self.library.call(f"{form}_{storage}", lanes, at, low, high, outside)
        return from_storage(self.library, dtype, lanes, part)

    def _stored(self, dtype: DType, other: Constant | None) -> str:
        """The memory form of the value of masked lanes."""
        if other is None:
            return "0"
        if dtype.kind == "bool":
            return "1" if other.value else "0"
        return to_storage(self.library, dtype, 1, constant(other))

    def _splat(self, dtype: DType, other: Constant | None, lanes: int) -> str:
        return self.library.call(f"splat_{register(dtype)}", lanes, _other(other))

    def _moved(self, dtype: DType, pointer: str, address: Dim, guard: AccessGuard, other: Constant | None, places: Sequence[int]) -> str:
        """Elements of one vector's length of memory, each lane the one at its place."""
        storage, _ = storage_type(dtype)
        lanes, at = len(places), f"{pointer} + {self.writer.index(at_lane(address, 0))}"
        outside = self.library.call(f"splat_{storage}", lanes, self._stored(dtype, other))
        part = self.library.call(f"load_part_{storage}", lanes, at, "0", str(max(places) + 1), outside)
        read = f"{guard.condition} ? {part} : {outside}" if guard.scalars else part
        name = self.writer.define(self.library.vector(storage, lanes), read)
        return from_storage(self.library, dtype, lanes, f"__builtin_shufflevector({name}, {name}, {', '.join(map(str, places))})")

    def _strided(self, dtype: DType, pointer: str, address: Dim, lanes: int) -> str:
        storage, _ = storage_type(dtype)
        if lane_stride(address) == 2:
            at = f"{pointer} + {self.writer.index(at_lane(address, 0))}"
            return from_storage(self.library, dtype, lanes, self.library.call(f"load_second_{storage}", lanes, at))
        elements = ", ".join(f"{pointer}[{self.writer.index(at_lane(address, lane))}]" for lane in range(lanes))
        return from_storage(self.library, dtype, lanes, f"({self.library.vector(storage, lanes)}){{{elements}}}")

    def _each(self, dtype: DType, pointer: str, address: Dim, guard: AccessGuard, other: Constant | None, lanes: int) -> str:
        """Lane by lane, for whatever the other forms do not cover; all at once where every lane passes a span."""
        vector = self.library.vector(register(dtype), lanes)
        result = self.writer.fresh()
        self.writer.line(f"{vector} {result} = {self._splat(dtype, other, lanes)};")
        if dtype.bits >= 8 and lanes > 1 and not guard.each and lane_stride(address) is not None:
            low, high = (self.writer.define("int64_t", side) for side in guard.span(lanes))
            self.writer.line(f"if ({low} <= 0 && {high} >= {lanes}) {result} = {self._strided(dtype, pointer, address, lanes)};")
            guard = AccessGuard(lows=(low,), highs=(f"({low} <= 0 && {high} >= {lanes} ? 0 : {high})",))
        target = self._open_lanes(guard, lanes, result)
        element = from_storage(self.library, dtype, 1, self._element(dtype, pointer, at_lane(address, self._lane)))
        self.writer.line(f"{target} = {element};")
        self._close_lanes()
        return result

    def _element(self, dtype: DType, pointer: str, address: Dim) -> str:
        if dtype.bits >= 8:
            return f"{pointer}[{self.writer.index(address)}]"
        per = 8 // dtype.bits
        byte, field = self.writer.index(address // per), self.writer.index(address % per)
        code = f"(({pointer}[{byte}] >> ({field} * {dtype.bits})) & {(1 << dtype.bits) - 1})"
        if dtype.kind == "int":
            shift = 8 - dtype.bits
            return f"((int8_t)(uint8_t)({code} << {shift}) >> {shift})"
        return code

    # --- stores -----------------------------------------------------------------------------------------------------

    def store(self, scope: Scope, value: Store, spot: Spot, text: str) -> None:
        """Write one vector (register form, as many lanes as the spot has)."""
        operand, pointer = self.operand(scope, value.operand)
        if operand.dtype.bits < 8:
            hint = "store bytes and pack the fields with shifts"
            raise UnsupportedError(f"the c printer does not store single elements of {operand.dtype} to %{value.operand}", hint=hint)
        address = self._address(scope, operand, value, spot)
        guard = self.guard(scope, self.checks(scope, value), spot)
        storage, _ = storage_type(operand.dtype)
        ctype = self.library.vector(storage, spot.lanes)
        unrounded = self.writer.recall(("unrounded", text)) if operand.dtype == bf16 else None
        if isinstance(unrounded, tuple):
            narrow, wide = unrounded
            stored = self.writer.define(ctype, self.library.call(narrow, spot.lanes, wide))
        else:
            stored = self.writer.define(ctype, to_storage(self.library, operand.dtype, spot.lanes, text))
        stride = lane_stride(address) if spot.lanes > 1 else 0
        if value.atomic is None and spot.lanes == 1:
            test = f"if ({guard.condition}) " if guard.scalars else ""
            self.writer.line(f"{test}{pointer}[{self.writer.index(address)}] = {stored};")
        elif value.atomic is None and stride == 1 and not guard.each:
            self._store_contiguous(storage, pointer, address, guard, spot.lanes, stored)
        else:
            self._store_each(operand.dtype, value.atomic, pointer, address, guard, spot.lanes, stored)

    def store_group(self, scope: Scope, value: Store, spots: Sequence[Spot], texts: Sequence[str]) -> None:
        """Write vectors whose elements lie side by side: pairs of 16 bits and fours of bytes as words of 32, others one by one."""
        operand, pointer = self.operand(scope, value.operand)
        count, dtype = len(spots), operand.dtype
        if (count, dtype.bits, dtype.is_float) in ((2, 16, True), (4, 8, False)):
            places = [self._address(scope, operand, value, spot) for spot in spots]
            guards = [self.guard(scope, self.checks(scope, value), spot) for spot in spots]
            beside = lane_stride(places[0]) == count and all(place - places[0] == n for n, place in enumerate(places))
            if beside and all(guard == guards[0] for guard in guards) and guards[0].whole:
                lanes = spots[0].lanes
                word = self.writer.define(self.library.vector("i32", lanes), self.library.call(f"join_{dtype}", lanes, *texts))
                self._store_contiguous("i32", f"(int32_t *)({pointer})", places[0] // count, guards[0], lanes, word)
                return
        for spot, text in zip(spots, texts, strict=True):
            self.store(scope, value, spot, text)

    def store_words(self, scope: Scope, value: Store, spot: Spot, text: str) -> None:
        """Write words of four bytes, each with its first byte where the spot says."""
        operand, pointer = self.operand(scope, value.operand)
        place, guard = self._address(scope, operand, value, spot), self.guard(scope, self.checks(scope, value), spot)
        if lane_stride(place) != 4 or not guard.whole:
            raise InternalError(f"words of %{value.operand} do not lie side by side")
        self._store_contiguous("i32", f"(int32_t *)({pointer})", place // 4, guard, spot.lanes, text)

    def _store_contiguous(self, storage: str, pointer: str, address: Dim, guard: AccessGuard, lanes: int, stored: str) -> None:
        at = f"{pointer} + {self.writer.index(at_lane(address, 0))}"
        if guard.whole:
            test = f"if ({guard.condition}) " if guard.scalars else ""
            self.writer.line(f"{test}{self.library.call(f'store_{storage}', lanes, at, stored)};")
            return
        low, high = guard.span(lanes)
        self.writer.line(f"{self.library.call(f'store_part_{storage}', lanes, at, low, high, stored)};")

    def _store_each(
        self, dtype: DType, atomic: str | None, pointer: str, address: Dim, guard: AccessGuard, lanes: int, stored: str
    ) -> None:
        source = self._open_lanes(guard, lanes, stored)
        element = f"{pointer}[{self.writer.index(at_lane(address, self._lane))}]"
        if atomic is None:
            self.writer.line(f"{element} = {source};")
        elif not dtype.is_integer:
            raise UnsupportedError(
                f"atomic {atomic} on {dtype}: results would depend on timing", hint="split the sum and add the parts in order"
            )
        elif atomic == "add":
            self.writer.line(f"__atomic_fetch_add(&{element}, {source}, __ATOMIC_RELAXED);")
        else:
            self._atomic_extreme(atomic, storage_type(dtype)[1], element, source)
        self._close_lanes()

    def _atomic_extreme(self, atomic: str, ctype: str, element: str, source: str) -> None:
        old, sign = self.writer.fresh(), ">" if atomic == "max" else "<"
        self.writer.line(f"{ctype} {old} = __atomic_load_n(&{element}, __ATOMIC_RELAXED);")
        swap = f"__atomic_compare_exchange_n(&{element}, &{old}, {source}, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)"
        self.writer.line(f"while ({source} {sign} {old} && !{swap}) {{}}")

    # --- lane loops -------------------------------------------------------------------------------------------------

    def _open_lanes(self, guard: AccessGuard, lanes: int, vector: str) -> str:
        """Begin a loop over the lanes that pass the guard; gives the element of `vector` for the current lane."""
        name, self._lane = self.writer.position(0, lanes - 1)
        low, high = guard.span(lanes)
        self.writer.open(f"for (int64_t {name} = 0; {name} < {lanes}; ++{name})")
        self.writer.bind(f"@{name}", name)
        for symbol, variable in self.writer.vectors.items():
            self.writer.bind(symbol, f"(int64_t){variable}[{name}]")
        tests = [f"{low} <= {name}"] if guard.lows else []
        tests += [f"{name} < {high}"] if guard.highs or guard.scalars else []
        for index, lower, upper in guard.each:
            here = self.writer.index(at_lane(index, self._lane))
            tests += [f"{self.writer.index(at_lane(lower, self._lane))} <= {here}"] if lower is not None else []
            tests += [f"{here} < {self.writer.index(at_lane(upper, self._lane))}"] if upper is not None else []
        if tests:
            self.writer.line(f"if (!({' && '.join(tests)})) continue;")
        return f"{vector}[{name}]" if lanes > 1 else vector

    def _close_lanes(self) -> None:
        self.writer.close()


def _places_within(address: Dim, lanes: int) -> tuple[int, ...] | None:
    """How far behind the first lane's element that of each lane lies, if none lies before it or a vector's length or more behind."""
    first = at_lane(address, 0)
    places = tuple(place for lane in range(lanes) if isinstance(place := at_lane(address, lane) - first, int) and 0 <= place < lanes)
    return places if len(places) == lanes else None


def _other(other: Constant | None) -> str:
    """Masked lanes without `else` are poison: any value will do."""
    return "0" if other is None else constant(other)


def _is_padding(other: Constant | None) -> bool:
    """Whether what masked lanes are is what layouts are padded with: zeros of all bits, or anything."""
    if other is None or isinstance(other.value, complex):
        return other is None
    return other.value == 0 and math.copysign(1, other.value) > 0


def _within(operand: Param, axis: str, high: Dim) -> bool:
    """Whether `high` is at most the operand's size along the axis, so that its padding covers the rest of a vector."""
    if operand.layout is None:
        raise InternalError(f"operand {operand.name} has no layout")
    size = operand.shape[operand.layout.axes.index(axis)]
    return dims.at_most(high, size) is True
