"""Plans as JSON values: what the dataclasses declare is what is written, and nothing else is read.

Where a value stands is worked out when it is damaged: an engine's plans are read whenever it is loaded.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from ..dims import Dim, Expr
from ..dims_text import LARGEST_NUMBER, parse_dim
from ..errors import ParseError, VerifyError
from ..layout import Layout
from ..scan import MAXIMUM_DEPTH
from ..types import DTYPES, DType, TensorType
from .plan import Plan
from .steps import Guard
from .steps import kind as kind_of

REPEATED = (TensorType, Layout, Guard)
"""What stands in a plan many times, and is immutable."""
REMEMBERED = 4096
"""Values of each kind that are kept."""
LONGEST = 1024
"""Characters of what is written of a value that is kept."""


def to_json(plan: Plan) -> Any:
    """The plan as plain JSON values; fields that have their default are left out."""
    return _codec(Plan).write(plan)


def from_json(data: Any) -> Plan:
    """Read what `to_json` gave; ParseError says which field is damaged."""
    try:
        plan: Plan = _codec(Plan).read(data)
    except _Damage as damage:
        raise ParseError(f"plan{''.join(reversed(damage.path))}: {damage.what}") from damage
    return plan


class _Damage(Exception):
    """What is wrong with a value, and the way to it, from the inside out."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path: list[str] = []

    def below(self, step: str) -> _Damage:
        """The same, of a value that has it in this place."""
        self.path.append(step)
        return self


class Codec(NamedTuple):
    """How values of one declared type are written, and read back; `_Damage` says what cannot be."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


@functools.cache
def _codec(declared: Any) -> Codec:
    if declared in _PLAIN:
        return _plain(declared)
    if declared == Dim:
        return Codec(lambda dim: dim if isinstance(dim, int) else str(dim), _read_dim)
    if declared is DType:
        return Codec(lambda dtype: dtype.name, _read_dtype)
    if declared is Any:
        return Codec(_write_attribute, _read_attribute)
    if dataclasses.is_dataclass(declared):
        return _repeated(_record(declared)) if declared in REPEATED else _record(declared)
    origin, arguments = get_origin(declared), get_args(declared)
    if origin is tuple:
        return _many(_codec(arguments[0])) if arguments[-1] is ... else _row(tuple(map(_codec, arguments)))
    if origin is Mapping:
        return _ordered(_codec(arguments[0]), _codec(arguments[1]))
    if origin in (Union, types.UnionType):
        return _choice(arguments)
    raise TypeError(f"{declared} has no form in JSON")


def _damaged(got: Any, expected: str) -> _Damage:
    return _Damage(f"got {_shown(got)}, expected {expected}")


def _shown(got: Any) -> str:
    """A damaged value in a few words, however large or deep it is."""
    if isinstance(got, list | dict):
        return f"{'a list' if isinstance(got, list) else 'an object'} of {len(got)}"
    if isinstance(got, int) and got.bit_length() > 64:
        return f"an integer of {got.bit_length()} bits"
    return repr(got[:80] if isinstance(got, str) else got)


_PLAIN = {int: "an integer", str: "text", bool: "true or false"}


def _plain(declared: type) -> Codec:
    def read(data: Any) -> Any:
        # A bool is an int to Python, and not here.
        if type(data) is not declared:
            raise _damaged(data, _PLAIN[declared])
        if isinstance(data, int) and data.bit_length() > 63:
            raise _damaged(data, "an integer of 64 bits")
        return data

    return Codec(lambda value: value, read)


_dim = functools.lru_cache(maxsize=4096)(parse_dim)
"""Sizes stand in a plan many times."""


def _read_dim(data: Any) -> Dim:
    if type(data) is int and abs(data) <= LARGEST_NUMBER:
        return data
    if not isinstance(data, str):
        raise _damaged(data, f"a size, and at most {LARGEST_NUMBER}")
    try:
        return _dim(data)
    except ParseError as error:
        raise _Damage(error.message) from error


def _read_dtype(data: Any) -> DType:
    if not isinstance(data, str) or data not in DTYPES:
        raise _damaged(data, "an element type")
    return DTYPES[data]


def _record(declared: Any) -> Codec:
    """A dataclass as an object of its fields."""
    hints = get_type_hints(declared)
    fields = {field.name: field for field in dataclasses.fields(declared)}
    codecs = {name: _codec(hints[name]) for name in fields}
    readers = {name: codec.read for name, codec in codecs.items()}
    needed = [n for n, f in fields.items() if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]

    def write(value: Any) -> Any:
        held = {name: getattr(value, name) for name in fields}
        return {name: codecs[name].write(part) for name, part in held.items() if not _is_default(fields[name], part)}

    def read(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _damaged(data, f"an object with {', '.join(fields)}")
        for name in data:
            if name not in fields:
                raise _damaged(name, f"one of the fields {', '.join(fields)}")
        for name in needed:
            if name not in data:
                raise _Damage(f"got no {name}")
        parts = {}
        try:
            for name, part in data.items():
                parts[name] = readers[name](part)
        except _Damage as damage:
            raise damage.below(f".{name}") from None
        try:
            return declared(**parts)
        except VerifyError as error:
            # A value that its own class refuses, such as a layout that leaves elements out.
            raise _Damage(error.message[:400]) from error

    return Codec(write, read)


def _repeated(codec: Codec) -> Codec:
    """A codec that reads what is written alike once."""
    known: dict[str, Any] = {}

    def read(data: Any) -> Any:
        try:
            key = repr(data)
        except (RecursionError, ValueError):  # too deep, or an integer too long: what is damaged is told
            return codec.read(data)
        value = known.get(key)
        if value is None:
            value = codec.read(data)
            if len(known) >= REMEMBERED:
                known.clear()
            if len(key) <= LONGEST:
                known[key] = value
        return value

    return Codec(codec.write, read)


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return bool(value == default)


def _many(part: Codec) -> Codec:
    """A tuple of any length as a list."""
    read_part = part.read

    def read(data: Any) -> Any:
        if not isinstance(data, list):
            raise _damaged(data, "a list")
        found: list[Any] = []
        try:
            for item in data:
                found.append(read_part(item))
        except _Damage as damage:
            raise damage.below(f"[{len(found)}]") from None
        return tuple(found)

    return Codec(lambda value: [part.write(item) for item in value], read)


def _row(parts: tuple[Codec, ...]) -> Codec:
    """A tuple of fixed length as a list."""

    def read(data: Any) -> Any:
        if not isinstance(data, list) or len(data) != len(parts):
            raise _damaged(data, f"a list of {len(parts)}")
        found: list[Any] = []
        try:
            for part, item in zip(parts, data, strict=True):
                found.append(part.read(item))
        except _Damage as damage:
            raise damage.below(f"[{len(found)}]") from None
        return tuple(found)

    return Codec(lambda value: [part.write(item) for part, item in zip(parts, value, strict=True)], read)


def _ordered(key: Codec, value: Codec) -> Codec:
    """A mapping as a list of pairs: its order may have a meaning, as that of the symbols has in native code."""
    pairs = _many(_row((key, value)))

    def read(data: Any) -> Any:
        found = pairs.read(data)
        if len(dict(found)) != len(found):
            raise _Damage("a name stands there twice")
        return dict(found)

    return Codec(lambda mapping: pairs.write(tuple(mapping.items())), read)


def _choice(arguments: tuple[Any, ...]) -> Codec:
    """One of several dataclasses, named by `kind`, or a value that may be absent."""
    if type(None) in arguments:
        some = _codec(functools.reduce(operator.or_, [declared for declared in arguments if declared is not type(None)]))
        return Codec(lambda v: None if v is None else some.write(v), lambda data: None if data is None else some.read(data))
    kinds: dict[str, Codec] = {kind_of(declared): _codec(declared) for declared in arguments}

    def read(data: Any) -> Any:
        kind = data.get("kind") if isinstance(data, dict) else data
        if not isinstance(kind, str) or kind not in kinds:
            raise _damaged(kind, f"one of the kinds {', '.join(kinds)}")
        rest = {name: part for name, part in data.items() if name != "kind"} if isinstance(data, dict) else {}
        try:
            return kinds[kind].read(rest)
        except _Damage as damage:
            raise damage.below(f" ({kind})") from None

    def write(value: Any) -> Any:
        kind = kind_of(type(value))
        fields = kinds[kind].write(value)
        return {"kind": kind, **fields} if fields else kind

    return Codec(write, read)


def _write_attribute(value: Any) -> Any:
    """An op's attribute; dtypes, dimensions, complex numbers and floats, which may be infinite, are tagged."""
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, Expr):
        return {"dim": str(value)}
    if isinstance(value, tuple):
        return [_write_attribute(part) for part in value]
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, complex):
        return {"complex": f"{value.real.hex()} {value.imag.hex()}"}
    return value


def _read_attribute(data: Any, depth: int = 0) -> Any:
    if isinstance(data, list):
        if depth == MAXIMUM_DEPTH:
            raise _Damage(f"attribute is nested more than {MAXIMUM_DEPTH} deep")
        found: list[Any] = []
        try:
            for part in data:
                found.append(_read_attribute(part, depth + 1))
        except _Damage as damage:
            raise damage.below(f"[{len(found)}]") from None
        return tuple(found)
    if data is None or isinstance(data, bool | int | str):
        return _bounded(data)
    try:
        ((tag, text),) = data.items()
        return _bounded(_TAGS[tag](text))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, ParseError) as error:
        raise _damaged(data, "an attribute") from error


def _bounded(value: Any) -> Any:
    """An attribute that is no integer of more than 64 bits, however it was written."""
    if isinstance(value, int) and value.bit_length() > 64:
        raise _damaged(value, "an integer of 64 bits")
    return value


def _complex(text: str) -> complex:
    real, imaginary = text.split()
    return complex(float.fromhex(real), float.fromhex(imaginary))


_TAGS: dict[str, Callable[[str], Any]] = {
    "dtype": DTYPES.__getitem__,
    "dim": parse_dim,
    "float": float.fromhex,
    "complex": _complex,
}
