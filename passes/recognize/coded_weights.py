"""Recognition of weights that exporters decode in steps: a cast of small codes, less zero points, times scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...ir import dims
from ...ir.errors import InternalError
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ...ir.scalar import convert
from ...ir.types import DType, f32, i4, i8, u4, u8
from ..base import RulePass
from ..match import Replacement, operand, producer
from ..weights.weights import constant_of, values_of

Array = np.ndarray[Any, Any]
NARROWER = {i8: i4, u8: u4}
"""Codes that lie in twice the bits they need: exporters know no dtypes of 4 bits."""


@dataclass(frozen=True)
class RecognizeCodedWeights(RulePass):
    """Read constant codes of 8 bits or fewer by `dequantize` where a product, a convolution or a look-up decodes them in steps.

    Before: %f = cast(@w) {dtype = f32} : f32[n, g, b]   %m = mul(%f, @scale : f32[n, g, 1])   %w = reshape(%m) : f32[n, g * b]
    After:  %w = dequantize(@w, @scale : f32[n, g]) {axis = 1, block = b, dtype = f32}

    Weights that are decoded in steps would be written to memory in each call. Subtracting zero points and blocks are there or not; codes
    in blocks that need half of their bits alone lie in these.
    """

    numerics: ClassVar[Numerics] = "EXACT"

    def rules(self) -> Sequence[Rule]:
        """One rule."""
        return (DecodedInSteps(),)


@dataclass(frozen=True)
class _Steps:
    """(code - zero) * scale in `dtype`, as `dequantize` has the parameters of a weight of these sizes: along `axis`, in blocks or not."""

    code: Value
    zero: Array | None
    scale: Array
    dtype: DType
    sizes: tuple[int, ...]
    axis: int | None
    block: int


class DecodedInSteps(Rule):
    """matmul(x, mul(sub(cast(@w), zero), scale)) -> matmul(x, dequantize(@w, scale, zero)), and so for conv and take"""

    ops = ("matmul", "conv", "take")
    numerics: ClassVar[Numerics] = "EXACT"

    def check(self, op: Op, module: Module) -> str | None:
        found = [_read(value) for value in op.operands[: _weights(op)]]
        return None if any(steps is not None for steps in found) else "no constant codes are decoded in steps"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        operands = list(op.operands)
        for place in range(_weights(op)):
            steps, value = _read(operands[place]), operands[place]
            if steps is None or value is None:
                continue
            operands[place] = made = _dequantized(steps, g)
            if made.type != value.type:
                raise InternalError(f"codes of {value.type} are decoded as {made.type}")
        return g.build(op.definition, operands, op.attrs)[0]


def _weights(op: Op) -> int:
    """How many of the first operands may be weights."""
    return 1 if op.name == "take" else 2


def _read(value: Value | None) -> _Steps | None:
    """The steps that a value is decoded in, if they are the ones that `dequantize` takes."""
    if value is None or not value.dtype.is_float:
        return None
    outer = _unrounded(value)
    moved = producer(outer, "reshape")
    wide = outer if moved is None else _unrounded(operand(moved, 0))
    inner, scale = _without(wide, "mul")
    inner, zero = _without(inner, "sub")
    cast = producer(inner, "cast")
    code = None if cast is None else operand(cast, 0)
    if code is None or code.constant is None or not code.constant.available or code.dtype.bits > 8 or not code.type.elements:
        return None
    zero = zero if zero is not None and zero.any() else None
    if not (code.dtype.is_integer or code.dtype.is_float) or (zero is not None and not _are_codes(zero, code.dtype)):
        return None
    given = [np.ones((1,) * wide.type.rank, np.float32) if scale is None else scale, *([] if zero is None else [zero])]
    before, after = (tuple(map(dims.number, each.shape)) for each in (wide, outer))
    found = _beside(before, after, given)
    if found is None:
        return None
    scale, *zeros = found.arrays
    return _Steps(code, zeros[0] if zeros else None, scale, value.dtype, after, found.axis, found.block)


@dataclass(frozen=True)
class _Beside:
    """Parameters as `dequantize` has them, and the axis and the block that they are for."""

    arrays: list[Array]
    axis: int | None
    block: int = 0


def _beside(before: tuple[int, ...], after: tuple[int, ...], given: list[Array]) -> _Beside | None:
    """Parameters that are broadcast against the sizes `before`, of which a reshape makes `after`: None where they vary along two axes, or
    within what is joined.
    """
    groups = _joined(before, after)
    if groups is None:
        return None
    varying = {n for each in given for n, size in enumerate(each.shape) if size != 1}
    lasts = [max((n for n in group if n in varying), default=None) for group in groups]
    blocks = [1 if n is None else math.prod(before[each] for each in group if each > n) for n, group in zip(lasts, groups, strict=True)]
    spread = {each for n, group in zip(lasts, groups, strict=True) for each in group if n is not None and each <= n}
    blocked = [axis for axis, block in enumerate(blocks) if block > 1]
    sizes = [size // block for size, block in zip(after, blocks, strict=True)]
    arrays = []
    for each in given:
        full = np.broadcast_to(each, [size if n in spread else 1 for n, size in enumerate(before)])
        arrays.append(full.reshape([1 if n is None else size for n, size in zip(lasts, sizes, strict=True)]))
    if len(blocked) == 1:
        return _Beside([np.broadcast_to(each, sizes) for each in arrays], blocked[0], blocks[blocked[0]])
    axes = [axis for axis, n in enumerate(lasts) if n is not None]
    if blocked or len(axes) > 1:
        return None
    return _Beside([each.reshape(-1 if axes else ()) for each in arrays], axes[0] if axes else None)


def _joined(before: tuple[int, ...], after: tuple[int, ...]) -> list[list[int]] | None:
    """The axes `before` that a reshape joins in each axis `after`, those of size 1 aside; None where it takes any apart."""
    left, groups = [n for n, size in enumerate(before) if size != 1], list[list[int]]()
    for size in after:
        group, whole = list[int](), 1
        while whole < size and left:
            group.append(left.pop(0))
            whole *= before[group[-1]]
        if whole != size:
            return None
        groups.append(group)
    return None if left else groups


def _unrounded(value: Value) -> Value:
    """What is rounded once to a narrower float, from the one that `dequantize` computes in."""
    cast = producer(value, "cast")
    return operand(cast, 0) if cast is not None and value.dtype.compute == f32 and operand(cast, 0).dtype == f32 else value


def _without(value: Value, name: str) -> tuple[Value, Array | None]:
    """(x, c) of `mul(x, c)` or `sub(x, c)` with a constant that does not make x larger; else the value as it is."""
    op = producer(value, name)
    if op is None:
        return value, None
    for place in (1, 0) if name == "mul" else (1,):
        held, other = operand(op, place), operand(op, 1 - place)
        numbers = constant_of(held)
        if numbers is not None and other.type == op.result.type and other.constant is None:
            numbers = convert(numbers, held.dtype)
            return other, numbers.reshape((1,) * (other.type.rank - numbers.ndim) + numbers.shape)
    return value, None


def _are_codes(numbers: Array, dtype: DType) -> bool:
    """Whether all of these numbers are integers that codes of the dtype can be."""
    wide = numbers.astype(np.float32)
    if not dtype.is_integer or not np.isfinite(wide).all():
        return False
    return bool(np.array_equal(wide.astype(np.int32).astype(dtype.numpy).astype(np.float32), wide))


def _dequantized(steps: _Steps, g: Builder) -> Value:
    """The weight as `dequantize` gives it."""
    code, dtype = values_of(steps.code), steps.code.dtype
    narrow = NARROWER.get(dtype) if steps.block else None
    if narrow is not None and _are_codes(code, narrow) and (steps.zero is None or _are_codes(steps.zero, narrow)):
        dtype = narrow

    def held(array: Array, what: str) -> Value:
        return g.module.add_constant(f"{steps.code.name}.{what}", np.ascontiguousarray(array), steps.code.source)

    lies = code.shape == steps.sizes and dtype == steps.code.dtype
    codes = steps.code if lies else held(code.reshape(steps.sizes).astype(dtype.numpy), "codes")
    operands = [codes, held(steps.scale, "scale"), *([] if steps.zero is None else [held(steps.zero.astype(dtype.numpy), "zero")])]
    result: Value = g.dequantize(*operands, axis=steps.axis, block=steps.block, dtype=steps.dtype)
    return result
