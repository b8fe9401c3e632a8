"""Decomposition of transposed convolutions: one plain convolution for all phases of the strides, interleaved."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import ClassVar

import numpy as np

from ...ir import dims
from ...ir.dims import Dim
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ..match import Replacement, operand, producer

MOST = 16
"""Phases at most that are convolutions of their own."""


class TransposedConvolution(Rule):
    """conv_transpose(x, w) -> conv(x, w', before) with the outputs of all phases as channels, moved side by side; filters may be codes.

    Output place s*m + r gets input m - t through element s*t + r of the window: each phase r is a convolution with the
    elements of its own, backwards. Written as one sum over the whole window every product but one of s is with 0.
    Of what is left no product is with 0, but of elements of the window with padding, and those are finite. Where some phases have
    fewer elements of the window than others each is a convolution of its own: to fill them up with 0 would be no 0 of what is infinite.
    """

    ops = ("conv_transpose",)
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def check(self, op: Op, module: Module) -> str | None:
        x, w = operand(op, 0), operand(op, 1)
        coded = _coded(op)
        numbers = w if coded is None else operand(coded, 1)
        if numbers.constant is None:
            return "the filters are not constant, nor codes with scales for each result: to rearrange them costs a kernel in each call"
        if not x.dtype.is_float:
            return "only sums of floats run in register blocks"
        if 0 in x.shape or 0 in op.result.shape or not all(isinstance(size, int) and size > 0 for size in w.shape):
            return "an operand or the result has no elements"
        if any(s != 1 and d != 1 for s, d in zip(op.attrs["strides"], op.attrs["dilations"], strict=True)):
            return "the window has both strides and holes"
        names = ("before", "after", "output_padding", "strides")
        for size, before, after, more, stride in zip(w.shape[2:], *(op.attrs[name] for name in names), strict=True):
            if not all(isinstance(amount, int) for amount in (before, after)):
                return "an amount of padding is a symbol"
            if stride == 1:
                continue
            if before < 0 or dims.at_most(size - after + more, stride * dims.ceil_div(size, stride)) is not True:
                return "the result reaches beyond the phases"
        if math.prod(op.attrs["strides"]) > MOST and not _is_even(op):
            return f"there are more than {MOST} phases, and some have fewer elements of the window"
        if not np.isfinite(numbers.constant.array.astype(np.float64)).all():
            return "an element of the filters is not finite"
        return None

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        if not _is_even(op):
            return _interleaved(op, g, _one_by_one(op, g))
        x, attrs = operand(op, 0), op.attrs
        strides, groups = attrs["strides"], attrs["groups"]
        rank, sizes = len(strides), _sizes(op)
        taps = [size // stride for size, stride in zip(sizes[2:], strides, strict=True)]
        filters, bias = _filters(op, g, taps), op.operands[2] if len(op.operands) > 2 else None
        if bias is not None and math.prod(strides) > 1:
            spread = g.reshape(bias, shape=(groups, *([1] * rank), sizes[1]))
            bias = g.reshape(g.broadcast_to(spread, shape=(groups, *strides, sizes[1])), shape=(filters.shape[0],))
        before, after = _ends(op, taps, taps)
        y = g.conv(x, filters, bias, strides=(1,) * rank, dilations=attrs["dilations"], before=before, after=after, groups=groups)
        return y if math.prod(strides) == 1 else _interleaved(op, g, y)


def _sizes(op: Op) -> tuple[int, ...]:
    """The shape of the filters, which are constant."""
    return tuple(size for size in operand(op, 1).shape if isinstance(size, int))


def _ends(op: Op, taps: Sequence[int], most: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What a phase's convolution pads its image with before and after: `taps` are its elements of the window, `most` those of any.

    Without a stride there is one phase, which the convolution pads or cuts itself.
    """
    names = ("strides", "dilations", "before", "after", "output_padding")
    ends = zip(taps, most, *(op.attrs[name] for name in names), strict=True)
    pads = [(n - 1, m - 1) if s > 1 else ((n - 1) * d - before, (n - 1) * d - after + more) for n, m, s, d, before, after, more in ends]
    return tuple(first for first, _ in pads), tuple(last for _, last in pads)


def _is_even(op: Op) -> bool:
    """Whether all phases have as many elements of the window."""
    return all(size % stride == 0 for size, stride in zip(_sizes(op)[2:], op.attrs["strides"], strict=True))


def _one_by_one(op: Op, g: Builder) -> Value:
    """The results of all phases as [N, groups * phases * outputs, places ..], each by a convolution of its own."""
    x, attrs, sizes, bias = operand(op, 0), op.attrs, _sizes(op), op.operands[2] if len(op.operands) > 2 else None
    strides, groups, rank = attrs["strides"], attrs["groups"], len(attrs["strides"])
    most = [-(-size // stride) for size, stride in zip(sizes[2:], strides, strict=True)]
    found = []
    for phase in itertools.product(*map(range, strides)):
        taps = [-(-(size - first) // stride) for size, first, stride in zip(sizes[2:], phase, strides, strict=True)]
        if min(taps) > 0:
            before, after = _ends(op, taps, most)
            filters = _decoded(op, g, groups, functools.partial(_of_phase, op, g=g, phase=phase, taps=taps))
            y = g.conv(x, filters, bias, strides=(1,) * rank, dilations=attrs["dilations"], before=before, after=after, groups=groups)
        else:
            # No element of the window reaches these places.
            places = tuple(
                size + m - 1 if s > 1 else out for size, m, s, out in zip(x.shape[2:], most, strides, op.result.shape[2:], strict=True)
            )
            y = g.full(shape=(x.shape[0], groups * sizes[1], *places), value=0.0, dtype=op.result.dtype)
            y = y if bias is None else g.add(y, g.reshape(bias, shape=(bias.shape[0], *[1] * rank)))
        found.append(g.reshape(y, shape=(x.shape[0], groups, 1, sizes[1], *y.shape[2:])))
    together = g.concat(*found, axis=2)
    count = groups * math.prod(strides) * sizes[1]
    result: Value = g.reshape(together, shape=(x.shape[0], count, *together.shape[4:]))
    return result


def _of_phase(op: Op, w: Value, *, g: Builder, phase: Sequence[int], taps: Sequence[int]) -> Value:
    """The elements of the window of one phase as [groups * outputs, inputs of a group, taps ...], backwards."""
    strides, groups, (inputs, width, *_) = op.attrs["strides"], op.attrs["groups"], _sizes(op)
    starts = [first + stride * (n - 1) for first, stride, n in zip(phase, strides, taps, strict=True)]
    w = g.slice(w, starts=(0, 0, *starts), sizes=(inputs, width, *taps), steps=(1, 1, *(-stride for stride in strides)))
    w = g.reshape(w, shape=(groups, inputs // groups, width, *taps))
    w = g.transpose(w, permutation=(0, 2, 1, *range(3, 3 + len(taps))))
    found: Value = g.reshape(w, shape=(groups * width, inputs // groups, *taps))
    return found


def _coded(op: Op) -> Op | None:
    """What decodes the filters, if they are constant codes with one scale, or one for each channel of results."""
    made = producer(op.operands[1], "dequantize")
    if made is None or made.attrs["block"] or any(each is not None and each.constant is None for each in made.operands):
        return None
    is_one = all(each is None or each.type.elements == 1 for each in made.operands[1:])
    return made if is_one or made.attrs["axis"] == 1 else None


def _filters(op: Op, g: Builder, taps: list[int]) -> Value:
    """The window's elements as [groups * phases * outputs, inputs of a group, taps ...]."""
    copies = op.attrs["groups"] * math.prod(op.attrs["strides"])
    return _decoded(op, g, copies, lambda w: _by_phases(op, w, g, taps))


def _decoded(op: Op, g: Builder, copies: int, moved: Callable[[Value], Value]) -> Value:
    """Filters that are moved, codes and what they are decoded with alike: so many times as there are copies of the results."""
    made = _coded(op)
    if made is None:
        return moved(operand(op, 1))
    code, *rest = made.operands
    is_one = all(each is None or each.type.elements == 1 for each in rest)
    apart = [None if each is None else g.reshape(each, shape=()) if is_one else _repeated(each, copies, g) for each in rest]
    assert code is not None
    attrs = {**made.attrs, "axis": None if is_one else 0}
    decoded: Value = g.build(made.definition, [moved(code), *apart], attrs)[0]
    return decoded


def _repeated(values: Value, copies: int, g: Builder) -> Value:
    """Numbers [n], so many times one after the other."""
    (size,) = values.shape
    each = g.broadcast_to(g.reshape(values, shape=(1, size)), shape=(copies, size))
    found: Value = g.reshape(each, shape=(copies * size,))
    return found


def _by_phases(op: Op, w: Value, g: Builder, taps: list[int]) -> Value:
    """The window's elements as [groups * phases * outputs, inputs of a group, taps ...], each phase backwards."""
    strides, groups = op.attrs["strides"], op.attrs["groups"]
    rank, (inputs, width, *_) = len(strides), _sizes(op)
    w = g.reshape(w, shape=(groups, inputs // groups, width, *chain.from_iterable(zip(taps, strides, strict=True))))
    lead = (groups, inputs // groups, width)
    starts = (0, 0, 0, *chain.from_iterable((n - 1, 0) for n in taps))
    steps = (1, 1, 1, *([-1, 1] * rank))
    w = g.slice(w, starts=starts, sizes=(*lead, *chain.from_iterable(zip(taps, strides, strict=True))), steps=steps)
    phases, windows = tuple(range(4, 3 + 2 * rank, 2)), tuple(range(3, 3 + 2 * rank, 2))
    w = g.transpose(w, permutation=(0, *phases, 2, 1, *windows))
    found: Value = g.reshape(w, shape=(groups * math.prod(strides) * width, inputs // groups, *taps))
    return found


def _interleaved(op: Op, g: Builder, y: Value) -> Value:
    """The phases, which are channels of `y`, side by side, cut to the places of the result."""
    strides, groups = op.attrs["strides"], op.attrs["groups"]
    rank, outputs, places = len(strides), op.result.shape[1], y.shape[2:]
    y = g.reshape(y, shape=(y.shape[0], groups, *strides, outputs // groups, *places))
    sides = chain.from_iterable((3 + rank + n, 2 + n) for n in range(rank))
    y = g.transpose(y, permutation=(0, 1, 2 + rank, *sides))
    whole: tuple[Dim, ...] = tuple(size * stride for size, stride in zip(places, strides, strict=True))
    y = g.reshape(y, shape=(y.shape[0], outputs, *whole))
    starts = tuple(before if stride > 1 else 0 for before, stride in zip(op.attrs["before"], strides, strict=True))
    found: Value = g.slice(y, starts=(0, 0, *starts), sizes=op.result.shape, steps=(1,) * (rank + 2))
    return found
