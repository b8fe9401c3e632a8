"""Layout of constants: the one memory order that each constant operand of a contraction gets on a target.

On x86 all instruction-set levels share panels of 16 columns with the contracted axis grouped to four bytes (f32
`n/16 k n%16`), which AVX2 and AVX-512 stream alike.
"""

from __future__ import annotations

from ..ir import dims
from ..ir.layout import Factor, Layout
from ..ir.region import Region
from .tile.contraction import plain_load, read_contraction

PANEL = 16


def constant_layouts(region: Region, constants: frozenset[str]) -> dict[str, Layout]:
    """The layouts of a region's constant operands; those not named stay row-major."""
    found = read_contraction(region)
    if isinstance(found, str):
        return {}
    load = plain_load(found.right)
    if load is None or load.operand not in constants or load.gathers or load.other is not None or not found.columns:
        return {}
    column = found.columns[-1]
    labels = tuple(f"d{n}" for n in range(len(load.subscripts)))
    place = [n for n, s in enumerate(load.subscripts) if column in dims.symbols(s)]
    if len(place) != 1 or str(load.subscripts[place[0]]) != column:
        return {}
    if region.operand(load.operand).type.shape[place[0]] != region.axis(column).extent:
        return {}
    lane = labels[place[0]]
    rest = tuple(Factor(label) for label in labels if label != lane)
    return {load.operand: Layout(labels, (Factor(lane, PANEL), *rest, Factor(lane, 1, PANEL)))}
