"""The rule of rounding: what an op's own rounding and a written cast are, and who may read a value before it is rounded."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from ..types import DType

WIDENS = frozenset(
    (
        "add sub mul div fma neg abs min max where "
        "exp exp2 expm1 sin cos tan atan atan2 sinh cosh tanh asinh erf erfc "
        "sum prod cumsum cumprod cummax cummin"
    ).split()
)
"""Arithmetic in which a number that was not rounded is a better operand: primitives and folds that are continuous and
defined for every number. What jumps (comparisons, floor, remainders, sign, a power's exponent) or ends somewhere
(logarithms, roots, arc sines) reads what its operand's op declared, for there a last place is another answer."""

LIMITLESS = frozenset(("f16", "bf16", "f8e5m2"))
"""Narrow floats that overflow to infinity. In the others a number too large is NaN, or the largest one: another answer."""

# Bits of the significand (with the leading one) and of the exponent.
FLOATS: Mapping[str, tuple[int, int]] = {
    "f64": (53, 11),
    "f32": (24, 8),
    "f16": (11, 5),
    "bf16": (8, 8),
    "f8e5m2": (3, 5),
    "f8e4m3": (4, 4),
}


def holds(wide: DType, narrow: DType) -> bool:
    """Whether every value of `narrow` is a value of `wide`."""
    if wide == narrow:
        return True
    if narrow.kind == "bool":
        return wide.is_integer or wide.name in FLOATS
    if wide.is_float and narrow.is_float:
        known = wide.name in FLOATS and narrow.name in FLOATS
        return known and all(a >= b for a, b in zip(FLOATS[wide.name], FLOATS[narrow.name], strict=True))
    if wide.is_float and narrow.is_integer:
        return wide.name in ("f32", "f64") and narrow.bits - (narrow.kind == "int") <= FLOATS[wide.name][0]
    if wide.is_integer and narrow.is_integer:
        signs = narrow.kind == wide.kind or (narrow.kind == "uint" and wide.kind == "int")
        return signs and wide.bits >= narrow.bits + (narrow.kind != wide.kind)
    return False


RULE = """## Rounding

Arithmetic on narrow floats (f16, bf16, the 8-bit formats) runs in f32. Two words turn an f32 number into a narrow one,
and both round to nearest even and overflow alike:

- **`round`** is an op's own rounding, to the type that it declares. It ends the region of every op with a narrow result.
- **`cast`** is an operation: one that the model wrote (a cast, a quantization), or the exact one that widens an operand
  to be computed with.

What overflows becomes infinity, or NaN where the type has none (`f8e4m3`, and the `fnuz` types). A cast that *saturates*
is a `clip` to the range of the type and then a `cast`: a number too large, or infinite, becomes the largest one, and
only NaN is NaN. Importers write what their source says. ONNX's Cast, CastLike and QuantizeLinear to 8-bit floats
saturate, unless their `saturate` is 0; QuantizeLinear is `quantize`, which says it as an attribute. torch saturates for
float8_e4m3fn and for no other type as of 2.13: the release that is installed is asked, type by type. What torch and
ONNX convert from float64 to 8 bits goes through float32, and so does ours; torch's float64 to float16 too.

A `cast` is dropped only where it is exact: a chain of casts through a type that holds every number of the one before.
`x.half().float()` rounds, and 1e6 becomes infinity, whatever kernel it is computed in.

A `round` may be dropped where a value is computed in the kernel that reads it, if *every* reader of the value is
arithmetic that widens it again, in all of the reader's paths to its result: {widens}. It is never dropped before a
cast, a quantization, a comparison, `is_inf` or `is_nan`, `floor`, `ceil`, `trunc`, `round`, `sign`, a remainder, a
power, a logarithm or a root, `argmax` or `argmin`, a bitcast, a subscript, or a store: what a kernel writes, and what
another kernel reads, has the declared type. `reduce_max` and `reduce_min` are arithmetic here, as rounding keeps order.
A `round` to a type without infinities (`f8e4m3`), where a number too large is NaN, is never dropped.
Readers through movement (reshape, transpose, slice, ..) are readers of the value itself.

So excess precision lives within a chain of arithmetic and ends with it. Types of 32 and 64 bits have no `round`.

The reference interpreter keeps the rule in both modes. *Stepwise* rounds every op's result to its declared type. *Wide*
computes in f64 and rounds no result, but what converts does so in the declared type: {converts} round, saturate and
overflow there as everywhere.

One rewrite is declared otherwise: `recognize_attention` takes the cast of softmax's weights back to the 16-bit type of
the values into the op `attention`, which rounds its weights before they are divided by their sum.
"""


def rule_text(converts: list[str]) -> str:
    """The rule as documentation; `converts` are the names of the ops that round in every mode."""
    text = RULE.format(widens=", ".join(f"`{name}`" for name in sorted(WIDENS)), converts=" and ".join(f"`{name}`" for name in converts))
    return "\n\n".join(_wrapped(part) for part in text.split("\n\n"))


def _wrapped(paragraph: str) -> str:
    """A paragraph in lines of 120 columns; headings and lists stay as they are."""
    if paragraph.startswith(("#", "-")):
        return paragraph
    return textwrap.fill(paragraph, 120, break_long_words=False, break_on_hyphens=False) + "\n" * paragraph.endswith("\n")
