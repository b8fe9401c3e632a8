"""Block scales: factors of products that are small floats times a scale of 8 bits for each block, as instructions take them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from ...ir import dims
from ...ir.codes import mask_of, number_of, tabulate
from ...ir.dims import Dim
from ...ir.expression import Apply, Index
from ...ir.region import Axis, Load, Region, Scalar, Statement, Store, transform, walk
from ...ir.types import DType, f4e2m1, f8e4m3, f8e5m2, f8e8m0, f32, u8
from .contraction import Contraction, axes_of, plain_load, unwidened
from .hoist_scales import factors_of, fresh

PLACE, BLOCK = "%place", "%block"
"""What the subscripts of codes and of scales say instead of the contracted axis: which element of codes, which block."""
BLOCKS: dict[tuple[DType, DType], int] = {
    **{(codes, f8e8m0): 32 for codes in (f8e4m3, f8e5m2, f4e2m1)},
    (f4e2m1, f8e4m3): 16,
}
"""How many numbers share a scale, by the dtypes of codes and scales: those of MX, and of NVFP4."""
NUMBERS = np.arange(16, dtype=np.uint8).view(f4e2m1.numpy).astype(np.float64)
_WITHIN, _FIELD, _GROUP = "%within", "%field", "%group"


@dataclass(frozen=True)
class Scaled:
    """A factor: `codes` at PLACE, a byte for each number (`run` 1) or for two that are `run` / 2 apart, `scale` at BLOCK, and what it is
    multiplied by as well."""

    dtype: DType
    codes: Load
    scale: Load
    run: int
    times: float

    @property
    def block(self) -> int:
        """The numbers that share a scale."""
        return BLOCKS[self.dtype, self.scale.dtype]


@dataclass(frozen=True)
class ScaledProduct:
    """A product of such factors, whose numbers have the same order in a run on both sides, and the region that it is of."""

    region: Region
    product: Contraction
    left: Scaled
    right: Scaled


def scaled_product(region: Region, found: Contraction) -> ScaledProduct | str:
    """A contraction as a product of small floats with scales of blocks, or why it is none."""
    if len(found.over) != 1 or found.block is not None or found.prologue or found.reduce.dtype != f32:
        return "it is no sum along one axis in f32"
    left, right = (_read(value, found.over[0]) for value in (found.left, found.right))
    if left is None or right is None:
        return "a factor is not made of small floats and a scale for each block of them"
    if (left.dtype, left.scale.dtype, left.run) != (right.dtype, right.scale.dtype, right.run):
        return f"one factor is {left.dtype} with {left.scale.dtype}, the other {right.dtype} with {right.scale.dtype}"
    if left.times * right.times != 1.0:
        return f"products are multiplied by {left.times * right.times:g} as well"
    return ScaledProduct(region, found, left, right)


def with_row(region: Region, found: Contraction, symbols: Collection[str] = ()) -> Region:
    """The region of a product whose left factor has no rows with one row, whose operands lie as before.

    Before: y[j] = sum k: x[k] * w[j, k]    After: y[j + J*i] = sum k: x[k + K*i] * w[j, k], with i: 1
    """
    row = fresh("row", {*region.extents, *symbols})
    moved = {part.operand for part in walk(found.left) if isinstance(part, Load) and part.subscripts}

    def placed(operand: str, subscripts: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return (subscripts[0] + dims.symbol(row) * region.operand(operand).type.shape[0], *subscripts[1:])

    def change(part: Scalar) -> Scalar | None:
        is_moved = isinstance(part, Load) and part.operand in moved
        return replace(part, subscripts=placed(part.operand, part.subscripts)) if is_moved and isinstance(part, Load) else None

    def made(statement: Statement) -> Statement:
        after = replace(statement, value=transform(statement.value, change), axes=(row, *statement.axes))
        return replace(after, subscripts=placed(after.output, after.subscripts)) if isinstance(after, Store) else after

    return replace(region, axes=(Axis(row, 1), *region.axes), body=tuple(map(made, region.body)))


def _read(value: Scalar, axis: str) -> Scaled | None:
    """A factor's codes and scale, if it is made of such."""
    factors = factors_of(value, f32.name)
    numbers = [number for each in factors if (number := number_of(each)) is not None]
    loads = [each for each in factors if number_of(each) is None]
    times = float(np.prod([float(np.real(number)) for number in numbers]))
    for scale, codes in (loads, loads[::-1]) if len(loads) == 2 else ():
        load = plain_load(scale)
        if load is None or scale.dtype != f32 or not _is_plain(load):
            continue
        for run, held, dtype, factor in _codes(codes, axis):
            size = BLOCKS.get((dtype, load.dtype), 0)
            if size == 0 or size % run:
                continue
            shared = _subscripts(load, axis, {axis: dims.symbol(BLOCK) * size + dims.symbol(_WITHIN)}, {_WITHIN: size})
            placed = _bytes(held, axis, run)
            if shared is not None and placed is not None:
                codes_of, scale_of = replace(held, subscripts=placed), replace(load, subscripts=shared)
                return Scaled(dtype, codes_of, scale_of, run, times * factor)
    return None


def _bytes(load: Load, axis: str, run: int) -> tuple[Dim, ...] | None:
    """The subscripts of codes at PLACE: of a pair in a byte at that of the byte, if both of them stand there."""
    if run == 1:
        return tuple(dims.substitute(each, {axis: dims.symbol(PLACE)}) for each in load.subscripts)
    half, place = run // 2, dims.symbol(PLACE)
    apart = _subscripts(load, axis, {axis: _apart(run)}, {_FIELD: 2, _WITHIN: half}, (_FIELD,))
    if apart is None:
        return None
    return tuple(dims.joined(dims.substitute(each, {_GROUP: place // half, _WITHIN: place % half})) for each in apart)


def _is_plain(load: Load) -> bool:
    return not load.gathers and load.other is None


def _codes(value: Scalar, axis: str) -> list[tuple[int, Load, DType, float]]:
    """What a factor may be codes of: runs of numbers, the load of them, their dtype, and what they are multiplied by."""
    load = plain_load(value)
    if load is not None:
        return [(1, load, load.dtype, 1.0)] if load.dtype in (f8e4m3, f8e5m2) and _is_plain(load) else []
    inner = unwidened(value)
    while isinstance(inner, Apply) and inner.primitive == "cast" and inner.args[0].dtype.is_integer:
        inner = inner.args[0]
    known = tabulate(inner, 4)
    if known is None or known.bits != 4:
        return []
    factor = float(known.numbers[1]) / NUMBERS[1]
    if factor <= 0 or not np.array_equal(known.numbers.astype(np.float64), NUMBERS * factor):
        return []
    masked = known.code
    if mask_of(masked) != 15:
        return []
    shifted = next(arg for arg in masked.args if number_of(arg) is None)
    if not (isinstance(shifted, Apply) and shifted.primitive == "shift_right"):
        return []
    byte, amount = shifted.args
    if not (isinstance(byte, Load) and byte.dtype == u8 and _is_plain(byte) and isinstance(amount, Index)):
        return []
    return [(run, byte, f4e2m1, factor) for run in (16, 32) if _is_field(amount.value, axis, run)]


def _is_field(amount: Dim, axis: str, run: int) -> bool:
    """Whether codes are shifted by the half of a run that they stand in."""
    apart = dims.simplify(dims.substitute(amount, {axis: _apart(run)}), _ranges({_FIELD: 2, _WITHIN: run // 2}))
    return dims.equal(apart, dims.symbol(_FIELD) * 4) is True


def _apart(run: int) -> Dim:
    """A place in numbers: which run, which half of it, which place in that."""
    return dims.symbol(_GROUP) * run + dims.symbol(_FIELD) * (run // 2) + dims.symbol(_WITHIN)


def _ranges(extents: dict[str, int]) -> dims.Facts:
    facts = dims.NO_FACTS
    for name in (_GROUP, PLACE, BLOCK):
        facts = facts.with_range(name, 0, None)
    for name, extent in extents.items():
        facts = facts.with_range(name, 0, extent - 1)
    return facts


def _subscripts(
    load: Load, axis: str, places: dict[str, Dim], extents: dict[str, int], gone: tuple[str, ...] = (_WITHIN,)
) -> tuple[Dim, ...] | None:
    """Subscripts at other places, whose extents are known, if none that should be `gone` is left in them."""
    found = tuple(dims.simplify(dims.substitute(each, places), _facts(load, axis, extents)) for each in load.subscripts)
    left = {name for each in found for name in dims.symbols(each)}
    return None if left & {*gone, axis} else found


def _facts(load: Load, axis: str, extents: dict[str, int]) -> dims.Facts:
    facts = _ranges(extents)
    for name in axes_of(load) - {axis}:
        facts = facts.with_range(name, 0, None)
    return facts
