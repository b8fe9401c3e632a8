"""Convolutions of images with few channels: a row of the window is one stretch of memory, which is summed at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...ir import dims
from ...ir.dims import Dim
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ..base import RulePass
from ..match import Replacement, operand, producer
from .pad_terms import COLUMNS, GROUPS, padded

MOST = 8
"""Channels of an image at most: it is copied, and one of more channels costs more than what it saves."""
FASTER = 3
"""So many times fewer steps there must be: the copy takes as long as several of them."""
LANES = 16
"""Groups that one step of an instruction for matrices takes."""


@dataclass(frozen=True)
class MergeWindows(RulePass):
    """Sum along a row of the window and its channels at once, where one place has too few channels to fill an instruction.

    Before: %y = conv(%x : bf16[1, 3, 224, 224], @w : bf16[64, 3, 7, 7]) {strides = [2, 2], before = [3, 3], after = [3, 3]}
    After:  %p = pad(%x) : bf16[1, 4, 224, 230]   %r = reshape(transpose(%p)) : bf16[1, 1, 224, 920]
            %y = conv(%r, @v : bf16[64, 1, 7, 28]) {strides = [2, 8], before = [3, 0], after = [3, 0]}

    Places lie behind one another with their channels, so that windows are windows still, each as many times as wide. What is
    padded is 0 in both factors.
    """

    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def rules(self) -> Sequence[Rule]:
        """One: a window that is merged has one channel."""
        return (MergedWindow(),)


@dataclass(frozen=True)
class MergedWindow(Rule):
    """conv(x, w) -> conv(reshape(transpose(pad(x))), reshape(transpose(pad(w))))"""

    ops: ClassVar[tuple[str, ...]] = ("conv",)
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def check(self, op: Op, module: Module) -> str | None:
        image, filters = operand(op, 0), operand(op, 1)
        group = GROUPS.get(image.dtype)
        if group is None or GROUPS.get(filters.dtype) != group:
            return f"factors of {image.dtype} and {filters.dtype} are multiplied one by one"
        if filters.constant is None:
            return "the filters are not constant: to rearrange them costs a kernel in each call"
        if op.attrs["groups"] != 1 or op.attrs["dilations"][-1] != 1:
            return "a row of the window is no stretch of memory"
        sizes = _sizes(op)
        if sizes is None or 0 in (*image.shape, *op.result.shape):
            return "sizes of the filters are not known, or there are no elements"
        outputs, channels, width = sizes
        if outputs < COLUMNS or channels > MOST:
            return f"an image of {channels} channels is not copied for {outputs} filters"
        if channels == 1 and width % group == 0 and not _is_padded(op):
            return "it is merged"
        whole, step = _channels(channels, width, group), LANES * group
        if width * dims.evaluate(dims.ceil_div(whole, step), {}) < FASTER * dims.evaluate(dims.ceil_div(width * whole, step), {}):
            return f"a row of {width} places with {channels} channels takes nearly as many steps as its places do"
        if any(dims.at_most(0, op.attrs[name][-1], module.facts) is not True for name in ("before", "after")):
            return "the image is cut, or may be"
        merged = _attrs(op, whole)
        places = (_merged_width(op, whole) - width * whole) // merged["strides"][-1] + 1
        return None if dims.equal(places, op.result.shape[-1]) is True else "the number of places is not known to be the same"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        image, filters = operand(op, 0), operand(op, 1)
        rank, (_, channels, width) = image.type.rank, _sizes(op) or (0, 0, 0)
        whole = _channels(channels, width, GROUPS[image.dtype])
        more = whole - channels
        if more or _is_padded(op):
            filters, image = padded(g, filters, 1, more), _padded(op, g, more)
        last = (0, *range(2, rank), 1)
        image = g.reshape(g.transpose(image, permutation=last), shape=(image.shape[0], 1, *image.shape[2:-1], _merged_width(op, whole)))
        filters = g.reshape(g.transpose(filters, permutation=last), shape=(filters.shape[0], 1, *filters.shape[2:-1], width * whole))
        (result,) = g.build(op.definition, (image, filters, *op.operands[2:]), _attrs(op, whole))
        return result


def _sizes(op: Op) -> tuple[int, int, int] | None:
    """Filters, channels and the width of the window, if they are known and there is a window."""
    shape = operand(op, 1).shape
    outputs, channels, width = shape[0], shape[1], shape[-1]
    known = isinstance(outputs, int) and isinstance(channels, int) and isinstance(width, int)
    return (outputs, channels, width) if known and len(shape) > 2 else None  # type: ignore[return-value]


def _channels(channels: int, width: int, group: int) -> int:
    """So many channels that a row of the window is whole groups."""
    return channels if channels * width % group == 0 else channels + -channels % group


def _is_padded(op: Op) -> bool:
    """Whether rows of the image are padded."""
    return any(dims.equal(op.attrs[name][-1], 0) is not True for name in ("before", "after"))


def _padded(op: Op, g: Builder, more: int) -> Value:
    """The image with `more` channels and its rows padded, all at once. What is rounded to be multiplied is rounded where it is there."""
    image = operand(op, 0)
    rounded = producer(image, "cast")
    wide = image if rounded is None else operand(rounded, 0)
    before, after = ([0] * image.type.rank for _ in range(2))
    before[-1], after[-1], after[1] = op.attrs["before"][-1], op.attrs["after"][-1], more
    found: Value = g.pad(wide, before=tuple(before), after=tuple(after))
    return found if rounded is None else g.cast(found, dtype=image.dtype)


def _merged_width(op: Op, channels: int) -> Dim:
    """The elements of a row of the image with what pads it."""
    padding: Dim = op.attrs["before"][-1] + op.attrs["after"][-1]
    return (operand(op, 0).shape[-1] + padding) * channels


def _attrs(op: Op, channels: int) -> dict[str, Any]:
    """The attributes of the merged convolution."""
    attrs = dict(op.attrs)
    attrs["strides"] = (*attrs["strides"][:-1], attrs["strides"][-1] * channels)
    for name in ("before", "after"):
        attrs[name] = (*attrs[name][:-1], 0)
    return attrs
