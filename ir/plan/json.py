"""Plans as JSON values: what the dataclasses declare is what is written, and nothing else is read."""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from ..dims import Dim, Expr
from ..dims_text import LARGEST_NUMBER, parse_dim
from ..errors import ParseError, VerifyError
from ..scan import MAXIMUM_DEPTH
from ..types import DTYPES, DType
from .plan import Plan


def to_json(plan: Plan) -> Any:
    """The plan as plain JSON values; fields that have their default are left out."""
    return _codec(Plan).write(plan)


def from_json(data: Any) -> Plan:
    """Read what `to_json` gave; ParseError says which field is damaged."""
    plan: Plan = _codec(Plan).read(data, "plan")
    return plan


class Codec(NamedTuple):
    """How values of one declared type are written, and read back under a path that errors name."""

    write: Callable[[Any], Any]
    read: Callable[[Any, str], Any]


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
        return _record(declared)
    origin, arguments = get_origin(declared), get_args(declared)
    if origin is tuple:
        return _many(_codec(arguments[0])) if arguments[-1] is ... else _row(tuple(map(_codec, arguments)))
    if origin is Mapping:
        return _ordered(_codec(arguments[0]), _codec(arguments[1]))
    if origin in (Union, types.UnionType):
        return _choice(arguments)
    raise TypeError(f"{declared} has no form in JSON")


def _damaged(path: str, got: Any, expected: str) -> ParseError:
    return ParseError(f"{path}: got {_shown(got)}, expected {expected}")


def _shown(got: Any) -> str:
    """A damaged value in a few words, however large or deep it is."""
    if isinstance(got, list | dict):
        return f"{'a list' if isinstance(got, list) else 'an object'} of {len(got)}"
    if isinstance(got, int) and got.bit_length() > 64:
        return f"an integer of {got.bit_length()} bits"
    return repr(got[:80] if isinstance(got, str) else got)


_PLAIN = {int: "an integer", str: "text", bool: "true or false"}


def _plain(declared: type) -> Codec:
    def read(data: Any, path: str) -> Any:
        # A bool is an int to Python, and not here.
        if type(data) is not declared:
            raise _damaged(path, data, _PLAIN[declared])
        if isinstance(data, int) and data.bit_length() > 63:
            raise _damaged(path, data, "an integer of 64 bits")
        return data

    return Codec(lambda value: value, read)


def _read_dim(data: Any, path: str) -> Dim:
    if type(data) is int and abs(data) <= LARGEST_NUMBER:
        return data
    if not isinstance(data, str):
        raise _damaged(path, data, f"a size, and at most {LARGEST_NUMBER}")
    try:
        return parse_dim(data)
    except ParseError as error:
        raise ParseError(f"{path}: {error.message}") from error


def _read_dtype(data: Any, path: str) -> DType:
    if not isinstance(data, str) or data not in DTYPES:
        raise _damaged(path, data, "an element type")
    return DTYPES[data]


def _record(declared: Any) -> Codec:
    """A dataclass as an object of its fields."""
    hints = get_type_hints(declared)
    fields = {field.name: field for field in dataclasses.fields(declared)}
    codecs = {name: _codec(hints[name]) for name in fields}

    def write(value: Any) -> Any:
        held = {name: getattr(value, name) for name in fields}
        return {name: codecs[name].write(part) for name, part in held.items() if not _is_default(fields[name], part)}

    def read(data: Any, path: str) -> Any:
        if not isinstance(data, dict):
            raise _damaged(path, data, f"an object with {', '.join(fields)}")
        for name in data:
            if name not in fields:
                raise _damaged(path, name, f"one of the fields {', '.join(fields)}")
        for name, field in fields.items():
            if name not in data and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise ParseError(f"{path}: got no {name}")
        parts = {name: codecs[name].read(part, f"{path}.{name}") for name, part in data.items()}
        try:
            return declared(**parts)
        except VerifyError as error:
            # A value that its own class refuses, such as a layout that leaves elements out.
            raise ParseError(f"{path}: {error.message[:400]}") from error

    return Codec(write, read)


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return bool(value == default)


def _many(part: Codec) -> Codec:
    """A tuple of any length as a list."""

    def read(data: Any, path: str) -> Any:
        if not isinstance(data, list):
            raise _damaged(path, data, "a list")
        return tuple(part.read(item, f"{path}[{n}]") for n, item in enumerate(data))

    return Codec(lambda value: [part.write(item) for item in value], read)


def _row(parts: tuple[Codec, ...]) -> Codec:
    """A tuple of fixed length as a list."""

    def read(data: Any, path: str) -> Any:
        if not isinstance(data, list) or len(data) != len(parts):
            raise _damaged(path, data, f"a list of {len(parts)}")
        return tuple(part.read(item, f"{path}[{n}]") for n, (part, item) in enumerate(zip(parts, data, strict=True)))

    return Codec(lambda value: [part.write(item) for part, item in zip(parts, value, strict=True)], read)


def _ordered(key: Codec, value: Codec) -> Codec:
    """A mapping as a list of pairs: its order may have a meaning, as that of the symbols has in native code."""
    pairs = _many(_row((key, value)))

    def read(data: Any, path: str) -> Any:
        found = pairs.read(data, path)
        if len(dict(found)) != len(found):
            raise ParseError(f"{path}: a name stands there twice")
        return dict(found)

    return Codec(lambda mapping: pairs.write(tuple(mapping.items())), read)


def _choice(arguments: tuple[Any, ...]) -> Codec:
    """One of several dataclasses, named by `kind`, or a value that may be absent."""
    if type(None) in arguments:
        some = _codec(functools.reduce(operator.or_, [declared for declared in arguments if declared is not type(None)]))
        return Codec(lambda v: None if v is None else some.write(v), lambda data, path: None if data is None else some.read(data, path))
    kinds: dict[str, Codec] = {_kind(declared): _codec(declared) for declared in arguments}

    def read(data: Any, path: str) -> Any:
        kind = data.get("kind") if isinstance(data, dict) else data
        if not isinstance(kind, str) or kind not in kinds:
            raise _damaged(path, kind, f"one of the kinds {', '.join(kinds)}")
        rest = {name: part for name, part in data.items() if name != "kind"} if isinstance(data, dict) else {}
        return kinds[kind].read(rest, f"{path} ({kind})")

    def write(value: Any) -> Any:
        kind = _kind(type(value))
        fields = kinds[kind].write(value)
        return {"kind": kind, **fields} if fields else kind

    return Codec(write, read)


def _kind(declared: type) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", declared.__name__).lower()


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


def _read_attribute(data: Any, path: str, depth: int = 0) -> Any:
    if isinstance(data, list):
        if depth == MAXIMUM_DEPTH:
            raise ParseError(f"{path}: attribute is nested more than {MAXIMUM_DEPTH} deep")
        return tuple(_read_attribute(part, f"{path}[{n}]", depth + 1) for n, part in enumerate(data))
    if data is None or isinstance(data, bool | int | str):
        return _bounded(data, path)
    try:
        ((tag, text),) = data.items()
        return _bounded(_TAGS[tag](text), path)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, ParseError) as error:
        raise _damaged(path, data, "an attribute") from error


def _bounded(value: Any, path: str) -> Any:
    """An attribute that is no integer of more than 64 bits, however it was written."""
    if isinstance(value, int) and value.bit_length() > 64:
        raise _damaged(path, value, "an integer of 64 bits")
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
