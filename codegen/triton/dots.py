"""The `dot` of tile programs: tensor cores where Triton has them, else a sum of products."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...ir.errors import UnsupportedError
from ...ir.tile.program import Dot, Unpack, Value
from ...ir.tile.scope import Scope
from ...ir.types import DType
from . import primitives
from .emitter import Emitter, Tile
from .words import shape_text

Print = Callable[[Emitter, Scope, Value, "tuple[str, ...] | None"], Tile]

# Accumulator types by operand type, as `tl.dot` takes them, and the least extent of the contracted axis.
_TENSOR_CORES = {
    **{"f16": (("f32", "f16"), 16), "bf16": (("f32",), 16), "f32": (("f32",), 16), "f64": (("f64",), 4)},
    **{"i8": (("i32",), 32), "f8e4m3": (("f32",), 32), "f8e5m2": (("f32",), 32)},
}
_PRECISIONS = {"exact": "ieee", "tf32": "tf32", "tf32x3": "tf32x3"}
_SCALED_FORMATS = {"f8e4m3": "e4m3", "f8e5m2": "e5m2", "f4e2m1": "e2m1", "f16": "fp16", "bf16": "bf16"}
_SCALED_ISA = 88
"""The ISA of PTX that names blocks of 16 and 32."""
_SCALES = {"f8e8m0": 32, "f8e4m3": 16}
"""The types of block scales, and how many elements share one: MX's, and NVIDIA's for f4e2m1."""


@dataclass(frozen=True)
class Roles:
    """The axes of a dot: in both operands and the result, of the left, of the right, contracted."""

    batch: tuple[str, ...]
    left: tuple[str, ...]
    right: tuple[str, ...]
    contracted: tuple[str, ...]


def roles(value: Dot) -> Roles:
    """Who has which axis, each group in the order of the result (contracted ones in the left operand's)."""
    left, right, result = set(value.left.type.axes), set(value.right.type.axes), value.type.axes
    return Roles(
        tuple(a for a in result if a in left and a in right),
        tuple(a for a in result if a in left and a not in right),
        tuple(a for a in result if a in right and a not in left),
        tuple(a for a in dict.fromkeys((*value.left.type.axes, *value.right.type.axes)) if a not in result),
    )


def print_dot(emitter: Emitter, scope: Scope, value: Dot, tile: Print) -> Tile:
    """A dot, with the axes of its type."""
    if value.precision not in _PRECISIONS:
        raise UnsupportedError(
            f"dot precision {value.precision!r} is not supported in Triton kernels, expected one of: {', '.join(_PRECISIONS)}"
        )
    found = roles(value)
    # Triton's result is (left, right): the operand that owns the first axis of the type goes left.
    first = next((axis for axis in value.type.axes if axis not in found.batch), None)
    if first in found.right and found.left:
        flipped = Dot(value.right, value.left, value.acc, value.type, value.precision, value.right_scale, value.left_scale)
        return print_dot_as(emitter, scope, flipped, roles(flipped), tile)
    return print_dot_as(emitter, scope, value, found, tile)


_SHORT = 128
"""Terms of a sum of fp8 products that Hopper adds as it does, in fewer bits than f32, before f32 takes them: the interval at which
DeepSeek-V3 and CUTLASS add up, of four instructions (arXiv:2412.19437, section 3.3.2)."""


def print_dot_as(emitter: Emitter, scope: Scope, value: Dot, found: Roles, tile: Print) -> Tile:
    """The dot with its operands in this order."""
    if value.left_scale is not None or value.right_scale is not None:
        return _scaled(emitter, scope, value, found, tile)
    reason = _why_no_tensor_cores(scope, value, found)
    if reason is None:
        return _tensor_cores(emitter, scope, value, found, tile)
    emitter.note(f"dot over {', '.join(found.contracted)} is a sum of products, not on tensor cores: {reason}")
    return _products(emitter, scope, value, found, tile)


def _why_no_tensor_cores(scope: Scope, value: Dot, found: Roles) -> str | None:
    left, right = value.left.type.dtype, value.right.type.dtype
    if not found.left or not found.right:
        return "one operand has no axis of its own (a vector-matrix product)"
    if left.name not in _TENSOR_CORES or (left != right and not (left.bits == right.bits == 8 and left.is_float and right.is_float)):
        return f"operands are {left} and {right}"
    accumulators, least = _TENSOR_CORES[left.name]
    if value.type.dtype.name not in accumulators:
        return f"the accumulator of {left} is {value.type.dtype}"
    extent = _product(scope.extent(axis) for axis in found.contracted)
    return f"{extent} contracted elements are fewer than the {least} of an instruction" if extent < least else None


def _tensor_cores(emitter: Emitter, scope: Scope, value: Dot, found: Roles, tile: Print) -> Tile:
    left = _operand(emitter, scope, value.left, (found.batch, found.left, found.contracted), tile)
    right = _operand(emitter, scope, value.right, (found.batch, found.contracted, found.right), tile)
    axes = (*found.batch, *found.left, *found.right)
    acc = tile(emitter, scope, value.acc, axes)
    arguments = [left, right]
    zero = acc.constant is not None and acc.constant.value == 0
    if not zero:
        arguments.append(f"acc={_folded(emitter, scope, acc, (found.batch, found.left, found.right))}")
    arguments.append(f'input_precision="{_PRECISIONS[value.precision]}"')
    extent = _product(scope.extent(axis) for axis in found.contracted)
    if value.left.type.dtype.bits == 8 and value.left.type.dtype.is_float and not (zero and extent <= _SHORT):
        arguments.append(f"max_num_imprecise_acc={min(extent, _SHORT)}")
    arguments.append(f"out_dtype={primitives.language_type(value.type.dtype)}")
    return _result(emitter, scope, f"tl.dot({', '.join(arguments)})", value, found)


def _operand(emitter: Emitter, scope: Scope, value: Value, groups: tuple[tuple[str, ...], ...], tile: Print) -> str:
    order = tuple(axis for group in groups for axis in group)
    return _folded(emitter, scope, tile(emitter, scope, value, order), groups)


def _folded(emitter: Emitter, scope: Scope, printed: Tile, groups: tuple[tuple[str, ...], ...]) -> str:
    """A tile with one dimension for each group of axes; an empty first group (no batch) has none."""
    order = tuple(axis for group in groups for axis in group)
    text = emitter.broadcast(scope, printed, order)
    kept = groups if groups[0] else groups[1:]
    if all(len(group) == 1 for group in kept):
        return text
    return f"tl.reshape({text}, {shape_text(tuple(_product(scope.extent(axis) for axis in group) for group in kept))})"


def _result(emitter: Emitter, scope: Scope, text: str, value: Dot, found: Roles) -> Tile:
    axes = (*found.batch, *found.left, *found.right)
    if any(len(group) > 1 for group in (found.batch, found.left, found.right)):
        text = f"tl.reshape({text}, {shape_text(emitter.shape(scope, axes))})"
    return Tile(text, axes, value.type.dtype, wanted="product")


def _products(emitter: Emitter, scope: Scope, value: Dot, found: Roles, tile: Print) -> Tile:
    """acc + sum of left * right over the contracted axes, in the accumulator's type."""
    axes = (*found.batch, *found.left, *found.right, *found.contracted)
    kept = axes[: len(axes) - len(found.contracted)]
    work = value.type.dtype.compute
    emitter.shape(scope, axes)
    texts = []
    for part in (value.left, value.right):
        printed = tile(emitter, scope, part, tuple(axis for axis in axes if axis in part.type.axes))
        widened = Tile(_cast(emitter, printed, work), printed.axes, work)
        texts.append(emitter.aligned(widened, axes))
    text = f"tl.broadcast_to({texts[0]} * {texts[1]}, {shape_text(emitter.shape(scope, axes))})"
    emitter.helpers.add("combine_sum")
    for _ in found.contracted:
        text = f"tl.reduce({text}, {axes.index(found.contracted[0])}, combine_sum)"
    acc = tile(emitter, scope, value.acc, kept)
    if acc.constant is None or acc.constant.value != 0:
        text = f"{emitter.aligned(Tile(_cast(emitter, acc, work), acc.axes, work), kept)} + {text}"
    return Tile(primitives.cast(f"({text})", work, value.type.dtype, emitter.helpers), kept, value.type.dtype, wanted="product")


def _cast(emitter: Emitter, printed: Tile, target: DType) -> str:
    text = primitives.full(printed.constant) if printed.constant is not None else printed.text
    return primitives.cast(text, printed.dtype, target, emitter.helpers)


def _scaled(emitter: Emitter, scope: Scope, value: Dot, found: Roles, tile: Print) -> Tile:
    """Block-scaled formats: scales are (rows, blocks along the contraction); f4e2m1 stays in pairs, a byte each."""
    types = (value.left.type.dtype, value.right.type.dtype)
    if any(dtype.name not in _SCALED_FORMATS for dtype in types) or len(found.contracted) != 1 or found.batch:
        raise UnsupportedError(
            f"scaled dot of {types[0]} and {types[1]} over {', '.join(found.contracted)} is not supported in Triton kernels",
            hint="use f8e4m3, f8e5m2 or f4e2m1 operands with one contracted axis and no batch axis, or scale before the dot",
        )
    texts: list[str] = []
    (along,) = found.contracted
    emitter.isa = max(emitter.isa, _SCALED_ISA)
    sides = (
        (value.left, value.left_scale, found.left, False),
        (value.right, value.right_scale, found.right, True),
    )
    for operand, scale, own, is_last in sides:
        operand, inner = _stored(operand, along)
        groups = ((), (inner,), own) if is_last else ((), own, (inner,))
        texts.append(_operand(emitter, scope, operand, groups, tile))
        texts.append("None" if scale is None else _scale(emitter, scope, scale, own, scope.extent(along), tile))
        texts.append(f'"{_SCALED_FORMATS[types[is_last].name]}"')
    acc = emitter.broadcast(scope, tile(emitter, scope, value.acc, value.type.axes), (*found.left, *found.right))
    return _result(
        emitter,
        scope,
        f"tl.dot_scaled({', '.join(texts)}, acc={acc}, out_dtype={primitives.language_type(value.type.dtype)})",
        value,
        found,
    )


def _stored(operand: Value, along: str) -> tuple[Value, str]:
    """An operand as the instruction reads it, and its contracted axis: elements of 4 bits are the bytes that hold them."""
    if isinstance(operand, Unpack) and operand.type.dtype.bits == operand.bits:
        return operand.value, operand.before
    return operand, along


def _scale(emitter: Emitter, scope: Scope, scale: Value, own: tuple[str, ...], extent: int, tile: Print) -> str:
    dtype, blocks = scale.type.dtype, [axis for axis in scale.type.axes if axis not in own]
    size = extent // scope.extent(blocks[0]) if len(blocks) == 1 else 0
    if size != _SCALES.get(dtype.name):
        raise UnsupportedError(
            f"block scale of a dot is {dtype} for {size or 'no'} elements, expected f8e8m0 for 32 or f8e4m3 for 16",
            hint="apply other scales to the product",
        )
    order = (*own, *blocks)
    return emitter.broadcast(scope, tile(emitter, scope, scale, order), order)


def _product(extents: Iterable[int]) -> int:
    result = 1
    for extent in extents:
        result *= extent
    return result
