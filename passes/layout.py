"""Layouts: the memory order of constants and of images between kernels.

On x86 all instruction-set levels share panels of 16 columns with the contracted axis grouped to four bytes (f32
`n/16 k n%16`), which AVX2 and AVX-512 stream alike. Images lie with their channels
innermost, so that a convolution's output channels are the lanes.
"""

from __future__ import annotations

from ..ir import dims
from ..ir.graph import Graph, Value
from ..ir.layout import Factor, Layout
from ..ir.region import Load, Region, walk
from .fuse import has_kernel
from .tile.contraction import Contraction, read_contraction

PANEL = 16


def constant_layouts(region: Region, constants: frozenset[str]) -> dict[str, Layout]:
    """The layouts of a region's constant operands; those not named stay row-major.

    Every constant of the right factor lies in panels, whatever is computed from it: narrow values, their scales, the
    places of sparse ones.
    """
    found = read_contraction(region)
    if isinstance(found, str) or not found.columns:
        return {}
    layouts: dict[str, Layout] = {}
    for part in walk(found.right):
        if isinstance(part, Load) and part.operand in constants and not part.gathers and part.other is None:
            layout = _panels(region, found, part)
            if layout is not None:
                layouts[part.operand] = layout
    return layouts


def _panels(region: Region, found: Contraction, load: Load) -> Layout | None:
    """Panels of 16 columns of one operand; None where the columns are not one whole dimension of two or more."""
    column = found.columns[-1]
    labels = tuple(f"d{n}" for n in range(len(load.subscripts)))
    place = [n for n, s in enumerate(load.subscripts) if column in dims.symbols(s)]
    if len(place) != 1 or str(load.subscripts[place[0]]) != column or len(labels) < 2:
        return None
    if region.operand(load.operand).type.shape[place[0]] != region.axis(column).extent:
        return None
    lane = labels[place[0]]
    # The contracted axes lie in the order in which they are looped over; what is left goes before them.
    inner = [labels[n] for name in found.over for n, s in enumerate(load.subscripts) if name in dims.symbols(s)]
    outer = [label for label in labels if label != lane and label not in inner]
    rest = tuple(Factor(label) for label in (*outer, *dict.fromkeys(inner)))
    return Layout(labels, (Factor(lane, PANEL), *rest, Factor(lane, 1, PANEL)))


def channels_last(graph: Graph) -> dict[Value, tuple[int, ...]]:
    """Memory orders for the images of a graph: results of convolutions and poolings and what is computed from them.

    The caller's inputs and outputs and what host steps see stay row-major.
    """
    fixed = set(graph.outputs)
    orders: dict[Value, tuple[int, ...]] = {}
    for op in graph:
        if not has_kernel(op):
            fixed |= {value for value in (*op.operands, *op.results) if value is not None}
    for op in graph:
        if len(op.results) != 1 or op.result.type.rank < 3 or op.result in fixed:
            continue
        follows = op.definition.kind == "pointwise" and any(
            v in orders and v.type.rank == op.result.type.rank for v in op.operands if v is not None
        )
        if op.name in IMAGE_OPS or follows:
            rank = op.result.type.rank
            orders[op.result] = (0, *range(2, rank), 1)
    return orders


IMAGE_OPS = frozenset({"conv", "conv_transpose", "max_pool", "avg_pool", "resize"})
