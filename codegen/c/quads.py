"""Products in groups, four of 8-bit integers or two of bf16 at a time: what a dot streams that lies so, as 32-bit lanes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...ir import dims
from ...ir.dims import Dim
from ...ir.target import CpuLevel
from ...ir.tile.program import Dot, Load, TileApply, Value
from ...ir.types import bf16, f32, i8, i32, u8
from .access import Spot
from .library import Function
from .values import Values
from .writer import LANE

FOUR = 4
"""Bytes of a 32-bit lane."""
_PAIR = """
f32x@N r = fma_f32_@N((f32x@N)(x << 16), (f32x@N)(w << 16), acc);
return fma_f32_@N((f32x@N)(x & 0xffff0000), (f32x@N)(w & 0xffff0000), r);
"""
# As the manual has it: the upper product first; what is smaller than normal numbers is read and written as 0.
_DOT = """
f32x@N r = fma_f32_@N(flush_f32_@N((f32x@N)(x & 0xffff0000)), flush_f32_@N((f32x@N)(w & 0xffff0000)), flush_f32_@N(acc));
return flush_f32_@N(fma_f32_@N(flush_f32_@N((f32x@N)(x << 16)), flush_f32_@N((f32x@N)(w << 16)), flush_f32_@N(r)));
"""
_FLUSH = """
i32x@N b = (i32x@N)x;
return (f32x@N)(b & (0x80000000 | ((b & 0x7f800000) != 0)));
"""


def functions() -> dict[str, Function]:
    """What adds four products of bytes to each 32-bit lane, exactly; unsigned (`dot4_u8`) or signed ones (`dot4_i8`) on the left.

    Where there is no instruction for it, even and odd bytes are widened to 16 bits and multiplied in pairs. Two products of
    bf16 are added one after the other (`pair_bf16`), or as the instruction does it (`vdpbf16ps`, with its model).
    """
    found = {"four_bytes": Function("i32x@N", ("const void *p",), scalar="int32_t r;\nmemcpy(&r, p, 4);\nreturn r;", body="return 0;")}
    for dtype in ("u8", "i8"):
        fast: dict[tuple[int, str], str] = {}
        if dtype == "u8":
            fast = {(lanes, "avx512_vnni"): _accumulated("vpdpbusd") for lanes in (16, 8)}
        for lanes, prefix, register, feature in ((16, "_mm512", "__m512i", "avx512bw"), (8, "_mm256", "__m256i", "avx2")):
            even = f"{prefix}_srai_epi16({prefix}_slli_epi16(%s, 8), 8)"
            odd = f"{prefix}_srai_epi16(%s, 8)"
            left = (even % "l", odd % "l")
            if dtype == "u8":
                left = (f"{prefix}_srli_epi16({prefix}_slli_epi16(l, 8), 8)", f"{prefix}_srli_epi16(l, 8)")
            fast[lanes, feature] = (
                f"{register} l = ({register})x, r = ({register})w;\n"
                f"{register} a = {prefix}_madd_epi16({left[0]}, {even % 'r'});\n"
                f"{register} b = {prefix}_madd_epi16({left[1]}, {odd % 'r'});\n"
                f"return acc + (i32x{lanes})a + (i32x{lanes})b;"
            )
        found[f"dot4_{dtype}"] = Function(
            "i32x@N", ("i32x@N acc", "i32x@N x", "i32x@N w"), functools.partial(_plain, dtype == "u8"), fast=fast
        )
    vectors = ("f32x@N acc", "i32x@N x", "i32x@N w")
    dots = {(lanes, "avx512_bf16"): _accumulated("vdpbf16ps") for lanes in (16, 8, 4)}
    found["pair_bf16"] = Function("f32x@N", vectors, _PAIR)
    found["vdpbf16ps"] = Function("f32x@N", vectors, _DOT, fast=dots)
    found["flush_f32"] = Function("f32x@N", ("f32x@N x",), _FLUSH)
    return found


def _accumulated(instruction: str) -> str:
    """An instruction that adds to `acc`. gcc keeps accumulators of its intrinsics in memory, those of assembly in registers."""
    return f'__asm__("{instruction} %2, %1, %0" : "+v"(acc) : "v"(x), "v"(w));\nreturn acc;'


def _plain(unsigned: bool, lanes: int) -> str:
    """The products one after the other, in whatever vectors there are."""
    lines = []
    for byte in range(FOUR):
        left = f"(x >> {8 * byte} & 255)" if unsigned else f"(x << {24 - 8 * byte} >> 24)"
        lines.append(f"acc += {left} * (w << {24 - 8 * byte} >> 24);")
    return "\n".join([*lines, "return acc;"])


@dataclass(frozen=True)
class Quads:
    """A dot that is taken in groups of `count`: its two loads, and the function of the library that multiplies them."""

    left: Load
    right: Load
    function: str
    count: int


def read_quads(value: Dot, level: CpuLevel) -> Quads | None:
    """The loads of a dot of 8-bit integers in 32 bits, signed ones on the right, or of bf16 in f32; None if it is another."""
    left, right = widened_load(value.left), widened_load(value.right)
    if left is None or right is None:
        return None
    types = left.type.dtype, right.type.dtype, value.type.dtype
    if types == (bf16, bf16, f32):
        has_dots = any(each.name == "vdpbf16ps" for each in level.instructions)
        return Quads(left, right, "vdpbf16ps" if has_dots else "pair_bf16", 2)
    if types[0] not in (i8, u8) or types[1:] != (i8, i32):
        return None
    return Quads(left, right, f"dot4_{left.type.dtype}", FOUR)


def widened_load(value: Value) -> Load | None:
    """The load behind the cast that widens it."""
    inner = value.args[0] if isinstance(value, TileApply) and value.primitive == "cast" else value
    return inner if isinstance(inner, Load) else None


def fits(values: Values, found: Quads, spots: Sequence[Spot], axis: str, first: Dim) -> bool:
    """Whether both factors have neighbours in memory from `first` on, whole and under the same tests, at all spots."""
    return all(
        values.access.four(values.scope, load, [_at(spot, load, axis, first + n) for n in range(found.count)]) is not None
        for spot in spots
        for load in (found.left, found.right)
    )


def multiply(values: Values, found: Quads, spots: Sequence[Spot], names: Sequence[str], axis: str, first: Dim) -> None:
    """Add a group of products to each lane of each running vector."""
    for spot, name in zip(spots, names, strict=True):
        right, left = (_vector(values, load, spot, axis, first, found.count) for load in (found.right, found.left))
        values.writer.line(f"{name} = {values.library.call(found.function, spot.lanes, name, left, right)};")


def _vector(values: Values, load: Load, spot: Spot, axis: str, first: Dim, count: int) -> str:
    """Neighbours in each lane, loaded once for all running vectors that use them."""
    places = [_at(spot, load, axis, first + n) for n in range(count)]
    key = ("quads", id(load), tuple(places[0].positions.items()), spot.lanes)
    known = values.writer.recall(key)
    if isinstance(known, str):
        return known
    code = values.access.four(values.scope, load, places)
    if code is None:
        raise ValueError(f"%{load.operand} does not lie in groups")
    text, lanes = code
    made = values.define(i32, text, lanes)
    if lanes != spot.lanes:
        made = values.define(i32, values.spread(i32, (made, lanes), spot.lanes), spot.lanes)
    values.writer.remember(key, made)
    return made


def _at(spot: Spot, load: Load, axis: str, place: Dim) -> Spot:
    """The spot of a load at one place of the contracted axis, with lanes only if it varies along them."""
    positions = {name: place if name == axis else spot.positions[name] for name in load.type.axes}
    varies = any(LANE in dims.symbols(position) for position in positions.values())
    return replace(spot, positions=positions) if varies else Spot(positions, 1)
