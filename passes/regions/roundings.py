"""Which inlined values stay as they were computed: those that nobody reads but arithmetic, by the rule of docs/ops.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from ...ir.expression import Apply
from ...ir.graph import Op, Value
from ...ir.ops.rounding import LIMITLESS, WIDENS
from ...ir.region import Let, Load, Reduce, Ref, Region, Scalar, Scan, Store


class _Form(IntEnum):
    """What an expression is of the value that is asked about; the larger of its parts' tells most."""

    ABSENT = 0
    COMPUTED = 1
    """Arithmetic of it: its own reader rounds the result, or may not."""
    WIDENED = 2
    """It, in the type that is computed in."""
    PLAIN = 3
    """It, as it was declared."""
    EXPOSED = 4
    """Something that tells whether it was rounded."""


@dataclass
class Roundings:
    """Answers for the values of one graph; `is_inlined` says which of them are computed where they are read."""

    regions: Callable[[Op], Region | None]
    is_inlined: Callable[[Value], bool]
    known: dict[Value, bool] = field(default_factory=dict)

    def may_stay_wide(self, value: Value) -> bool:
        """Whether the rounding of a value to its declared type may be dropped where it is inlined."""
        if value not in self.known:
            self.known[value] = self._decide(value)
        return self.known[value]

    def _decide(self, value: Value) -> bool:
        pending, seen = [value], {value}
        while pending:
            moved = self._moved(pending.pop())
            if moved is None:
                return False
            fresh = [result for result in moved if result not in seen]
            seen.update(fresh)
            pending += fresh
        return True

    def _moved(self, value: Value) -> list[Value] | None:
        """The results that only move the value and are inlined themselves; None if some reader tells that it was rounded."""
        if not self.is_inlined(value) or value.dtype.name not in LIMITLESS:
            return None
        found: list[Value] = []
        for user in value.uses:
            region = self.regions(user)
            if region is None:
                return None
            form = _form(region, {f"x{n}" for n, operand in enumerate(user.operands) if operand is value})
            if form is _Form.EXPOSED:
                return None
            if form is _Form.PLAIN:
                found += user.results
        return found


def _form(region: Region, names: set[str]) -> _Form:
    """What the region stores of the operands `names`: PLAIN if it moves them, COMPUTED if arithmetic reads all of them."""
    refs: dict[str, _Form] = {}
    stored = _Form.ABSENT
    for statement in region.body:
        form = _form_of(statement.value, names, refs)
        if isinstance(statement, Store):
            plain = len(region.body) == 1 and not statement.gathers and statement.combine is None
            gathers = any(_form_of(gather, names, refs) for _, gather in statement.gathers)
            # Where no arithmetic stands between the value and a store, the reader is a cast, or only moves it.
            bare = form is _Form.WIDENED or (form is _Form.PLAIN and not plain)
            stored = max(stored, _Form.EXPOSED if gathers or bare else form)
        elif isinstance(statement, Let):
            refs[statement.name] = _Form.EXPOSED if form is _Form.PLAIN else form
        else:
            refs[statement.name] = _folded(statement, form)
    return _Form.EXPOSED if _Form.EXPOSED in refs.values() else stored


def _folded(statement: Reduce | Scan, form: _Form) -> _Form:
    if form is _Form.ABSENT:
        return form
    return _Form.COMPUTED if statement.kind in WIDENS and form <= _Form.WIDENED else _Form.EXPOSED


def _form_of(value: Scalar, names: set[str], refs: dict[str, _Form]) -> _Form:
    forms: dict[int, _Form] = {}
    for part in _parts_first(value):
        if isinstance(part, Load):
            gathered = any(forms[id(gather)] for _, gather in part.gathers)
            forms[id(part)] = _Form.EXPOSED if gathered else _Form.PLAIN if part.operand in names else _Form.ABSENT
        elif isinstance(part, Ref):
            forms[id(part)] = refs.get(part.name, _Form.ABSENT)
        elif isinstance(part, Apply):
            forms[id(part)] = _applied(part, max(forms[id(arg)] for arg in part.args))
        else:
            forms[id(part)] = _Form.ABSENT
    return forms[id(value)]


def _applied(value: Apply[Scalar], form: _Form) -> _Form:
    """What a primitive makes of operands of which `form` tells most."""
    if form in (_Form.ABSENT, _Form.EXPOSED):
        return form
    if value.primitive == "cast" and form is _Form.PLAIN:
        source = value.args[0].dtype
        return _Form.WIDENED if value.dtype == source.compute and isinstance(value.args[0], Load) else _Form.EXPOSED
    if value.primitive == "round":
        return form if form is _Form.COMPUTED else _Form.EXPOSED
    return _Form.COMPUTED if value.primitive in WIDENS and form <= _Form.WIDENED else _Form.EXPOSED


def _parts_first(value: Scalar) -> Iterator[Scalar]:
    """Every part of an expression once, before what it is a part of."""
    pending: list[tuple[Scalar, bool]] = [(value, False)]
    seen: set[int] = set()
    while pending:
        part, is_ready = pending.pop()
        if is_ready:
            yield part
            continue
        if id(part) in seen:
            continue
        seen.add(id(part))
        pending.append((part, True))
        if isinstance(part, Apply):
            pending += [(arg, False) for arg in part.args]
        elif isinstance(part, Load):
            pending += [(gather, False) for _, gather in part.gathers]
