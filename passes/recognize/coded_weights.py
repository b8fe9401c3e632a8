"""Recognition of weights that exporters decode in steps: a cast of small codes, less zero points, times scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

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
    """(code - zero) * scale in `dtype`: constants of the same rank, along `axis` in blocks where there are some."""

    code: Value
    zero: Array | None
    scale: Array | None
    dtype: DType
    axis: int | None = None
    block: int = 0


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
            if steps is not None and value is not None:
                operands[place] = _dequantized(steps, value, g)
        return g.build(op.definition, operands, op.attrs)[0]


def _weights(op: Op) -> int:
    """How many of the first operands may be weights."""
    return 1 if op.name == "take" else 2


def _read(value: Value | None) -> _Steps | None:
    """The steps that a value is decoded in, if they are the ones that `dequantize` takes."""
    if value is None or not value.dtype.is_float:
        return None
    wide = _unrounded(value)
    merged = producer(wide, "reshape")
    axis = None if merged is None else _merged(operand(merged, 0), merged.result)
    wide = wide if merged is None or axis is None else _unrounded(operand(merged, 0))
    inner, scale = _without(wide, "mul")
    inner, zero = _without(inner, "sub")
    cast = producer(inner, "cast")
    code = None if cast is None else operand(cast, 0)
    if code is None or code.constant is None or not code.constant.available or code.dtype.bits > 8 or code.dtype.kind == "bool":
        return None
    if not (code.dtype.is_integer or code.dtype.is_float):
        return None
    if zero is not None and not zero.any():
        zero = None
    if zero is not None and not _are_codes(zero, code.dtype):
        return None
    steps = _Steps(code, zero, scale, value.dtype, axis, 0 if axis is None else int(str(wide.shape[axis + 1])))
    return steps if _fit(steps) else None


def _unrounded(value: Value) -> Value:
    """What is rounded once to a narrower float, from the one that `dequantize` computes in."""
    cast = producer(value, "cast")
    return operand(cast, 0) if cast is not None and value.dtype.compute == f32 and operand(cast, 0).dtype == f32 else value


def _merged(inner: Value, outer: Value) -> int | None:
    """The axis of the result in which a reshape joins two of known sizes; None where it does something else."""
    before, after = inner.shape, outer.shape
    if len(before) != len(after) + 1 or not all(isinstance(size, int) for size in (*before, *after)):
        return None
    sizes = [int(str(size)) for size in before]
    joined = ([*sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2 :]] for axis in range(len(after)))
    return next((axis for axis, each in enumerate(joined) if each == list(after)), None)


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


def _are_codes(zero: Array, dtype: DType) -> bool:
    """Whether zero points are integers that codes of the dtype can be."""
    if not dtype.is_integer or not np.isfinite(zero.astype(np.float32)).all():
        return False
    wide = zero.astype(np.float32)
    return bool(np.array_equal(wide.astype(np.int32).astype(dtype.numpy).astype(np.float32), wide))


def _fit(steps: _Steps) -> bool:
    """Whether scales and zero points vary as `dequantize` has them: along one axis, or in whole blocks of one."""
    varying = {n for each in (steps.zero, steps.scale) if each is not None for n, size in enumerate(each.shape) if size != 1}
    if steps.axis is None:
        return len(varying) <= 1
    return steps.axis + 1 not in varying and math.prod(int(str(size)) for size in steps.code.shape) > 0


def _dequantized(steps: _Steps, value: Value, g: Builder) -> Value:
    """The weight as `dequantize` gives it."""
    shape, code, dtype = tuple(int(str(size)) for size in value.shape), values_of(steps.code), steps.code.dtype
    parts = [each for each in (steps.zero, steps.scale) if each is not None]
    if steps.axis is None:
        varying = [n for each in parts for n, size in enumerate(each.shape) if size != 1]
        axis = varying[0] if varying else None
        sizes: tuple[int, ...] = () if axis is None else (shape[axis],)
    else:
        axis = steps.axis
        sizes = (*shape[:axis], shape[axis] // steps.block, *shape[axis + 1 :])
        narrow = NARROWER.get(dtype)
        if narrow is not None and _hold(narrow, [code, *([] if steps.zero is None else [steps.zero])]):
            dtype = narrow

    def beside(array: Array, what: str, kind: DType | None = None) -> Value:
        squeezed = array if steps.axis is None else np.squeeze(array, steps.axis + 1)
        lies = squeezed.reshape(-1) if steps.axis is None else squeezed
        spread = np.ascontiguousarray(np.broadcast_to(lies if sizes else lies.reshape(()), sizes))
        return g.module.add_constant(f"{steps.code.name}.{what}", spread if kind is None else spread.astype(kind.numpy), steps.code.source)

    lies = code.shape == shape and dtype == steps.code.dtype
    made = code.reshape(shape).astype(dtype.numpy)
    held = steps.code if lies else g.module.add_constant(f"{steps.code.name}.codes", made, steps.code.source)
    scale = beside(np.ones((1,) * steps.code.type.rank, np.float32) if steps.scale is None else steps.scale, "scale")
    operands = [held, scale, *([] if steps.zero is None else [beside(steps.zero, "zero", dtype)])]
    result: Value = g.dequantize(*operands, axis=axis, block=steps.block, dtype=steps.dtype)
    if result.type != value.type:
        raise InternalError(f"codes of {value.type} are decoded as {result.type}")
    return result


def _hold(dtype: DType, arrays: Sequence[Array]) -> bool:
    """Whether a dtype has all of these integers."""
    return all(np.array_equal(array.astype(np.int32).astype(dtype.numpy).astype(np.int32), array.astype(np.int32)) for array in arrays)
