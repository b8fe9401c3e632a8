"""Rules of movement: chains of reshapes, transposes, broadcasts, slices and concatenations made shorter."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir import dims
from ...ir.dims import Dim
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Rule
from ...ir.ops.table import OPS, broadcast
from ..match import Replacement, matched, operand, producer, same_shape

POINTWISE = tuple(name for name, definition in OPS.items() if definition.kind == "pointwise")
MAXIMUM_STEPS = 16


class MoveNothing(Rule):
    """reshape, broadcast_to or slice to the same shape, transpose by the identity, concat of one, pad by nothing -> x"""

    ops = ("reshape", "broadcast_to", "slice", "transpose", "concat", "pad")

    def check(self, op: Op, module: Module) -> str | None:
        if op.name == "concat":
            return None if len(op.operands) == 1 else "several operands"
        if op.name == "transpose":
            return None if list(op.attrs["permutation"]) == sorted(op.attrs["permutation"]) else "the permutation moves something"
        if op.name == "pad":
            return None if not any((*op.attrs["before"], *op.attrs["after"])) else "there is padding"
        if op.name == "slice" and not (set(op.attrs["starts"]) <= {0} and set(op.attrs["steps"]) <= {1}):
            return "the slice does not start at 0 or has steps"
        return None if same_shape(operand(op, 0).shape, op.result.shape, module) else "the shapes differ"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return operand(op, 0)


class ReshapeOfReshape(Rule):
    """reshape(reshape(x), shape) -> reshape(x, shape)"""

    ops = ("reshape",)

    def check(self, op: Op, module: Module) -> str | None:
        inner = producer(op.operands[0], "reshape")
        if inner is None:
            return "the operand is no reshape"
        counts = (operand(inner, 0).type.elements, op.result.type.elements)
        return None if dims.equal(*counts) is True else "the number of elements is not known to be the same"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return g.reshape(operand(matched(op.operands[0], "reshape"), 0), shape=op.attrs["shape"])


class TransposeOfTranspose(Rule):
    """transpose(transpose(x, p), q) -> transpose(x, p[q])"""

    ops = ("transpose",)

    def check(self, op: Op, module: Module) -> str | None:
        return None if producer(op.operands[0], "transpose") is not None else "the operand is no transpose"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        inner = matched(op.operands[0], "transpose")
        return g.transpose(operand(inner, 0), permutation=tuple(inner.attrs["permutation"][n] for n in op.attrs["permutation"]))


class TransposeOfOnes(Rule):
    """transpose(x, p) -> reshape(x), where p keeps the order of all dimensions but those of size 1"""

    ops = ("transpose",)

    def check(self, op: Op, module: Module) -> str | None:
        kept = [n for n in op.attrs["permutation"] if operand(op, 0).shape[n] != 1]
        moves = list(op.attrs["permutation"]) != sorted(op.attrs["permutation"])
        return None if moves and kept == sorted(kept) else "the permutation moves a dimension that is not 1"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return g.reshape(operand(op, 0), shape=op.result.shape)


class PlacesOfImage(Rule):
    """transpose(reshape(x, [N, C, L]), [0, 2, 1]) -> reshape(transpose(x), [N, L, C]), where L are the places of an image x

    An image with its channels last may lie in memory as it is, and the reshape of it is none.
    """

    ops = ("transpose",)

    def check(self, op: Op, module: Module) -> str | None:
        joined = producer(op.operands[0], "reshape")
        if joined is None or tuple(op.attrs["permutation"]) != (0, 2, 1):
            return "it does not swap the last two of three dimensions of a reshape"
        image = operand(joined, 0).shape
        if len(image) < 4 or image[:2] != joined.result.shape[:2]:
            return "the reshape does not join the places of an image"
        return None if sum(joined.result.uses.values()) == 1 else "the reshape has other users"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        image = operand(matched(op.operands[0], "reshape"), 0)
        return g.reshape(g.transpose(image, permutation=(0, *range(2, image.type.rank), 1)), shape=op.result.shape)


class SwapBetweenReshapes(Rule):
    """reshape(transpose(reshape(x))) -> transpose(reshape(x)), where both reshapes regroup leading dimensions only and
    the last two are swapped
    """

    ops = ("reshape",)

    def check(self, op: Op, module: Module) -> str | None:
        swap = producer(op.operands[0], "transpose")
        inner = producer(swap.operands[0], "reshape") if swap is not None else None
        if swap is None or inner is None:
            return "the operand is no transpose of a reshape"
        rank = swap.result.type.rank
        if rank < 2 or list(swap.attrs["permutation"]) != [*range(rank - 2), rank - 1, rank - 2]:
            return "the last two dimensions are not what is swapped"
        kept = op.result.type.rank >= 2 and op.result.shape[-2:] == swap.result.shape[-2:]
        source = operand(inner, 0)
        kept = kept and source.type.rank >= 2 and source.shape[-2:] == inner.result.shape[-2:]
        return None if kept else "a reshape regroups the last two dimensions"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        inner = matched(matched(op.operands[0], "transpose").operands[0], "reshape")
        rank, shape = op.result.type.rank, op.result.shape
        regrouped = g.reshape(operand(inner, 0), shape=(*shape[:-2], shape[-1], shape[-2]))
        return g.transpose(regrouped, permutation=(*range(rank - 2), rank - 1, rank - 2))


class BroadcastIntoAttention(Rule):
    """attention(q, k, v, broadcast_to(mask)) -> attention(q, k, v, mask)"""

    ops = ("attention",)

    def check(self, op: Op, module: Module) -> str | None:
        mask = op.operands[3] if len(op.operands) > 3 else None
        return None if producer(mask, "broadcast_to") is not None else "the mask is no broadcast_to"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        mask = operand(matched(op.operands[3], "broadcast_to"), 0)
        return g.build(op.definition, (*op.operands[:3], mask), op.attrs)


class BroadcastOfBroadcast(Rule):
    """broadcast_to(broadcast_to(x), shape) -> broadcast_to(x, shape)"""

    ops = ("broadcast_to",)

    def check(self, op: Op, module: Module) -> str | None:
        return None if producer(op.operands[0], "broadcast_to") is not None else "the operand is no broadcast_to"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return g.broadcast_to(operand(matched(op.operands[0], "broadcast_to"), 0), shape=op.attrs["shape"])


class BroadcastIntoPointwise(Rule):
    """f(broadcast_to(x), y) -> f(x, y), where y still gives the result its shape; so with a reshape that only adds
    leading ones, unless it splits the rows of a product again
    """

    ops = POINTWISE

    def check(self, op: Op, module: Module) -> str | None:
        operands = _unbroadcast(op)
        return "no operand is broadcast beyond need" if operands is None else None

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return g.build(op.definition, _unbroadcast(op) or op.operands, op.attrs)


def _unbroadcast(op: Op) -> tuple[Value | None, ...] | None:
    """The operands with needless broadcasts left out; None if there is no such."""
    operands, changed = list(op.operands), False
    if not any(producer(value, "broadcast_to", "reshape") for value in operands):
        return None
    for position, value in enumerate(operands):
        moved = producer(value, "broadcast_to", "reshape")
        if moved is None or not _only_broadcasts(moved):
            continue
        shorter = [*operands[:position], operand(moved, 0), *operands[position + 1 :]]
        if _broadcast_shape(shorter) == op.result.shape:
            operands, changed = shorter, True
    return tuple(operands) if changed else None


def _only_broadcasts(moved: Op) -> bool:
    if moved.name == "broadcast_to":
        return True
    before, after = operand(moved, 0).shape, moved.result.shape
    ones = len(after) > len(before) and after == (*[1] * (len(after) - len(before)), *before)
    # Rows that are split into one batch stay so: the program is then the one of many batches.
    return ones and not _is_rows_of_product(operand(moved, 0))


def _is_rows_of_product(value: Value) -> bool:
    """Whether a matrix is a product, or made of one element by element."""
    for _ in range(MAXIMUM_STEPS):
        if value.op is None or value.type.rank != 2:
            return False
        if value.op.name == "matmul":
            return True
        whole = [part for part in value.op.operands if part is not None and part.shape == value.shape]
        if value.op.name not in POINTWISE or not whole:
            return False
        value = whole[0]
    return False


def _broadcast_shape(operands: Sequence[Value | None]) -> tuple[Dim, ...]:
    return broadcast("operand", *(value.shape for value in operands if value is not None))


class ConcatOfConcat(Rule):
    """concat(concat(x, y), z) -> concat(x, y, z), along one axis; operands of size 0 are left out"""

    ops = ("concat",)

    def check(self, op: Op, module: Module) -> str | None:
        parts = _parts(op)
        return None if parts and tuple(parts) != op.operands else "no operand is a concat along this axis or empty"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return g.concat(*_parts(op), axis=op.attrs["axis"])


def _parts(op: Op) -> list[Value]:
    rank = op.result.type.rank
    axis = op.attrs["axis"] % rank
    parts: list[Value] = []
    for n in range(len(op.operands)):
        value = operand(op, n)
        inner = producer(value, "concat")
        # Read once only: flattening what is shared would make operands grow without bound.
        if inner is not None and inner.attrs["axis"] % rank == axis and sum(value.uses.values()) == 1:
            parts += [operand(inner, k) for k in range(len(inner.operands))]
        elif value.shape[axis] != 0:
            parts.append(value)
    return parts


class SliceOfSlice(Rule):
    """slice(slice(x)) -> slice(x)"""

    ops = ("slice",)

    def check(self, op: Op, module: Module) -> str | None:
        return None if producer(op.operands[0], "slice") is not None else "the operand is no slice"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        inner = matched(op.operands[0], "slice")
        starts = tuple(a + b * step for a, b, step in zip(inner.attrs["starts"], op.attrs["starts"], inner.attrs["steps"], strict=True))
        steps = tuple(a * b for a, b in zip(inner.attrs["steps"], op.attrs["steps"], strict=True))
        return g.slice(operand(inner, 0), starts=starts, sizes=op.attrs["sizes"], steps=steps)


class SliceOfConcat(Rule):
    """slice(concat(x, y)) -> slice(x), where the slice lies within one operand"""

    ops = ("slice",)

    def check(self, op: Op, module: Module) -> str | None:
        return None if _sliced_part(op, module) is not None else "the slice does not lie within one operand of a concat"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        found = _sliced_part(op, g.module)
        if found is None:
            return op.result
        part, axis, start = found
        starts = tuple(at - start if n == axis else at for n, at in enumerate(op.attrs["starts"]))
        return g.slice(part, starts=starts, sizes=op.attrs["sizes"], steps=op.attrs["steps"])


def _sliced_part(op: Op, module: Module) -> tuple[Value, int, Dim] | None:
    """The operand of a concat that a slice stays within, the axis, and where the operand starts."""
    joined = producer(op.operands[0], "concat")
    if joined is None:
        return None
    axis = joined.attrs["axis"] % op.result.type.rank
    first, size, step = op.attrs["starts"][axis], op.attrs["sizes"][axis], op.attrs["steps"][axis]
    low, high = (first, first + (size - 1) * step) if step > 0 else (first + (size - 1) * step, first)
    start: Dim = 0
    for n in range(len(joined.operands)):
        part = operand(joined, n)
        end = start + part.shape[axis]
        if dims.at_most(start, low, module.facts) is True and dims.at_most(high + 1, end, module.facts) is True:
            return part, axis, start
        start = end
    return None


class ConcatOfSlices(Rule):
    """concat(slice(x, 0..a), slice(x, a..n)) -> x, where the slices are neighbours along the axis and cover x"""

    ops = ("concat",)

    def check(self, op: Op, module: Module) -> str | None:
        cut = [producer(value, "slice") for value in op.operands]
        first = cut[0]
        if first is None or any(part is None or part.operands[0] is not first.operands[0] for part in cut):
            return "the operands are no slices of one value"
        if not same_shape(operand(first, 0).shape, op.result.shape, module):
            return "the slices do not cover the value"
        return _neighbours([part for part in cut if part is not None], op.attrs["axis"] % op.result.type.rank)

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        return operand(matched(op.operands[0], "slice"), 0)


def _neighbours(parts: Sequence[Op], axis: int) -> str | None:
    end: Dim = 0
    for part in parts:
        if set(part.attrs["steps"]) != {1} or any(start != 0 for n, start in enumerate(part.attrs["starts"]) if n != axis):
            return "a slice has steps or starts inside another dimension"
        if part.attrs["starts"][axis] != end:
            return "the slices are not neighbours"
        end = end + part.attrs["sizes"][axis]
    return None


RULES: tuple[Rule, ...] = (
    *(MoveNothing(), ReshapeOfReshape(), TransposeOfTranspose(), TransposeOfOnes(), PlacesOfImage(), SwapBetweenReshapes()),
    *(BroadcastOfBroadcast(), BroadcastIntoPointwise(), BroadcastIntoAttention()),
    *(ConcatOfConcat(), SliceOfSlice(), SliceOfConcat(), ConcatOfSlices()),
)
