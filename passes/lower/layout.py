"""Layouts: the memory order of constants and of images between kernels.

On x86 all instruction-set levels share panels of 16 columns with the contracted axis grouped to four bytes (f32
`n/16 k n%16`, bf16 `n/16 k/2 n%16 k%2`, integers of 8 bits that are summed in 32 `n/16 k/4 n%16 k%4`), which AVX2,
AVX-512 and AMX stream alike; f16 lies as f32 does, but in pairs where tiles multiply it. Where blocks of codes are summed as
integers, and few of them, they are up to 64 columns wide: what few rows read of such weights is one stream of memory then; panels
of 16 side by side are four short ones, which take longer.
Images lie with their channels innermost, so that a convolution's output channels are the lanes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from itertools import chain

from ...ir import dims
from ...ir.codes import FOUR
from ...ir.graph import Graph, Op, Value
from ...ir.layout import Factor, Layout
from ...ir.ops.structure import region_of
from ...ir.region import Load, Reduce, Region, walk
from ...ir.target import PAIRS
from ...ir.types import bf16, f16, i8, u8
from ...ir.workload import size_at
from ..match import operand
from ..regions.blocks import in_blocks
from ..regions.contraction import Contraction, bytes_of, group_of, innermost, plain_load, read_contraction, stride_of
from ..regions.facts import has_kernel
from ..regions.selections import find_selections
from ..regions.shadows import seen_outside
from ..regions.split_groups import split_groups

PANEL = 16
"""Columns of a panel, the lanes of the widest vector of f32; the last one is filled up with zeros."""
WIDE = (64, 32)
"""Columns of short panels that are summed in blocks, where all of them are whole."""
COLUMNS = 8
"""Results of a group from which on its products are matrices: fewer fill less than half of a vector."""
SHORT = 2048
"""Contracted elements up to which a panel is short: panels of 16 columns side by side are streams of a few pages of memory each."""


def constant_layouts(region: Region, constants: frozenset[str], pairs: Collection[str] = PAIRS) -> dict[str, Layout]:
    """The layouts of a region's constant operands; those not named stay row-major. Numbers of the dtypes of `pairs` lie in pairs.

    Every constant of the right factor lies in panels, whatever is computed from it: narrow values, their scales, the
    places of sparse ones.
    """
    region = in_blocks(region, dims.NO_FACTS)
    found = read_contraction(region)
    if isinstance(found, str) or not (found.columns or found.batch):
        return {}
    # Where both factors vary over the lanes (a convolution of each channel by itself) either may be the constant.
    scaled = () if found.block is None else walk(found.reduce.value)
    sides = chain(walk(found.right), scaled) if found.columns else chain(walk(found.left), walk(found.right))
    layouts: dict[str, Layout] = {}
    for part in sides:
        if isinstance(part, Load) and part.operand in constants and not part.gathers and part.other is None:
            layout = _panels(region, found, part, pairs)
            if layout is not None:
                layouts[part.operand] = layout
    return layouts


def _panels(region: Region, found: Contraction, load: Load, pairs: Collection[str]) -> Layout | None:
    """Panels of the columns of one operand; None where the columns are not one whole dimension of two or more."""
    column = found.columns[-1] if found.columns else innermost(region, found.store)
    labels = tuple(f"d{n}" for n in range(len(load.subscripts)))
    place = [n for n, s in enumerate(load.subscripts) if column in dims.symbols(s)]
    if len(place) != 1 or len(labels) < 2 or not _in_panels(region, load, place[0], column, PANEL):
        return None
    lane = labels[place[0]]
    size = dims.number(region.operand(load.operand).type.shape[place[0]])
    # What is decoded lies in several operands, each with streams of its own.
    is_coded = found.block is not None or plain_load(found.right) is None
    wide = WIDE if is_coded and _size(region, found.over) <= SHORT else ()
    width = next((n for n in wide if size % n == 0 and _in_panels(region, load, place[0], column, n)), PANEL)
    # The contracted axes lie in the order in which they are looped over; what is left goes before them.
    inner = [labels[n] for name in found.over for n, s in enumerate(load.subscripts) if name in dims.symbols(s)]
    outer = [label for label in labels if label != lane and label not in inner]
    order = (*outer, *dict.fromkeys(inner))
    count = group_of(region, found, pairs)
    if count > 1 and _lies_together(region, found, load, labels.index(order[-1]), count):
        rest = tuple(Factor(label) for label in order[:-1])
        group = Factor(order[-1], count), Factor(lane, 1, width), Factor(order[-1], 1, count)
        return Layout(labels, (Factor(lane, width), *rest, *group))
    rest = tuple(Factor(label) for label in order)
    return Layout(labels, (Factor(lane, width), *rest, Factor(lane, 1, width)))


def _lies_together(region: Region, found: Contraction, load: Load, dimension: int, count: int) -> bool:
    """Whether neighbours along the innermost contracted axis are neighbours in this dimension, whole groups apart from others; or those
    that are kept of them, where some are selected.
    """
    inner = found.over[-1]
    for each in find_selections(region, found.right, inner):
        kept = [part for part in walk(each.number) if isinstance(part, Load) and part.operand == load.operand]
        if kept:
            return all(dims.divides(count, part.subscripts[dimension] - dims.symbol(each.kept)) is True for part in kept)
    together = dims.divides(count, load.subscripts[dimension] - dims.symbol(inner)) is True
    return together and load in (plain_load(found.right), *bytes_of(found.right))


def _in_panels(region: Region, load: Load, place: int, column: str, width: int) -> bool:
    """Whether a dimension is stepped through by the columns alone, or in parts (heads) that are each whole panels of `width`."""
    size, extent = region.operand(load.operand).type.shape[place], region.axis(column).extent
    before = load.subscripts[place] - dims.symbol(column)
    return size == extent if before == 0 else dims.divides(width, before) is True and dims.divides(width, extent) is True


IMAGE_OPS = frozenset({"conv", "conv_transpose", "max_pool", "avg_pool", "resize"})
SIDEWAYS = frozenset({"concat", "slice", "pad", "take"})
"""Movements that keep dimensions apart: what they give lies as what they take does."""
CODED = frozenset({"quantize", "dequantize"})
"""What gives each element another form and leaves it where it is."""
COPIED = 2
"""Accesses of an element that a copy from one order into another costs: the one that strides and the one that does not."""


def channels_last(graph: Graph) -> dict[Value, tuple[int, ...]]:
    """Memory orders for the images of a graph: results of convolutions and poolings and what is computed from them.

    Results of the graph and what host steps see stay row-major, unless the kernel that computes them gains more than the copy into
    row-major order costs that they then need (`regions/shadows.py`). The caller's inputs do, unless convolutions of narrow numbers read
    them: these gain more than a copy costs.
    """
    hosted = frozenset(op for op in graph if not has_kernel(op))
    outside = seen_outside(graph, hosted)
    states = {value for tie in graph.ties for value in tie if isinstance(value, Value)}
    orders = {value: _innermost_channels(value) for value in _narrow_images(graph) if value.constant is None and value not in states}
    gains = dict.fromkeys(orders, False)
    for op in graph:
        if len(op.results) != 1 or op.result.type.rank < 3 or op in hosted:
            continue
        images = [v for v in op.operands if v is not None and v in orders and v.type.rank == op.result.type.rank]
        follows = (op.definition.kind == "pointwise" or op.name in SIDEWAYS | CODED) and bool(images)
        if op.name not in IMAGE_OPS and not follows and not (_turns_back(op) and op.operands[0] not in orders):
            continue
        # The end of a convolution's kernel is in it whatever its order is, and gains what the convolution does.
        ends = (op.definition.kind == "pointwise" or op.name in CODED) and any(gains[v] and len(v.uses) == 1 for v in images)
        gains[op.result] = ends if follows else _gains(op, bool(images))
        if op.result not in outside or gains[op.result]:
            orders[op.result] = _innermost_channels(op.result)
    return orders


def _turns_back(op: Op) -> bool:
    """Whether a transpose puts channels that lie innermost in front, for an op on images: with them innermost nothing moves.

    Of three dimensions the one that goes to the front may be the places of an image instead: one that has an order already.
    """
    if op.name != "transpose" or op.attrs["permutation"] != (0, op.result.type.rank - 1, *range(1, op.result.type.rank - 1)):
        return False
    return any(user.name in IMAGE_OPS | CODED | {"pad"} or user.definition.kind == "pointwise" for user in op.result.uses)


def _innermost_channels(value: Value) -> tuple[int, ...]:
    return (0, *range(2, value.type.rank), 1)


def _narrow_images(graph: Graph) -> Iterator[Value]:
    """What convolutions of codes and of narrow floats read: instructions take several channels of a place at once, wherever the image
    came from.
    """
    for op in graph:
        image = op.operands[0] if op.name == "conv" else None
        if image is None or image.constant is not None or image.dtype not in (i8, u8, bf16, f16):
            continue
        filters, groups = operand(op, 1), op.attrs["groups"]
        is_whole = dims.divides(FOUR // image.dtype.itemsize, filters.shape[1]) is True
        if groups == 1 or (is_whole and dims.at_most(groups * COLUMNS, filters.shape[0]) is True):
            yield image
        elif image.dtype.is_integer and dims.at_most(dims.product(filters.shape[1:]), COPIED) is False:
            # Each channel by itself, or few of them, for few results: lanes are channels. What pads the image is in the same kernel.
            yield image
            if image.op is not None and image.op.name == "pad":
                yield operand(image.op, 0)


def _gains(op: Op, is_ordered: bool) -> bool:
    """Whether a loop with the channels in its lanes saves more than a copy of its result costs.

    With channels in lanes a sum of products reads one element of the image for all lanes, in whatever order that lies;
    with places in lanes it reads vectors, which padding and strides break up. A fold of an image alone (a pool, a
    convolution of each channel by itself) reads vectors either way: those are whole where the lanes are as the image is.
    """
    whole = region_of(op.definition, op.types, op.attrs)
    if whole is None:
        return False
    region = split_groups(whole, dims.NO_FACTS)  # groups are products each
    found = read_contraction(region)
    image = region.inputs[0].name
    loads = [(s, part) for s in region.body for part in walk(s.value) if isinstance(part, Load) and part.operand == image]
    reads = sum(_size(region, s.over) if isinstance(s, Reduce) else 1 for s, _ in loads)
    if isinstance(found, str) or not (found.columns and found.rows):
        return is_ordered and reads > COPIED
    right = plain_load(found.right)
    if right is None or right.operand != image:
        return False
    is_whole = right.other is None and stride_of(right, region, found.columns[-1]) == 1
    return not is_whole and reads > COPIED


def _size(region: Region, axes: Sequence[str]) -> int:
    """The points of these axes, at sizes to reckon with for symbols."""
    extents = [region.axis(name).extent for name in axes]
    return math.prod(size_at(extent, {}) for extent in extents)
