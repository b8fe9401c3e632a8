"""Codes of constants: those of 2 and 4 bits lie packed (or as bytes), and of a table that rows are taken of only these are decoded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...ir import dims
from ...ir.errors import InternalError
from ...ir.formats import format_of
from ...ir.formats.affine import WHOLE_RUN, grouped_name, pack_codes
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ...ir.types import i2, i4, i8, u2, u4, u8
from ..base import RulePass
from ..match import Replacement, matched, operand, producer
from .weights import values_of, weight_of

Array = np.ndarray[Any, Any]
NARROW = frozenset({i4, u4, i2, u2})
NOT_NARROW = "the codes are not of 2 or 4 bits"


@dataclass(frozen=True)
class PackCodes(RulePass):
    """Store constant codes of 2 and 4 bits in a number format (ir/formats), packed and unsigned.

    Before: const @w : i4[n, k]   %w = dequantize(@w, @scale, @zero) {axis = 1, block = 32}
    After:  const @w.codes : u8[n, k / 2]   %w = decode(@w.codes, @scale, @w.zero) {format = "uint4.g32.f32", axis = 1}

    Rows that are not whole groups of a multiple of eight are stored a byte for each code, which kernels read as well. Rows
    taken of a coded table, packed or of bytes, are taken first and decoded then.
    """

    numerics: ClassVar[Numerics] = "EXACT"

    def rules(self) -> Sequence[Rule]:
        """Packed if possible, else bytes; rows that nobody asks for stay coded."""
        return (PackedCodes(), WidenedCodes(), GatheredCodes())


@dataclass(frozen=True)
class PackedCodes(Rule):
    """dequantize(@codes) -> decode(@packed)"""

    ops: ClassVar[tuple[str, ...]] = ("dequantize",)
    numerics: ClassVar[Numerics] = "EXACT"

    def check(self, op: Op, module: Module) -> str | None:
        code = operand(op, 0)
        if code.dtype not in NARROW:
            return NOT_NARROW
        if not _are_given(op.operands):
            return "codes, scales and zero points are not all constant"
        found = _axis(op)
        if found is None:
            return "the scales vary along every axis"
        axis, group = found
        size = code.shape[axis]
        multiple = group or WHOLE_RUN
        if multiple % 8 or dims.divides(multiple, size) is not True or code.type.elements == 0:
            return f"{size} codes along axis {axis} are not whole groups of {multiple}"
        return None if operand(op, 1).dtype.name in ("f32", "f16", "bf16") else "the scales are no floats of 16 or 32 bits"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        found = _axis(op)
        if found is None:
            raise InternalError("dequantize has no axis to code along, which the check of the rule has shown")
        axis, group = found
        code, scale = operand(op, 0), operand(op, 1)
        zero = op.operands[2] if len(op.operands) > 2 else None
        bits, middle = code.dtype.bits, 1 << (code.dtype.bits - 1) if code.dtype.kind == "int" else 0
        # Signed codes without a zero point have the middle for one; all others say theirs.
        is_plain = zero is None and middle > 0
        format = format_of(grouped_name(bits, group, not is_plain, scale.dtype))
        packed = pack_codes(np.moveaxis(values_of(code).astype(np.int32) + middle, axis, -1), bits, format.fields[0].per or WHOLE_RUN)
        fields = {name: np.moveaxis(array, -1, axis) for name, array in packed.items()}
        fields["scale"] = _beside(values_of(scale), code, axis, group, op)
        if not is_plain:
            zeros = np.zeros(values_of(scale).shape, np.int32) if zero is None else values_of(zero).astype(np.int32)
            fields["zero"] = (_beside(zeros, code, axis, group, op) + middle).astype(np.uint8)
        held = [
            g.module.add_constant(f"{code.name}.{field.name}", np.ascontiguousarray(fields[field.name]), code.source)
            for field in format.fields
        ]
        result: Value = g.decode(*held, format=format.name, axis=axis, dtype=op.result.dtype)
        return result


@dataclass(frozen=True)
class WidenedCodes(Rule):
    """dequantize(@codes) -> dequantize(@bytes), where the codes cannot be packed"""

    ops: ClassVar[tuple[str, ...]] = ("dequantize",)
    numerics: ClassVar[Numerics] = "EXACT"

    def check(self, op: Op, module: Module) -> str | None:
        if operand(op, 0).dtype not in NARROW:
            return NOT_NARROW
        if not _are_given([op.operands[0], *op.operands[2:]]):
            return "codes and zero points are not all constant"
        return "the codes are packed" if PackedCodes().check(op, module) is None else None

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        code = operand(op, 0)
        wide = i8 if code.dtype.kind == "int" else u8
        parts = list(op.operands)
        for place in (0, 2):
            value = parts[place] if place < len(parts) else None
            if value is not None:
                parts[place] = g.module.add_constant(f"{value.name}.bytes", values_of(value).astype(wide.numpy), value.source)
        return g.build(op.definition, parts, op.attrs)[0]


@dataclass(frozen=True)
class GatheredCodes(Rule):
    """take(dequantize(@codes, @scale), i) -> dequantize(take(@codes, i), take(@scale, i)), and so for decode"""

    ops: ClassVar[tuple[str, ...]] = ("take",)
    numerics: ClassVar[Numerics] = "EXACT"

    def check(self, op: Op, module: Module) -> str | None:
        coded = producer(op.operands[0], "dequantize", "decode")
        if coded is None or any(value is not None and value.constant is None for value in coded.operands):
            return "what is taken of is no table of codes"
        axis = op.attrs["axis"] % operand(op, 0).type.rank
        if coded.name == "decode":
            along = coded.attrs["axis"] % operand(op, 0).type.rank
            shared = any(field.rows != 1 for field in format_of(coded.attrs["format"]).fields)
            return "rows share scales, or are taken along the axis that is coded" if shared or axis == along else None
        if operand(coded, 0).dtype.bits < 8:
            return "the codes are not packed yet"
        blocked = coded.attrs["block"] and coded.attrs["axis"] % operand(op, 0).type.rank == axis
        return "blocks share scales along the axis that is taken of" if blocked else None

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        coded, indices = matched(op.operands[0], "dequantize", "decode"), operand(op, 1)
        rank = operand(op, 0).type.rank
        axis = op.attrs["axis"] % rank
        rows = indices if indices.type.rank == 1 else g.reshape(indices, shape=(dims.product(indices.shape),))
        parts = [
            value
            if value is None or not _varies(number, value, axis, coded)
            else g.take(value, rows, axis=axis if value.type.rank == rank else 0)
            for number, value in enumerate(coded.operands)
        ]
        found = g.build(coded.definition, parts, coded.attrs)[0]
        return found if found.shape == op.result.shape else g.reshape(found, shape=op.result.shape)


def _varies(number: int, part: Value, axis: int, coded: Op) -> bool:
    """Whether a part of coded numbers is another one for each row: the codes, the fields of a format, parameters along this axis."""
    along = coded.attrs["axis"]
    if number == 0 or coded.name == "decode" or coded.attrs["block"]:
        return True
    return along is not None and part.type.rank == 1 and along % operand(coded, 0).type.rank == axis


def _are_given(values: Iterable[Value | None]) -> bool:
    """Whether those that are there are constants with values."""
    return all(value is None or (value.constant is not None and value.constant.available) for value in values)


def _axis(op: Op) -> tuple[int, int | None] | None:
    """The axis to code along, and the length of its groups, None where a row is one."""
    rank, axis = operand(op, 0).type.rank, op.attrs["axis"]
    if op.attrs["block"]:
        return axis % rank, op.attrs["block"]
    free = [n for n in range(rank) if axis is None or operand(op, 1).type.rank == 0 or n != axis % rank]
    if not free:
        return None
    readers = (weight_of(user) for user in op.result.uses)
    contracted = next((weight.contracted for weight in readers if weight is not None), free[-1])
    return (contracted if contracted in free else free[-1]), None


def _beside(parameter: Array, code: Value, axis: int, group: int | None, op: Op) -> Array:
    """Scales or zero points as a field: one for each group along the axis, and for every other index."""
    if group is not None:
        return parameter
    shape = [1 if n == axis else dims.number(size) for n, size in enumerate(code.shape)]
    if parameter.size > 1:
        parameter = parameter.reshape([-1 if n == op.attrs["axis"] % len(shape) else 1 for n in range(len(shape))])
    return np.broadcast_to(parameter.reshape(-1) if parameter.size == 1 else parameter, shape)
