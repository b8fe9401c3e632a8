"""What storage and arithmetic are called in the words of the options: the names that contracts promise and tell."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator

from ...ir.dims import Facts
from ...ir.formats import format_of
from ...ir.graph import Op, Value
from ...ir.ops.contraction import MULTIPLYING
from ...ir.types import DType, i8, i32, u8
from ..match import operand, producer
from ..regions.facts import describe
from ..sparsify import two_four
from ..weights.weights import STORED, Weight
from . import (
    ACTIVATION,
    INTEGER,
    INTEGER_WEIGHT,
    QUANTIZATIONS,
    SCORES,
    activation_name,
    activations,
    attention,
    coded_factors,
    encode_weights,
    int8_weight,
    integer_products,
    name_of,
    narrow_products,
)
from .roundings import rounded_as

_PRECISIONS = {"f64": "fp64", "f32": "fp32", "f16": "fp16"}
FLOATS = ("fp64", "fp32", "fp16", "bf16")
TF32 = "tf32"
"""Products of float32 whose factors a GPU's instructions round to 10 fraction bits; all that is stored stays float32."""
HALVES = {"bf16": "bf16", "fp16": "f16"}
"""The precisions of 16 bits that products may be asked for in, and their dtypes."""
NARROWED = {("fp32", "bf16"), ("fp32", "fp16"), ("fp32", TF32)}
"""The precisions that products come in and are made of, where they are not the same."""
MOVED = "what it moves is kept in"
"""What is said of an op that moves what products read."""
SPARSITY = "2:4"
"""What a pruned weight is called."""


def precision_name(dtype: DType) -> str:
    """A dtype as the options call it."""
    return _PRECISIONS.get(dtype.name, dtype.name)


def computed_in(op: Op) -> str:
    """The precision that an op computes in: that of its result, or of what it multiplies (of attention with codes for keys, values)."""
    if op.name in ("matmul", "conv") and all(v is not None and v.dtype.is_integer and v.dtype.bits == 8 for v in op.operands[:2]):
        return INTEGER
    factor = op.operands[2 if scored_as(op) else 0] if op.name in MULTIPLYING else None
    if factor is not None and factor.dtype.is_float:
        return precision_name(factor.dtype)
    return precision_name(op.results[0].dtype) if op.results else ""


def stored_as(weight: Weight) -> Iterator[str]:
    """How a weight lies in memory, where that is not as it is computed with."""
    if weight.expanded_by("dequantize") is not None:
        dtype = weight.stored.dtype
        yield f"{f'int{dtype.bits}' if dtype.is_integer else dtype.name}-weight"
    if weight.coded is not None:
        format = format_of(weight.coded.attrs["format"])
        yield name_of((format.kept or format).name)
    if weight.sparse is not None:
        yield SPARSITY


def read_as(op: Op) -> str:
    """How the keys that attention reads lie in memory, where they are narrower than what it computes in."""
    keys = op.operands[1].op if op.name == "attention" and op.operands[1] is not None else None
    if keys is not None and keys.name == "decode":
        return str(keys.attrs["format"])
    if keys is not None and keys.name == "dequantize":
        return str(operand(keys, 0).dtype)
    if keys is not None and keys.name == "cast" and operand(keys, 0).dtype.bits < keys.result.dtype.bits:
        return precision_name(operand(keys, 0).dtype)
    return ""


def multiplied_as(weight: Weight) -> Iterator[str]:
    """How that is rounded which a weight is multiplied by, where it is."""
    read = weight.op.operands[1 - weight.position]
    is_coded = read is not None and read.op is not None and read.op.name in STORED
    said = rounded_as(read.op) if is_coded and read is not None and read.op is not None else None
    if said is not None:
        yield said


def scored_as(op: Op) -> str:
    """What attention multiplies queries and keys as, where they are codes."""
    if op.name != "attention":
        return ""
    made = [producer(value, "dequantize") for value in op.operands[:2]]
    return SCORES if all(each is not None and operand(each, 0).dtype in (i8, u8) for each in made) else ""


def implied(words: Iterable[str], has_weight: bool) -> set[str]:
    """Words and what they imply: a product of codes is one of rounded activations, and of a weight of such codes if it has one."""
    said = set(words)
    if INTEGER not in said:
        return said
    return {*said, ACTIVATION, *([INTEGER_WEIGHT] if has_weight else [])}


def promised(value: str | None) -> set[str | None]:
    """What a promise says in the contract's words."""
    return set(QUANTIZATIONS[value].promises) if value in QUANTIZATIONS else {value}


def is_served_by(wanted: str, given: str) -> bool:
    """Whether an op that computes in `given` does what was asked: a product of codes serves every float."""
    return given in (wanted, INTEGER)


def is_narrowed(given: str, wanted: str) -> bool:
    """Whether products that come in one precision can be made of another."""
    return given == wanted or (given, wanted) in NARROWED


def only_moves(op: Op, facts: Facts) -> bool:
    """Whether an op computes nothing: it moves elements, or casts them, and has its precision from what it moves or is read by."""
    return op.name == "cast" or describe(op, facts).kind == "movement"


def why_not_narrowed(op: Op, facts: Facts) -> str | None:
    """Why the factors of an op keep their precision, or None; what only moves has that of what it moves."""
    if only_moves(op, facts):
        return f"{MOVED} {precision_name(op.results[0].dtype)}, as products read it"
    return narrow_products.why_not(op)


def why_not_quantized(weight: Weight, name: str, word: str) -> str | None:
    """Why a weight is not quantized as asked, in this word of what was promised, or None.

    Where the weight is as it was to be, the word is of what it is multiplied by.
    """
    known = QUANTIZATIONS[name]
    to = known.activations
    if known.format is None or (to is not None and (name_of(known.format) in stored_as(weight) or word == activation_name(to))):
        return activations.why_not(weight, to or INTEGER)
    return encode_weights.why_not(weight, known.format) if known.is_coded else int8_weight.why_not(weight)


def why_not_scored(op: Op) -> str | None:
    """Why attention does not multiply its queries and keys as codes, or None."""
    return attention.why_not(op)


def why_not_integer(op: Op) -> str | None:
    """Why a product whose factors are both read from codes is made in floats; None of any other."""
    found = integer_products.why_not(op) if op.name in ("matmul", "conv") else None
    return _why_not_of_bytes(op) if found == integer_products.NO_CODES else found


def _why_not_of_bytes(op: Op) -> str | None:
    """Which factor has codes of more or fewer bits than instructions multiply, where both are codes."""
    made = [producer(value, "dequantize") for value in op.operands[:2]]
    codes = [operand(each, 0).dtype for each in made if each is not None]
    wide = [
        f"{name} are codes of {dtype.bits} bits" for name, dtype in zip(("activations", "weights"), codes, strict=False) if dtype.bits != 8
    ]
    return f"{' and '.join(wide)}, which are multiplied as floats" if wide and len(codes) == 2 else None


def is_of_codes(op: Op) -> bool:
    """Whether a model itself says that a product is one of 8-bit codes: both factors are, whichever way they are turned."""
    if op.name not in ("matmul", "conv", "conv_transpose"):
        return False
    factors = [_unmoved(value) for value in op.operands[:2]]
    # Constant codes less their zero points may have been written as wider integers.
    coded = [coded_factors.read_codes(value) is not None for value in factors]
    wide = [value is not None and value.dtype == i32 and value.constant is not None for value in factors]
    return any(coded) and all(map(operator.or_, coded, wide))


def _unmoved(value: Value | None) -> Value | None:
    while (moved := producer(value, "reshape", "transpose")) is not None:
        value = operand(moved, 0)
    return value


def why_not_sparse(weight: Weight) -> str | None:
    """Why a weight is not pruned, or None."""
    return two_four.why_not(weight)
