"""The scalar primitives as C expressions over registers, for any lane count; casts between register types.

Registers hold small floats as f32 values that the type can represent: every operation on them rounds again, as the
reference does. Bools are i32 masks of 0 and -1.
"""

from __future__ import annotations

import math

from ...ir.errors import UnsupportedError
from ...ir.expression import Constant
from ...ir.scalar import PRIMITIVES
from ...ir.types import DType
from .basics import STORAGE, is_small_float, register
from .library import ELEMENTS, Library

_OPERATORS = {"add": "+", "sub": "-", "mul": "*"}
SHIFTS = {"shift_left": "<<", "shift_right": ">>"}
_BITS = {"bit_and": "&", "bit_or": "|", "bit_xor": "^"}
_MASK_OPERATORS = {**_BITS, "add": "|", "sub": "^", "mul": "&", "max": "|", "min": "&", "ne": "^"}
_COMPARISONS = ("lt", "le", "eq", "ne")


def constant(value: Constant) -> str:
    """A C literal of the register type that has exactly the constant's bits."""
    dtype, number = value.dtype, value.value
    if dtype.kind == "bool":
        return "-1" if number else "0"
    if isinstance(number, complex):
        raise UnsupportedError(f"the c printer has no arithmetic for {dtype}", hint="lower it to real types before tiling")
    return _float(float(number), dtype) if dtype.is_float else _integer(int(number), dtype)


def _float(number: float, dtype: DType) -> str:
    if math.isnan(number):
        return "NAN"
    if math.isinf(number):
        return "INFINITY" if number > 0 else "-INFINITY"
    import numpy as np

    if dtype.bits < 64:
        with np.errstate(over="ignore"):
            number = float(
                np.float32(number) if dtype.bits == 32 else np.asarray(np.float32(number)).astype(dtype.numpy).astype(np.float32)
            )
        return _float(number, _WIDE) + "f" if math.isfinite(number) else _float(number, _WIDE)
    return number.hex()


_WIDE = DType("f64", "float", 64)


def _integer(number: int, dtype: DType) -> str:
    if dtype.kind == "uint":
        return f"{number % (1 << dtype.bits)}u" + ("l" if dtype.bits == 64 else "")
    if number == -(1 << (dtype.bits - 1)) and dtype.bits >= 32:
        return f"(-{-(number + 1)}{'l' if dtype.bits == 64 else ''} - 1)"
    return f"{number}{'l' if abs(number) > 2**31 - 1 else ''}"


def apply(library: Library, name: str, dtype: DType, lanes: int, args: list[str], number: bool = False) -> str:
    """The primitive on operands of `dtype` (the operands' type, not the result's).

    `number` says that the first operand is known not to be NaN.
    """
    if name not in PRIMITIVES:
        raise UnsupportedError(f"the c printer does not know primitive {name!r}", hint="it must be one of ir/scalar")
    kind = register(dtype)
    if dtype.kind == "bool":
        return _on_masks(library, name, lanes, args)
    text = _plain(library, name, dtype, kind, lanes, args, number)
    if is_small_float(dtype) and PRIMITIVES[name].result == "same" and name not in ("neg", "abs", "min", "max", "sign", "where"):
        return library.call(f"round_{dtype}", lanes, text)
    if dtype.bits < 8 and dtype.is_integer and PRIMITIVES[name].result == "same" and name != "where":
        return wrap(library, dtype, lanes, text)
    return text


def _plain(library: Library, name: str, dtype: DType, kind: str, lanes: int, args: list[str], number: bool) -> str:
    is_float = kind in ("f32", "f64")
    if name in _OPERATORS:
        return f"{args[0]} {_OPERATORS[name]} {args[1]}"
    if name in _BITS and not is_float:
        return f"{args[0]} {_BITS[name]} {args[1]}"
    if name == "neg":
        return f"-{args[0]}"
    if name == "bit_not" and not is_float:
        return f"~{args[0]}"
    if name in ("div", "div_narrow") and is_float:
        return f"{args[0]} / {args[1]}"
    if name == "fma" and not is_float:
        return f"{args[0]} * {args[1]} + {args[2]}"
    if name == "where":
        return library.call(f"select_{kind}", lanes, *args)
    if name in ("is_nan", "is_inf"):
        return _class(library, name, kind, lanes, args[0])
    if name in ("floor", "ceil", "trunc", "round_even") and not is_float:
        return args[0]
    if name in ("min", "max") and number and is_float:
        return library.call(f"{name}_number_{kind}", lanes, *args)
    function = f"{name}_{kind}"
    if function not in library.functions:
        raise UnsupportedError(f"the c printer has no {name} for {dtype}", hint="cast the operand to a float type first")
    return library.call(function, lanes, *args)


def _class(library: Library, name: str, kind: str, lanes: int, x: str) -> str:
    if kind not in ("f32", "f64"):
        return library.call("splat_i32", lanes, "0")
    if name == "is_nan":
        return library.call(f"ne_{kind}", lanes, x, x)
    infinity = library.call(f"splat_{kind}", lanes, "INFINITY")
    return library.call(f"eq_{kind}", lanes, library.call(f"abs_{kind}", lanes, x), infinity)


def _on_masks(library: Library, name: str, lanes: int, args: list[str]) -> str:
    if name in _MASK_OPERATORS:
        return f"{args[0]} {_MASK_OPERATORS[name]} {args[1]}"
    if name == "bit_not":
        return f"~{args[0]}"
    if name == "eq":
        return f"~({args[0]} ^ {args[1]})"
    if name == "lt":
        return f"~{args[0]} & {args[1]}"
    if name == "le":
        return f"~{args[0]} | {args[1]}"
    if name == "where":
        return library.call("select_i32", lanes, *args)
    if name in ("is_nan", "is_inf"):
        return library.call("splat_i32", lanes, "0")
    if name == "abs":
        return args[0]
    raise UnsupportedError(f"the c printer has no {name} for bool", hint="cast the operand to an integer or float type first")


def wrap(library: Library, dtype: DType, lanes: int, text: str) -> str:
    """The low bits of an integer narrower than a byte, extended by its sign."""
    storage = library.vector(register(dtype), lanes)
    unsigned = library.vector("u8", lanes)
    shift = 8 - dtype.bits
    if lanes == 1:
        return f"(({storage})(({unsigned})(({text}) << {shift})) >> {shift})"
    return f"(({storage})(({unsigned})({text}) << {shift}) >> {shift})"


def cast(library: Library, source: DType, target: DType, lanes: int, x: str) -> str:
    """`cast` of ir/scalar/primitive.py between register types."""
    if source == target:
        return x
    before, after = register(source), register(target)
    if target.kind == "bool":
        zero = library.call(f"splat_{before}", lanes, "0")
        return library.call(f"ne_{before}", lanes, x, zero)
    if source.kind == "bool":
        x, before = f"({x} & 1)", "i32"
    if target.name == "f16" and before == "f64":
        return library.call("narrow_f64_f16", lanes, x)
    if before != after:
        x = library.call(f"convert_{before}_{after}", lanes, x)
    if is_small_float(target):
        if f"round_{target}" not in library.functions:
            raise UnsupportedError(f"the c printer does not round to {target}", hint="use f8e4m3 or f8e5m2, or quantize on another target")
        return x if _holds(source, target) else library.call(f"round_{target}", lanes, x)
    if target.is_integer and target.bits < 8:
        return wrap(library, target, lanes, x)
    return x


def _holds(source: DType, target: DType) -> bool:
    """Whether every value of source is one of target, so that nothing rounds."""
    if source.kind == "bool":
        return True
    eights = ("f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "f4e2m1")
    return target.bits == 16 and (source.name in eights or (source.is_integer and source.bits <= 8))


def bitcast(library: Library, source: DType, target: DType, lanes: int, x: str) -> str:
    """The same bits; small floats go through their storage form."""
    if source.bits != target.bits or source.bits < 8:
        raise UnsupportedError(
            f"the c printer does not bitcast {source} to {target}", hint="both types must have the same width of at least 8 bits"
        )
    bits = to_storage(library, source, lanes, x)
    before, after = STORAGE[source.name], STORAGE[target.name]
    if before != after:
        bits = library.call(f"bits_{before}_{after}", lanes, bits)
    return from_storage(library, target, lanes, bits)


def to_storage(library: Library, dtype: DType, lanes: int, x: str) -> str:
    """Register form to memory form."""
    if dtype.kind == "bool":
        return library.call("convert_i32_u8", lanes, f"({x} & 1)")
    if is_small_float(dtype):
        if f"encode_{dtype}" not in library.functions:
            raise UnsupportedError(f"the c printer does not store {dtype}", hint="use f8e4m3 or f8e5m2, or quantize on another target")
        return library.call(f"encode_{dtype}", lanes, x)
    return x


def from_storage(library: Library, dtype: DType, lanes: int, x: str) -> str:
    """Memory form to register form."""
    if dtype.kind == "bool":
        return library.call("ne_u8", lanes, x, library.call("splat_u8", lanes, "0"))
    if is_small_float(dtype):
        return library.call(f"decode_{dtype}", lanes, x)
    return x


def storage_type(dtype: DType) -> tuple[str, str]:
    """The storage element type (`u16`) and its C spelling."""
    register(dtype)  # refuses what has no arithmetic
    return STORAGE[dtype.name], ELEMENTS[STORAGE[dtype.name]][0]
