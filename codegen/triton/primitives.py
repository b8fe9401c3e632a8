"""The Triton text of scalar primitives and casts, and Triton's names for element types."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...ir.errors import UnsupportedError
from ...ir.expression import Constant
from ...ir.types import DType, f32
from .words import bare

WELL_WITHIN = 2.0**-125, 2.0**125
"""Divisors of normal numbers in f32 whose inverses are normal too."""

_LANGUAGE_NAMES = {
    **{"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "f8e4m3": "float8e4nv", "f8e5m2": "float8e5"},
    **{f"i{n}": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"u{n}": f"uint{n}" for n in (8, 16, 32, 64)},
    **{"bool": "int1", "f8e8m0": "uint8"},
}
_SIGNATURE_NAMES = {
    **{"f64": "fp64", "f32": "fp32", "f16": "fp16", "bf16": "bf16", "f8e4m3": "fp8e4nv", "f8e5m2": "fp8e5"},
    **{name: name for name in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")},
    **{"bool": "i1", "f8e8m0": "u8"},
}


@dataclass(frozen=True)
class PrintedOperand:
    """An operand of a primitive: its text, and the literal if it is one."""

    text: str
    constant: Constant | None = None


def language_type(dtype: DType) -> str:
    """`tl.float32` and friends; UnsupportedError for element types that Triton has no values of."""
    if dtype.name not in _LANGUAGE_NAMES:
        raise UnsupportedError(
            f"element type {dtype} has no Triton type, expected one of: {', '.join(_LANGUAGE_NAMES)}",
            hint="keep packed types as u8 and unpack them in the kernel, or run the op on the cpu target",
        )
    return f"tl.{_LANGUAGE_NAMES[dtype.name]}"


def signature_type(dtype: DType) -> str:
    """`fp32` and friends, as kernel signatures write them."""
    language_type(dtype)
    return _SIGNATURE_NAMES[dtype.name]


def literal(value: bool | int | float | complex) -> str:
    """A Python literal that Triton reads to the same number."""
    if isinstance(value, float) and (math.isinf(value) or math.isnan(value)):
        return f'float("{value}")'
    return repr(value)


def typed(constant: Constant, dtype: DType) -> Constant:
    """The constant as a number of the kind that `dtype` has."""
    value = constant.value.real if isinstance(constant.value, complex) else constant.value
    return Constant(float(value) if dtype.is_float else bool(value) if dtype.kind == "bool" else int(value), dtype)


def full(constant: Constant, shape: str = "()") -> str:
    """A tile (or scalar) of one number, with its type written out."""
    return f"tl.full({shape}, {literal(constant.value)}, {language_type(constant.dtype)})"


def cast(text: str, source: DType, target: DType, helpers: set[str]) -> str:
    """`text` of type `source` converted to `target`, rounding and overflowing as `ir.scalar.cast` says."""
    if source == target:
        return text
    if source.name == "f8e8m0":
        helpers.add("from_f8e8m0")
        return cast(f"from_f8e8m0({text})", f32, target, helpers)
    narrow = source.is_float and source.bits < 32
    if narrow and target != f32:
        return cast(f"{text}.to(tl.float32)", f32, target, helpers)
    if target.kind == "bool":
        return f"({text} != 0)"
    if target.is_float and target.bits < 32 and source != f32:
        return cast(f"{text}.to(tl.float32)", f32, target, helpers)
    if target.name in ("f8e4m3", "f8e5m2", "f8e8m0"):
        helpers.add(f"to_{target}")
        return f"to_{target}({text})"
    return f"{text}.to({language_type(target)})"


def apply(primitive: str, args: tuple[PrintedOperand, ...], dtype: DType, helpers: set[str]) -> str:
    """The text of a primitive on operands of one dtype; floats narrower than f32 must have been widened."""
    family = "bool" if dtype.kind == "bool" else "float" if dtype.is_float else "uint" if dtype.kind == "uint" else "int"
    if dtype.kind in ("complex", "string"):
        raise UnsupportedError(f"primitive {primitive} on {dtype} is not supported in Triton kernels", hint="run the op on the cpu target")
    if primitive == "div" and dtype == f32 and (quotient := _by_literal(args[0], args[1], helpers)) is not None:
        return quotient
    for key in (f"{primitive}_{dtype}", f"{primitive}_{family}", primitive):
        if key in _INFIX:
            return _infix(_INFIX[key], args, dtype)
        if key in _FUNCTIONS:
            return _FUNCTIONS[key](*_filled(args, dtype, keep=1))
        if key in _HELPERS:
            helpers.add(_HELPERS[key])
            return f"{_HELPERS[key]}({', '.join(map(bare, _filled(args, dtype, keep=0)))})"
    if primitive in ("shift_left", "shift_right"):
        return _shift(primitive, args, dtype)
    raise UnsupportedError(
        f"primitive {primitive} on {dtype} is not supported in Triton kernels",
        hint="compute it in f32, or run the op on the cpu target",
    )


def select(condition: str, left: PrintedOperand, right: PrintedOperand, dtype: DType) -> str:
    """`where`; literals get their type written out where there is no tensor, or a narrow one, beside them."""
    x, y = _filled((left, right), dtype, keep=int(dtype.compute == dtype))
    return f"tl.where({condition}, {x}, {y})"


def _filled(args: tuple[PrintedOperand, ...], dtype: DType, keep: int) -> tuple[str, ...]:
    """Operand texts with literals typed, unless at least `keep` operands are tensors that give them their type."""
    tensors = sum(arg.constant is None for arg in args)
    if keep and tensors >= keep:
        return tuple(arg.text for arg in args)
    return tuple(arg.text if arg.constant is None else full(Constant(arg.constant.value, dtype)) for arg in args)


def _by_literal(x: PrintedOperand, y: PrintedOperand, helpers: set[str]) -> str | None:
    """A quotient in f32 by a literal whose inverse is known when printing, which is exact for powers of two; None for other divisors."""
    if x.constant is not None or y.constant is None:
        return None
    divisor = float(np.float32(y.constant.value.real))
    if not WELL_WITHIN[0] <= abs(divisor) <= WELL_WITHIN[1]:
        return None
    inverse = float(np.float32(1.0 / divisor))
    if abs(math.frexp(divisor)[0]) == 0.5:
        return f"({x.text} * {literal(inverse)})"
    helpers.add("div_by_f32")
    return f"div_by_f32({bare(x.text)}, {literal(divisor)}, {literal(inverse)})"


def _infix(operator: str, args: tuple[PrintedOperand, ...], dtype: DType) -> str:
    left, right = _filled(args, dtype, keep=1)
    return f"({left} {operator} {right})"


def _shift(primitive: str, args: tuple[PrintedOperand, ...], dtype: DType) -> str:
    operator = "<<" if primitive == "shift_left" else ">>"
    value, count = args
    if count.constant is not None and 0 <= int(count.constant.value.real) < dtype.bits:
        return f"({_filled((value,), dtype, keep=1)[0]} {operator} {count.text})"
    x, n = _filled(args, dtype, keep=0)
    inside = f"(({n} >= 0) & ({n} < {dtype.bits}))"
    beyond = f"tl.where({x} < 0, -1, 0)" if primitive == "shift_right" and dtype.kind == "int" else "0"
    return f"tl.where({inside}, {x} {operator} tl.where({inside}, {n}, 0), {beyond}).to({language_type(dtype)})"


# Primitives whose text names an operand more than once.
REPEATS = frozenset({"sign", "is_nan", "is_inf", "shift_left", "shift_right"})

_NAN = "propagate_nan=tl.PropagateNan.ALL"

_INFIX = {
    **{"add": "+", "sub": "-", "mul": "*", "add_bool": "|", "sub_bool": "^", "mul_bool": "&", "div_f64": "/"},
    **{"min_bool": "&", "max_bool": "|", "eq": "==", "ne": "!=", "lt": "<", "le": "<="},
    **{"bit_and": "&", "bit_or": "|", "bit_xor": "^"},
}

_FUNCTIONS: dict[str, Callable[..., str]] = {
    # Triton's unary minus is 0 - x, which loses the sign of zero.
    "neg_float": lambda x: f"({x} * -1.0)",
    "neg": lambda x: f"(0 - {x})",
    "abs_bool": lambda x: x,
    "abs_uint": lambda x: x,
    "abs": lambda x: f"tl.abs({x})",
    "sign_int": lambda x: f"(({x} > 0).to({x}.dtype) - ({x} < 0).to({x}.dtype))",
    "sign_uint": lambda x: f"({x} > 0).to({x}.dtype)",
    "min_f32": lambda x, y: f"tl.minimum({x}, {y}, {_NAN})",
    "max_f32": lambda x, y: f"tl.maximum({x}, {y}, {_NAN})",
    "min_int": lambda x, y: f"tl.minimum({x}, {y})",
    "max_int": lambda x, y: f"tl.maximum({x}, {y})",
    "min_uint": lambda x, y: f"tl.minimum({x}, {y})",
    "max_uint": lambda x, y: f"tl.maximum({x}, {y})",
    "fma_float": lambda x, y, z: f"tl.fma({x}, {y}, {z})",
    "fma": lambda x, y, z: f"({x} * {y} + {z})",
    "exp2_f64": lambda x: f"tl.exp2({x})",
    "exp_f64": lambda x: f"tl.exp({x})",
    "log_float": lambda x: f"tl.log({x})",
    "log2_float": lambda x: f"tl.log2({x})",
    "sqrt_f32": lambda x: f"tl.sqrt_rn({x})",
    "sqrt_f64": lambda x: f"tl.sqrt({x})",
    "rsqrt_f32": lambda x: f"tl.rsqrt({x})",
    "rsqrt_f64": lambda x: f"(1.0 / tl.sqrt({x}))",
    "sin_float": lambda x: f"tl.sin({x})",
    "cos_float": lambda x: f"tl.cos({x})",
    "tan_f64": lambda x: f"(tl.sin({x}) / tl.cos({x}))",
    "erf_float": lambda x: f"tl.erf({x})",
    "floor_float": lambda x: f"tl.floor({x})",
    "ceil_float": lambda x: f"tl.ceil({x})",
    **{f"{name}_{family}": (lambda x: x) for name in ("floor", "ceil", "trunc", "round_even") for family in ("int", "uint", "bool")},
    "is_nan_float": lambda x: f"({x} != {x})",
    "is_inf_float": lambda x: f'(tl.abs({x}) == float("inf"))',
    "is_nan": lambda x: f"({x} != {x})",
    "is_inf": lambda x: f"({x} != {x})",
    "bit_not": lambda x: f"(~{x})",
}

_HELPERS = {
    **{"div_int": "div_int", "div_uint": "div_uint", "trunc_mod_int": "trunc_mod_int", "trunc_mod_uint": "trunc_mod_uint"},
    **{
        "floor_div_int": "floor_div_int",
        "floor_div_uint": "div_uint",
        "floor_mod_int": "floor_mod_int",
        "floor_mod_uint": "trunc_mod_uint",
    },
    **{"trunc_mod_f32": "fmod_f32", "floor_mod_f32": "floor_mod_f32", "floor_div_f32": "floor_div_f32"},
    **{"pow_int": "pow_int", "pow_uint": "pow_int", "pow_f32": "pow_f32"},
    **{"min_f64": "combine_min", "max_f64": "combine_max"},
    **{"trunc_float": "trunc_float", "round_even_f32": "round_even_f32", "round_even_f64": "round_even_f64", "sign_float": "sign_float"},
    **{
        f"{name}_f32": f"{name}_f32"
        for name in (
            *("div", "div_narrow", "e2m1x2", "sigmoid_narrow", "exp", "exp2", "exp2_narrow", "expm1", "log1p", "tanh"),
            *("tan", "atan", "atan2", "asin", "acos", "sinh", "cosh"),
            *("asinh", "acosh", "atanh", "erfc", "lgamma"),
        )
    },
}
