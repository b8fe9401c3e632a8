"""With how many digits the outputs of a program are computed: the coarsest numbers that they rest on, whatever ops make them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...ir.formats import format_of
from ...ir.graph import Graph, Op, Value
from ...ir.graph.reference import DIGITS
from ...ir.ops.contraction import MULTIPLYING
from ...ir.types import DType, f32

FEWEST = 3
"""Digits of the floats that have no entry of their own."""
READ = {"dequantize": 1, "matmul": 2, "conv": 2}
"""Ops that read codes as numbers, and how many of their operands may be such."""


@dataclass(frozen=True, order=True)
class Precision:
    """Significant binary digits of numbers, and what such numbers are called: a dtype, or a number format."""

    digits: int
    name: str

    @staticmethod
    def of(dtype: DType) -> Precision:
        """A dtype that real numbers are held in; an integer's digits are its bits."""
        return Precision(DIGITS.get(dtype.name, FEWEST if dtype.is_float else dtype.bits), dtype.name)


TF32 = Precision(11, "tf32")
"""What instructions of a GPU round factors of float32 to, if asked."""


def precisions(graph: Graph, factors: Precision | None = None, weights: bool = True) -> list[Precision]:
    """For each output the coarsest numbers among the floats, and the integers that stand for floats, that it rests on.

    A constant or an input of few digits rounds nothing; an op whose result has few does. Weights that are read from codes were
    rounded when they were coded: they count with `weights`, and not where the codes are the model's own. `factors` is what a
    machine rounds those of products of float32 to, beside what the program says.
    """
    coarsest: dict[Value, Precision] = {}
    for op in graph:
        own = [
            *(_codes(op) if weights or not _reads_constants(op) else ()),
            *([factors] if factors is not None and _multiplies(op) else []),
        ]
        narrow = [coarsest[operand] for operand in op.operands if operand in coarsest]
        for result in op.results:
            made = [Precision.of(result.dtype)] if result.dtype.is_float or _rounds(op, result) else []
            if found := [*narrow, *own, *made]:
                coarsest[result] = min(found)
    return [coarsest.get(output, Precision.of(output.dtype)) for output in graph.results]


def _reads_constants(op: Op) -> bool:
    """Whether an op decodes constants."""
    return op.name in ("decode", "dequantize") and op.operands[0] is not None and op.operands[0].constant is not None


def _multiplies(op: Op) -> bool:
    """Whether an op multiplies factors of float32."""
    return op.name in MULTIPLYING and op.operands[0] is not None and op.operands[0].dtype == f32


def _rounds(op: Op, result: Value) -> bool:
    """Whether integers stand for floats, as those of `quantize` and `cast` do; bools and places of elements do not."""
    return result.dtype.is_integer and op.name in ("quantize", "cast") and any(v is not None and v.dtype.is_float for v in op.operands[:1])


def _codes(op: Op) -> Iterator[Precision]:
    """The codes that an op reads as numbers: those that scales make floats of, and those that are multiplied and added up."""
    if op.name == "decode":
        format = format_of(str(op.attrs["format"]))
        # Numbers that are kept as they are have the digits of their dtype.
        yield Precision(format.digits, format.name) if format.plain is None else Precision.of(format.plain)
    elif op.name in READ:
        read = op.operands[: READ[op.name]]
        yield from (Precision.of(value.dtype) for value in read if value is not None and value.dtype.is_integer)
