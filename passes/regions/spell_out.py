"""Functions that not every processor has an instruction for, spelled out in arithmetic that all have."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...ir.expression import Apply, Constant
from ...ir.region import Let, Reduce, Ref, Region, Scalar, Scan, Statement, Store, scalars, transform
from ...ir.types import boolean, f32, i32, u8
from .hoist_scales import fresh

INSTRUCTIONS = frozenset({"e2m1x2"})
"""What is spelled out where a target does not say that it has an instruction for it."""


def spell_out(region: Region, known: frozenset[str] = frozenset()) -> Region:
    """The region without the functions of `INSTRUCTIONS` that are not `known`; the same numbers.

    Before: e2m1x2(%x, %y)
    After:  cast(bit_or(code of %x, shift_left(code of %y, 4)), u8), in integers of 32 bits
    """
    wanted = INSTRUCTIONS - known
    if not any(isinstance(part, Apply) and part.primitive in wanted for part in scalars(region.body)):
        return region
    found = _Spelled({getattr(statement, "name", "") for statement in region.body})
    for statement in region.body:
        found.add(statement, wanted)
    return replace(region, body=tuple(found.body))


@dataclass
class _Spelled:
    """Statements, and the names that are taken."""

    taken: set[str]
    body: list[Statement] = field(default_factory=list)

    def add(self, statement: Statement, wanted: frozenset[str]) -> None:
        along = statement.over if isinstance(statement, Reduce) else (statement.along,) if isinstance(statement, Scan) else ()
        axes = (*statement.axes, *along)

        def changed(part: Scalar) -> Scalar | None:
            if not isinstance(part, Apply) or part.primitive not in wanted:
                return None
            low, high = (self._code(transform(arg, changed), axes) for arg in part.args)
            return Apply("cast", (_int("bit_or", low, _int("shift_left", high, _number(4))),), u8)

        value = transform(statement.value, changed)
        if isinstance(statement, Store):
            statement = replace(statement, gathers=tuple((axis, transform(gather, changed)) for axis, gather in statement.gathers))
        self.body.append(replace(statement, value=value))

    def _code(self, x: Scalar, axes: tuple[str, ...]) -> Scalar:
        """The code of the nearest number of e2m1: so many steps as lie below it from the power of two on that a sum with its size has.

        Numbers are 0.5 apart below 2, 1 below 4 and 2 above: as those from 2^22, 2^23 and 2^24 on, to which they are added. A code
        counts the steps from 0, 2 and 4 on.
        """
        x = self._named(x, axes)
        number = self._named(Apply("where", (Apply("eq", (x, x), boolean), x, Constant(6.0, f32)), f32), axes)
        size = self._named(Apply("min", (Apply("abs", (number,), f32), Constant(6.0, f32)), f32), axes)
        power = self._named(_int("shift_right", _int("max", _bits(size), _number(0x3F800000)), _number(23)), axes)
        first = self._named(_int("shift_left", _int("add", power, _number(22)), _number(23)), axes)
        steps = _int("sub", _bits(Apply("add", (size, Apply("bitcast", (first,), f32)), f32)), first)
        code = _int("add", steps, _int("shift_left", _int("sub", power, _number(127)), _number(1)))
        return _int("bit_or", code, _int("bit_and", _int("shift_right", _bits(number), _number(28)), _number(8)))

    def _named(self, value: Scalar, axes: tuple[str, ...]) -> Ref:
        name = fresh("code", self.taken)
        self.taken.add(name)
        self.body.append(Let(name, axes, value))
        return Ref(name, value.dtype)


def _number(value: int) -> Constant:
    return Constant(value, i32)


def _int(primitive: str, *args: Scalar) -> Scalar:
    return Apply(primitive, args, i32)


def _bits(value: Scalar) -> Scalar:
    return Apply("bitcast", (value,), i32)


__all__ = ["INSTRUCTIONS", "spell_out"]
