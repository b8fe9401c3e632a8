"""What may refuse a call comes before what writes a state: an error then leaves all states as they were.

A refusal that rests on what the call itself writes, such as an index that is read from the state after it, stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...ir.dims import Facts, Range
from ...ir.graph import Graph, Value
from ..fusion.partition import HostOp
from .in_place import in_place
from .schedule import Scheduled
from .symbols import bindable, given, named

Unit = Scheduled | HostOp
REFUSING = frozenset({"item", "refuse_index", "refuse_place", "require"})
"""Host ops that look at data and may end the call."""


def refusals_first(graph: Graph, units: Sequence[Unit], facts: Facts) -> list[Unit]:
    """The units, those that refuse and all that they rest on in front of the first one that writes a state in place."""
    written = in_place(graph, units).keys()
    first = next((n for n, unit in enumerate(units) if not written.isdisjoint(_made(unit))), len(units))
    makers = _makers(graph, units)
    # A size that data decide is refused where it is not in the range that the program gives it.
    bounded = {name for name, bounds in facts.ranges.items() if bounds != Range()} - given(graph)
    early: set[int] = set()
    for number in range(first, len(units)):
        unit = units[number]
        if isinstance(unit, HostOp) and (unit.op.name in REFUSING or not bounded.isdisjoint(bindable(unit.op))):
            needed = _needed(number, units, makers, early)
            if all(written.isdisjoint(_made(units[each])) for each in needed):
                early |= needed
    moved = sorted(number for number in early if number >= first)
    return [*units[:first], *(units[n] for n in moved), *(unit for n, unit in enumerate(units[first:], first) if n not in early)]


def _needed(number: int, units: Sequence[Unit], makers: dict[Value | str, int], known: set[int]) -> set[int]:
    """A unit and all others that it rests on, but for those that are known."""
    found, pending = {number}, [number]
    while pending:
        for part in _rests_on(units[pending.pop()]):
            maker = makers.get(part)
            if maker is not None and maker not in found and maker not in known:
                found.add(maker)
                pending.append(maker)
    return found


def _makers(graph: Graph, units: Sequence[Unit]) -> dict[Value | str, int]:
    """The unit that makes each value, and the one that gives each symbol its value."""
    makers: dict[Value | str, int] = {}
    own = given(graph)
    for number, unit in enumerate(units):
        makers.update(dict.fromkeys(_made(unit), number))
        for symbol in bindable(unit.op) - own if isinstance(unit, HostOp) else ():
            makers.setdefault(symbol, number)
    return makers


def _made(unit: Unit) -> tuple[Value, ...]:
    return tuple(unit.op.results) if isinstance(unit, HostOp) else unit.group.outputs


def _rests_on(unit: Unit) -> Iterable[Value | str]:
    ops = (unit.op,) if isinstance(unit, HostOp) else unit.group.ops
    read = unit.op.operands if isinstance(unit, HostOp) else unit.group.inputs
    yield from (value for value in read if value is not None)
    for op in ops:
        yield from named(op)
