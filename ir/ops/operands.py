"""What the bodies of pointwise ops accept: a TypeError, which inference reports, where an operand's dtype has no meaning."""

from __future__ import annotations

import numpy as np

from ..scalar import Array, Traced
from ..types import DType, from_numpy


def dtype_of(x: Array) -> DType:
    """The element type of an array or of a traced expression."""
    return x.dtype if isinstance(x, Traced) else from_numpy(np.asarray(x).dtype)


def _expect(kinds: tuple[str, ...], expected: str, operands: tuple[Array, ...]) -> None:
    for x in operands:
        dtype = dtype_of(x)
        if dtype.kind not in kinds:
            raise TypeError(f"got {dtype}, expected {expected}")


def expect_floats(*operands: Array) -> None:
    """TypeError unless all are floats or complex."""
    _expect(("float", "complex"), "a float", operands)


def expect_real(*operands: Array) -> None:
    """TypeError unless all are floats."""
    _expect(("float",), "a real float", operands)


def expect_numbers(*operands: Array) -> None:
    """TypeError unless all are numbers."""
    _expect(("float", "int", "uint", "complex"), "a number", operands)


def expect_ordered(*operands: Array) -> None:
    """TypeError unless all can be compared."""
    _expect(("float", "int", "uint", "bool"), "an ordered dtype", operands)


def expect_integers(*operands: Array) -> None:
    """TypeError unless all are integers."""
    _expect(("int", "uint"), "an integer", operands)


def expect_bits(*operands: Array) -> None:
    """TypeError unless all are integers or bools."""
    _expect(("int", "uint", "bool"), "an integer or bool", operands)


def expect_bools(*operands: Array) -> None:
    """TypeError unless all are bools."""
    _expect(("bool",), "bool", operands)
