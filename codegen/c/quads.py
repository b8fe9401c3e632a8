"""Products of 8-bit integers four at a time: what a dot streams that lies in fours along the contracted axis, as 32-bit lanes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...ir import dims
from ...ir.dims import Dim
from ...ir.tile.program import Dot, Load, TileApply, Value
from ...ir.types import i8, i32, u8
from .access import Spot
from .library import Function
from .values import Values
from .writer import LANE

FOUR = 4
"""Elements of a 32-bit lane."""


def functions() -> dict[str, Function]:
    """What adds four products of bytes to each 32-bit lane, exactly; unsigned (`dot4_u8`) or signed ones (`dot4_i8`) on the left.

    Where there is no instruction for it, even and odd bytes are widened to 16 bits and multiplied in pairs.
    """
    found = {"four_bytes": Function("i32x@N", ("const void *p",), scalar="int32_t r;\nmemcpy(&r, p, 4);\nreturn r;", body="return 0;")}
    for dtype in ("u8", "i8"):
        fast: dict[tuple[int, str], str] = {}
        if dtype == "u8":
            for lanes, prefix, register in ((16, "_mm512", "__m512i"), (8, "_mm256", "__m256i")):
                fast[lanes, "avx512_vnni"] = f"(i32x{lanes}){prefix}_dpbusd_epi32(({register})acc, ({register})x, ({register})w)"
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
    return found


def _plain(unsigned: bool, lanes: int) -> str:
    """The products one after the other, in whatever vectors there are."""
    lines = []
    for byte in range(FOUR):
        left = f"(x >> {8 * byte} & 255)" if unsigned else f"(x << {24 - 8 * byte} >> 24)"
        lines.append(f"acc += {left} * (w << {24 - 8 * byte} >> 24);")
    return "\n".join([*lines, "return acc;"])


@dataclass(frozen=True)
class Quads:
    """A dot of codes that is taken in fours: its two loads, and the function of the library that multiplies them."""

    left: Load
    right: Load
    function: str


def read_quads(value: Dot) -> Quads | None:
    """The loads of a dot of 8-bit integers in 32 bits, signed ones on the right; None if it is another."""
    left, right = _codes(value.left), _codes(value.right)
    if value.type.dtype != i32 or left is None or right is None or right.type.dtype != i8 or left.type.dtype not in (i8, u8):
        return None
    return Quads(left, right, f"dot4_{left.type.dtype}")


def _codes(value: Value) -> Load | None:
    """The load behind the cast that widens it."""
    inner = value.args[0] if isinstance(value, TileApply) and value.primitive == "cast" else value
    return inner if isinstance(inner, Load) else None


def fits(values: Values, found: Quads, spots: Sequence[Spot], axis: str, first: Dim) -> bool:
    """Whether both factors have four neighbours in memory from `first` on, whole and under the same tests, at all spots."""
    return all(
        values.access.four(values.scope, load, [_at(spot, load, axis, first + n) for n in range(FOUR)]) is not None
        for spot in spots
        for load in (found.left, found.right)
    )


def multiply(values: Values, found: Quads, spots: Sequence[Spot], names: Sequence[str], axis: str, first: Dim) -> None:
    """Add four products to each lane of each running vector."""
    for spot, name in zip(spots, names, strict=True):
        right, left = (_vector(values, load, spot, axis, first) for load in (found.right, found.left))
        values.writer.line(f"{name} = {values.library.call(found.function, spot.lanes, name, left, right)};")


def _vector(values: Values, load: Load, spot: Spot, axis: str, first: Dim) -> str:
    """Four elements in each lane, loaded once for all running vectors that use them."""
    places = [_at(spot, load, axis, first + n) for n in range(FOUR)]
    key = ("quads", id(load), tuple(places[0].positions.items()), spot.lanes)
    known = values.writer.recall(key)
    if isinstance(known, str):
        return known
    code = values.access.four(values.scope, load, places)
    if code is None:
        raise ValueError(f"%{load.operand} does not lie in fours")
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
