"""Tile values as C: an expression is evaluated one vector at a time, where its consumer asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...ir import dims
from ...ir.codes import BYTE, mask_of, number_of
from ...ir.dims import Dim
from ...ir.errors import InternalError, UnsupportedError
from ...ir.exactness import multiply_add
from ...ir.expression import Constant
from ...ir.tile import Scope
from ...ir.tile.program import Expand2to4, Full, Index, Join, Load, Reduce, Ref, Rename, Slice, TileApply, Unpack, Value, parts
from ...ir.types import DType, bf16, boolean, f32, i8, i32
from . import primitives, tables
from .access import Access, Spot
from .basics import register
from .tiles import Held, LaunchPlan, Tile, tiles_read
from .writer import LANE, LOADED, Writer, at_lane, lane_stride

Code = tuple[str, int]
"""C text and its lanes: 1 where all lanes are the same."""
Fold = Callable[["Values", Reduce, Spot], Code]
"""Prints a reduction, whose operand it evaluates."""


NORMAL = frozenset({"exp2_narrow"})
"""Primitives whose results are 0 or in the normal range."""


class Values:
    """Evaluates values at spots; `scope` and `tiles` follow the statements, `fold` prints reductions."""

    def __init__(self, writer: Writer, access: Access, plan: LaunchPlan, scope: Scope, fold: Fold) -> None:
        self.writer = writer
        self.library = writer.library
        self.access = access
        self.plan = plan
        self.scope = scope
        self._fold = fold
        self.tiles: list[dict[str, Tile]] = [{}]
        self.held: Held | None = None
        self._kept: list[Value] = []
        self._tables: dict[int, tuple[Value, tables.LookupTable | None]] = {}
        self._wide: dict[int, tuple[Value, TileApply]] = {}

    # --- names ------------------------------------------------------------------------------------------------------

    def tile(self, name: str) -> Tile | None:
        """The place of a named value, innermost block first."""
        for block in reversed(self.tiles):
            if name in block:
                return block[name]
        return None

    def ctype(self, dtype: DType, lanes: int) -> str:
        return self.library.vector(register(dtype), lanes)

    def define(self, dtype: DType, code: str, lanes: int) -> str:
        return self.writer.define(self.ctype(dtype, lanes), code)

    def spread(self, dtype: DType, code: Code, lanes: int) -> str:
        """The code with exactly `lanes` lanes."""
        text, have = code
        return text if have == lanes else self.library.call(f"splat_{register(dtype)}", lanes, text)

    # --- evaluation -------------------------------------------------------------------------------------------------

    def vector(self, value: Value, spot: Spot) -> Code:
        """C text for one vector of the value, computed at most once per statement and block."""
        if isinstance(value, Full):
            return primitives.constant(value.value), 1
        positions = {axis: spot.positions[axis] for axis in value.type.axes}
        if not any(LANE in dims.symbols(position) for position in positions.values()):
            spot = Spot(positions, 1)
        key = (id(value), tuple(positions.items()), spot.lanes)
        known = self.writer.recall(key)
        if isinstance(known, tuple):
            return known
        self._kept.append(value)  # an id must not be given to another value while it is remembered
        found = self._compute(value, replace(spot, positions=positions))
        self.writer.remember(key, found)
        return found

    def forget(self) -> None:
        """Memory may have changed: nothing evaluated before is reused."""
        self.writer.forget_values()
        self._kept.clear()

    def _compute(self, value: Value, spot: Spot) -> Code:
        if isinstance(value, Load):
            text, lanes = self.access.load(self.scope, value, self._gathers(value, spot))
            return self.define(value.type.dtype, text, lanes), lanes
        if isinstance(value, Ref):
            return self._read(value, spot)
        if isinstance(value, Index):
            return self._index(value, spot)
        if isinstance(value, TileApply):
            return self._apply(value, spot)
        if isinstance(value, Reduce):
            return self.reduce(value, spot)
        if isinstance(value, (Rename, Slice, Join, Unpack, Expand2to4)):
            return self._reshape(value, spot)
        raise InternalError(f"{type(value).__name__} reached the c printer without a place of its own")

    def element(self, value: Value, spot: Spot, lane: int) -> str:
        """One lane of a value as a scalar."""
        positions = {axis: self.access.tidy(at_lane(position, lane), 1) for axis, position in spot.positions.items()}
        inside = all(not isinstance(at_lane(p, lane), int) or at_lane(p, lane) < extent for p, extent in spot.limits)  # type: ignore[operator]
        return self.vector(value, Spot(positions, 1))[0] if inside else "0"

    def by_lane(self, value: Value, spot: Spot) -> Code:
        """A vector put together from scalars."""
        elements = ", ".join(self.element(value, spot, lane) for lane in range(spot.lanes))
        return self.define(value.type.dtype, f"({self.ctype(value.type.dtype, spot.lanes)}){{{elements}}}", spot.lanes), spot.lanes

    def _gathers(self, value: Load, spot: Spot) -> Spot:
        """Subscripts that are loaded tiles: each becomes a symbol of this position."""
        names = {name for subscript in value.subscripts for name in dims.symbols(subscript) if name.startswith("%")}
        return self.gathers(names, spot)

    def gathers(self, names: set[str], spot: Spot) -> Spot:
        found: dict[str, Dim] = dict(spot.loaded)
        for name in sorted(names):
            type_ = self.scope.values[name[1:]]
            if not type_.axes:
                continue
            text, lanes = self.vector(Ref(name[1:], type_), replace(spot, loaded={}))
            if lanes == 1:
                symbol = f"@{text}"
                self.writer.bind(symbol, f"(int64_t){text}")
            else:
                symbol = f"{LOADED}{text}"
                self.writer.vectors[symbol] = text
            found[name] = dims.symbol(symbol)
        return replace(spot, loaded=found)

    # --- named tiles ------------------------------------------------------------------------------------------------

    def _read(self, value: Ref, spot: Spot) -> Code:
        tile = self.tile(value.name)
        if tile is None:
            raise InternalError(f"%{value.name} has no place in the printed kernel")
        if not value.type.axes:
            return tile.names[()], 1
        if tile.array:
            return self._read_array(tile, value, spot)
        positions = [self.access.tidy(spot.positions[axis], spot.lanes) for axis in tile.type.axes]
        if tile.lane_axis is not None and spot.lanes > 1:
            width, last = self.plan.width(self.scope.extent(tile.lane_axis)), positions[-1]
            start = at_lane(last, 0)
            plain = all(isinstance(position, int) for position in positions[:-1])
            if plain and lane_stride(last) == 1 and isinstance(start, int) and start % width == 0 and spot.lanes == width:
                return tile.names[(*self._fixed(value, positions[:-1]), start // width)], width
        if spot.lanes > 1:
            return self.by_lane(value, spot)
        return self._read_element(tile, value, self._fixed(value, positions)), 1

    def _fixed(self, value: Ref, positions: list[Dim]) -> tuple[int, ...]:
        found = tuple(position for position in positions if isinstance(position, int))
        if len(found) != len(positions):
            raise InternalError(f"register tile %{value.name} is read at a place that is not known when printing")
        return found

    def _read_element(self, tile: Tile, value: Ref, fixed: tuple[int, ...]) -> str:
        if any(place >= self.scope.extent(axis) for place, axis in zip(fixed, tile.type.axes, strict=True)):
            return "0"
        if tile.lane_axis is None:
            return tile.names[fixed]
        width = self.plan.width(self.scope.extent(tile.lane_axis))
        name = tile.names[(*fixed[:-1], fixed[-1] // width)]
        return self.define(value.type.dtype, f"{name}[{fixed[-1] % width}]", 1)

    def _read_array(self, tile: Tile, value: Ref, spot: Spot) -> Code:
        address = self.access.tidy(self.array_address(tile, spot), spot.lanes)
        kind = register(value.type.dtype)
        stride = lane_stride(address) if spot.lanes > 1 else 0
        if stride == 0:
            return self.define(value.type.dtype, f"{tile.array}[{self.writer.index(address)}]", 1), 1
        if stride == 1:
            text = self.library.call(f"load_{kind}", spot.lanes, f"{tile.array} + {self.writer.index(at_lane(address, 0))}")
            return self.define(value.type.dtype, text, spot.lanes), spot.lanes
        return self.by_lane(value, spot)

    def array_address(self, tile: Tile, spot: Spot) -> Dim:
        address: Dim = 0
        for axis in tile.type.axes[:-1]:
            address = address * self.scope.extent(axis) + spot.positions[axis]
        return address * tile.pitch + spot.positions[tile.type.axes[-1]]

    # --- leaves and primitives --------------------------------------------------------------------------------------

    def _index(self, value: Index, spot: Spot) -> Code:
        names = {name for name in dims.symbols(value.value) if name.startswith("%")}
        placed = self.access.place(self.scope, value.value, self.gathers(names, spot))
        stride = lane_stride(placed) if spot.lanes > 1 else 0
        kind, dtype = register(value.type.dtype), value.type.dtype
        if stride == 0:
            return self.define(dtype, f"({self.ctype(dtype, 1)}){self.writer.index(placed)}", 1), 1
        if stride is None:
            if any(name.startswith(LOADED) for name in dims.symbols(placed)):
                raise UnsupportedError("an index over a loaded tile is used as data", hint="compute it with primitives")
            elements = ", ".join(self.writer.index(at_lane(placed, lane)) for lane in range(spot.lanes))
            return self.define(dtype, f"({self.ctype(dtype, spot.lanes)}){{{elements}}}", spot.lanes), spot.lanes
        first = self.library.call(f"splat_{kind}", spot.lanes, self.writer.index(at_lane(placed, 0)))
        lanes = self.library.call(f"iota_{kind}", spot.lanes)
        step = lanes if stride == 1 else f"{lanes} * ({self.ctype(dtype, 1)}){self.writer.index(stride)}"
        return self.define(dtype, f"{first} + {step}", spot.lanes), spot.lanes

    def _apply(self, value: TileApply, spot: Spot) -> Code:
        for special in (self._compare, self._look_up, self._shift, self._widened, self._multiply_add, self._farther):
            found = special(value, spot)
            if found is not None:
                return found
        codes = [self.vector(arg, spot) for arg in value.args]
        lanes = max(code[1] for code in codes)
        texts = [self.spread(arg.type.dtype, code, lanes) for arg, code in zip(value.args, codes, strict=True)]
        source = value.args[-1].type.dtype
        if value.primitive in ("cast", "round"):
            if value.dtype == bf16 and source == f32:
                return self._narrowed(value.args[0], texts[0], lanes), lanes
            text = primitives.cast(self.library, source, value.dtype, lanes, texts[0])
        elif value.primitive == "bitcast":
            text = primitives.bitcast(self.library, source, value.dtype, lanes, texts[0])
        elif value.primitive == "pow" and (squared := self._power(value, texts, source)):
            text = squared
        else:
            number = value.primitive in ("min", "max") and _is_number(value.args[1])
            if number:
                texts.reverse()
            number = number or (value.primitive in ("min", "max") and _is_number(value.args[0]))
            text = primitives.apply(self.library, value.primitive, source, lanes, texts, number)
        return self.define(value.type.dtype, text, lanes), lanes

    def _narrowed(self, value: Value, text: str, lanes: int) -> str:
        """Numbers rounded to bf16; what they were before is remembered, since one instruction rounds them as they are stored. It takes
        what lies below the normal range for 0, which some primitives do by themselves.
        """
        wide = self.define(f32, text, lanes)
        rounded = self.define(bf16, primitives.cast(self.library, f32, bf16, lanes, wide), lanes)
        is_normal = isinstance(value, TileApply) and value.primitive in NORMAL
        self.writer.remember(("unrounded", rounded), ("narrow_normal_bf16" if is_normal else "narrow_bf16", wide))
        return rounded

    def _farther(self, value: TileApply, spot: Spot) -> Code | None:
        """One number where it lies beyond another, else that one: the instruction of an extreme, whatever is NaN."""
        if value.primitive != "where" or not isinstance(value.args[0], TileApply) or value.args[0].primitive != "lt":
            return None
        (left, right), (_, one, other), dtype = value.args[0].args, value.args, value.type.dtype
        if dtype.name not in ("f32", "f64") or not all(isinstance(each, (Ref, Load)) for each in (left, right, one, other)):
            return None
        if (one, other) not in ((left, right), (right, left)):
            return None
        codes = [self.vector(arg, spot) for arg in (one, other)]
        lanes = max(code[1] for code in codes)
        name = f"{'max' if one == right else 'min'}_number_{dtype}"
        return self.define(dtype, self.library.call(name, lanes, *(self.spread(dtype, code, lanes) for code in codes)), lanes), lanes

    def _shift(self, value: TileApply, spot: Spot) -> Code | None:
        """A shift of all lanes by a number that is known to lie below the bits: there are instructions for it."""
        amount, dtype = self._shifted_by(value, spot), value.type.dtype
        if amount is None:
            return None
        text, lanes = self.vector(value.args[0], spot)
        if amount == 0:
            return text, lanes
        by = self.writer.index(amount)
        sign = primitives.SHIFTS[value.primitive]
        if dtype.name == "u8" and isinstance(amount, int) and (1 < lanes < 16 or (lanes >= 16 and sign == "<<" and amount > 1)):
            # gcc doubles bytes time and again, and takes fewer than sixteen apart; words are shifted at once, and what left a byte is
            # cut off, if anything did.
            mask = mask_of(value.args[0]) if isinstance(value.args[0], TileApply) and sign == "<<" else 0
            cut = "" if mask and mask << amount < 256 else f" & (uint8_t){(255 << amount if sign == '<<' else 255 >> amount) & 255}"
            pairs = self.library.vector("u16", lanes // 2)
            shifted = f"({self.ctype(dtype, lanes)})(({pairs}){text} {sign} (uint16_t){amount}){cut}"
            return self.define(dtype, shifted, lanes), lanes
        if isinstance(amount, int) or lanes == 1 or dtype.bits > 8:
            element = self.ctype(dtype, 1)
            shifted = f"({self.ctype(dtype, lanes)})({text} {sign} ({element}){by})"
        elif dtype.name == "u8":
            shifted = self.library.call(f"{value.primitive}_alike_u8", lanes, text, by)
        else:
            return None
        return self.define(dtype, shifted, lanes), lanes

    def _shifted_by(self, value: TileApply, spot: Spot) -> Dim | None:
        """By how many bits a shift moves all lanes, if that is one number below the bits."""
        if value.primitive not in primitives.SHIFTS or value.type.dtype.bits < 8:
            return None
        number, index = number_of(value.args[1]), _uncast(value.args[1])
        amount: Dim | None = number if isinstance(number, int) else None
        if isinstance(index, Index):
            amount = self.access.place(self.scope, index.value, spot)
        is_one = amount is not None and lane_stride(amount) == 0 and self._below(amount, value.type.dtype.bits)
        return amount if is_one else None

    def _widened(self, value: TileApply, spot: Spot) -> Code | None:
        """Some bits of bytes in wider lanes: widened as they are loaded, since no instruction shifts bytes."""
        if spot.lanes == 1 or value.primitive != "cast" or value.type.dtype not in (f32, i32) or not mask_of(value.args[0]):
            return None
        if id(value) not in self._wide:
            self._wide[id(value)] = (value, tables.widened(value.args[0]))
        bits, mask = self._wide[id(value)][1], mask_of(value.args[0])
        text, lanes = self.vector(bits, spot)
        if lanes == 1:
            return None
        shifted = self._shifted_by(bits, spot) if bits.primitive == "shift_right" else 0
        if not isinstance(shifted, int) or BYTE >> shifted > mask:
            text = self.define(i32, f"{text} & {self.library.call('splat_i32', lanes, str(mask))}", lanes)
        return (text if value.type.dtype == i32 else self.define(f32, primitives.cast(self.library, i32, f32, lanes, text), lanes)), lanes

    def _multiply_add(self, value: TileApply, spot: Spot) -> Code | None:
        """A product that rounds nothing off and what is added to it, in one step."""
        found = multiply_add(value)
        if found is None:
            return None
        codes = [self.vector(arg, spot) for arg in (found.left, found.right, found.rest)]
        lanes = max(code[1] for code in codes)
        left, right, rest = (self.spread(f32, code, lanes) for code in codes)
        left, rest = f"-{left}" if found.is_product_negative else left, f"-{rest}" if found.is_rest_negative else rest
        return self.define(f32, primitives.apply(self.library, "fma", f32, lanes, [left, right, rest]), lanes), lanes

    def _below(self, dim: Dim, bits: int) -> bool:
        """Whether an index expression is proved to be one of 0 .. bits - 1."""
        found = dims.range_of(dim, self.writer.known())
        return found.low is not None and found.low >= 0 and found.high is not None and found.high < bits

    def _power(self, value: TileApply, texts: list[str], source: DType) -> str:
        """Squares without a call: x * x is what the power rounds to."""
        exponent = value.args[1]
        if not (isinstance(exponent, Full) and exponent.value.value == 2 and source.name in ("f32", "f64")):
            return ""
        return f"{texts[0]} * {texts[0]}"

    def _look_up(self, value: TileApply, spot: Spot) -> Code | None:
        """A number of a code of few bits: permutations instead of arithmetic."""
        if not self.library.level.has(tables.FEATURES.get(spot.lanes, "none")):
            return None
        if id(value) not in self._tables:
            self._tables[id(value)] = (value, tables.read_table(value))
        table = self._tables[id(value)][1]
        if table is None or (spot.lanes == tables.HALF and table.operations < tables.DEARER[len(table.numbers)]):
            return None
        by_bytes = spot.lanes == tables.HALF and table.is_whole
        index, lanes = self.vector(table.code if by_bytes else table.index, spot)
        if lanes != spot.lanes:
            return None
        kind, name = (i8, "whole_f32") if by_bytes else (f32, "f32")
        numbers = [primitives.constant(Constant(number, kind)) for number in table.numbers]
        parts = [numbers[n : n + tables.SIZE] for n in range(0, len(numbers), tables.SIZE)]
        held = [f"({self.ctype(kind, tables.SIZE)}){{{', '.join(part)}}}" for part in parts]
        return self.define(f32, self.library.call(f"lookup{len(numbers)}_{name}", lanes, *held, index), lanes), lanes

    def _compare(self, value: TileApply, spot: Spot) -> Code | None:
        """Index against index: one subtraction of scalars instead of wide integer vectors."""
        left, right = (value.args[0], value.args[1]) if len(value.args) == 2 else (None, None)
        if value.primitive not in ("lt", "le", "eq") or not isinstance(left, Index) or not isinstance(right, Index) or spot.lanes == 1:
            return None
        if any(name.startswith("%") for name in dims.symbols(left.value) | dims.symbols(right.value)):
            return None
        distance = self.access.place(self.scope, right.value - left.value, spot)
        stride = lane_stride(distance)
        if stride not in (0, 1, -1):
            return None
        rest = self.writer.index(at_lane(distance, 0))
        if stride == 0:
            return self.define(
                boolean, f"-({rest} {'>' if value.primitive == 'lt' else '>=' if value.primitive == 'le' else '=='} 0)", 1
            ), 1
        # rest + stride * lane > 0, with rest brought into the range where every lane decides alike
        near = f"(int32_t)({rest} > 1024 ? 1024 : {rest} < -1024 ? -1024 : {rest})"
        scalar = self.library.call("splat_i32", spot.lanes, self.define(i32, near, 1))
        lane = self.library.call("iota_i32", spot.lanes)
        sum_ = f"{scalar} {'+' if stride == 1 else '-'} {lane}"
        zero = self.library.call("splat_i32", spot.lanes, "0")
        pair = (sum_, zero) if value.primitive == "eq" else (zero, sum_)
        return self.define(boolean, self.library.call(f"{value.primitive}_i32", spot.lanes, *pair), spot.lanes), spot.lanes

    # --- reshapes ---------------------------------------------------------------------------------------------------

    def moved(self, spot: Spot, **positions: Dim) -> Spot:
        """The same lanes with other axes."""
        tidy = {axis: self.access.tidy(position, spot.lanes) for axis, position in positions.items()}
        return replace(spot, positions={**spot.positions, **tidy})

    def _reshape(self, value: Rename | Slice | Join | Unpack | Expand2to4, spot: Spot) -> Code:
        if isinstance(value, Rename):
            return self.vector(value.value, self._renamed(value, spot))
        if isinstance(value, Slice):
            first = value.part * self.scope.extent(value.after)
            return self.vector(value.value, self.moved(spot, **{value.before: first + spot.positions[value.after]}))
        if isinstance(value, Join):
            return self._join(value, spot)
        if isinstance(value, Unpack):
            return self._unpack(value, spot)
        return self._expand(value, spot)

    def _renamed(self, value: Rename, spot: Spot) -> Spot:
        """One number for all axes `after`, taken apart into the axes `before`."""
        number: Dim = 0
        for axis in value.after:
            number = number * self.scope.extent(axis) + spot.positions[axis]
        found: dict[str, Dim] = {}
        for axis in reversed(value.before[1:]):
            extent = self.scope.extent(axis)
            found[axis], number = number % extent, number // extent
        found[value.before[0]] = number
        return self.moved(spot, **found)

    def _join(self, value: Join, spot: Spot) -> Code:
        side = self.access.tidy(spot.positions[value.axis], spot.lanes)
        if isinstance(side, int):
            return self.vector(value.left if side == 0 else value.right, spot)
        left, right = (self._lanes_of(part, spot) for part in (value.left, value.right))
        condition = self._lane_test(side, 0, spot.lanes)
        text = self.library.call(f"select_{register(value.type.dtype)}", spot.lanes, condition, left, right)
        return self.define(value.type.dtype, text, spot.lanes), spot.lanes

    def _lanes_of(self, value: Value, spot: Spot) -> str:
        return self.spread(value.type.dtype, self.vector(value, spot), spot.lanes)

    def _lane_test(self, place: Dim, wanted: int, lanes: int) -> str:
        """A mask of the lanes at which an index expression is `wanted`."""
        if lanes == 1:
            return f"-({self.writer.index(place)} == {wanted})"
        tests = ", ".join(f"-({self.writer.index(at_lane(place, lane))} == {wanted})" for lane in range(lanes))
        return f"({self.library.vector('i32', lanes)}){{{tests}}}"

    def _unpack(self, value: Unpack, spot: Spot) -> Code:
        """Field f of byte b is element (8 / bits) * b + f."""
        per, place = 8 // value.bits, spot.positions[value.after]
        text, lanes = self.vector(value.value, self.moved(spot, **{value.before: place // per}))
        field = self.access.tidy(place % per, spot.lanes)
        kind = register(value.value.type.dtype)
        raw = text if kind == "u8" else self.library.call(f"bits_{kind}_u8", lanes, text)
        raw, lanes = (
            (raw, lanes) if lane_stride(field) == 0 else (self.spread(value.value.type.dtype, (raw, lanes), spot.lanes), spot.lanes)
        )
        amount = str(field * value.bits) if isinstance(field, int) else self._as_vector(field * value.bits, "u8", lanes)
        byte = self.library.vector("u8", lanes)
        code = f"({byte})(({byte})({raw} >> {amount}) & {(1 << value.bits) - 1})"
        target = value.type.dtype
        if target.kind == "int":
            signed, shift = self.library.vector("i8", lanes), 8 - value.bits
            code = f"({signed})(({signed})({byte})({code} << {shift}) >> {shift})"
        source = "i8" if target.kind == "int" else "u8"
        if register(target) != source:
            code = self.library.call(f"convert_{source}_{register(target)}", lanes, code)
        return self.define(target, code, lanes), lanes

    def _expand(self, value: Expand2to4, spot: Spot) -> Code:
        """Element r of group g is the value of its pair whose position is r, of two such the first."""
        place = spot.positions[value.after]
        group, rest = place // 4, self.access.tidy(place % 4, spot.lanes)
        dtype = value.type.dtype
        # Tests are as wide as what they choose from: masks change their width one by one.
        kind = "i32" if dtype.bits >= 32 else register(value.positions.type.dtype)
        result = self.library.call(f"splat_{register(dtype)}", spot.lanes, primitives.constant(_zero(dtype)))
        for half in (1, 0):
            at = self.moved(spot, **{value.before: group * 2 + half})
            positions, own = self._lanes_of(value.positions, at), register(value.positions.type.dtype)
            if own != kind:
                positions = self.define(i32, self.library.call(f"convert_{own}_i32", spot.lanes, positions), spot.lanes)
            wanted = self._as_vector(rest, kind, spot.lanes)
            test = self.library.call(f"eq_{kind}", spot.lanes, f"({positions} & 3)", wanted)
            result = self.library.call(f"select_{register(dtype)}", spot.lanes, test, self._lanes_of(value.values, at), result)
        return self.define(dtype, result, spot.lanes), spot.lanes

    def _as_vector(self, place: Dim, kind: str, lanes: int) -> str:
        if lane_stride(place) == 0:
            return self.library.call(f"splat_{kind}", lanes, self.writer.index(place))
        return f"({self.library.vector(kind, lanes)}){{{', '.join(self.writer.index(at_lane(place, lane)) for lane in range(lanes))}}}"

    def reduce(self, value: Reduce, spot: Spot) -> Code:
        """A sum, product or extreme along an axis, as the printer folds."""
        return self._fold(self, value, spot)


def _uncast(value: Value) -> Value:
    while isinstance(value, TileApply) and value.primitive == "cast":
        value = value.args[0]
    return value


def _is_number(value: Value) -> bool:
    return isinstance(value, Full) and value.value.value == value.value.value


def _zero(dtype: DType) -> Constant:
    return Constant(0.0 if dtype.is_float else 0, dtype)


def unrolls(values: Values, value: Value, axis: str) -> bool:
    """Whether an expression reads a register tile along the axis, so that its positions must be known when printing."""
    tiles = [values.tile(name) for name in tiles_read(value)]
    if any(tile is not None and not tile.array and axis in tile.type.axes for tile in tiles):
        return True
    return any(unrolls(values, part, renamed) for part in parts(value) for renamed in _axes_before(value, axis))


def _axes_before(value: Value, axis: str) -> tuple[str, ...]:
    """The axes of an operand that an axis of the result runs along."""
    if isinstance(value, Rename) and axis in value.after:
        return value.before
    if isinstance(value, (Slice, Unpack, Expand2to4)) and axis == value.after:
        return (value.before,)
    return (axis,)


def accumulator(dtype: DType) -> DType:
    """The type that sums of a dtype run in."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype
