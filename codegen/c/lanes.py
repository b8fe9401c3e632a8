"""Neighbours along an axis in each 32-bit lane: what is loaded so, and bytes that are computed four at a time.

Bytes are computed by shifts and masks of lanes, by tables, from the bits of one byte and from the kept ones of 2:4 sparse groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from ...ir import dims
from ...ir.codes import FOUR, dtype_of, mask_of, number_of, tabulate
from ...ir.dims import Dim
from ...ir.tile.program import Expand2to4, Index, Load, TileApply, Unpack, Value, parts
from ...ir.types import i8, i32, u8
from . import primitives
from .access import Spot
from .library import LibraryFunction
from .tables import SIZE
from .values import Code, Values
from .writer import LANE

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
# Two bytes go where two bits each say; of two at one place the first is read.
_EXPAND = """
i32x@N a = (p & 3) << 3, b = (p & 12) << 1;
return (v & 255) << a | (((v >> 8 & 255) << b) & (a != b));
"""
_EXPAND_BY_TABLE = """
__m512i control = _mm512_permutexvar_epi32((__m512i)p, _mm512_setr_epi32(%s));
__m512i lane = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c));
return (i32x16)_mm512_shuffle_epi8((__m512i)v, _mm512_or_si512(control, lane));
"""


# Four bits go where the products by 1, 2^7, 2^14 and 2^21 have them first in bytes.
_SPREAD = "return ((x & 15) * 0x00204081) & 0x01010101;"
_SPREAD_BY_TABLE = "return (i32x16)_mm512_permutexvar_epi32((__m512i)x, _mm512_setr_epi32(%s));"


def _spread_out(bits: int) -> int:
    """Four bits as four bytes."""
    return sum((bits >> n & 1) << 8 * n for n in range(FOUR))


def _controls() -> list[int]:
    """For each pair of places which byte a shuffle brings to each of four: the first, the second, or 0."""
    found = []
    for first, second in ((code & 3, code >> 2) for code in range(16)):
        control = bytes(0 if place == first else 1 if place == second else 128 for place in range(FOUR))
        found.append(int.from_bytes(control, "little", signed=True))
    return found


def functions() -> dict[str, LibraryFunction]:
    """What loads four bytes as one lane, looks bytes up, and brings bits and kept bytes to where they stand in a lane."""
    found = {
        "four_bytes": LibraryFunction("i32x@N", ("const void *p",), scalar="int32_t r;\nmemcpy(&r, p, 4);\nreturn r;", body="return 0;")
    }
    expanded = {(16, "avx512bw"): _EXPAND_BY_TABLE % ", ".join(map(str, _controls()))}
    found["expand_bytes"] = LibraryFunction("i32x@N", ("i32x@N v", "i32x@N p"), _EXPAND, fast=expanded)
    spread = {(16, "avx512f"): _SPREAD_BY_TABLE % ", ".join(str(_spread_out(bits)) for bits in range(16))}
    found["spread_bits"] = LibraryFunction("i32x@N", ("i32x@N x",), _SPREAD, fast=spread)
    shuffles = {
        (16, "avx512bw"): "return (i32x16)_mm512_shuffle_epi8(_mm512_broadcast_i32x4((__m128i)table), (__m512i)x);",
        (8, "avx2"): "return (i32x8)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256((__m128i)table), (__m256i)x);",
    }
    byte = "(table[x >> {n} >> 2 & 3] >> 8 * (x >> {n} & 3) & 255) << {n}"
    each = " | ".join(byte.format(n=8 * n) for n in range(FOUR))
    found["shuffle_bytes"] = LibraryFunction("i32x@N", ("i32x4 table", "i32x@N x"), lane=each, fast=shuffles)
    return found


PAIRS_IN_WORD = 2
"""Groups whose kept bytes fill a 32-bit lane, and whose positions fill a byte."""
BITWISE = {"bit_and": "&", "bit_or": "|", "bit_xor": "^"}
TABLE = 6
"""Codes of so many bits are looked up among bytes, sixteen at a time."""


def are_bytes(values: Values, value: Value) -> bool:
    """Whether `neighbours` can print this."""
    if isinstance(value, (Load, Expand2to4)):
        return value.type.dtype in (i8, u8)
    if not isinstance(value, TileApply) or dtype_of(value) not in (i8, u8):
        return False
    if _bits_of(value) is not None:
        return True
    masked = _masked_shift(values, value)
    if masked is not None:
        return are_bytes(values, masked.args[0])
    if value.primitive in BITWISE:
        return all(number_of(arg) is not None or are_bytes(values, arg) for arg in value.args)
    if value.primitive in primitives.SHIFTS and dtype_of(value) == u8:
        return isinstance(number_of(value.args[1]), int) and are_bytes(values, value.args[0])
    if value.primitive == "bitcast":
        return are_bytes(values, value.args[0])
    found = tabulate(value, TABLE)
    return found is not None and are_bytes(values, found.code)


def lie_together(values: Values, value: Value, starts: Sequence[tuple[Spot, Dim]], axis: str, count: int) -> bool:
    """Whether all that a value is read from has so many neighbours in memory, whole and under the same tests, from these places on."""
    leaves = dict.fromkeys(_leaves(value))
    for leaf in leaves:
        if isinstance(leaf, Expand2to4) and any(values.access.tidy(first % FOUR, spot.lanes) != 0 for spot, first in starts):
            return False
        if isinstance(leaf, TileApply) and any(_first_bit(values, leaf, spot, axis, first) is None for spot, first in starts):
            return False
    loads = [leaf for leaf in leaves if isinstance(leaf, Load)]
    groups = [[_at(spot, load, axis, first + n) for n in range(count)] for load in loads for spot, first in starts]
    # Rows share what varies along columns alone, and columns what varies along rows.
    known = {(group[0].lanes, *group[0].positions.items()): group for group in groups}
    return all(
        values.access.four(values.scope, load, group) is not None
        for load in loads
        for group in known.values()
        if group[0].positions.keys() == set(load.type.axes)
    )


def _leaves(value: Value) -> Iterator[Value]:
    """What bytes are computed from place by place: loads, what is expanded, and shifts that bring down the bits of one byte."""
    bits = _bits_of(value)
    if isinstance(value, (Load, Expand2to4)) or bits is not None:
        yield bits or value
        return
    for part in parts(value):
        yield from _leaves(part)


def computed_bytes(values: Values, value: Value, spots: Sequence[Spot], axis: str) -> list[str] | None:
    """Bytes as 32-bit lanes, four neighbours along an axis from each spot on; None of what is not computed so, or read from elsewhere."""
    starts = [(spot, spot.positions[axis]) for spot in spots]
    while isinstance(value, TileApply) and value.primitive == "bitcast" and value.args[0].type.dtype.bits == 8:
        value = value.args[0]
    if not are_bytes(values, value) or not lie_together(values, value, starts, axis, FOUR):
        return None
    return [spread(values, neighbours(values, value, spot, axis, first, FOUR), spot.lanes) for spot, first in starts]


def spread(values: Values, code: Code, lanes: int) -> str:
    return code[0] if code[1] == lanes else values.define(i32, values.spread(i32, code, lanes), lanes)


def neighbours(values: Values, value: Value, spot: Spot, axis: str, first: Dim, count: int) -> Code:
    """Neighbours in each lane, computed once for all running vectors that use them."""
    number = number_of(value)
    if number is not None:
        return _repeated(int(number.real), count), 1
    places = [_at(spot, value, axis, first + n) for n in range(count)]
    key = ("quads", id(value), tuple(places[0].positions.items()), places[0].lanes)
    known = values.writer.recall(key)
    if isinstance(known, tuple):
        return known
    if isinstance(value, Load):
        code = values.access.four(values.scope, value, places)
        if code is None:
            raise ValueError(f"%{value.operand} does not lie in groups")
    elif (bits := _bits_of(value)) is not None:
        amount = _first_bit(values, bits, spot, axis, first)
        assert amount is not None
        byte = _wide(values, bits.args[0], replace(spot, positions={name: spot.positions[name] for name in bits.args[0].type.axes}))
        code = values.library.call("spread_bits", spot.lanes, f"{byte} >> {values.writer.index(amount)}"), spot.lanes
    elif isinstance(value, Expand2to4):
        code = _expanded(values, value, places[0]), places[0].lanes
    else:
        assert isinstance(value, TileApply)
        code = _computed(values, value, lambda part: neighbours(values, part, spot, axis, first, count))
    made = values.define(i32, *code), code[1]
    values.writer.remember(key, made)
    return made


def _expanded(values: Values, value: Expand2to4, spot: Spot) -> str:
    """A group of a 2:4 sparse factor in each lane: its kept bytes where they stand."""
    group = spot.positions[value.after] // FOUR
    numbers, positions = _pair(values, value, spot, group), _places(values, value, spot, group)
    return values.library.call("expand_bytes", spot.lanes, numbers, positions)


def _pair(values: Values, value: Expand2to4, spot: Spot, group: Dim) -> str:
    """The kept bytes of a group as the lowest two of each lane: of four that lie together, or one by one."""
    half, four = values.access.tidy(group % PAIRS_IN_WORD, spot.lanes), group // PAIRS_IN_WORD * FOUR
    at = values.moved(spot, **{value.before: four})
    if isinstance(half, int) and are_bytes(values, value.values) and lie_together(values, value.values, [(at, four)], value.before, FOUR):
        word = spread(values, neighbours(values, value.values, at, value.before, four, FOUR), spot.lanes)
        return f"{word} >> {16 * half}" if half else word
    first, second = (_wide(values, value.values, values.moved(spot, **{value.before: group * 2 + n})) for n in range(2))
    return f"{first} | {second} << 8"


def _places(values: Values, value: Expand2to4, spot: Spot, group: Dim) -> str:
    """Where these stand, in two bits each: fields of a byte, or one by one."""
    packed, half = value.positions, values.access.tidy(group % PAIRS_IN_WORD, spot.lanes)
    if isinstance(packed, Unpack) and packed.bits == 2 and isinstance(half, int):
        byte = _wide(values, packed.value, values.moved(spot, **{packed.before: group // PAIRS_IN_WORD}))
        return f"{byte} >> {4 * half}" if half else byte
    first, second = (_wide(values, packed, values.moved(spot, **{value.before: group * 2 + n})) for n in range(2))
    return f"({first} & 3) | {second} << 2"


def _wide(values: Values, value: Value, spot: Spot) -> str:
    """Bytes as numbers of 32 bits without a sign."""
    text, lanes = values.vector(value, spot)
    unsigned = f"({values.library.vector('u8', lanes)}){text}" if lanes > 1 else f"(uint8_t){text}"
    wide = values.define(i32, values.library.call("convert_u8_i32", lanes, unsigned), lanes)
    return values.spread(i32, (wide, lanes), spot.lanes)


def _computed(values: Values, value: TileApply, at: Callable[[Value], Code]) -> Code:
    """Bytes that are computed from others, four in each lane."""
    if value.primitive == "bitcast":
        return at(value.args[0])
    if value.primitive in primitives.SHIFTS:
        operator, (text, lanes), amount = primitives.SHIFTS[value.primitive], at(value.args[0]), number_of(value.args[1])
        assert isinstance(amount, int)
        kept = 255 >> amount if operator == ">>" else 255 << amount & 255
        return f"({text} {operator} {amount}) & {_repeated(kept)}", lanes
    if value.primitive in BITWISE:
        masked = _masked_shift(values, value)
        if masked is not None:
            text, lanes = at(masked.args[0])
            return f"({text} >> {_amount(values, masked)}) & {_repeated(mask_of(value))}", lanes
        sides = [at(arg) for arg in value.args]
        return f" {BITWISE[value.primitive]} ".join(text for text, _ in sides), max(lanes for _, lanes in sides)
    found = tabulate(value, TABLE)
    assert found is not None
    text, lanes = at(found.code)
    return _looked_up(values, np.tile(found.numbers.astype(np.uint8), -(-SIZE // len(found.numbers))), text, lanes), lanes


def _bits_of(value: Value) -> TileApply | None:
    """x >> n of x >> n & 1, where places have bits of one byte."""
    if not isinstance(value, TileApply) or mask_of(value) != 1:
        return None
    inner = next((arg for arg in value.args if isinstance(arg, TileApply) and arg.primitive == "shift_right"), None)
    if inner is None or not isinstance(inner.args[0], Load) or not isinstance(inner.args[1], Index):
        return None
    return inner if inner.args[1].type.axes and not set(inner.args[1].type.axes) & set(inner.args[0].type.axes) else None


def _first_bit(values: Values, shift: TileApply, spot: Spot, axis: str, first: Dim) -> Dim | None:
    """The bit that a group's first place has, if the others have those above it."""
    index = shift.args[1]
    assert isinstance(index, Index)
    places = [values.access.place(values.scope, index.value, _at(spot, index, axis, first + n)) for n in range(FOUR)]
    known = dims.range_of(places[-1], values.writer.known(1))
    is_inside = known.high is not None and known.high < u8.bits
    return places[0] if is_inside and all(place - places[0] == n for n, place in enumerate(places)) else None


def _masked_shift(values: Values, value: TileApply) -> TileApply | None:
    """x >> n of x >> n & m, where the mask leaves none of the bits that come from the byte above; n may be known in calls alone."""
    inner = next((arg for arg in value.args if isinstance(arg, TileApply) and arg.primitive == "shift_right"), None)
    mask, most = mask_of(value), None if inner is None else _most(values, inner.args[1])
    return inner if most is not None and mask and mask < 256 >> most else None


def _most(values: Values, amount: Value) -> int | None:
    """The most bits by which bytes are shifted, all of them alike."""
    number = number_of(amount)
    if isinstance(number, int):
        return number
    if not isinstance(amount, Index) or amount.type.axes:
        return None
    known = dims.range_of(amount.value, values.scope.facts)
    return known.high if known.low is not None and known.low >= 0 else None


def _amount(values: Values, shift: TileApply) -> str:
    """By how many bits all bytes are shifted."""
    number = number_of(shift.args[1])
    return str(number) if isinstance(number, int) else f"(int32_t){values.vector(shift.args[1], Spot({}, 1))[0]}"


def _looked_up(values: Values, numbers: Bytes, text: str, lanes: int) -> str:
    """The bytes of a table that those of a lane say: sixteen by each shuffle, of which the bits above them choose."""
    if len(numbers) == SIZE:
        words = ", ".join(str(word) for word in numbers.view(np.int32))
        return values.library.call("shuffle_bytes", lanes, f"(i32x4){{{words}}}", text)
    half = len(numbers) // 2
    low = values.define(i32, f"{text} & {_repeated(half - 1)}", lanes)
    parts = [values.define(i32, _looked_up(values, part, low, lanes), lanes) for part in (numbers[:half], numbers[half:])]
    # The bit that chooses becomes a byte of ones or zeros.
    bit = values.define(i32, f"({text} >> {half.bit_length() - 1}) & {_repeated(1)}", lanes)
    chosen = values.define(i32, f"({bit} << 8) - {bit}", lanes)
    return f"({parts[0]} & ~{chosen}) | ({parts[1]} & {chosen})"


def _repeated(byte: int, count: int = FOUR) -> str:
    """A byte in all bytes of a lane."""
    return str(int.from_bytes(bytes([byte & 255] * count), "little", signed=True))


def _at(spot: Spot, value: Value, axis: str, place: Dim) -> Spot:
    """The spot of a value at one place of the contracted axis, with lanes only if it varies along them."""
    positions = {name: place if name == axis else spot.positions[name] for name in value.type.axes}
    varies = any(LANE in dims.symbols(position) for position in positions.values())
    return replace(spot, positions=positions) if varies else Spot(positions, 1)
