"""Steps of coded factors in parts: along a step of k codes share bytes and groups share scales, so each is loaded once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ....ir import dims
from ....ir.dims import Dim
from ....ir.expression import Index
from ....ir.region import Load, Ref, Scalar, transform, walk
from ....ir.tile.program import Join, Rename, TileType, Value
from ...regions.contraction import axes_of
from ..lower import Block

FIELDS = 8
"""Fields of the same bytes, which are taken out one after the other, at most."""


def parted_factor(block: Block, value: Scalar, axis: str, k: str, base: Dim, step: int) -> Value | None:
    """The factor at `base` and the step that follows it of `axis`, on the tile axis `k`; None where its places are in no parts.

    `base` is a multiple of the step, and the step lies inside of the axis. A part of the step is a tile axis of its own, which ends here.

    Before: w[(first + lane) // 32 * 16 + (first + lane) % 16] at 64 lanes
    After:  w[(first // 64 * 2 + part) * 16 + part_1] at 2 x 16 lanes, joined for 2 fields of each
    """
    sizes = sorted({*_divisors(value, axis), step})
    is_chain = all(large % small == 0 for small, large in pairwise(sizes))
    # What is only loaded is copied to where products read it; taken apart it would go through registers.
    if isinstance(value, Load) or not is_chain or sizes == [step] or any(isinstance(part, Ref) for part in walk(value)):
        return None
    parts = [_Part(f"{axis}.{low}", low, high // low if high else None) for low, high in pairwise((1, *sizes, 0))]
    facts = dims.NO_FACTS
    for name in axes_of(value) - {axis}:
        facts = facts.with_range(name, 0, None)
    place: Dim = 0
    for part in parts:
        facts = facts.with_range(part.name, 0, None if part.extent is None else part.extent - 1)
        place = place + dims.symbol(part.name) * part.stride
    placed, within = _placed(value, axis, place, facts), [part for part in reversed(parts) if part.stride < step]
    if any((part.extent or 0) > FIELDS and not _is_loaded_along(placed, part) for part in within):
        return None
    outer, index = list(block.axes), dict(block.index)
    for part in parts:
        if part.stride >= step:
            block.index[part.name] = base // part.stride if part.extent is None else base // part.stride % part.extent
    result, inner = _lowered(block, placed, within)
    block.axes, block.index = outer, index
    axes = block.ordered({*(a for a in result.type.axes if a not in inner), k})
    return Rename(result, tuple(inner), (k,), TileType(result.type.dtype, axes))


@dataclass(frozen=True)
class _Part:
    """A part of a place: so many of it (None: all that there are), so far apart."""

    name: str
    stride: int
    extent: int | None


def _lowered(block: Block, value: Scalar, parts: Sequence[_Part]) -> tuple[Value, list[str]]:
    """The tile of a factor, and the axes that its parts became, the slowest first: several where fields of the same bytes are joined."""
    axes: dict[str, list[str]] = {}
    shared = [part for part in parts if not _is_loaded_along(value, part)]
    for part in (part for part in parts if part not in shared):
        axes[part.name] = [block.axis("part", 0, part.extent or 1, part.extent or 1)]
        block.index[part.name] = dims.symbol(axes[part.name][0])
    for part in shared:
        axes[part.name] = [block.axis("field", 0, 2, 2) for _ in range(((part.extent or 1) - 1).bit_length())]
    result = _joined(block, value, shared, axes)
    return result, [axis for part in parts for axis in axes[part.name]]


def _joined(block: Block, value: Scalar, shared: Sequence[_Part], axes: dict[str, list[str]]) -> Value:
    """The tiles of all fields of the same bytes, joined along axes of two."""
    if not shared:
        return block.lower(value)
    part, *rest = shared
    found = []
    for number in range(part.extent or 1):
        block.index[part.name] = number
        found.append(_joined(block, value, rest, axes))
    for axis in reversed(axes[part.name]):
        found = [Join(a, b, axis, TileType(a.type.dtype, (*a.type.axes, axis))) for a, b in zip(found[::2], found[1::2], strict=True)]
    return found[0]


def _is_loaded_along(value: Scalar, part: _Part) -> bool:
    return any(isinstance(each, Load) and any(part.name in dims.symbols(s) for s in each.subscripts) for each in walk(value))


def _placed(value: Scalar, axis: str, place: Dim, facts: dims.Facts) -> Scalar:
    """The factor with a place for its axis."""

    def moved(dim: Dim) -> Dim:
        return dims.simplify(dims.substitute(dim, {axis: place}), facts)

    def change(part: Scalar) -> Scalar | None:
        if isinstance(part, Load):
            return replace(part, subscripts=tuple(map(moved, part.subscripts)))
        return replace(part, value=moved(part.value)) if isinstance(part, Index) else None

    return transform(value, change)


def _divisors(value: Scalar, axis: str) -> Iterator[int]:
    """The numbers that an axis is divided by where a factor is read."""
    pending: list[Dim] = []
    for part in walk(value):
        pending += part.subscripts if isinstance(part, Load) else (part.value,) if isinstance(part, Index) else ()
    for dim in pending:
        for monomial, _ in () if isinstance(dim, int) else dim.terms:
            for atom in monomial:
                if isinstance(atom, dims.Function):
                    pending += (atom.left, atom.right)
                    if atom.kind in ("div", "mod") and isinstance(atom.right, int) and atom.left == dims.symbol(axis):
                        yield atom.right
