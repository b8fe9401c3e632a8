"""Rules for elementwise ATen ops: operands are cast to the dtype that torch computes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .....ir.dims import Expr
from .....ir.graph import Value
from .....ir.ops import FAMILIES
from .....ir.ops.table import OPS, OpDef
from .....ir.types import boolean
from ..context import ATEN, Node, Number, aten, find_rule

DECLARED = tuple(definition for definition in OPS.values() if definition.kind == "pointwise" and FAMILIES)


def _one_to_one(definition: OpDef) -> Callable[..., Value]:
    """The rule of an op that the table itself names: operands in the result's dtype, attributes as they come."""
    count = len(definition.operands)

    def rule(n: Node, *arguments: Any, **keywords: Any) -> Value:
        operands = n.values(*arguments[:count])
        attrs = dict(zip((attribute.name for attribute in definition.attributes), arguments[count:], strict=False))
        attrs.update(keywords)
        if any(isinstance(value, (Expr, Number)) for value in attrs.values()):
            raise n.fail("a number that only a call decides stands where it must be known at build")
        result = n.b.build(
            definition, operands, {name: float(v) if isinstance(v, int) and not isinstance(v, bool) else v for name, v in attrs.items()}
        )
        return result[0]

    return rule


for _definition in DECLARED:
    for _name in _definition.torch:
        ATEN[_name] = _one_to_one(_definition)


def _binary(op: str) -> Callable[..., Value]:
    def rule(n: Node, x: Any, y: Any) -> Value:
        return n.b.build(OPS[op], n.values(x, y), {})[0]

    return rule


def _dividing(op: str) -> Callable[..., Value]:
    def rule(n: Node, x: Any, y: Any) -> Value:
        left, right = n.values(x, y)
        return n.b.build(OPS[op], (left, _divisor(n, right)), {})[0]

    return rule


def _divisor(n: Node, y: Value) -> Value:
    """A divisor; eager raises an error where integers are divided by 0."""
    result: Value = n.b.check_divisor(y) if y.dtype.is_integer else y
    return result


_SAME = {
    **{"maximum": "maximum", "minimum": "minimum"},
    **{"__lshift__": "shift_left", "__rshift__": "shift_right"},
    **{"bitwise_left_shift": "shift_left", "bitwise_right_shift": "shift_right"},
}
for _name, _op in _SAME.items():
    aten(_name)(_binary(_op))
for _name, _op in {"remainder": "mod", "fmod": "fmod"}.items():
    aten(_name)(_dividing(_op))


@aten("mul")
def _mul(n: Node, x: Any, y: Any) -> Value:
    return n.scaled("mul", x, y)


@aten("add")
def _add(n: Node, x: Any, y: Any, alpha: Any = 1) -> Value:
    return _scaled(n, "add", x, y, alpha)


@aten("sub")
def _sub(n: Node, x: Any, y: Any, alpha: Any = 1) -> Value:
    return _scaled(n, "sub", x, y, alpha)


@aten("rsub")
def _rsub(n: Node, x: Any, y: Any, alpha: Any = 1) -> Value:
    return _scaled(n, "sub", y, x, 1) if alpha == 1 else n.b.sub(n.value(y, n.dtype), n.b.mul(n.value(x, n.dtype), n.value(alpha, n.dtype)))


def _scaled(n: Node, op: str, x: Any, y: Any, alpha: Any) -> Value:
    left, right = n.values(x, y)
    if alpha != 1:
        right = n.b.mul(right, n.value(alpha, n.dtype))
    return n.b.build(OPS[op], (left, right), {})[0]


@aten("div", "true_divide")
def _div(n: Node, x: Any, y: Any, rounding_mode: str | None = None) -> Value:
    return _quotient(n, x, y, rounding_mode)


def _quotient(n: Node, x: Any, y: Any, rounding_mode: str | None) -> Value:
    if n.dtype.is_integer:
        left, right = n.values(x, y)
        return n.b.build(OPS["floor_div" if rounding_mode == "floor" else "div"], (left, _divisor(n, right)), {})[0]
    if rounding_mode == "trunc":
        # Of narrow floats the quotient is not rounded before it is truncated.
        wide = n.dtype.compute if not isinstance(y, Value) or not y.type.rank else n.dtype
        left, right = n.cast(n.value(x, n.dtype), wide), n.value(y, wide)
        return n.cast(n.b.trunc(n.b.div(left, right)), n.dtype)
    return n.scaled("div" if rounding_mode is None else "floor_div", x, y)


@aten("floor_divide")
def _floor_divide(n: Node, x: Any, y: Any) -> Value:
    return _quotient(n, x, y, "floor")


@aten("sign")
def _sign(n: Node, x: Value) -> Value:
    """Torch's sign of NaN is 0."""
    result: Value = n.b.sign(x)
    return n.b.where(n.b.is_nan(x), n.value(0.0, x.dtype), result) if x.dtype.is_float else result


@aten("pow")
def _pow(n: Node, x: Any, y: Any) -> Value:
    if isinstance(x, Value) and y in (1, 2, 3, 0.5, -0.5, -1) and n.dtype.is_float and not isinstance(y, Value):
        return _power(n, n.cast(x, n.dtype), float(y))
    left, right = n.values(x, y)
    result: Value = n.b.pow(left, right)
    return result


def _power(n: Node, x: Value, y: float) -> Value:
    """Small powers, spelled as torch itself computes them."""
    if y == 1:
        return x
    if y in (2, 3):
        square: Value = n.b.mul(x, x)
        return square if y == 2 else n.b.mul(square, x)
    result: Value = {0.5: n.b.sqrt, -0.5: n.b.rsqrt, -1: n.b.reciprocal}[y](x)
    return result


def _comparison(op: str) -> Callable[..., Value]:
    def rule(n: Node, x: Any, y: Any) -> Value:
        dtype = n.promoted(x, y)
        return n.cast(n.b.build(OPS[op], n.values(x, y, dtype=dtype), {})[0], n.dtype)

    return rule


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    aten(_name)(_comparison(_name))


def _logical(op: str) -> Callable[..., Value]:
    def rule(n: Node, x: Value, y: Value) -> Value:
        return n.cast(n.b.build(OPS[op], (n.as_bool(x), n.as_bool(y)), {})[0], n.dtype)

    return rule


for _name in ("logical_and", "logical_or", "logical_xor"):
    aten(_name)(_logical(_name))


@aten("logical_not")
def _logical_not(n: Node, x: Value) -> Value:
    return n.cast(n.b.logical_not(n.as_bool(x)), n.dtype)


@aten("abs")
def _abs(n: Node, x: Value) -> Value:
    return x if x.dtype.kind in ("uint", "bool") else n.b.abs(x)


def _rounding(op: str) -> Callable[..., Value]:
    def rule(n: Node, x: Value) -> Value:
        return x if x.dtype.is_integer else n.b.build(OPS[op], (x,), {})[0]

    return rule


for _name in ("floor", "ceil", "trunc", "round.default"):
    aten(_name)(_rounding(_name.partition(".")[0]))


@aten("isnan")
def _isnan(n: Node, x: Value) -> Value:
    answer: Value = n.b.is_nan(x) if x.dtype.is_float else n.b.full(shape=x.shape, value=False, dtype=boolean)
    return answer


@aten("isinf")
def _isinf(n: Node, x: Value) -> Value:
    answer: Value = n.b.is_inf(x) if x.dtype.is_float else n.b.full(shape=x.shape, value=False, dtype=boolean)
    return answer


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(n: Node, condition: Value, x: Any, y: Any) -> Value:
    left, right = n.values(x, y)
    result: Value = n.b.where(n.as_bool(condition), left, right)
    return result


@aten("masked_fill")
def _masked_fill(n: Node, x: Value, mask: Value, value: Any) -> Value:
    result: Value = n.b.where(mask, n.value(value, n.dtype), n.cast(x, n.dtype))
    return n.expand(result, n.shape)


@aten("clamp", "clamp_min", "clamp_max", "hardtanh")
def _clamp(n: Node, x: Value, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None) -> Value:
    low, high = low if low is not None else min, high if high is not None else max
    if n.operator.startswith("aten.clamp_max"):
        low, high = None, low
    if n.operator.startswith("aten.hardtanh"):
        low, high = -1.0 if low is None else low, 1.0 if high is None else high
    result = n.cast(x, n.dtype)
    if low is not None:
        result = n.b.maximum(result, n.value(low, n.dtype))
    if high is not None:
        result = n.b.minimum(result, n.value(high, n.dtype))
    return result


@aten("leaky_relu")
def _leaky_relu(n: Node, x: Value, slope: Any = 0.01) -> Value:
    result: Value = n.b.leaky_relu(x, alpha=float(slope))
    return result


@aten("elu")
def _elu(n: Node, x: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Value:
    if scale == 1 and input_scale == 1:
        result: Value = n.b.elu(x, alpha=float(alpha))
        return result
    bent = n.scaled("mul", n.b.expm1(n.scaled("mul", x, input_scale)), alpha * scale)
    result = n.b.where(n.b.gt(x, n.value(0, n.dtype)), n.scaled("mul", x, scale), bent)
    return result


@aten(
    "_to_copy", "to.dtype", "prims.convert_element_type", "clone", "alias", "detach", "lift_fresh_copy", "lift", "contiguous", "prims.clone"
)
def _copy(n: Node, x: Value, *_: Any, **__: Any) -> Value:
    return n.cast(x, n.dtype)


@aten("copy")
def _copy_into(n: Node, x: Value, source: Value, *_: Any) -> Value:
    return n.expand(n.cast(source, n.dtype), n.shape)


@aten("log10")
def _log10(n: Node, x: Value) -> Value:
    wide = n.dtype.compute
    return n.cast(n.b.mul(n.b.log(n.cast(n.cast(x, n.dtype), wide)), n.value(0.4342944819032518, wide)), n.dtype)


@aten("logit")
def _logit(n: Node, x: Value, epsilon: Any = None) -> Value:
    """log(x / (1 - x)), of x within epsilon of 0 and 1; torch computes each step in the dtype itself."""
    x, one = n.values(x, 1)
    if epsilon is not None and epsilon >= 0:
        low = n.value(epsilon, n.dtype)
        high = n.b.sub(one, low)
        x = n.b.where(n.b.lt(x, low), low, n.b.where(n.b.gt(x, high), high, x))
    result: Value = n.b.log(n.b.div(x, n.b.sub(one, x)))
    return result


@aten("square")
def _square(n: Node, x: Value) -> Value:
    result: Value = n.b.mul(x, x)
    return result


def _of_numbers(op: str) -> Callable[..., Value]:
    """The larger or smaller one; a number rather than a NaN."""

    def rule(n: Node, x: Value, y: Value) -> Value:
        left, right = n.values(x, y)
        chosen = n.b.build(OPS[op], (left, right), {})[0]
        if not n.dtype.is_float:
            return chosen
        result: Value = n.b.where(n.b.is_nan(left), right, n.b.where(n.b.is_nan(right), left, chosen))
        return result

    return rule


aten("fmax")(_of_numbers("maximum"))
aten("fmin")(_of_numbers("minimum"))


@aten("hypot")
def _hypot(n: Node, x: Value, y: Value) -> Value:
    """The root of x^2 + y^2, scaled so that no square overflows; infinite if one of them is, whatever the other."""
    left, right = (n.b.abs(value) for value in n.values(x, y))
    large, small = n.b.maximum(left, right), n.b.minimum(left, right)
    ratio = n.b.div(small, n.b.where(n.b.eq(large, n.value(0, n.dtype)), n.value(1, n.dtype), large))
    length = n.b.mul(large, n.b.sqrt(n.b.add(n.b.mul(ratio, ratio), n.value(1, n.dtype))))
    infinite = n.b.logical_or(n.b.is_inf(left), n.b.is_inf(right))
    result: Value = n.b.where(infinite, n.value(float("inf"), n.dtype), length)
    return result


# What torch's own decompositions spell with primitives of theirs, after all promotion.
for _name in (
    "mul",
    "add",
    "sub",
    "abs",
    "neg",
    "sqrt",
    "exp",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "hypot",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
):
    ATEN[f"prims.{_name}"] = find_rule(f"aten.{_name}.default") or ATEN[f"aten.{_name}"]
ATEN["prims.where"] = ATEN["aten.where.self"]
ATEN["prims.round"] = ATEN["aten.round.default"]
