"""Loops over axes of a region, one inside the other: by single indices, or by tiles in stretches that are full or masked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...ir import dims
from ...ir.dims import Dim
from ...ir.tile.program import Ref
from .lower import Block


@dataclass(frozen=True)
class Walk:
    """How an axis is walked: in tiles of `step` elements, or by its indices if that is 1.

    A stretch is (low, high, whether every tile lies inside); together they are the axis. One that is `written_out` is no loop in the
    printed text where its bounds are known.
    """

    axis: str
    step: int
    stretches: tuple[tuple[Dim, Dim, bool], ...]
    written_out: bool = False


def walk(block: Block, walks: Sequence[Walk], body: Callable[[bool], None], carries: tuple[Ref, ...] = (), is_whole: bool = True) -> None:
    """Loops in this order around what `body` adds, which is told whether all of a step lies inside."""
    if not walks:
        body(is_whole)
        return
    own, *inner = walks
    for low, high, whole in own.stretches:
        kind, hints = "scalar" if own.step == 1 else "tile", (("unroll", 1),) if own.written_out else ()
        with block.loop(own.axis, kind, low, high, own.step, carries=carries, hints=hints) as name:
            block.index[own.axis] = dims.symbol(name)
            walk(block, inner, body, carries, is_whole and whole)
