"""Loads and stores through tensor descriptors (TMA): where the hint stands and the access allows it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from ...ir import dims
from ...ir.dims import Dim
from ...ir.expression import Constant
from ...ir.tile import checks_of
from ...ir.tile.program import Load, Param, Store
from ...ir.tile.scope import Scope
from . import indices
from .emitter import Emitter, Tile
from .words import shape_text

ISA = 86
"""Triton's copies through descriptors are instructions of this ISA of PTX."""
_MAXIMUM_BLOCK = 256  # elements of one dimension of a block, a limit of the hardware


@dataclass(frozen=True)
class _View:
    """An operand as a descriptor sees it, and the block that is read or written: per dimension the tile axis (None: one element), extents
    and starts.
    """

    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    axes: tuple[str | None, ...]
    extents: tuple[int, ...]
    starts: tuple[Dim, ...]

    @property
    def named(self) -> tuple[str, ...]:
        """The tile axes, in the order of the dimensions."""
        return tuple(axis for axis in self.axes if axis is not None)


def load(emitter: Emitter, scope: Scope, value: Load, operand: Param) -> Tile | None:
    """The load through a descriptor; None, with a note, where it must go by pointers."""
    view = _viewed(emitter, scope, value, operand)
    if isinstance(view, str):
        emitter.note(f"load of {operand.name} goes by pointers, not by descriptor: {view}")
        return None
    text = f"{_block(emitter, scope, operand, view)}.load([{_starts(emitter, scope, view)}])"
    if view.named != view.axes:
        text = f"tl.reshape({text}, {shape_text(emitter.shape(scope, view.named))})"
    return Tile(text, view.named, value.type.dtype, wanted=f"{operand.name}_tile")


def store(emitter: Emitter, scope: Scope, statement: Store, operand: Param, printed: Tile) -> bool:
    """Write a tile through a descriptor; False, with a note, where it must go by pointers.

    What is written so is seen by other kernels, and not for sure by other programs of this one.
    """
    view = _viewed(emitter, scope, statement, operand)
    if not isinstance(view, str) and set(view.named) != set(printed.axes):
        view = "it is repeated along an axis"
    if isinstance(view, str):
        emitter.note(f"store to {operand.name} goes by pointers, not by descriptor: {view}")
        return False
    text = emitter.aligned(printed, view.named)
    if view.named != view.axes:
        text = f"tl.reshape({text}, {shape_text(view.extents)})"
    emitter.line(f"{_block(emitter, scope, operand, view)}.store([{_starts(emitter, scope, view)}], {text})")
    return True


def _starts(emitter: Emitter, scope: Scope, view: _View) -> str:
    return ", ".join(indices.scalar(emitter, scope, start) for start in view.starts)


def _viewed(emitter: Emitter, scope: Scope, access: Load | Store, operand: Param) -> _View | str:
    """The operand in its own dimensions, or in others where it lies without gaps; or why it can have no descriptor."""
    if operand.dtype.bits not in (8, 16, 32) or operand.dtype.kind == "bool":
        return f"a descriptor is for numbers of 8, 16 or 32 bits, got {operand.dtype}"
    if operand.name in emitter.anywhere:
        return "it is not known to start at a multiple of 16 bytes"
    if operand.layout is not None:
        return "it has a layout of its own"
    own = _as_it_is(scope, access, operand)
    if not isinstance(own, str):
        return own
    other = None if operand.strides else _by_place(scope, access, operand)
    return own if other is None else other


def _as_it_is(scope: Scope, access: Load | Store, operand: Param) -> _View | str:
    shape = operand.shape
    strides = operand.strides or tuple(dims.product(shape[n + 1 :]) for n in range(len(shape)))
    if (why := _why_not_shape(scope, operand, shape, strides)) is not None:
        return why
    axes: list[str | None] = []
    starts: list[Dim] = []
    for subscript in access.subscripts:
        # A part of a longer dimension, one head of several side by side, say, starts further on.
        name = next((axis for axis in scope.tile_axes if not indices.varies(scope, subscript - dims.symbol(axis))), None)
        if name is None and indices.varies(scope, subscript):
            return "a subscript is neither a tile axis nor a number"
        axes.append(name)
        starts.append(subscript if name is None else dims.substitute(subscript, {name: dims.symbol(scope.axis(name).first)}))
    named = [axis for axis in axes if axis is not None]
    if len(set(named)) != len(named):
        return "an axis stands in two subscripts"
    view = _View(shape, strides, tuple(axes), tuple(1 if axis is None else scope.extent(axis) for axis in axes), tuple(starts))
    return _why_not_block(view.extents, operand) or _why_not_masks(scope, access, view) or view


def _by_place(scope: Scope, access: Load | Store, operand: Param) -> _View | None:
    """The operand in the dimensions that tile axes step through, where its elements lie one behind the other: rows of codes, say, that
    were written as blocks. Lanes outside of an axis are outside of its dimension, or there are none.
    """
    place: Dim = 0
    for size, subscript in zip(operand.shape, access.subscripts, strict=True):
        place = place * size + subscript
    facts = scope.facts
    place, total = dims.joined(place), dims.product(operand.shape)
    steps: dict[str, int] = {}
    for axis in scope.tile_axes:
        further = dims.substitute(place, {axis: dims.symbol(axis) + 1}) - place
        if not isinstance(further, int) or further < 0:
            return None
        if further:
            steps[axis] = further
    names = sorted(steps, key=lambda axis: -steps[axis])
    strides = tuple(steps[axis] for axis in names)
    rest = dims.simplify(dims.substitute(place, dict.fromkeys(names, 0)), facts)
    if not names or strides[-1] != 1 or any(wide % narrow for wide, narrow in pairwise(strides)):
        return None
    if rest != 0 or dims.divides(strides[0], total, facts) is not True:
        return None
    outer = dims.simplify(total // strides[0], facts)
    shape = (outer, *(wide // narrow for wide, narrow in pairwise(strides)))
    if _why_not_shape(scope, operand, shape, strides) is not None:
        return None
    for axis, size in zip(names, shape, strict=True):
        highs = scope.axis(axis).highs
        # An end that comes before the dimension's own would leave lanes to be masked.
        if not any(dims.equal(high, size, facts) is True for high in highs) or any(
            dims.at_most(size, high, facts) is not True for high in highs
        ):
            return None
    starts = tuple(dims.symbol(scope.axis(axis).first) for axis in names)
    view = _View(shape, strides, tuple(names), tuple(scope.extent(axis) for axis in names), starts)
    fits = _why_not_block(view.extents, operand) is None and _why_not_other(access) is None
    return view if fits else None


def _why_not_shape(scope: Scope, operand: Param, shape: tuple[Dim, ...], strides: tuple[Dim, ...]) -> str | None:
    if not 2 <= len(shape) <= 5:
        return f"it has {len(shape)} dimensions, a descriptor takes 2 to 5"
    if strides[-1] != 1:
        return "its last dimension is not contiguous"
    granule = max(1, 128 // operand.dtype.bits)
    if any(dims.divides(granule, stride, scope.facts) is not True for stride in strides[:-1]):
        return "its rows are not known to start at multiples of 16 bytes"
    return None


def _why_not_block(extents: tuple[int, ...], operand: Param) -> str | None:
    if extents[-1] * operand.dtype.bits < 128:
        return "its rows are shorter than 16 bytes"
    if max(extents) > _MAXIMUM_BLOCK:
        return f"a block of {max(extents)} elements is longer than {_MAXIMUM_BLOCK}"
    return None


def _why_not_masks(scope: Scope, access: Load | Store, view: _View) -> str | None:
    ends = {axis: size for axis, size in zip(view.axes, view.shape, strict=True) if axis is not None}
    for check in checks_of(scope, access):
        if len(check.axes) != 1 or check.index != dims.symbol(check.axes[0]) or check.low is not None:
            return "it is masked by more than the operand's own bounds"
        if dims.equal(check.high if check.high is not None else 0, ends[check.axes[0]], scope.facts) is not True:
            return "it is masked by more than the operand's own bounds"
        if (why := _why_not_other(access)) is not None:
            return why
    return None


def _why_not_other(access: Load | Store) -> str | None:
    other = access.other if isinstance(access, Load) else None
    return None if other is None or _is_zero(other) else f"masked lanes are {other}, a descriptor gives 0"


def _is_zero(constant: Constant) -> bool:
    return constant.value == 0 and not _is_negative(constant)


def _is_negative(constant: Constant) -> bool:
    """Whether a literal is negative, a zero too."""
    return isinstance(constant.value, float) and math.copysign(1.0, constant.value) < 0


def _block(emitter: Emitter, scope: Scope, operand: Param, view: _View) -> str:
    """One descriptor for each operand, its dimensions and block, made before everything else."""
    key = (operand.name, view.shape, view.extents)
    if key not in emitter.descriptors:
        name = emitter.fresh(f"{operand.name}_descriptor")
        emitter.descriptors[key] = name
        emitter.isa = max(emitter.isa, ISA)
        shape = ", ".join(indices.scalar(emitter, scope, extent) for extent in view.shape)
        steps = ", ".join(indices.scalar(emitter, scope, stride) for stride in view.strides)
        emitter.preamble.append(f"{name} = tl.make_tensor_descriptor({operand.name}_ptr, [{shape}], [{steps}], {list(view.extents)})")
    return emitter.descriptors[key]
