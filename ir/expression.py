"""Scalar expressions: what one element computes, shared by regions and tile programs.

`Apply` names a primitive of `scalar.py`; `Constant` and `Index` are leaves. Loads and references belong to the
form that uses them (`region.py`, `tile/program.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

from .dims import Dim
from .types import DType

E = TypeVar("E")


@dataclass(frozen=True)
class Constant:
    """A scalar literal of one dtype; the value is a Python bool, int, float or complex."""

    value: bool | int | float | complex
    dtype: DType

    def __str__(self) -> str:
        return literal(self.value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constant) or self.dtype != other.dtype:
            return False
        return literal(self.value) == literal(other.value)

    def __hash__(self) -> int:
        return hash((literal(self.value), self.dtype))


@dataclass(frozen=True)
class Index:
    """The integer value of an index expression over axes and symbols, as data (i64 unless said)."""

    value: Dim
    dtype: DType

    def __str__(self) -> str:
        return f"index({self.value})"


@dataclass(frozen=True)
class Apply(Generic[E]):
    """A scalar primitive applied to expressions; `cast` and `bitcast` go to `dtype`."""

    primitive: str
    args: tuple[E, ...]
    dtype: DType


def literal(value: bool | int | float | complex) -> str:
    """The text of a scalar that reads back to the same bits: 1, 0.5, inf, -inf, nan, true, -0.0, (1.0+2.0j)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, complex)):
        return str(value)
    if math.isnan(value):
        return "nan"
    return repr(float(value))


def parse_literal(text: str) -> bool | int | float | complex:
    """Read what `literal` prints; ValueError otherwise."""
    if text in ("true", "false"):
        return text == "true"
    if not text.isascii():
        raise ValueError(f"got {text[:80]!r}, expected digits of 0 to 9")
    if text.endswith(("j", "j)")):
        return complex(text)
    try:
        return int(text)
    except ValueError:
        return float(text)
