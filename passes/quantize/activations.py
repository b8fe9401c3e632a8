"""Activations as codes of 8 bits with a scale for each token, block of it or image: what makes products of coded weights integer ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

from ...ir import dims
from ...ir.codes import FOUR, MOST_TERMS
from ...ir.dims import Dim
from ...ir.errors import UsageError
from ...ir.formats import Format, format_of
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rewriter
from ...ir.types import f32, i8, u8
from ..base import Pass, PassContext
from ..match import operand, producer
from ..weights.weights import Weight, values_of, weights_of
from . import CODES, STORABLE, STORED
from .coded_factors import lies_apart
from .roundings import BLOCK, ROUNDINGS, block_of, in_format, rounded, why_not_in_format
from .rows import image_scales

LARGEST = 127
LARGEST_UNSIGNED = 255
POSITIVE = ("relu", "sigmoid", "abs")
KEEPING = ("max_pool", "avg_pool", "reshape", "transpose", "slice", "cast")
"""Ops whose results have no negative numbers if their operand has none; of floats, as integers wrap."""
IMAGE = -1
Rounded: TypeAlias = tuple[Value, Value | None]
"""What is multiplied by a weight, and what the product is multiplied by."""


@dataclass(frozen=True)
class QuantizeActivations(Pass):
    """Round what coded weights are multiplied by to 8 bits, by the largest magnitude of each row (token), block of 32 in it, or image.

    Before: %y = matmul(%x, %w)   with %w = dequantize(@w.int8, @w.scale)
    After:  %s = div(reduce_max(abs(%x)), 127)   %c = quantize(%x, %s) {axis = 0, dtype = i8}
            %y = matmul(dequantize(%c, %s), %w)

    Rows and images are independent of each other, so a result does not depend on the batch; an image without negative numbers has
    unsigned codes. A row with NaN or infinity stays one: its
    scale is not finite. `integer_products` multiplies codes by those of channels. Weights in a format whose codes are integers of 8 bits
    (`decode`) have activations with scales in blocks; `passes/regions/affine.py` sums up their products as integers.
    In another `format` than int8 (roundings.py) what weights of that format are multiplied by is rounded to it; images stay as they are.
    Where weights' scales are of 8 bits, `scales` of activations may be `stored` as those are, or `codes` as well.
    """

    format: str = "int8"
    stored: str = ""
    numerics: ClassVar[Numerics] = "LOSSY"

    def check(self) -> None:
        """The format is one that activations are rounded to."""
        if self.format not in ROUNDINGS:
            raise UsageError(f"pass {self.name}: format is {self.format!r}, expected one of {', '.join(ROUNDINGS)}")
        if self.stored not in STORED:
            raise UsageError(f"pass {self.name}: stored is {self.stored!r}, expected one of {', '.join(map(repr, STORED))}")
        if self.stored and self.format not in STORABLE:
            raise UsageError(f"pass {self.name}: {self.format} has no scales of 8 bits, and is not stored as weights are")

    def run(self, module: Module, context: PassContext) -> bool:
        """Every product of a matrix or more with an int8 weight; what several products read is rounded once."""
        changed = False
        for graph in module.functions.values():
            rewriter = context.rewriter(module, graph, self.name)
            known: dict[tuple[Value, int], Rounded] = {}
            for weight in weights_of(graph):
                if why_not(weight, self.format) is None and context.spend():
                    _quantize(rewriter, weight, self, known)
                    changed = True
        return changed


def why_not(weight: Weight, name: str = "int8") -> str | None:
    """Why what a weight is multiplied by is not rounded to a format, or None."""
    op = weight.op
    is_image = op.name == "conv"
    if weight.position != 1 or not (is_image or (op.name == "matmul" and weight.value.type.rank == 2)):
        return "only convolutions and products with one matrix of weights on the right have scales for each image or token"
    x = op.operands[0]
    if x is None or not x.dtype.is_float or x.type.rank < 2 or (not is_image and op.attrs["transpose_a"]):
        return "the left factor is not rows of floats"
    if x.op is not None and x.op.name == "dequantize":
        return "the left factor is quantized already"
    depth = dims.product(weight.value.shape[1:]) if is_image else weight.value.shape[weight.contracted]
    if name != "int8":
        return "images are rounded to int8 alone" if is_image else _why_not_decoded(weight, weight.coded, depth, name)
    if lies_apart(op):
        few = (
            "each channel of the image is multiplied by itself"
            if weight.value.shape[1] == 1
            else f"groups have {weight.value.shape[1]} channels"
        )
        return f"{few}, and no {FOUR} at once: to round it would gain nothing"
    if is_image and weight.coded is not None:
        return "images are rounded beside weights with one scale for each channel of results alone"
    if weight.coded is not None and not is_image:
        return _why_not_decoded(weight, weight.coded, depth, name)
    coded = weight.expanded_by("dequantize")
    if coded is None or weight.coded is not None or weight.stored.dtype != i8 or coded.attrs["block"]:
        return "the weight is not int8 with a scale for each channel, and not in a declared format"
    if dims.at_most(depth, MOST_TERMS) is not True:
        return f"a sum of {depth} products may not fit 32 bits"
    return None


def _why_not_decoded(weight: Weight, coded: Op | None, depth: Dim, name: str) -> str | None:
    other = why_not_in_format(name, None if coded is None else coded.attrs["format"])
    if coded is None or other is not None:
        return other
    format = format_of(coded.attrs["format"])
    if not format.has_bytes and ROUNDINGS[name].is_integer:
        return f"the codes of {format.name} are no integers of 8 bits"
    if ROUNDINGS[name].is_integer and not _may_scale(coded, format):
        return "its scales are so large that a sum of codes would not be finite before activations bring it down"
    if coded.attrs["axis"] % weight.value.type.rank != weight.contracted:
        return "the weight is not coded along the sum"
    block = block_of(name, format.group)
    return None if dims.divides(block or 1, depth) is True else f"a sum of {depth} products is not whole blocks of {block}"


def _may_scale(coded: Op, format: Format) -> bool:
    """Whether a block's sum of codes times all of a weight's scales is finite, whatever the codes."""
    bound = 2.0**16 * BLOCK * LARGEST * float(format.most - format.least)
    for field, value in zip(format.fields, coded.operands, strict=True):
        if field.dtype.is_float and value is not None and value.constant is not None and value.constant.available:
            bound *= max(1.0, float(np.abs(values_of(value).astype(np.float64)).max(initial=0)))
    return bound < float(np.finfo(np.float32).max)


def _quantize(rewriter: Rewriter, weight: Weight, how: QuantizeActivations, known: dict[tuple[Value, int], Rounded]) -> None:
    op, x = weight.op, weight.op.operands[0]
    assert x is not None
    builder = rewriter.builder(op)
    if op.name == "conv":
        if (x, IMAGE) not in known:
            known[x, IMAGE] = _rounded_image(builder, x), None
        rewriter.set_operand(op, 0, known[x, IMAGE][0])
        return
    coded, value = weight.coded, weight.value
    block = block_of(how.format, None if coded is None else format_of(coded.attrs["format"]).group)
    if (x, block) not in known:
        in_full = how.stored == CODES
        known[x, block] = in_format(builder, x, how.format) if in_full else (rounded(builder, x, how.format, block, how.stored), None)
    if coded is not None and value.dtype != f32:
        # Scales leave the sums only where no rounding to a narrower float stands between them.
        value = builder.decode(*coded.operands, **{**coded.attrs, "dtype": f32})
    left, scale = known[x, block]
    product = builder.matmul(left, value, transpose_b=op.attrs["transpose_b"])
    product = product if scale is None else builder.mul(product, scale)
    product = product if product.dtype == op.result.dtype else builder.cast(product, dtype=op.result.dtype)
    rewriter.replace(op, [product if x.type.rank == 2 else builder.reshape(product, shape=op.result.shape)])


def _rounded_image(b: Builder, x: Value) -> Value:
    """Images as codes and back, each by a scale of its own."""
    dtype, largest = (u8, LARGEST_UNSIGNED) if _is_positive(x) else (i8, LARGEST)
    scale = image_scales(b, x, float(largest))
    result: Value = b.dequantize(b.quantize(x, scale, axis=0, dtype=dtype), scale, axis=0, dtype=x.dtype)
    return result


def _is_positive(value: Value) -> bool:
    """Whether a value is known to have no negative numbers."""
    while value.dtype.is_float and (moved := producer(value, *KEEPING)) is not None:
        value = operand(moved, 0)
    return value.dtype.is_float and producer(value, *POSITIVE) is not None
