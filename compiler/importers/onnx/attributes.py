"""Attributes of ONNX nodes as Python values; references to a function's parameters are resolved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ....ir.errors import ModelError, Source

if TYPE_CHECKING:
    import onnx


def _text(data: bytes) -> str:
    return data.decode("utf-8")


# By the numbers of AttributeProto.AttributeType.
_CONVERT: dict[int, Callable[[Any], Any]] = {
    1: lambda a: float(a.f),
    2: lambda a: int(a.i),
    3: lambda a: _text(a.s),
    4: lambda a: a.t,
    5: lambda a: a.g,
    6: lambda a: [float(v) for v in a.floats],
    7: lambda a: [int(v) for v in a.ints],
    8: lambda a: [_text(v) for v in a.strings],
    9: lambda a: list(a.tensors),
    10: lambda a: list(a.graphs),
    11: lambda a: a.sparse_tensor,
    13: lambda a: a.tp,
}


def attributes(node: onnx.NodeProto, bindings: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """The attributes of a node by name; one that refers to a parameter without a value is left out."""
    result: dict[str, Any] = {}
    for attribute in node.attribute:
        if attribute.name in result:
            raise ModelError(f"{node.op_type}: attribute {attribute.name[:80]!r} is given twice", source=source)
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in bindings:
                result[attribute.name] = bindings[attribute.ref_attr_name]
            continue
        result[attribute.name] = value_of(attribute, source)
    return result


def value_of(attribute: onnx.AttributeProto, source: Source) -> Any:
    """One attribute as a Python value."""
    kind = attribute.type or _guess(attribute)
    convert = _CONVERT.get(kind)
    if convert is None:
        raise ModelError(f"attribute {attribute.name[:80]!r} has the unknown type {kind}", source=source)
    try:
        return convert(attribute)
    except UnicodeDecodeError as error:
        raise ModelError(f"attribute {attribute.name[:80]!r} is not UTF-8 text", source=source) from error


def _guess(attribute: onnx.AttributeProto) -> int:
    """The type of an attribute that does not say it (models of IR version 1)."""
    for field, kind in (("f", 1), ("i", 2), ("s", 3), ("t", 4), ("g", 5)):
        if attribute.HasField(field):
            return kind
    for field, kind in (("floats", 6), ("ints", 7), ("strings", 8), ("tensors", 9), ("graphs", 10)):
        if len(getattr(attribute, field)):
            return kind
    return 0
