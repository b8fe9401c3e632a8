"""Functions whose values are rounded to 16 bits right away: they are computed as near as that, with fewer instructions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ...ir.expression import Apply, Constant
from ...ir.region import Let, Reduce, Ref, Region, Scalar, Store, walk
from ...ir.types import bf16, f16, f32

NARROW = frozenset({"sigmoid_narrow", "gelu_narrow"})
"""The narrow forms of CPUs."""
GPU_NARROW = frozenset({"sigmoid_narrow", "exp2_narrow", "div_narrow"})
"""Those of GPUs, where exponentials and divisions that are right in 24 bits take several times as many instructions."""
CLOSE = 1e-6
"""How far the constants of a formula may be off those of its function, relatively."""
SCALES = frozenset({"mul", "div", "neg", "abs", "where", "cast"})
"""Primitives through which relative errors pass as they are."""
DEPTH = 32
"""Of such primitives in one another, at most so many are looked through."""


def narrow_functions(region: Region, forms: frozenset[str] = NARROW) -> Region:
    """The region with functions of which only 16 bits are read in those narrow forms; results move by a part of their last place.

    Before: cast(mul(mul(x, 0.5), add(erf(mul(x, 0.7071)), 1.0)), bf16)    After: cast(gelu_narrow(x), bf16)
    Before: cast(mul(x, div(1.0, add(exp(neg(x)), 1.0))), f16)             After: cast(mul(x, sigmoid_narrow(x)), f16)

    Before: t = exp(x)   s = sum j: t   cast(div(t, s), bf16)              After: t = exp2_narrow(mul(x, 1.44)) .. mul(t, div_narrow(1, s))

    What lies between may only scale, as errors are relative; a named value is among it if nothing else reads it, and a sum of powers,
    none of which is negative.
    """
    powers = {s.name for s in region.body if isinstance(s, Let) and _is_power(s.value)}
    totals = {s.name for s in region.body if isinstance(s, Reduce) and s.kind == "sum" and (_is_power(s.value) or _name(s.value) in powers)}
    narrow: dict[str, bool] = {}
    """Of named values whether all readers read 16 bits of them."""
    body = []
    for statement in reversed(region.body):
        found = _Narrowed(forms, frozenset(totals))
        value = statement.value
        if isinstance(statement, (Let, Reduce)) and narrow.get(statement.name, False):
            value = found.of(value) if isinstance(statement, Let) or statement.name in totals else value
        elif isinstance(statement, (Let, Store)) and isinstance(value, Apply) and value.primitive in ("cast", "round"):
            (inner,) = value.args
            if value.dtype in (bf16, f16) and inner.dtype == f32:
                value = replace(value, args=(found.of(inner),))
        others = found.wide if found.done else [value]
        gathers = [gather for _, gather in statement.gathers] if isinstance(statement, Store) else []
        wide = {part.name for each in (*others, *gathers) for part in walk(each) if isinstance(part, Ref)}
        narrow |= {name: narrow.get(name, True) for name in found.names} | dict.fromkeys(wide, False)
        body.append(replace(statement, value=value))
    return replace(region, body=tuple(reversed(body)))


@dataclass
class _Narrowed:
    """An expression of which 16 bits are read, rewritten: `names` are read so in it, `wide` are the parts that are read whole.

    `totals` are sums of powers.
    """

    forms: frozenset[str]
    totals: frozenset[str] = frozenset()
    done: dict[int, Scalar] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    wide: list[Scalar] = field(default_factory=list)

    def of(self, value: Scalar, depth: int = 0) -> Scalar:
        if id(value) not in self.done:
            self.done[id(value)] = self._of(value, depth)
        return self.done[id(value)]

    def _of(self, value: Scalar, depth: int) -> Scalar:
        if isinstance(value, Ref):
            self.names.add(value.name)
            return value
        if not isinstance(value, Apply) or value.dtype != f32 or depth == DEPTH:
            self.wide.append(value)
            return value
        found = _sigmoid(value) if "sigmoid_narrow" in self.forms else None
        if found is None and "gelu_narrow" in self.forms:
            found = _gelu(value)
        if found is None and value.primitive == "exp" and "exp2_narrow" in self.forms:
            found = Apply("exp2_narrow", (times(value.args[0], math.log2(math.e)),), f32)
        if found is not None:
            self.wide.append(found)
            return found
        if value.primitive not in SCALES:
            self.wide.append(value)
            return value
        first = value.args[:1] if value.primitive == "where" else ()
        self.wide += first
        args = (*first, *(self.of(arg, depth + 1) for arg in value.args[len(first) :]))
        if value.primitive != "div" or "div_narrow" not in self.forms:
            return replace(value, args=args)
        if _name(args[1]) in self.totals and "exp2_narrow" in self.forms:
            # Powers are 0 below the least normal number: of their sums 0 alone has an infinite inverse.
            return Apply("mul", (args[0], Apply("div_narrow", (Constant(1.0, f32), args[1]), f32)), f32)
        return replace(value, primitive="div_narrow", args=args)


def _is_power(value: Scalar) -> bool:
    return isinstance(value, Apply) and value.primitive == "exp" and value.dtype == f32


def _name(value: Scalar) -> str | None:
    return value.name if isinstance(value, Ref) else None


def _sigmoid(value: Apply[Scalar]) -> Scalar | None:
    """1 / (1 + exp(-x)), and 1 + tanh(x), which is 2 sigmoid(2 x)."""
    raised = _one_more(value)
    if isinstance(raised, Apply) and raised.primitive == "tanh":
        return times(Apply("sigmoid_narrow", (times(raised.args[0], 2.0),), f32), 2.0)
    if value.primitive != "div" or not _is(value.args[0], 1.0):
        return None
    raised = _one_more(value.args[1])
    if not (isinstance(raised, Apply) and raised.primitive == "exp"):
        return None
    (power,) = raised.args
    negated = power.args[0] if isinstance(power, Apply) and power.primitive == "neg" else Apply("neg", (power,), f32)
    return Apply("sigmoid_narrow", (negated,), f32)


def _gelu(value: Apply[Scalar]) -> Scalar | None:
    """x (1 + erf(x / sqrt(2))) and what it is multiplied with, as 2 gelu(x) times that."""
    factors = list(_factors(value))
    for raised in factors:
        error = _one_more(raised)
        if not (isinstance(error, Apply) and error.primitive == "erf"):
            continue
        for x in factors:
            rest = [factor for factor in factors if factor is not raised and factor is not x]
            numbers = [float(each.value) for each in rest if isinstance(each, Constant) and isinstance(each.value, int | float)]
            if len(numbers) == len(rest) == len(factors) - 2 and _is_over_root(error.args[0], x):
                return times(Apply("gelu_narrow", (x,), f32), 2.0 * math.prod(numbers))
    return None


def _factors(value: Scalar) -> Iterator[Scalar]:
    """What is multiplied, in products of at most a few."""
    inner = [value]
    for _ in range(3):
        inner = [part for each in inner for part in (each.args if isinstance(each, Apply) and each.primitive == "mul" else (each,))]
    return iter(inner)


def _is_over_root(value: Scalar, x: Scalar) -> bool:
    """Whether a value is x / sqrt(2)."""
    if not (isinstance(value, Apply) and value.primitive in ("mul", "div")):
        return False
    left, right = value.args
    if value.primitive == "div":
        return left == x and _is(right, math.sqrt(2.0))
    return any(one == x and _is(other, math.sqrt(0.5)) for one, other in ((left, right), (right, left)))


def _one_more(value: Scalar) -> Scalar | None:
    """What 1 is added to."""
    if not (isinstance(value, Apply) and value.primitive == "add" and value.dtype == f32):
        return None
    left, right = value.args
    return left if _is(right, 1.0) else right if _is(left, 1.0) else None


def _is(value: Scalar, number: float) -> bool:
    return isinstance(value, Constant) and isinstance(value.value, int | float) and math.isclose(value.value, number, rel_tol=CLOSE)


def times(value: Scalar, number: float) -> Scalar:
    """A value by a number of its dtype."""
    return value if number == 1.0 else Apply("mul", (value, Constant(number, value.dtype)), value.dtype)
