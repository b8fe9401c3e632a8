"""Loads through tensor descriptors (TMA): where the hint stands and the access allows it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...ir import dims
from ...ir.dims import Dim
from ...ir.expression import Constant
from ...ir.tile import checks_of
from ...ir.tile.program import Load, Param
from ...ir.tile.scope import Scope
from . import indices
from .emitter import Emitter, Tile
from .words import shape_text

ISA = 86
"""Triton's copies through descriptors are instructions of this ISA of PTX."""
_MAXIMUM_BLOCK = 256  # elements of one dimension of a block, a limit of the hardware


@dataclass(frozen=True)
class _Block:
    """A descriptor's block: per dimension the tile axis (None: one element), extents and starts."""

    axes: tuple[str | None, ...]
    extents: tuple[int, ...]
    starts: tuple[Dim, ...]


def load(emitter: Emitter, scope: Scope, value: Load, operand: Param) -> Tile | None:
    """The load through a descriptor; None, with a note, where it must go by pointers."""
    reason, strides = _why_not_operand(emitter, scope, operand)
    block = _block(scope, value, operand)
    if reason is None and block is None:
        reason = "a subscript is neither a tile axis nor a number"
    if reason is None and block is not None:
        reason = _why_not_block(scope, value, operand, block)
    if reason is not None or block is None:
        emitter.note(f"load of {operand.name} goes by pointers, not by descriptor: {reason}")
        return None
    name = _declare(emitter, scope, operand, block, strides)
    starts = ", ".join(indices.scalar(emitter, scope, start) for start in block.starts)
    axes = tuple(axis for axis in block.axes if axis is not None)
    text = f"{name}.load([{starts}])"
    if len(axes) != len(block.axes):
        text = f"tl.reshape({text}, {shape_text(emitter.shape(scope, axes))})"
    return Tile(text, axes, value.type.dtype, wanted=f"{operand.name}_tile")


def _why_not_operand(emitter: Emitter, scope: Scope, operand: Param) -> tuple[str | None, tuple[Dim, ...]]:
    """Why this operand can have no descriptor, and its strides if it can."""
    if operand.name in emitter.anywhere:
        return "it is not known to start at a multiple of 16 bytes", ()
    if operand.layout is not None:
        return "it has a layout of its own", ()
    shape = operand.shape
    strides = operand.strides or tuple(dims.product(shape[n + 1 :]) for n in range(len(shape)))
    if not 2 <= len(shape) <= 5:
        return f"it has {len(shape)} dimensions, a descriptor takes 2 to 5", ()
    if strides[-1] != 1:
        return "its last dimension is not contiguous", ()
    granule = max(1, 128 // operand.dtype.bits)
    if any(dims.divides(granule, stride, scope.facts) is not True for stride in strides[:-1]):
        return "its rows are not known to start at multiples of 16 bytes", ()
    return None, strides


def _block(scope: Scope, value: Load, operand: Param) -> _Block | None:
    axes: list[str | None] = []
    starts: list[Dim] = []
    for subscript in value.subscripts:
        # A part of a longer dimension, one head of several side by side, say, starts further on.
        name = next((axis for axis in scope.tile_axes if not indices.varies(scope, subscript - dims.symbol(axis))), None)
        if name is None and indices.varies(scope, subscript):
            return None
        axes.append(name)
        starts.append(subscript if name is None else dims.substitute(subscript, {name: dims.symbol(scope.axis(name).first)}))
    named = [axis for axis in axes if axis is not None]
    if len(set(named)) != len(named):
        return None
    return _Block(tuple(axes), tuple(1 if axis is None else scope.extent(axis) for axis in axes), tuple(starts))


def _why_not_block(scope: Scope, value: Load, operand: Param, block: _Block) -> str | None:
    if block.extents[-1] * operand.dtype.bits < 128:
        return "its rows are shorter than 16 bytes"
    if max(block.extents) > _MAXIMUM_BLOCK:
        return f"a block of {max(block.extents)} elements is longer than {_MAXIMUM_BLOCK}"
    ends = {axis: size for axis, size in zip(block.axes, operand.shape, strict=True) if axis is not None}
    for check in checks_of(scope, value):
        if len(check.axes) != 1 or check.index != dims.symbol(check.axes[0]) or check.low is not None:
            return "it is masked by more than the operand's own bounds"
        if dims.equal(check.high if check.high is not None else 0, ends[check.axes[0]], scope.facts) is not True:
            return "it is masked by more than the operand's own bounds"
        if value.other is not None and (value.other.value != 0 or _is_negative(value.other)):
            return f"masked lanes are {value.other}, a descriptor gives 0"
    return None


def _is_negative(constant: Constant) -> bool:
    """Whether a literal is negative, a zero too."""
    return isinstance(constant.value, float) and math.copysign(1.0, constant.value) < 0


def _declare(emitter: Emitter, scope: Scope, operand: Param, block: _Block, strides: tuple[Dim, ...]) -> str:
    """One descriptor for each operand and block, made before everything else."""
    key = (operand.name, block.extents)
    if key not in emitter.descriptors:
        name = emitter.fresh(f"{operand.name}_descriptor")
        emitter.descriptors[key] = name
        emitter.isa = max(emitter.isa, ISA)
        shape = ", ".join(indices.scalar(emitter, scope, extent) for extent in operand.shape)
        steps = ", ".join(indices.scalar(emitter, scope, stride) for stride in strides)
        emitter.preamble.append(f"{name} = tl.make_tensor_descriptor({operand.name}_ptr, [{shape}], [{steps}], {list(block.extents)})")
    return emitter.descriptors[key]
