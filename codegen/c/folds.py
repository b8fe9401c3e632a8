"""Folds of tiles as C: reductions along the lanes or across vectors, scans, and the streamed loops of `dot`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ...ir import dims
from ...ir.dims import Dim
from ...ir.errors import UnsupportedError
from ...ir.tile import BoundsCheck, domain_checks
from ...ir.tile.program import Dot, Expand2to4, Load, Reduce, Scan, TileType, Unpack, Value, walk
from ...ir.types import DType
from . import primitives, quads
from .access import Spot, Stream, Test
from .basics import is_small_float, register
from .digits import digits, numbers
from .values import Code, Values, accumulator, unrolls
from .writer import LANE

_STEP = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "bit_or", "all": "bit_and"}
_FOLD = {"any": "any_i32", "all": "all_i32"}
CHAINS = 4  # independent partial results of a long fold, so that it does not wait for each addition
STREAMED = 16
"""Rows of a block up to which it may wait for what it reads of the right factor."""
STREAM = Stream(32)
UNROLLED = 32


def identity(kind: str, dtype: DType) -> str:
    """The C literal that a fold starts from."""
    if kind in ("any", "all"):
        return "-1" if kind == "all" else "0"
    if kind in ("sum", "prod"):
        return "0" if kind == "sum" else "1"
    if dtype.is_float:
        return "-INFINITY" if kind == "max" else "INFINITY"
    if dtype.kind == "bool":
        return "-1" if kind == "min" else "0"
    bits, unsigned = dtype.bits, dtype.kind == "uint"
    if kind == "max":
        return "0" if unsigned else f"(-{(1 << (bits - 1)) - 1}{'l' if bits == 64 else ''} - 1)"
    return f"{(1 << (bits if unsigned else bits - 1)) - 1}{'u' if unsigned else ''}{'l' if bits == 64 else ''}"


@dataclass(frozen=True)
class _Fold:
    """One reduction at one place: the axis, vectors or elements along it, lanes of the running value."""

    value: Reduce
    spot: Spot
    width: int
    steps: int
    dtype: DType

    @property
    def lanes(self) -> int:
        return max(self.width, self.spot.lanes)


def reduce(values: Values, value: Reduce, spot: Spot) -> Code:
    """The fold of one axis at a spot."""
    source, extent = value.value.type, values.scope.extent(value.axis)
    if value.kind in ("argmax", "argmin"):
        return _arg_extreme(values, value, spot)
    along = source.axes[-1] == value.axis and extent > 1
    if along and spot.lanes > 1:
        return values.by_lane(value, spot)
    width = values.plan.width(extent) if along else 1
    fold = _Fold(value, spot, width, -(-extent // width), accumulator(source.dtype))
    result = _accumulate(values, fold)
    if width > 1:
        kind = register(fold.dtype)
        name = _FOLD.get(
            value.kind, f"{'any' if value.kind == 'max' else 'all'}_i32" if fold.dtype.kind == "bool" else f"{value.kind}_{kind}"
        )
        result = values.define(fold.dtype, values.library.call(f"fold_{name}", width, result), 1)
    if is_small_float(value.type.dtype):
        result = values.define(
            value.type.dtype, primitives.cast(values.library, fold.dtype, value.type.dtype, spot.lanes, result), spot.lanes
        )
    return result, spot.lanes


def _accumulate(values: Values, fold: _Fold) -> str:
    """Run over the axis in `CHAINS` interleaved partial results, then put these together in order."""
    looped = fold.value.axis in values.plan.looped or (fold.steps > UNROLLED and not unrolls(values, fold.value.value, fold.value.axis))
    chains = CHAINS if fold.steps >= 2 * CHAINS and (not looped or fold.steps % CHAINS == 0) else 1
    start = values.library.call(f"splat_{register(fold.dtype)}", fold.lanes, identity(fold.value.kind, fold.dtype))
    names = [values.writer.fresh("r") for _ in range(chains)]
    for name in names:
        values.writer.line(f"{values.ctype(fold.dtype, fold.lanes)} {name} = {start};")
    if looped:
        variable, position = values.writer.position(0, fold.steps // chains - 1)
        values.writer.open(f"for (int64_t {variable} = 0; {variable} < {fold.steps // chains}; ++{variable})")
        values.writer.bind(f"@{variable}", variable)
        for chain, name in enumerate(names):
            _fold_step(values, fold, position * chains + chain, name)
        values.writer.close()
    else:
        for step in range(fold.steps):
            _fold_step(values, fold, step, names[step % chains])
    while len(names) > 1:
        half = len(names) // 2
        names = [values.define(fold.dtype, _combine(values, fold, names[n], names[n + half]), fold.lanes) for n in range(half)]
    return names[0]


def _combine(values: Values, fold: _Fold, left: str, right: str) -> str:
    return primitives.apply(values.library, _STEP[fold.value.kind], fold.dtype, fold.lanes, [left, right])


def _fold_step(values: Values, fold: _Fold, step: Dim, name: str) -> None:
    axis, extent = fold.value.axis, values.scope.extent(fold.value.axis)
    if fold.width == 1:
        spot = Spot({**fold.spot.positions, axis: step}, fold.spot.lanes, fold.spot.limits)
        text = values.spread(fold.dtype, values.vector(fold.value.value, spot), fold.lanes)
    else:
        position = step * fold.width + dims.symbol(LANE)
        partial = extent % fold.width != 0 and not (isinstance(step, int) and (step + 1) * fold.width <= extent)
        spot = Spot({**fold.spot.positions, axis: position}, fold.width, ((position, extent),) if partial else ())
        text = values.spread(fold.dtype, values.vector(fold.value.value, spot), fold.lanes)
        if partial:
            text = _keep_tile(values, fold, text, extent - step * fold.width)
    values.writer.line(f"{name} = {_combine(values, fold, name, text)};")


def _keep_tile(values: Values, fold: _Fold, text: str, left: Dim) -> str:
    """The identity in lanes past the end of the tile."""
    library, kind = values.library, register(fold.dtype)
    limit = library.call("splat_i32", fold.lanes, f"(int32_t){values.writer.index(left)}")
    mask = library.call("lt_i32", fold.lanes, library.call("iota_i32", fold.lanes), limit)
    other = library.call(f"splat_{kind}", fold.lanes, identity(fold.value.kind, fold.dtype))
    return library.call(f"select_{kind}", fold.lanes, mask, text, other)


def _arg_extreme(values: Values, value: Reduce, spot: Spot) -> Code:
    """The first place of the extreme along the axis; a NaN is the extreme."""
    dtype, extent, lanes = value.value.type.dtype, values.scope.extent(value.axis), spot.lanes
    library, kind, place = values.library, register(dtype), register(value.type.dtype)
    best, found = values.writer.fresh("r"), values.writer.fresh("r")

    def at(step: Dim) -> str:
        here = Spot({**spot.positions, value.axis: step}, lanes, spot.limits)
        return values.spread(dtype, values.vector(value.value, here), lanes)

    values.writer.line(f"{values.ctype(dtype, lanes)} {best} = {at(0)};")
    values.writer.line(f"{library.vector(place, lanes)} {found} = {library.call(f'splat_{place}', lanes, '0')};")
    with steps(values, value.axis, extent, (value.value,)) as positions:
        for step in positions:
            text = at(step)
            pair = (best, text) if value.kind == "argmax" else (text, best)
            better = library.call(f"lt_{kind}", lanes, *pair)
            if dtype.is_float:
                new, old = library.call(f"ne_{kind}", lanes, text, text), library.call(f"eq_{kind}", lanes, best, best)
                better = f"{better} | ({new} & {old})"
            mask = values.writer.define(library.vector("i32", lanes), better)
            values.writer.line(f"{best} = {library.call(f'select_{kind}', lanes, mask, text, best)};")
            number = library.call(f"splat_{place}", lanes, values.writer.index(step))
            values.writer.line(f"{found} = {library.call(f'select_{place}', lanes, mask, number, found)};")
    return found, lanes


@contextmanager
def steps(values: Values, axis: str, extent: int, sources: tuple[Value, ...], trip: str = "") -> Iterator[list[Dim]]:
    """The positions along an axis, one after the other: a printed loop, or numbers where registers are read along it."""
    if not trip and any(unrolls(values, source, axis) for source in sources):
        yield list(range(extent))
        return
    variable, position = values.writer.position(0, extent - 1)
    values.writer.open(f"for (int64_t {variable} = 0; {variable} < {trip or extent}; ++{variable})")
    values.writer.bind(f"@{variable}", variable)
    yield [position]
    values.writer.close()


def scan(values: Values, value: Scan, each: Callable[[TileType, Callable[[Spot], None]], None], write: Callable[[Spot, str], None]) -> None:
    """A running fold along one axis; `each` runs over the other axes, `write` puts a vector into the tile's array."""
    dtype, extent = accumulator(value.type.dtype), values.scope.extent(value.axis)
    others = TileType(value.type.dtype, tuple(axis for axis in value.type.axes if axis != value.axis))

    def row(spot: Spot) -> None:
        running = values.writer.fresh("r")
        start = values.library.call(f"splat_{register(dtype)}", spot.lanes, identity(value.kind, dtype))
        values.writer.line(f"{values.ctype(dtype, spot.lanes)} {running} = {start};")
        with steps(values, value.axis, extent, (value.value,)) as positions:
            for step in positions:
                here = replace(spot, positions={**spot.positions, value.axis: extent - 1 - step if value.reverse else step})
                text = values.spread(dtype, values.vector(value.value, here), spot.lanes)
                folded = primitives.apply(values.library, _STEP[value.kind], dtype, spot.lanes, [running, text])
                values.writer.line(f"{running} = {folded};")
                write(here, primitives.cast(values.library, dtype, value.type.dtype, spot.lanes, running))

    each(others, row)


# --- dot --------------------------------------------------------------------------------------------------------------


def contracted(value: Dot) -> tuple[str, ...]:
    """The axes that a dot sums over, in the order of its left operand."""
    return tuple(axis for axis in value.left.type.axes if axis not in value.type.axes)


def dot_block(values: Values, value: Dot, spots: list[Spot], starts: list[str]) -> list[str]:
    """Print the loops over the contracted axes with one running vector per spot; gives the names of the sums.

    `starts` are the accumulators' first values.
    """
    if value.left_scale is not None or value.right_scale is not None:
        raise UnsupportedError("a dot with block scales is not printed as c", hint="dequantize the operand in front of the dot")
    dtype = accumulator(value.type.dtype)
    names = []
    for spot, start in zip(spots, starts, strict=True):
        names.append(values.writer.fresh("a"))
        values.writer.line(f"{values.ctype(dtype, spot.lanes)} {names[-1]} = {start};")
    with values.access.streaming(STREAM if _is_streamed(values, value) else None):
        _stream_all(values, value, spots, names)
    return names


def _is_streamed(values: Values, value: Dot) -> bool:
    """Whether there are so few rows that the right factor comes no slower from memory than it is multiplied."""
    return len(value.type.axes) < 2 or values.scope.extent(value.type.axes[0]) <= STREAMED


def _stream_all(values: Values, value: Dot, spots: list[Spot], names: list[str]) -> None:
    """The loops over all contracted axes, with and without tests."""
    tests = _steady_tests(values, value, spots)
    if not tests:
        _stream(values, value, contracted(value), spots, names, {})
        return
    # Whole blocks inside of the padding are by far the most: their loop makes no tests.
    inside = values.writer.define("int", " && ".join(values.access.test(*test) for test in tests))
    for condition, passed in ((inside, frozenset(tests)), (f"!{inside}", frozenset[Test]())):
        values.writer.open(f"if ({condition})")
        with values.access.passing(passed):
            _stream(values, value, contracted(value), spots, names, {})
        values.writer.close()


def _steady_tests(values: Values, value: Dot, spots: list[Spot]) -> tuple[Test, ...]:
    """The tests of the left operand's loads that stay as they are along the contracted axes, of all rows together."""
    if any(unrolls(values, operand, axis) for operand in (value.left, value.right) for axis in contracted(value)):
        return ()
    moving = {name for axis in contracted(value) for name in (axis, values.scope.axis(axis).lane)}
    found: dict[Test, None] = {}
    for load in (part for part in walk(value.left) if isinstance(part, Load) and part.other is not None):
        checks = values.access.checks(values.scope, load)
        steady = tuple(check for check in checks if not moving & _symbols_of(check))
        for spot in spots:
            found |= dict.fromkeys(values.access.guard(values.scope, steady, spot).tests)
    return tuple(found)


def _symbols_of(check: BoundsCheck) -> set[str]:
    return {name for side in (check.index, check.low, check.high) if side is not None for name in dims.symbols(side)}


def _stream(values: Values, value: Dot, axes: tuple[str, ...], spots: list[Spot], names: list[str], at: dict[str, Dim]) -> None:
    if not axes:
        for spot, name in zip(spots, names, strict=True):
            _multiply(values, value, replace(spot, positions={**spot.positions, **at}), name)
        return
    axis, rest = axes[0], axes[1:]
    extent = values.scope.extent(axis)
    operands = (value.left, value.right)
    unrolled = any(unrolls(values, operand, axis) for operand in operands)
    ends = [] if unrolled else _ends(values, axis)
    if not rest and not unrolled and _stream_fours(values, value, axis, ends, spots, names, at):
        return
    if unrolled or ends:
        with steps(values, axis, extent, operands, _trip(values, ends, extent)) as positions:
            for step in positions:
                with values.access.passing(_reached(values, axis, step) if ends else frozenset()):
                    _stream(values, value, rest, spots, names, {**at, axis: step})
        return
    group = _group(value, axis, extent)
    for number in numbers(values, digits(values, axis, extent, group, operands)):
        for field in range(group):
            _stream(values, value, rest, spots, names, {**at, axis: number * group + field})


def _stream_fours(
    values: Values, value: Dot, axis: str, ends: Sequence[Dim], spots: list[Spot], names: list[str], at: dict[str, Dim]
) -> bool:
    """Print the loop over the last contracted axis in groups of products, if the factors lie so and no group is cut."""
    found, extent = quads.read_quads(values, value), values.scope.extent(axis)
    if found is None or any(dims.divides(found.count, end, values.scope.facts) is not True for end in (extent, *ends)):
        return False
    here = [replace(spot, positions={**spot.positions, **at}) for spot in spots]
    together = 1 if ends else max(1, _group(value, axis, extent) // found.count)
    step = found.count * together
    trip = _trip(values, [end // step for end in ends], extent // step)
    variable, position = values.writer.position(0, extent // step - 1)
    values.writer.open(f"for (int64_t {variable} = 0; {variable} < {trip or extent // step}; ++{variable})")
    values.writer.bind(f"@{variable}", variable)
    reached = frozenset[Test]().union(*(_reached(values, axis, position * step + n) for n in range(step)))
    firsts = [position * step + number * found.count for number in range(together)]
    with values.access.passing(reached):
        fits = all(quads.fits(values, found, here, axis, first) for first in firsts)
        for first in firsts if fits else ():
            quads.multiply(values, found, here, names, axis, first)
    if fits:
        values.writer.close()
        quads.settle(values, value.type.dtype, here, names)
    else:
        values.writer.drop()
    return fits


def _ends(values: Values, axis: str) -> list[Dim]:
    """Where the axis's domain may end within a tile, in steps: outside of it one operand is 0, so nothing is lost."""
    first = values.scope.axis(axis)
    start: Dim = dims.symbol(first.first) if first.modulus else first.base
    return [check.high - start for check in domain_checks(values.scope, (axis,)) if check.high is not None]


def _trip(values: Values, ends: Sequence[Dim], extent: int) -> str:
    """The steps up to the first of these ends; nothing if there are none."""
    trip = ""
    for end in ends:
        left = values.writer.index(end)
        trip = f"({trip or extent} < {left} ? {trip or extent} : {left})"
    return trip


def _reached(values: Values, axis: str, step: Dim) -> frozenset[Test]:
    """What holds of a step that is inside the axis's domain."""
    guard = values.access.guard(values.scope, domain_checks(values.scope, (axis,)), Spot({axis: step}, 1))
    return frozenset(guard.tests)


def _group(value: Dot, axis: str, extent: int) -> int:
    """Steps printed together, so that fields of packed operands are known when printing."""
    wanted = 1
    for operand in (value.left, value.right):
        for part in walk(operand):
            if isinstance(part, Unpack) and part.after == axis:
                wanted = max(wanted, 8 // part.bits)
            if isinstance(part, Expand2to4) and part.after == axis:
                packed = any(isinstance(inner, Unpack) and inner.bits == 2 for inner in walk(part.positions))
                wanted = max(wanted, 8 if packed else 4)
    return wanted if extent % wanted == 0 else 1


def _multiply(values: Values, value: Dot, spot: Spot, name: str) -> None:
    dtype = accumulator(value.type.dtype)
    factors = []
    for operand in (value.right, value.left):
        text, lanes = values.vector(operand, spot)
        factors.append(_widened(values, operand, spot, text, lanes, dtype))
    values.writer.line(f"{name} = {primitives.apply(values.library, 'fma', dtype, spot.lanes, [factors[1], factors[0], name])};")


def _widened(values: Values, operand: Value, spot: Spot, text: str, lanes: int, dtype: DType) -> str:
    """An operand in the accumulator's type and lanes, converted once for all rows that use it."""
    source = operand.type.dtype
    positions = {axis: spot.positions[axis] for axis in operand.type.axes}
    key = ("widened", id(operand), tuple(positions.items()), spot.lanes)
    known = values.writer.recall(key)
    if isinstance(known, str):
        return known
    converted = primitives.cast(values.library, source, dtype, lanes, text)
    if converted != text:
        converted = values.define(dtype, converted, lanes)
    if lanes != spot.lanes:
        converted = values.define(dtype, values.spread(dtype, (converted, lanes), spot.lanes), spot.lanes)
    values.writer.remember(key, converted)
    return converted
