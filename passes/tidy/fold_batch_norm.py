"""Folding of batch_norm with constant statistics into the convolution before it, or into one scale and bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ...ir.types import DType
from ..base import RulePass
from ..match import Replacement, matched, operand, producer


@dataclass(frozen=True)
class FoldBatchNorm(RulePass):
    """Scale a convolution's weight and bias instead of its result.

    Before: %c = conv(%x, @w)   %y = batch_norm(%c, @scale, @bias, @mean, @variance)
    After:  %y = conv(%x, %w2, %b2), where fold_constants makes %w2 and %b2 constants

    A batch_norm after anything else becomes one multiplication and one addition per channel.
    """

    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def rules(self) -> Sequence[Rule]:
        """Into a convolution if there is one."""
        return (BatchNormOfConv(), BatchNormAsScale(), BiasOfConv())


def _constant_statistics(op: Op) -> str | None:
    return None if all(value is not None and value.constant is not None for value in op.operands[1:]) else "the statistics are not constant"


def _infinite_factor(op: Op) -> str | None:
    """The factor multiplies more than it did, the terms of a sum or the mean: infinity minus infinity is not infinity."""
    scale, variance = operand(op, 1).constant, operand(op, 4).constant
    if scale is None or variance is None or not (scale.available and variance.available):
        return None
    dtype = op.result.dtype.compute.numpy
    with np.errstate(all="ignore"):
        factor = scale.array.astype(dtype) / np.sqrt(variance.array.astype(dtype) + dtype.type(op.attrs["epsilon"]))
    return "a factor is infinite" if np.isinf(factor).any() else None


def _factor_and_shift(op: Op, g: Builder) -> tuple[Value, Value]:
    """f = scale / sqrt(variance + epsilon) and bias - mean * f, in the compute dtype."""
    dtype = op.result.dtype.compute
    scale, bias, mean, variance = (_as(operand(op, n), dtype, g) for n in range(1, 5))
    root = g.sqrt(g.add(variance, g.full(shape=(), value=op.attrs["epsilon"], dtype=dtype)))
    factor: Value = g.div(scale, root)
    shift: Value = g.sub(bias, g.mul(mean, factor))
    return factor, shift


def _as(value: Value, dtype: DType, g: Builder) -> Value:
    result: Value = value if value.dtype == dtype else g.cast(value, dtype=dtype)
    return result


class BatchNormOfConv(Rule):
    """batch_norm(conv(x, w, b), ..) -> conv(x, w * f, (b - mean) * f + bias) with f = scale / sqrt(variance + epsilon)"""

    ops = ("batch_norm",)
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def check(self, op: Op, module: Module) -> str | None:
        conv = producer(op.operands[0], "conv")
        if conv is None:
            return "the operand is no conv"
        if sum(conv.result.uses.values()) != 1:
            return "the convolution has other users"
        if any(value is not None and value.constant is None for value in conv.operands[1:]):
            return "weight or bias are not constant"
        if sum(operand(conv, 1).uses.values()) != 1:
            return "the weight has other users, and would be stored twice"
        return _constant_statistics(op) or _infinite_factor(op)

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        conv = matched(op.operands[0], "conv")
        factor, shift = _factor_and_shift(op, g)
        dtype, narrow = factor.dtype, op.result.dtype
        weight = operand(conv, 1)
        per_row = g.reshape(factor, shape=(factor.shape[0], *[1] * (weight.type.rank - 1)))
        scaled = _as(g.mul(_as(weight, dtype, g), per_row), narrow, g)
        bias = conv.operands[2] if len(conv.operands) > 2 else None
        if bias is not None:
            shift = g.add(shift, g.mul(_as(bias, dtype, g), factor))
        return g.conv(conv.operands[0], scaled, _as(shift, narrow, g), **conv.attrs)


class BatchNormAsScale(Rule):
    """batch_norm(x, ..) -> x * f + (bias - mean * f) with f = scale / sqrt(variance + epsilon)"""

    ops = ("batch_norm",)
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def check(self, op: Op, module: Module) -> str | None:
        if op.result.dtype.compute != op.result.dtype:
            return "the factor would be rounded to a narrow float"
        return _constant_statistics(op) or _infinite_factor(op)

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        factor, shift = _factor_and_shift(op, g)
        shape = (factor.shape[0], *[1] * (op.result.type.rank - 2))
        return g.add(g.mul(operand(op, 0), g.reshape(factor, shape=shape)), g.reshape(shift, shape=shape))


class BiasOfConv(Rule):
    """add(conv(x, w), b) -> conv(x, w, b), for a constant b of one value per channel"""

    ops = ("add",)
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def check(self, op: Op, module: Module) -> str | None:
        conv = producer(op.operands[0], "conv")
        if conv is None or (len(conv.operands) > 2 and conv.operands[2] is not None):
            return "the first operand is no conv without bias"
        if sum(conv.result.uses.values()) != 1:
            return "the convolution has other users"
        bias, rank = operand(op, 1), conv.result.type.rank
        channels = conv.result.shape[1]
        wanted = (channels, *[1] * (rank - 2))
        per_channel = bias.shape == wanted or bias.shape == (1, *wanted)
        return None if bias.constant is not None and per_channel else "the second operand is no constant per channel"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        conv = matched(op.operands[0], "conv")
        bias = g.reshape(operand(op, 1), shape=(conv.result.shape[1],))
        return g.conv(conv.operands[0], conv.operands[1], bias, **conv.attrs)
