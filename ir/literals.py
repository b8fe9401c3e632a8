"""The elements of constants as text: what stands inline in a module, and the array it reads back as."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from .errors import ParseError
from .expression import literal, parse_literal
from .types import TensorType

Array = np.ndarray[Any, Any]

# Narrower than what Python reads: no underscores, no "infinity", no blanks.
LITERAL = re.compile(r"true|false|-?inf|nan|-?[0-9]+|-?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")


def element_texts(array: Array, type: TensorType) -> list[str]:
    """The texts of an array's elements in row-major order; a complex number is two."""
    flat = array.reshape(-1)
    if type.dtype.kind == "string":
        return [json.dumps(str(item)) for item in flat]
    if type.dtype.kind == "complex":
        return [literal(float(part)) for item in flat for part in (item.real, item.imag)]
    if type.dtype.kind == "bool":
        return [literal(bool(item)) for item in flat]
    return [literal(float(item) if type.dtype.is_float else int(item)) for item in flat]


def constant_array(texts: Sequence[str], type: TensorType) -> Array:
    """The array of an inline constant from the texts of its elements in row-major order."""
    shape = tuple(d for d in type.shape if isinstance(d, int))
    if len(shape) != type.rank:
        raise ParseError(f"constant has the symbolic type {type}, expected known sizes")
    expected = int(np.prod(shape, dtype=object)) * (2 if type.dtype.kind == "complex" else 1)
    if len(texts) != expected:
        raise ParseError(f"constant of type {type} has {len(texts)} numbers, expected {expected}")
    if type.dtype.kind == "string":
        result = np.empty(len(texts), dtype=object)
        result[:] = [unquote(item) for item in texts]
        return result.reshape(shape)
    return _numbers([_number(item, type) for item in texts], type).reshape(shape)


def _numbers(values: list[Any], type: TensorType) -> Array:
    dtype = type.dtype
    if dtype.kind == "bool":
        return np.array(values, dtype=bool)
    if dtype.kind == "complex":
        pairs = np.array(values, dtype=np.float64).astype(np.float64 if dtype.bits == 128 else np.float32)
        return pairs.view(dtype.numpy)
    if dtype.is_float:
        return np.array(values, dtype=np.float64).astype(dtype.numpy)
    return np.array(values, dtype=np.uint64 if dtype.kind == "uint" else np.int64).astype(dtype.numpy)


def _number(text: str, type: TensorType) -> bool | int | float:
    try:
        value = parse_literal(text) if LITERAL.fullmatch(text) else None
    except ValueError as error:
        raise ParseError(f"got {text[:40]!r}, expected a number of type {type.dtype}") from error
    dtype = type.dtype
    if dtype.is_integer and isinstance(value, int) and not isinstance(value, bool):
        low, high = (0, 2**dtype.bits - 1) if dtype.kind == "uint" else (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1)
        if low <= value <= high:
            return value
    elif dtype.kind == "bool" and isinstance(value, bool):
        return value
    elif dtype.kind in ("float", "complex") and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise ParseError(f"got {text[:40]!r}, expected a number of type {dtype}")


def unquote(text: str) -> str:
    """The string that a quoted text means."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ParseError(f"got {text[:40]!r}, expected a quoted string") from error
    if not isinstance(value, str):
        raise ParseError(f"got {text[:40]!r}, expected a quoted string")
    return value
