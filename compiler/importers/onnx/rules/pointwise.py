"""Rules of elementwise ops: most follow from the op table, the rest bends types, defaults and old broadcasting."""

from __future__ import annotations

from typing import Any

import numpy as np

from .....ir.errors import UnsupportedError
from .....ir.graph import Value
from .....ir.ops.table import OPS, OpDef, same_dtype
from .....ir.types import DType, boolean, f64
from ...saturate import saturating_cast
from ..context import RULES, Item, Node, Rule, cast, rule
from ..tensors import ELEMENT_TYPES

SATURATING = ("f8e4m3", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f4e2m1")


def declare_table_rules() -> None:
    """One rule for each pointwise op that names its ONNX op and has no rule of its own."""
    for definition in list(OPS.values()):
        for op_type in definition.onnx:
            if (definition.kind == "pointwise" or not definition.attributes) and ("", op_type) not in RULES:
                RULES["", op_type] = _table_rule(definition)


def _table_rule(definition: OpDef) -> Rule:
    def apply(n: Node) -> Value:
        operands: list[Value | None] = [n.optional(position) for position in range(len(n.inputs))]
        if len(operands) == 2 and n.opset < 7:
            operands[1] = _old_broadcast(n, n.x(0), n.x(1))
        if "scaling" in definition.traits:
            # The op takes a wider factor, ONNX's does not.
            same_dtype(definition.name, *(None if value is None else value.type for value in operands))
        attrs = {attribute.name: _attribute(n, attribute.name) for attribute in definition.attributes}
        given = {name: value for name, value in attrs.items() if value is not None}
        return n.b.build(definition, operands, given)[0]

    return apply


def _attribute(n: Node, name: str) -> Any:
    """An attribute of the node, or ONNX's default for it."""
    import onnx.defs
    import onnx.helper

    if n.has(name):
        return n.attrs[name]
    try:
        declared = onnx.defs.get_schema(n.op_type, n.opset, n.domain).attributes.get(name)
    except onnx.defs.SchemaError as error:
        raise n.fail(f"is no op of opset {n.opset}") from error
    if declared is None or not declared.default_value.name:
        return None
    value = onnx.helper.get_attribute_value(declared.default_value)
    return value.decode() if isinstance(value, bytes) else value


def _old_broadcast(n: Node, x: Value, y: Value) -> Value:
    """Before opset 7 the second operand was aligned by `axis`, and only where `broadcast` said so."""
    if not n.attr_flag("broadcast") or "axis" not in n.attrs:
        return y
    axis = n.axis(n.attr_int("axis"), x.type.rank)
    trailing = x.type.rank - axis - y.type.rank
    if trailing < 0:
        raise n.fail(f"operand of rank {y.type.rank} does not fit at axis {axis} of rank {x.type.rank}")
    result: Value = n.b.reshape(y, shape=(*y.shape, *(1,) * trailing))
    return result


@rule("Identity")
def _identity(n: Node) -> Item:
    return n.item(0)


@rule("Equal")
def _equal(n: Node) -> Value:
    x, y = n.x(0), n.x(1)
    y = _old_broadcast(n, x, y) if n.opset < 7 else y
    result: Value = (n.b.string_equal if x.dtype.kind == "string" else n.b.eq)(x, y)
    return result


@rule("PRelu")
def _prelu(n: Node) -> Value:
    x, slope = n.x(0), n.x(1)
    if n.opset < 7 and slope.type.rank == 1 and slope.shape != (1,) and x.type.rank > 2:
        slope = n.b.reshape(slope, shape=(*slope.shape, *(1,) * (x.type.rank - 2)))
    result: Value = n.b.prelu(x, slope)
    return result


@rule("Pow")
def _pow(n: Node) -> Value:
    x, y = n.x(0), n.x(1)
    y = _old_broadcast(n, x, y) if n.opset < 7 else y
    if x.dtype == y.dtype or not y.dtype.is_float or x.dtype.is_float:
        result: Value = n.b.pow(x, cast(n, y, x.dtype))
        return result
    return cast(n, n.b.pow(cast(n, x, f64), cast(n, y, f64)), x.dtype)


@rule("Mod")
def _mod(n: Node) -> Value:
    result: Value = (n.b.fmod if n.attr_flag("fmod") else n.b.mod)(n.x(0), n.x(1))
    return result


@rule("BitShift")
def _bit_shift(n: Node) -> Value:
    direction = n.attr_string("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise n.fail(f"direction is {direction!r}, expected LEFT or RIGHT")
    result: Value = (n.b.shift_left if direction == "LEFT" else n.b.shift_right)(n.x(0), n.x(1))
    return result


@rule("IsInf")
def _is_inf(n: Node) -> Value:
    result: Value = n.b.is_inf(n.x(0), positive=n.attr_flag("detect_positive", True), negative=n.attr_flag("detect_negative", True))
    return result


@rule("HardSwish")
def _hard_swish(n: Node) -> Value:
    """x * max(0, min(1, x / 6 + 0.5)), which stays finite where torch's x * min(max(x + 3, 0), 6) / 6 does not."""
    x = n.x(0)
    result: Value = n.b.mul(x, n.b.hard_sigmoid(x, alpha=1.0 / 6.0, beta=0.5))
    return result


@rule("Clip")
def _clip(n: Node) -> Value:
    x = n.x(0)
    if n.opset >= 11:
        low, high = n.optional(1), n.optional(2)
    else:
        low, high = (n.b.scalar(n.attr_float(name), x.dtype) if n.has(name) else None for name in ("min", "max"))
    if low is None and high is None:
        return x
    result: Value = n.b.clip(x, low, high)
    return result


def _variadic(name: str) -> Rule:
    def apply(n: Node) -> Value:
        result, *rest = n.xs()
        for other in rest:
            result = getattr(n.b, name)(result, other)
        return result

    return apply


rule("Max")(_variadic("maximum"))
rule("Min")(_variadic("minimum"))
rule("Sum")(_variadic("add"))


@rule("Mean")
def _mean(n: Node) -> Value:
    total = _variadic("add")(n)
    if not isinstance(total, Value):
        raise n.fail("has no inputs")
    result: Value = n.b.div(total, float(len(n.inputs)))
    return result


@rule("Binarizer", domain="ai.onnx.ml")
def _binarizer(n: Node) -> Value:
    x = n.x()
    result: Value = n.b.cast(n.b.gt(x, n.attr_float("threshold")), dtype=x.dtype)
    return result


# --- casts ------------------------------------------------------------------------------------------------------------


@rule("Cast")
def _cast(n: Node) -> Value:
    number = n.attrs.get("to")
    if isinstance(number, str):
        # Opset 1 wrote the type's name.
        import onnx

        number = onnx.TensorProto.DataType.Value(number) if number in onnx.TensorProto.DataType.keys() else 0
    if number not in ELEMENT_TYPES:
        raise n.fail(f"element type {number} is not known")
    return convert(n, n.x(0), ELEMENT_TYPES[number], n.attr_flag("saturate", True))


@rule("CastLike")
def _cast_like(n: Node) -> Value:
    return convert(n, n.x(0), n.x(1).dtype, n.attr_flag("saturate", True))


def convert(n: Node, x: Value, dtype: DType, saturate: bool = True) -> Value:
    """ONNX's cast: to eight bits and fewer it saturates unless told otherwise."""
    if dtype.kind == "string" or x.dtype.kind == "string":
        if x.dtype == dtype:
            return x
        raise UnsupportedError(f"cast from {x.dtype} to {dtype}", hint="convert text outside the model")
    if dtype.name == "f8e8m0" and x.dtype != dtype:
        raise UnsupportedError("cast to f8e8m0", hint="store scales as float32")
    if dtype.name in SATURATING and x.dtype != dtype and (saturate or dtype.name == "f4e2m1"):
        return saturating_cast(n.b, x, dtype)
    return cast(n, x, dtype)


@rule("BitCast")
def _bit_cast(n: Node) -> Value:
    number = n.attr_int("to")
    if number not in ELEMENT_TYPES:
        raise n.fail(f"element type {number} is not known")
    dtype = ELEMENT_TYPES[number]
    if "bitcast" not in OPS:
        raise UnsupportedError("reinterprets bits", hint="cast instead")
    result: Value = n.b.bitcast(n.x(0), dtype=dtype)
    return result


# --- dropout: nothing at inference ------------------------------------------------------------------------------------


@rule("Dropout")
def _dropout(n: Node) -> list[Value]:
    x = n.x(0)
    if n.opset >= 12 and n.given(2) and bool(n.array(2, "training_mode").any()):
        ratio = float(n.array(1, "ratio").reshape(-1)[0]) if n.given(1) else 0.5
        if ratio != 0.0:
            raise UnsupportedError("training mode draws random numbers", hint="export the model for inference")
    elif n.opset < 7 and not n.attr_flag("is_test"):
        raise UnsupportedError("training mode draws random numbers", hint="export the model for inference")
    if len(n.outputs) < 2:
        return [x]
    dtype = boolean if n.opset >= 10 else x.dtype
    return [x, n.b.full(shape=x.shape, value=1.0, dtype=dtype)]


def constant(n: Node, array: np.ndarray[Any, Any]) -> Value:
    """A constant made by a rule."""
    return n.b.module.add_constant("c", array, n.source)
