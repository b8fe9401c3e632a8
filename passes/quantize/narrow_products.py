"""Products of 16 bits: factors are rounded to bf16 or f16, multiplied exactly and added up in f32; attention's two as well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...ir.errors import UsageError
from ...ir.formats import format_of, sparse_name
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rewriter
from ...ir.types import DTYPES, DType, f32
from ..base import Pass, PassContext
from ..match import operand, producer
from ..weights.weights import STORED

FACTORS = {"matmul": 2, "conv": 2, "attention": 3}
"""The ops that multiply, and how many of their operands are factors."""
VALUES = 2
"""Attention's third operand."""
MOVES = ("slice", "transpose", "reshape", "take", "broadcast_to")


@dataclass(frozen=True)
class NarrowProducts(Pass):
    """Round the factors of products, convolutions and attention in f32 to `dtype`; results of products, and all else, stay wide.

    Before: %y = matmul(%x, @w)
            %z = attention(%q, %k, %v)
    After:  %a = cast(%x) {dtype = bf16}   %b = cast(@w) {dtype = bf16}   %y = matmul(%a, %b) {wide = true}
            %r = attention(%p, %l, %u)     %z = cast(%r) {dtype = f32}    (with %p, %l, %u casts of %q, %k, %v)

    What products read is then stored in 16 bits, as the cast becomes part of the kernel that makes it; softmax, norms, residual sums and
    long sums stay in f32. A weight that is stored with scales, or 2:4 sparse, is read in `dtype`, as that of a model in `dtype` is:

    Before: %w = decode(@codes, @scale) {dtype = f32}    %y = matmul(%x, %w)
    After:  %v = decode(@codes, @scale) {dtype = bf16}   %y = matmul(cast(%x), %v) {wide = true}

    Codes that a call makes or brings are multiplied as they are, and queries and keys keep their scales: values are rounded alone.
    """

    dtype: str = "bf16"
    numerics: ClassVar[Numerics] = "LOSSY"

    def check(self) -> None:
        """The dtype is one that products have instructions for."""
        if self.dtype not in ("bf16", "f16"):
            raise UsageError(f"pass {self.name}: dtype is {self.dtype!r}, expected bf16 or f16")

    def run(self, module: Module, context: PassContext) -> bool:
        """Every product that allows it; what several products read is rounded once."""
        changed = False
        for graph in module.functions.values():
            rewriter = context.rewriter(module, graph, self.name)
            known: dict[Value, Value] = {}
            for op in list(graph):
                if why_not(op) is None and context.spend():
                    _narrow(rewriter, op, DTYPES[self.dtype], known)
                    changed = True
        return changed


def _narrow(rewriter: Rewriter, op: Op, dtype: DType, known: dict[Value, Value]) -> None:
    """Let a product read its factors narrow; `known` are those of earlier products, which stand before it."""
    builder = rewriter.builder(op)

    def narrow(value: Value) -> Value:
        widened = producer(value, "cast")
        if widened is not None and operand(widened, 0).dtype == dtype:
            return operand(widened, 0)
        if value not in known:
            known[value] = _read(value, dtype, builder) if _is_stored(value) else builder.cast(value, dtype=dtype)
        return known[value]

    places = _places(op)
    operands = [narrow(value) if n in places and value is not None else value for n, value in enumerate(op.operands)]
    if op.name == "attention":
        (result,) = builder.build(op.definition, operands, op.attrs)
        rewriter.replace(op, [builder.cast(result, dtype=op.result.dtype)])
    else:
        rewriter.replace(op, list(builder.build(op.definition, operands, {**op.attrs, "wide": True})))


def _read(value: Value, dtype: DType, b: Builder) -> Value:
    """What is stored in codes, or 2:4 sparse, in a narrow dtype; numbers that a sparse weight keeps as floats are rounded themselves."""
    op = value.op
    assert op is not None
    attrs, operands = {**op.attrs, "dtype": dtype}, op.operands
    if op.name == "decode" and format_of(op.attrs["format"]).plain == value.dtype:
        attrs["format"], operands = sparse_name(dtype.name), (b.cast(operand(op, 0), dtype=dtype), *operands[1:])
    (result,) = b.build(op.definition, operands, attrs)
    return result


def _places(op: Op) -> tuple[int, ...]:
    """Which operands are factors that may be rounded: of attention the values alone where queries and keys are codes."""
    coded = op.name == "attention" and all(_is_stored(value) for value in op.operands[:2])
    return (VALUES,) if coded else tuple(range(FACTORS[op.name]))


def _is_stored(value: Value | None) -> bool:
    return value is not None and value.op is not None and value.op.name in STORED


def _is_constant(value: Value) -> bool:
    """Whether what is stored in codes is a constant."""
    while value.op is not None and value.op.name in STORED:
        value = operand(value.op, 0)
    return value.constant is not None


def why_not(op: Op) -> str | None:
    """Why an op keeps its factors as they are, or None."""
    if op.name not in FACTORS:
        return f"only the factors of matmul, conv and attention are rounded, {op.name} takes them as they are"
    factors = [value for n in _places(op) if (value := op.operands[n]) is not None]
    if any(value.dtype != f32 for value in factors):
        return f"its factors are {' and '.join(dict.fromkeys(value.dtype.name for value in factors))}, not f32"
    if op.name == "attention" and any(map(_is_stored, factors)):
        return "its keys and values are stored with scales"
    if any(_is_stored(value) and not _is_constant(value) for value in factors):
        return "it multiplies codes that each call makes, as they are"
    if op.name == "attention" and any(map(is_kept, factors[-2:])):
        return "its keys and values are kept in f32 from call to call"
    return None


def is_kept(value: Value) -> bool:
    """Whether a value is seen in something that is written in part: to round all of it in each call would cost more than it gives."""
    while (move := producer(value, *MOVES)) is not None:
        value = operand(move, 0)
    return producer(value, "scatter_nd", "scatter") is not None
