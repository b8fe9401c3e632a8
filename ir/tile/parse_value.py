"""The parser of tile values: loads, dots, reductions and the scalar primitives, each followed by its type."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..errors import ParseError
from ..expression import Constant
from ..scalar import PRIMITIVES
from .program import Dot, Expand2to4, Full, Index, Join, Load, Reduce, Ref, Rename, Scan, Slice, TileApply, TileType, Unpack, Value
from .reader import Reader

Types = Mapping[str, TileType]
Untyped = Callable[[TileType], Value]


def parse_value(reader: Reader, types: Types) -> Value:
    """A value where it is used: `%name`, or any other form with its type."""
    if reader.token.kind == "value":
        return _reference(reader, types)
    return parse_named(reader, types)


def parse_named(reader: Reader, types: Types) -> Value:
    """The right side of `%name = value : type`."""
    reader.enter()
    if reader.token.kind == "value":
        name = _reference(reader, types).name
        build: Untyped = lambda type_: Ref(name, type_)  # noqa: E731
    else:
        build = _untyped(reader, types)
    reader.expect(":")
    type_ = reader.tile_type()
    reader.leave()
    return build(type_)


def _reference(reader: Reader, types: Types) -> Ref:
    token = reader.token
    name = reader.value_name()
    if name not in types:
        raise ParseError(f"line {token.line}, column {token.column}: %{name} is read but not defined here")
    return Ref(name, types[name])


def _untyped(reader: Reader, types: Types) -> Untyped:
    word = reader.name("a value")
    if word in _FORMS:
        return _FORMS[word](reader, types)
    if word not in PRIMITIVES:
        reader.position -= 1
        raise reader.error("a value: load, full, index, dot, reduce, .. or a scalar primitive")
    reader.expect("(")
    args: list[Value] = []
    while not reader.accept(")"):
        if args:
            reader.expect(",")
        args.append(parse_value(reader, types))
    return lambda type_: TileApply(word, tuple(args), type_.dtype, type=type_)


def _load(reader: Reader, types: Types) -> Untyped:
    operand = reader.value_name()
    reader.expect("[")
    subscripts = reader.dims("]")
    hints = reader.words()
    # The literal takes the load's dtype, which stands behind it.
    other = reader.number() if reader.accept("else") else None
    return lambda type_: Load(operand, subscripts, type_, None if other is None else Constant(other, type_.dtype), hints)


def _full(reader: Reader, types: Types) -> Untyped:
    reader.expect("(")
    value = reader.number()
    reader.expect(")")
    return lambda type_: Full(Constant(value, type_.dtype), type_)


def _index(reader: Reader, types: Types) -> Untyped:
    reader.expect("(")
    value = reader.dim()
    reader.expect(")")
    return lambda type_: Index(value, type_)


def _dot(reader: Reader, types: Types) -> Untyped:
    reader.expect("(")
    left = parse_value(reader, types)
    reader.expect(",")
    right = parse_value(reader, types)
    reader.expect(",")
    acc = parse_value(reader, types)
    scales: dict[str, Value] = {}
    precision = "exact"
    while not reader.accept(")"):
        reader.expect(",")
        word = reader.name("left_scale, right_scale or precision")
        reader.expect("=")
        if word == "precision":
            precision = reader.name("a precision")
        elif word in ("left_scale", "right_scale"):
            scales[word] = parse_value(reader, types)
        else:
            reader.position -= 2
            raise reader.error("left_scale, right_scale or precision")
    return lambda type_: Dot(left, right, acc, type_, precision, scales.get("left_scale"), scales.get("right_scale"))


def _reduce(reader: Reader, types: Types) -> Untyped:
    kind, axis = reader.name("a reduction"), reader.name("an axis")
    value = _in_parentheses(reader, types)
    return lambda type_: Reduce(kind, axis, value, type_)


def _scan(reader: Reader, types: Types) -> Untyped:
    kind, axis = reader.name("a reduction"), reader.name("an axis")
    reverse = reader.accept("reverse")
    value = _in_parentheses(reader, types)
    return lambda type_: Scan(kind, axis, value, type_, reverse)


def _rename(reader: Reader, types: Types) -> Untyped:
    before = _axes(reader)
    reader.expect("->")
    after = _axes(reader)
    value = _in_parentheses(reader, types)
    return lambda type_: Rename(value, before, after, type_)


def _slice(reader: Reader, types: Types) -> Untyped:
    part = reader.integer()
    reader.expect("of")
    before, after = _arrow(reader)
    value = _in_parentheses(reader, types)
    return lambda type_: Slice(value, before, after, part, type_)


def _join(reader: Reader, types: Types) -> Untyped:
    axis = reader.name("an axis")
    reader.expect("(")
    left = parse_value(reader, types)
    reader.expect(",")
    right = parse_value(reader, types)
    reader.expect(")")
    return lambda type_: Join(left, right, axis, type_)


def _unpack(reader: Reader, types: Types) -> Untyped:
    reader.expect("(")
    value = parse_value(reader, types)
    reader.expect(",")
    before, after = _arrow(reader)
    reader.expect(",")
    bits = reader.integer()
    for word in ("low", "first", ")"):
        reader.expect(word)
    return lambda type_: Unpack(value, before, after, bits, type_)


def _expand(reader: Reader, types: Types) -> Untyped:
    reader.expect("(")
    values = parse_value(reader, types)
    reader.expect(",")
    positions = parse_value(reader, types)
    reader.expect(",")
    before, after = _arrow(reader)
    reader.expect(")")
    return lambda type_: Expand2to4(values, positions, before, after, type_)


_FORMS: dict[str, Callable[[Reader, Types], Untyped]] = {
    "load": _load,
    "full": _full,
    "index": _index,
    "dot": _dot,
    "reduce": _reduce,
    "scan": _scan,
    "split": _rename,
    "merge": _rename,
    "rename": _rename,
    "slice": _slice,
    "join": _join,
    "unpack": _unpack,
    "expand_2to4": _expand,
}


def _in_parentheses(reader: Reader, types: Types) -> Value:
    reader.expect("(")
    value = parse_value(reader, types)
    reader.expect(")")
    return value


def _arrow(reader: Reader) -> tuple[str, str]:
    before = reader.name("an axis")
    reader.expect("->")
    return before, reader.name("an axis")


def _axes(reader: Reader) -> tuple[str, ...]:
    if not reader.accept("("):
        return (reader.name("an axis"),)
    names: list[str] = []
    while not reader.accept(")"):
        if names:
            reader.expect(",")
        names.append(reader.name("an axis"))
    return tuple(names)
