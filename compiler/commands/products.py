"""How a target multiplies the products of a language model: one of its layers, scheduled as a build would schedule it."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ...ir import dims
from ...ir.errors import VerifyError
from ...ir.formats import format_of
from ...ir.graph import Builder, ConstantData, Graph, Module, Value
from ...ir.region.cost import cost_of
from ...ir.types import TensorType, f32
from ...passes.quantize import QUANTIZATIONS
from ...passes.tile.gpu.rates import Rate
from ...passes.weights.weights import weights_of
from ..backends.backend import backend_of
from ..language.outline import Outline
from ..options import BuildOptions
from ..pipeline import lower, simplify
from ..targets.target import Target

PRECISIONS = {"f32": "fp32", "bf16": "bf16", "f16": "fp16"}
"""Of weights in these dtypes products are taken as they are with this --precision."""

MOST_NUMBERS = 1 << 24
"""Numbers of the layer's weight: some passes read its codes."""


def product_rate(
    target: Target, outline: Outline, rows: int, quantize: str | None, precision: str | None, format: str | None
) -> Rate | None:
    """The rate of the layer that has most weights, of so many rows; None where a target's products all go at one rate.

    `quantize` and `precision` are what a build is asked for; where it codes no weights, they may come coded in a `format`.
    """
    module = Module("layer")
    stored = QUANTIZATIONS[quantize].format if quantize is not None else None
    graph = module.functions["main"] = Graph("main")
    columns, depth = _widest(outline)
    x = graph.add_input("x", TensorType(f32, (rows, depth)))
    builder = Builder(module, graph)
    weight = _weight(builder, (columns, depth), stored or format, is_coded=quantize is None or QUANTIZATIONS[quantize].is_coded)
    graph.set_outputs([builder.matmul(x, weight, transpose_b=True)], ["y"])
    simplify(module, BuildOptions(targets=(target,), quantize=quantize, precision=precision))
    lowered, backend = lower(module, target, None, precision), backend_of(target)
    unit = max(lowered.scheduled.values(), key=lambda unit: cost_of(unit.problem.region, {}).operations)
    return backend.rate(unit, backend.machines(target, module, precision)[0])


def _widest(outline: Outline) -> tuple[int, int]:
    """Columns and depth of the products whose weights are most of all, no more columns than are quickly read."""
    sizes: Counter[tuple[int, int]] = Counter()
    for weight in weights_of(outline.graph):
        shape = weight.value.shape
        columns, depth = dims.number(shape[weight.channel]), dims.number(shape[weight.contracted])
        sizes[columns, depth] += columns * depth
    columns, depth = max(sizes, key=lambda size: (sizes[size], size))
    return max(1, min(columns, MOST_NUMBERS // max(1, depth))), depth


def _weight(builder: Builder, shape: tuple[int, int], format: str | None, *, is_coded: bool) -> Value:
    """A weight as it is once it is coded, if its rows are whole groups; its numbers are made where a pass reads them."""
    if format is None:
        return _constant(builder, "w", TensorType(f32, shape))
    try:
        types = format_of(format).types(shape, 1)
    except VerifyError:
        return _constant(builder, "w", TensorType(f32, shape))
    if not is_coded:
        codes, scale = _constant(builder, "codes", types[0]), _constant(builder, "scale", TensorType(f32, shape[:1]))
        read: Value = builder.dequantize(codes, scale, axis=0, dtype=f32)
        return read
    fields = [_constant(builder, field.name, type) for field, type in zip(format_of(format).fields, types, strict=True)]
    decoded: Value = builder.decode(*fields, format=format, axis=1, dtype=f32)
    return decoded


def _constant(builder: Builder, name: str, type: TensorType) -> Value:
    shape = tuple(map(dims.number, type.shape))
    data = ConstantData(load=lambda: np.ones(shape, type.dtype.numpy), digest=f"{name}{type}")
    return builder.module.add_constant(name, data, type=type)
