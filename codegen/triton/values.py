"""Values of tile programs as Triton expressions; loads and dots get a variable each."""

from __future__ import annotations

import re

from ...ir import dims
from ...ir.errors import UnsupportedError
from ...ir.expression import Constant
from ...ir.scalar import PRIMITIVES
from ...ir.tile import checks_of, flatten, varies_over
from ...ir.tile.program import (
    Dot,
    Expand2to4,
    Full,
    Index,
    Join,
    Load,
    Local,
    Param,
    Reduce,
    Ref,
    Rename,
    Scan,
    Slice,
    TileApply,
    Unpack,
    Value,
)
from ...ir.tile.scope import Scope
from ...ir.types import DType, boolean, f32, i32
from . import descriptors, indices, primitives, roundings
from .dots import print_dot
from .emitter import Emitter, Tile
from .primitives import PrintedOperand, language_type
from .words import shape_text


def tile(emitter: Emitter, scope: Scope, value: Value, order: tuple[str, ...] | None = None) -> Tile:
    """A value's text, that of work in a variable; `order` is the order of axes that a load had best take (others are permuted by
    their reader).
    """
    return emitter.held(expression(emitter, scope, value, order))


def expression(emitter: Emitter, scope: Scope, value: Value, order: tuple[str, ...] | None = None) -> Tile:
    """A value's text, of work too: its one reader gives it a name."""
    if isinstance(value, Load):
        return _load(emitter, scope, value, order or value.type.axes)
    if isinstance(value, Ref):
        return _reference(emitter, value)
    if isinstance(value, Full):
        constant = primitives.typed(value.value, value.type.dtype)
        return Tile(primitives.literal(constant.value), (), value.type.dtype, constant)
    if isinstance(value, Index):
        return _index(emitter, scope, value)
    if isinstance(value, TileApply):
        return _apply(emitter, scope, value, order)
    if isinstance(value, Dot):
        return print_dot(emitter, scope, value, tile)
    if isinstance(value, Reduce):
        return _reduce(emitter, scope, value)
    if isinstance(value, Scan):
        return _scan(emitter, scope, value)
    if isinstance(value, Rename):
        return _rename(emitter, scope, value)
    if isinstance(value, Slice):
        return _slice(emitter, scope, value)
    if isinstance(value, Join):
        return _join(emitter, scope, value)
    if isinstance(value, Unpack):
        return _unpack(emitter, scope, value)
    return _expand(emitter, scope, value)


def whole(emitter: Emitter, scope: Scope, value: Value) -> str:
    """A value's text with exactly the axes of its type."""
    return emitter.broadcast(scope, tile(emitter, scope, value, value.type.axes), value.type.axes)


def _reference(emitter: Emitter, value: Ref) -> Tile:
    if value.name not in emitter.values:
        raise UnsupportedError(f"launch {emitter.launch.name}: value %{value.name} is not known here", hint="name it before it is used")
    return emitter.values[value.name]


def _index(emitter: Emitter, scope: Scope, value: Index) -> Tile:
    printed = indices.index(emitter, scope, value.value, value.type.axes)
    if isinstance(value.value, int):
        return Tile(printed.text, (), value.type.dtype, Constant(value.value, value.type.dtype))
    text = f"tl.cast({printed.text}, {language_type(value.type.dtype)})" if value.type.dtype != printed.dtype else printed.text
    return Tile(text, printed.axes, value.type.dtype)


# --- memory -----------------------------------------------------------------------------------------------------------


def _load(emitter: Emitter, scope: Scope, value: Load, order: tuple[str, ...]) -> Tile:
    operand = scope.operands.get(value.operand)
    if isinstance(operand, Local):
        return _load_local(emitter, scope, value, operand)
    if not isinstance(operand, Param):
        raise UnsupportedError(
            f"launch {emitter.launch.name}: load from {value.operand}, which is no operand", hint="counters are for signal and wait"
        )
    if "descriptor" in value.hints:
        found = descriptors.load(emitter, scope, value, operand)
        if found is not None:
            return found
    address = flatten(operand, value.subscripts)
    checks = checks_of(scope, value)
    along = set(varies_over(scope, indices.resolve(emitter, scope, address)))
    over = along | {axis for check in checks for axis in check.axes}
    axes = tuple(axis for axis in order if axis in over)
    emitter.shape(scope, axes)
    condition = indices.mask(emitter, scope, checks, axes)
    arguments = [indices.pointer(emitter, scope, operand.name, address, axes)]
    if condition is not None:
        # A mask is no wider than its pointers: lanes that read one place have it each.
        arguments[0] += "".join(f" + 0 * {indices.lane(emitter, scope, axis, axes)}" for axis in axes if axis not in along)
        arguments.append(f"mask={condition}")
        # Lanes without a value are poison; as zeros they cannot turn a product with a masked zero into NaN.
        other = value.other if value.other is not None else Constant(0, value.type.dtype)
        arguments.append(f"other={primitives.literal(primitives.typed(other, value.type.dtype).value)}")
    arguments += [f'eviction_policy="{hint}"' for hint in value.hints if hint in ("evict_first", "evict_last")]
    return Tile(f"tl.load({', '.join(arguments)})", axes, value.type.dtype, wanted=f"{operand.name}_tile")


def local_axes(emitter: Emitter, scope: Scope, local: Local, subscripts: tuple[dims.Dim, ...], axes: tuple[str, ...]) -> tuple[str, ...]:
    """The axes whose lanes, in order, are the subscripts of a whole register tile; anything else is refused."""
    lanes = {dims.symbol(f"{axis}.lane"): axis for axis in axes}
    found = tuple(lanes[s] for s in subscripts if isinstance(s, dims.Expr) and s in lanes)
    extents = tuple(extent for _, extent in local.dims)
    if len(found) != len(extents) or tuple(scope.extent(axis) for axis in found) != extents:
        raise UnsupportedError(
            f"launch {emitter.launch.name}: local {local.name} is accessed at [{', '.join(map(str, subscripts))}], "
            f"expected the lanes of axes with extents {', '.join(map(str, extents))}",
            hint="a Triton tile has no addresses: keep the whole row as one padded tile, or use two launches and a workspace",
        )
    return found


def _load_local(emitter: Emitter, scope: Scope, value: Load, local: Local) -> Tile:
    axes = local_axes(emitter, scope, local, value.subscripts, value.type.axes)
    return Tile(emitter.locals[local.name], axes, value.type.dtype)


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _apply(emitter: Emitter, scope: Scope, value: TileApply, order: tuple[str, ...] | None) -> Tile:
    if value.primitive == "cast":
        value = roundings.whole(value, emitter.ranges)
    held = roundings.saturated(value, emitter.ranges) if value.primitive == "cast" else None
    wanted = tuple(a for a in order if a in value.type.axes) if order and set(order) >= set(value.type.axes) else value.type.axes
    args = [tile(emitter, scope, arg, wanted) for arg in (value.args if held is None else (held,))]
    axes = tuple(axis for axis in wanted if any(axis in arg.axes for arg in args))
    emitter.shape(scope, axes)
    texts = [PrintedOperand(_short(emitter, emitter.aligned(arg, axes), value.primitive), arg.constant) for arg in args]
    dtype = value.type.dtype
    if held is not None:
        return Tile(f"{_typed(texts[0])}.to({language_type(dtype)})", axes, dtype)
    if value.primitive in ("cast", "round"):
        return Tile(primitives.cast(_typed(texts[0]), args[0].dtype, dtype, emitter.helpers), axes, dtype)
    if value.primitive == "bitcast":
        return Tile(f"{_typed(texts[0])}.to({language_type(dtype)}, bitcast=True)", axes, dtype)
    if value.primitive == "where":
        condition = _typed(texts[0])
        return Tile(primitives.select(condition, texts[1], texts[2], dtype), axes, dtype)
    source = args[0].dtype
    if source.compute != source:
        texts = [_widened(text, source) for text in texts]
    result = primitives.apply(value.primitive, tuple(texts), source.compute, emitter.helpers)
    if PRIMITIVES[value.primitive].result != "same":
        return Tile(result, axes, dtype)
    return Tile(primitives.cast(result, source.compute, dtype, emitter.helpers), axes, dtype)


def _short(emitter: Emitter, text: str, primitive: str) -> str:
    """`text`, or a variable for it where it is long or its reader would write it several times."""
    simple = re.fullmatch(r"[\w.+-]*", text) is not None
    return text if simple or (len(text) <= 72 and primitive not in primitives.REPEATS) else emitter.assign("t", text)


def _typed(operand: PrintedOperand) -> str:
    return primitives.full(operand.constant) if operand.constant is not None else operand.text


def _widened(operand: PrintedOperand, source: DType) -> PrintedOperand:
    """An operand of a narrow float in f32; Triton's own narrow arithmetic rounds after every step."""
    if operand.constant is not None:
        return PrintedOperand(operand.text, Constant(operand.constant.value, f32))
    return PrintedOperand(primitives.cast(operand.text, source, f32, set()))


def _reduce(emitter: Emitter, scope: Scope, value: Reduce) -> Tile:
    inner = value.value
    axes = inner.type.axes
    text = whole(emitter, scope, inner)
    position = axes.index(value.axis)
    left = tuple(axis for axis in axes if axis != value.axis)
    if value.kind in ("argmax", "argmin"):
        return Tile(_extreme(emitter, scope, value, text, position), left, value.type.dtype)
    if value.kind in ("any", "all"):
        combine = "combine_max" if value.kind == "any" else "combine_min"
        emitter.helpers.add(combine)
        reduced = emitter.assign(value.kind, f"tl.reduce({text}.to(tl.int32), {position}, {combine})")
        return Tile(f"({reduced} != 0)", left, boolean)
    work = value.type.dtype.compute
    text = primitives.cast(text, inner.type.dtype, work, emitter.helpers)
    combine = _combiner(value.kind, work)
    emitter.helpers.add(combine)
    return _converted(emitter, Tile(f"tl.reduce({text}, {position}, {combine})", left, work, wanted=value.kind), value.type.dtype)


def _converted(emitter: Emitter, work: Tile, dtype: DType) -> Tile:
    """Work in the dtype of a result; where that is another one the work has a variable."""
    if work.dtype == dtype:
        return work
    printed = emitter.held(work)
    return Tile(primitives.cast(printed.text, work.dtype, dtype, emitter.helpers), work.axes, dtype)


def _combiner(kind: str, dtype: DType) -> str:
    if kind not in ("sum", "prod", "max", "min"):
        raise UnsupportedError(
            f"reduction {kind} is not supported in Triton kernels, expected sum, prod, max, min, any, all, argmax or argmin"
        )
    return f"combine_{kind}_f32" if dtype == f32 and kind in ("max", "min") else f"combine_{kind}"


def _extreme(emitter: Emitter, scope: Scope, value: Reduce, text: str, position: int) -> str:
    axes = value.value.type.axes
    combine = f"combine_{value.kind}"
    emitter.helpers.add(combine)
    text = primitives.cast(text, value.value.type.dtype, value.value.type.dtype.compute, emitter.helpers)
    lane = indices.lane(emitter, scope, value.axis, axes)
    numbers = f"tl.broadcast_to({lane}, {shape_text(emitter.shape(scope, axes))})"
    name, place = emitter.fresh("extreme"), emitter.fresh(value.kind)
    emitter.line(f"{name}, {place} = tl.reduce(({text}, {numbers}), {position}, {combine})")
    return place if value.type.dtype == i32 else f"{place}.to({language_type(value.type.dtype)})"


def _scan(emitter: Emitter, scope: Scope, value: Scan) -> Tile:
    axes = value.value.type.axes
    work = value.type.dtype.compute
    text = primitives.cast(whole(emitter, scope, value.value), value.value.type.dtype, work, emitter.helpers)
    combine = _combiner(value.kind, work)
    emitter.helpers.add(combine)
    scanned = f"tl.associative_scan({text}, {axes.index(value.axis)}, {combine}, reverse={value.reverse})"
    return _converted(emitter, Tile(scanned, axes, work, wanted=value.kind), value.type.dtype)


# --- shape ------------------------------------------------------------------------------------------------------------


def _rename(emitter: Emitter, scope: Scope, value: Rename) -> Tile:
    """Axes `before` stand together in the value's order, are folded or cut there, and then take the type's order."""
    inner = value.value.type.axes
    others = [axis for axis in inner if axis not in value.before]
    place = min(inner.index(axis) for axis in value.before)
    place = sum(axis not in value.before for axis in inner[:place])
    source = (*others[:place], *value.before, *others[place:])
    target = (*others[:place], *value.after, *others[place:])
    text = emitter.broadcast(scope, tile(emitter, scope, value.value, source), source)
    extents = emitter.shape(scope, target)
    if len(value.before) != 1 or len(value.after) != 1:
        text = f"tl.reshape({text}, {shape_text(extents)})"
    return Tile(text, target, value.type.dtype)


def _slice(emitter: Emitter, scope: Scope, value: Slice) -> Tile:
    """A half of a half: Triton reads such parts of what lies in tensor memory as parts."""
    others = tuple(axis for axis in value.value.type.axes if axis != value.before)
    text = emitter.broadcast(scope, tile(emitter, scope, value.value, (*others, value.before)), (*others, value.before))
    leading, (size,), (wanted,) = (emitter.shape(scope, axes) for axes in (others, (value.before,), (value.after,)))
    part = value.part
    while size > wanted:
        size //= 2
        turned = (*range(len(others)), len(others) + 1, len(others))
        halves = emitter.fresh("half"), emitter.fresh("half")
        emitter.line(f"{', '.join(halves)} = tl.split(tl.permute(tl.reshape({text}, {shape_text((*leading, 2, size))}), {turned}))")
        text, part = halves[part * wanted // size], part % (size // wanted)
    return Tile(text, (*others, value.after), value.type.dtype)


def _join(emitter: Emitter, scope: Scope, value: Join) -> Tile:
    left, right = (whole(emitter, scope, part) for part in (value.left, value.right))
    return Tile(f"tl.join({left}, {right})", (*value.left.type.axes, value.axis), value.type.dtype)


def _unpack(emitter: Emitter, scope: Scope, value: Unpack) -> Tile:
    """Fields by shift and mask, interleaved by joins along a last axis, then folded into it."""
    inner = value.value.type
    others = tuple(axis for axis in inner.axes if axis != value.before)
    source = (*others, value.before)
    text = emitter.broadcast(scope, tile(emitter, scope, value.value, source), source)
    if inner.dtype.bits != 8 or value.bits not in (1, 2, 4):
        raise UnsupportedError(
            f"unpack of {value.bits}-bit fields from {inner.dtype} is not supported in Triton kernels, expected 1, 2 or 4 bits of bytes"
        )
    packed = emitter.assign("packed", f"{text}.to(tl.uint8, bitcast=True)")
    fields = [_field(packed, value, n) for n in range(8 // value.bits)]
    target = (*others, value.after)
    text = f"tl.reshape({_interleave(fields)}, {shape_text(emitter.shape(scope, target))})"
    return Tile(text, target, value.type.dtype, wanted="fields")


def _field(packed: str, value: Unpack, number: int) -> str:
    """Field `number` (0 is the lowest bits) of bytes, its sign spread if the result is signed."""
    dtype = value.type.dtype
    wide = "tl.int8" if dtype.kind == "int" else language_type(dtype)
    shift = value.bits * number
    if dtype.kind == "int":
        up = 8 - value.bits - shift
        moved = f"({packed} << {up})" if up else packed
        text = f"({moved}.to(tl.int8, bitcast=True) >> {8 - value.bits})"
        return text if dtype.bits == 8 else f"{text}.to({language_type(dtype)})"
    moved = f"({packed} >> {shift})" if shift else packed
    text = f"({moved} & {2**value.bits - 1})"
    return text if wide == "tl.uint8" else f"{text}.to({wide})"


def _interleave(texts: list[str]) -> str:
    """Tiles along new last axes of 2 so that flattening these gives texts[0], texts[1], .. side by side."""
    if len(texts) == 1:
        return texts[0]
    return f"tl.join({_interleave(texts[0::2])}, {_interleave(texts[1::2])})"


def _expand(emitter: Emitter, scope: Scope, value: Expand2to4) -> Tile:
    """Of each two values, place r of four holds the one whose position is r, else zero."""
    others = tuple(axis for axis in value.values.type.axes if axis != value.before)
    source = (*others, value.before)
    leading = emitter.shape(scope, others)
    pairs = shape_text((*leading, emitter.shape(scope, (value.before,))[0] // 2, 2))
    halves: list[tuple[str, str]] = []
    for part, name in ((value.values, "kept"), (value.positions, "place")):
        text = emitter.broadcast(scope, tile(emitter, scope, part, source), source)
        first, second = emitter.fresh(name), emitter.fresh(name)
        emitter.line(f"{first}, {second} = tl.split(tl.reshape({text}, {pairs}))")
        halves.append((first, second))
    (first, second), (where_first, where_second) = halves
    zero = primitives.full(Constant(0.0 if value.type.dtype.is_float else 0, value.type.dtype))
    quarters = [f"tl.where({where_first} == {r}, {first}, tl.where({where_second} == {r}, {second}, {zero}))" for r in range(4)]
    target = (*others, value.after)
    text = f"tl.reshape({_interleave(quarters)}, {shape_text(emitter.shape(scope, target))})"
    return Tile(text, target, value.type.dtype, wanted="dense")
