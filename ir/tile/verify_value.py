"""The type rules of tile values: axes by name, element types, extents."""

from __future__ import annotations

import math
from collections.abc import Collection

from .. import dims
from ..dims import Dim
from ..errors import UnsupportedError, VerifyError
from ..scalar import PRIMITIVES, rounds
from ..types import DType
from .bounds import varies_over
from .program import (
    Counter,
    Dot,
    Expand2to4,
    Full,
    Index,
    Join,
    Load,
    Param,
    Reduce,
    Ref,
    Rename,
    Scan,
    Slice,
    TileApply,
    TileType,
    Unpack,
    Value,
    parts,
)
from .scope import Scope

REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")
SCANS = ("sum", "prod", "max", "min")
PRECISIONS = ("exact", "tf32", "tf32x3", "pairs")


def check_dim(scope: Scope, symbols: Collection[str], dim: Dim, what: str) -> None:
    """Every name in an index expression is a symbol, an open axis (`i`, `i.first`, `i.lane`) or an integer value."""
    for name in sorted(dims.symbols(dim)):
        if name.startswith("%"):
            _check_scalar_name(scope, name[1:], what)
            continue
        axis = scope.axes.get(name.partition(".")[0])
        if axis is None and name not in symbols:
            raise VerifyError(f"{what} names {name}, which is neither a symbol nor an axis open here")
        if axis is not None and "." in name and axis.kind != "tile":
            raise VerifyError(f"{what} names {name}, but {axis.name} is one integer", hint=f"use {axis.name}")


def _check_scalar_name(scope: Scope, name: str, what: str) -> None:
    if name not in scope.values:
        raise VerifyError(f"{what} names %{name}, which is not a value defined here")
    if not scope.values[name].dtype.is_integer:
        raise VerifyError(f"{what} names %{name} of {scope.values[name]}, expected an integer")


def check_value(scope: Scope, symbols: Collection[str], value: Value) -> None:
    """Raise VerifyError if the value or one inside it breaks a rule."""
    for part in parts(value):
        check_value(scope, symbols, part)
    _check_type(scope, value.type)
    if isinstance(value, Ref):
        _check_ref(scope, value)
    elif isinstance(value, Full):
        if value.value.dtype != value.type.dtype:
            raise VerifyError(f"full of {value.value.dtype} has type {value.type}")
    elif isinstance(value, Index):
        check_dim(scope, symbols, value.value, "index")
        _same_axes("index", varies_over(scope, value.value), value.type)
        if not value.type.dtype.is_integer:
            raise VerifyError(f"index has type {value.type}, expected an integer type")
    elif isinstance(value, Load):
        _check_load(scope, symbols, value)
    elif isinstance(value, TileApply):
        _check_apply(value)
    elif isinstance(value, Dot):
        _check_dot(scope, value)
    elif isinstance(value, (Reduce, Scan)):
        _check_fold(value)
    elif isinstance(value, Slice):
        _check_slice(scope, value)
    else:
        _check_reshape(scope, value)


def _check_type(scope: Scope, type_: TileType) -> None:
    if type_.dtype.kind in ("complex", "string"):
        raise UnsupportedError(f"value is {type_}, which tile programs do not hold", hint="split complex values into two real operands")
    if len(set(type_.axes)) != len(type_.axes):
        raise VerifyError(f"type {type_} names an axis twice")
    for name in type_.axes:
        if scope.axis(name).kind != "tile":
            raise VerifyError(f"type {type_} names {name}, which is one integer, expected tile axes")


def _same_axes(what: str, found: Collection[str], type_: TileType) -> None:
    if set(found) != set(type_.axes):
        raise VerifyError(f"{what} varies over [{', '.join(found)}], its type is {type_}")


def _check_ref(scope: Scope, value: Ref) -> None:
    if value.name not in scope.values:
        raise VerifyError(f"%{value.name} is read but not defined here", hint="a name is read only inside the block that defines it")
    if scope.values[value.name] != value.type:
        raise VerifyError(f"%{value.name} is {scope.values[value.name]} and read as {value.type}")


def _check_load(scope: Scope, symbols: Collection[str], value: Load) -> None:
    shape = scope.shape(value.operand)
    operand = scope.operands[value.operand]
    if isinstance(operand, Counter):
        raise VerifyError(f"%{value.operand} is a counter, expected an operand or a local", hint="counters are read by wait")
    if isinstance(operand, Param) and operand.role == "out":
        raise VerifyError(f"load of %{value.operand}, which is an output", hint="declare it inout")
    if len(value.subscripts) != len(shape):
        raise VerifyError(f"load of %{value.operand} has {len(value.subscripts)} subscripts, expected {len(shape)}")
    if value.type.dtype != operand.dtype:
        raise VerifyError(f"load of %{value.operand} of {operand.dtype} has type {value.type}", hint="cast the value")
    if value.other is not None and value.other.dtype != value.type.dtype:
        raise VerifyError(f"load of %{value.operand} of {operand.dtype} has an else of {value.other.dtype}")
    for subscript in value.subscripts:
        check_dim(scope, symbols, subscript, f"subscript of %{value.operand}")
    _same_axes(f"load of %{value.operand}", varies_over(scope, *value.subscripts), value.type)


def _check_apply(value: TileApply) -> None:
    if value.primitive not in PRIMITIVES:
        raise VerifyError(f"{value.primitive!r} is not a scalar primitive")
    entry = PRIMITIVES[value.primitive]
    if len(value.args) != entry.arity:
        raise VerifyError(f"{value.primitive} has {len(value.args)} operands, expected {entry.arity}")
    if value.dtype != value.type.dtype:
        raise VerifyError(f"{value.primitive} to {value.dtype} has type {value.type}")
    _same_axes(value.primitive, dict.fromkeys(axis for arg in value.args for axis in arg.type.axes), value.type)
    args = value.args
    if value.primitive == "where":
        if args[0].type.dtype.kind != "bool":
            raise VerifyError(f"where: the condition is {args[0].type}, expected bool")
        args = args[1:]
    dtypes = {arg.type.dtype for arg in args}
    if len(dtypes) > 1:
        got = " and ".join(sorted(map(str, dtypes)))
        raise VerifyError(f"{value.primitive} has operands of {got}, expected one element type", hint="cast one")
    source = args[0].type.dtype
    expected = value.dtype if entry.result == "given" else entry.result_of(source)
    if value.dtype != expected:
        raise VerifyError(f"{value.primitive} of {source} has type {value.type}, expected {expected}")
    if value.primitive == "round" and not rounds(source, value.dtype):
        raise VerifyError(f"round of {source} to {value.dtype}, expected f32 to a narrower float", hint="a conversion is a cast")
    if value.primitive == "bitcast" and source.bits != value.dtype.bits:
        raise VerifyError(f"bitcast from {source} to {value.dtype}, expected the same width")


def _check_dot(scope: Scope, value: Dot) -> None:
    left, right, acc = value.left.type, value.right.type, value.acc.type
    if acc != value.type:
        raise VerifyError(f"dot has an accumulator of {acc} and type {value.type}, expected the same")
    either = set(left.axes) | set(right.axes)
    if not set(acc.axes) <= either:
        raise VerifyError(f"dot: the accumulator {acc} has an axis that neither {left} nor {right} has")
    contracted = either - set(acc.axes)
    if not contracted:
        raise VerifyError(f"dot of {left} and {right} into {acc} contracts no axis", hint="use mul and add")
    for axis in sorted(contracted):
        if axis not in left.axes or axis not in right.axes:
            raise VerifyError(f"dot contracts {axis}, which only one of {left} and {right} has", hint="reduce that operand first")
    _check_dot_types(value, left.dtype, right.dtype, acc.dtype)
    for scale, operand in ((value.left_scale, left), (value.right_scale, right)):
        if scale is not None and not (scale.type.dtype.is_float and _scales(scope, scale.type, operand, contracted, either)):
            hint = "a block scale has an axis of blocks for the contracted one, such as load %s[i, k_block] of load %x[i, k]"
            raise VerifyError(f"dot scale of {scale.type} on {operand}, expected a float over axes of its operand, or of blocks", hint=hint)


def _scales(scope: Scope, scale: TileType, operand: TileType, contracted: set[str], either: set[str]) -> bool:
    """Whether a scale's axes are those of its operand, but for one of blocks along the only contracted one."""
    others = set(scale.axes) - set(operand.axes)
    if not others:
        return True
    if len(others) > 1 or others & either or len(contracted) > 1 or contracted & set(scale.axes):
        return False
    return scope.extent(*contracted) % scope.extent(*others) == 0


def _check_dot_types(value: Dot, left: DType, right: DType, acc: DType) -> None:
    floats = left.is_float and right.is_float and acc.is_float
    integers = left.is_integer and right.is_integer and acc.is_integer
    if not (floats or integers):
        raise VerifyError(f"dot of {left} and {right} into {acc}, expected all floats or all integers", hint="cast an operand")
    if max(left.bits, right.bits) > acc.bits:
        raise VerifyError(f"dot of {left} and {right} into the narrower {acc}")
    if value.precision not in PRECISIONS:
        raise VerifyError(f"dot precision {value.precision!r} is unknown, expected one of: {', '.join(PRECISIONS)}")
    wanted = {"exact": acc.name, "pairs": "i32"}.get(value.precision, "f32")
    if value.precision != "exact" and not (left.name == right.name == acc.name == wanted):
        raise VerifyError(f"dot precision {value.precision} on {left} and {right} into {acc}, expected {wanted} throughout")


def _check_fold(value: Reduce | Scan) -> None:
    word, kinds = ("reduce", REDUCTIONS) if isinstance(value, Reduce) else ("scan", SCANS)
    source = value.value.type
    if value.kind not in kinds:
        raise VerifyError(f"{word} {value.kind!r} is unknown, expected one of: {', '.join(kinds)}")
    if value.axis not in source.axes:
        raise VerifyError(f"{word} {value.kind} over {value.axis}, which {source} lacks")
    kept = source.axes if isinstance(value, Scan) else tuple(axis for axis in source.axes if axis != value.axis)
    _same_axes(f"{word} {value.kind} {value.axis}", kept, value.type)
    if value.kind in ("argmax", "argmin"):
        if not value.type.dtype.is_integer:
            raise VerifyError(f"reduce {value.kind} has type {value.type}, expected an integer type")
        return
    if value.kind in ("any", "all") and source.dtype.kind != "bool":
        raise VerifyError(f"reduce {value.kind} of {source}, expected bool")
    if value.type.dtype != source.dtype:
        raise VerifyError(f"{word} {value.kind} of {source} has type {value.type}, expected {source.dtype}", hint="cast the operand first")


def _check_reshape(scope: Scope, value: Rename | Join | Unpack | Expand2to4) -> None:
    if isinstance(value, Rename):
        before, after = value.before, value.after
        ratio, source = 1, value.value.type
    elif isinstance(value, Join):
        before, after = (), (value.axis,)
        ratio, source = 2, value.left.type
        if value.right.type != source:
            raise VerifyError(f"join of {source} and {value.right.type}, expected the same type")
        if value.type.axes != (*source.axes, value.axis):
            raise VerifyError(f"join along {value.axis} has type {value.type}, expected {value.axis} as its last axis")
    elif isinstance(value, Unpack):
        before, after, source = (value.before,), (value.after,), value.value.type
        held = value.type.dtype
        if value.bits not in (1, 2, 4) or source.dtype.name not in ("u8", "i8") or not (held.is_integer or held.bits == value.bits):
            raise VerifyError(f"unpack of {source} to {value.bits} bits as {value.type}, expected bytes to 1, 2 or 4 bits")
        ratio = 8 // value.bits
    else:
        before, after, ratio, source = (value.before,), (value.after,), 2, value.values.type
        _check_positions(scope, value)
    if not isinstance(value, Unpack) and value.type.dtype != source.dtype:
        raise VerifyError(f"reshape of {source} has type {value.type}, expected {source.dtype}")
    missing = [axis for axis in before if axis not in source.axes]
    if missing:
        raise VerifyError(f"reshape of {source} names {', '.join(missing)}, which it lacks")
    _check_new(source, before, after)
    _same_axes("reshape", [*(axis for axis in source.axes if axis not in before), *after], value.type)
    got = math.prod(scope.extent(axis) for axis in after)
    expected = ratio * math.prod(scope.extent(axis) for axis in before)
    if got != expected:
        raise VerifyError(f"reshape to ({', '.join(after)}) has {got} elements, expected {expected}")


def _check_new(source: TileType, before: Collection[str], after: Collection[str]) -> None:
    """Axes that come in place of others are none of those that stay."""
    twice = sorted({axis for axis in source.axes if axis not in before} & set(after))
    if twice:
        raise VerifyError(f"{', '.join(twice)} would be an axis of {source} twice")


def _check_slice(scope: Scope, value: Slice) -> None:
    source = value.value.type
    if value.before not in source.axes:
        raise VerifyError(f"slice of {source} names {value.before}, which it lacks")
    if value.type.dtype != source.dtype:
        raise VerifyError(f"slice of {source} has type {value.type}, expected {source.dtype}")
    _check_new(source, (value.before,), (value.after,))
    _same_axes("slice", [*(axis for axis in source.axes if axis != value.before), value.after], value.type)
    whole, part = scope.extent(value.before), scope.extent(value.after)
    if whole % part or not 0 <= value.part < whole // part:
        raise VerifyError(f"slice {value.part} of {whole} elements has {part}, expected one of equal parts")


def _check_positions(scope: Scope, value: Expand2to4) -> None:
    positions = value.positions.type
    if positions.axes != value.values.type.axes or not positions.dtype.is_integer:
        raise VerifyError(f"expand_2to4 of {value.values.type} has positions {positions}, expected integers over the same axes")
    if scope.extent(value.after) % 4:
        raise VerifyError(f"expand_2to4 to axis {value.after} of extent {scope.extent(value.after)}, expected a multiple of 4")
