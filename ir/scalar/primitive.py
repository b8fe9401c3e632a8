"""What a scalar primitive is, how one is declared, run and recorded, and the conversions between dtypes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..expression import Apply, Constant
from ..types import DType, boolean, from_numpy, u8

Array: TypeAlias = Any  # a numpy array or a Traced; numpy's own typing cannot express "either"


@dataclass(frozen=True)
class Primitive:
    """A scalar primitive: `result` is "same" (as its operands), "bool", "u8", or "given" (cast, round and bitcast)."""

    name: str
    arity: int
    result: str
    doc: str
    run: Callable[..., Any]

    def result_of(self, operands: DType) -> DType:
        """The dtype of what it makes of operands of a dtype, unless it is given."""
        return _FIXED.get(self.result, operands)


_FIXED = {"bool": boolean, "u8": u8}
PRIMITIVES: dict[str, Primitive] = {}


@dataclass(frozen=True)
class Traced:
    """A scalar expression under construction."""

    value: Any
    dtype: DType


def primitive(result: str = "same") -> Callable[[Callable[..., Any]], Callable[..., Array]]:
    """Declare a primitive: the function's name, its docstring, and its body as meaning on numpy arrays."""

    def declare(run: Callable[..., Any]) -> Callable[..., Array]:
        arity = run.__code__.co_argcount
        entry = Primitive(run.__name__, arity, result, (run.__doc__ or "").strip(), run)
        PRIMITIVES[entry.name] = entry

        def call(*args: Array) -> Array:
            if any(isinstance(arg, Traced) for arg in args):
                return _record(entry, args)
            return evaluate(entry.name, *args)

        call.__name__, call.__doc__ = run.__name__, run.__doc__
        return call

    return declare


def evaluate(name: str, *args: Any) -> Any:
    """Run a primitive on numpy arrays and Python numbers (at least one array); shapes broadcast."""
    arrays = [arg for arg in args if isinstance(arg, (np.ndarray, np.generic))]
    values = [arg for arg in arrays if not (name == "where" and arg is args[0])]
    dtype = (values or arrays)[0].dtype
    full = [arg if isinstance(arg, (np.ndarray, np.generic)) else np.asarray(arg).astype(dtype) for arg in args]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = np.asarray(PRIMITIVES[name].run(*full))
    return result.astype(dtype, copy=False) if PRIMITIVES[name].result == "same" else result


def cast(x: Array, dtype: DType) -> Array:
    """Convert: float to int truncates toward zero (out of range is undefined but never traps), to bool is != 0,
    int to narrower int wraps, to a narrower float rounds to nearest even and overflows to infinity, or to
    NaN where the type has none; a source whose casts saturate says so with a clip before the cast.
    """
    if isinstance(x, Traced):
        return x if x.dtype == dtype else Traced(_converted(x.value, dtype), dtype)
    return convert(np.asarray(x), dtype)


def _converted(value: Any, dtype: DType, primitive: str = "cast") -> Any:
    """A value as a cast of it, or as what it was before it was widened to be computed with: nothing was, then."""
    widened = isinstance(value, Apply) and value.primitive == "cast" and value.dtype == dtype.compute
    if isinstance(value, Apply) and widened and value.args[0].dtype == dtype:
        return value.args[0]
    return Apply(primitive, (value,), dtype)


def rounds(source: DType, target: DType) -> bool:
    """Whether going from `source` to `target` can be an op's own rounding: out of a narrow float's compute type."""
    return source != target and source == target.compute


def rounded(x: Traced, dtype: DType) -> Traced:
    """A result in the type its op declares: `round` from that type's compute type, a `cast` from any other."""
    if not rounds(x.dtype, dtype):
        return cast(x, dtype)  # type: ignore[no-any-return]
    return Traced(_converted(x.value, dtype, "round"), dtype)


def _round(x: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """An op's own rounding to the narrow float type it declares, out of its compute type; the numbers are those of cast.

    Only arithmetic may go on with what was there before it (ir/ops/rounding.py says which).
    """
    return convert(x, dtype)


def convert(x: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """`cast` on numpy arrays."""
    target = dtype.numpy
    if x.dtype == target:
        return x
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dtype.name == "bool":
            return np.asarray(x != 0)
        if x.dtype.kind == "c" and not dtype.kind == "complex":
            x = x.real
        source = from_numpy(x.dtype)
        if source.is_float and dtype.is_integer and source.bits <= 64:
            x = np.trunc(x.astype(np.float64) if source.bits < 32 else x)
            return _float_to_integer(x, dtype)
        if source.bits < 8 or dtype.bits < 8 or (source.is_float and source.bits < 32 and dtype.is_float):
            x = x.astype(np.float32) if source.is_float and source.bits < 32 else x
            x = x.astype(np.int64) if source.is_integer and source.bits < 8 else x
        if dtype.is_integer and dtype.bits < 8:
            x = x.astype(np.int64) & ((1 << dtype.bits) - 1)
            if dtype.kind == "int":
                x = np.where(x >= 1 << (dtype.bits - 1), x - (1 << dtype.bits), x)
        return x.astype(target)


def _float_to_integer(x: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """Truncated floats to an integer type, through i64 so that narrower types wrap as C does on this hardware."""
    if dtype.name == "u64":
        high = x >= 2.0**63
        return np.where(high, (x - 2.0**63).astype(np.int64).astype(np.uint64) + np.uint64(2**63), x.astype(np.int64).astype(np.uint64))
    wide = x.astype(np.int64)
    return convert(wide, dtype) if dtype.bits < 64 else wide


def bitcast(x: Array, dtype: DType) -> Array:
    """The same bits as another dtype of the same width."""
    if isinstance(x, Traced):
        return Traced(Apply("bitcast", (x.value,), dtype), dtype)
    return np.asarray(x).view(dtype.numpy)


def _record(entry: Primitive, args: tuple[Array, ...]) -> Traced:
    traced = [arg for arg in args if isinstance(arg, Traced)]
    values = [arg for arg in traced if not (entry.name == "where" and arg is args[0])]
    dtype = (values or traced)[0].dtype
    parts = []
    for position, arg in enumerate(args):
        wanted = boolean if entry.name == "where" and position == 0 else dtype
        if not isinstance(arg, Traced):
            arg = Traced(Constant(literal_of(arg, wanted), wanted), wanted)
        if arg.dtype != wanted:
            raise TypeError(f"{entry.name}: operand {position} is {arg.dtype}, expected {wanted}")
        parts.append(arg.value)
    result = entry.result_of(dtype)
    return Traced(Apply(entry.name, tuple(parts), result), result)


def literal_of(value: Any, dtype: DType) -> bool | int | float | complex:
    """A Python number as a literal of a dtype; integers beyond it wrap around, as arithmetic does."""
    if dtype.kind == "bool":
        return bool(value)
    if dtype.kind == "complex":
        return complex(value)
    return float(value) if dtype.is_float else wrapped(int(value), dtype)


def wrapped(value: int, dtype: DType) -> int:
    """An integer in two's complement of an integer dtype."""
    low = 0 if dtype.kind == "uint" else -(1 << (dtype.bits - 1))
    return (value - low) % (1 << dtype.bits) + low


PRIMITIVES["cast"] = Primitive("cast", 1, "given", cast.__doc__ or "", convert)
PRIMITIVES["round"] = Primitive("round", 1, "given", _round.__doc__ or "", _round)
PRIMITIVES["bitcast"] = Primitive("bitcast", 1, "given", bitcast.__doc__ or "", bitcast)
