"""States written where they lie: which results may take the memory of the operand that they are a changed copy of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ...ir import dims
from ...ir.dims import Dim
from ...ir.graph import Graph, Value
from ...ir.region import Load, Region, Store, accesses
from ..fusion.partition import HostOp
from .schedule import Scheduled

Unit = Scheduled | HostOp


def in_place(graph: Graph, units: Sequence[Unit]) -> Mapping[Value, Value]:
    """Results of units by what they overwrite: a version of a state that nobody reads from then on.

    A unit qualifies that copies the version whole and then writes parts of the copy: in place it only writes the parts.
    """
    last = _last_reads(graph, units)
    found: dict[Value, Value] = {}
    current = {before for _, before, _ in graph.ties}
    for number, unit in enumerate(units):
        if isinstance(unit, HostOp):
            continue
        base = copied(unit)
        if base is not None and base in current and last[base] <= number:
            (result,) = unit.group.outputs
            found[result] = base
            # From now on this is what the state's memory holds.
            current = (current - {base}) | {result}
    return found


def copied(unit: Scheduled) -> Value | None:
    """The operand of which a unit's one result is a copy with other values in places; the first launch only copies."""
    if len(unit.program.launches) < 2 or len(unit.group.outputs) != 1:
        return None
    region, first = unit.problem.region, unit.program.launches[0]
    name = _whole_copy(region)
    if name is None or {param.name for param in first.params} != {name, region.outputs[0].name}:
        return None
    if any(param.name == name for launch in unit.program.launches[1:] for param in launch.params):
        return None
    place = next(n for n, operand in enumerate(region.inputs) if operand.name == name)
    return unit.group.inputs[place] if unit.group.inputs[place].type == unit.group.outputs[0].type else None


def changes(region: Region) -> Region:
    """What is left of the region of a unit that qualifies where its result takes the operand's memory: the parts that are written."""
    return replace(region, body=region.body[1:])


def _whole_copy(region: Region) -> str | None:
    """The operand that the first statement copies whole to the only output, and that no other statement reads."""
    store = region.body[0]
    if not isinstance(store, Store) or store.gathers or store.combine or not isinstance(store.value, Load):
        return None
    load = store.value
    read, written = _sized(region, load.operand, load.subscripts), _sized(region, store.output, store.subscripts)
    axes = [subscript for subscript, _ in written]
    whole = all(region.extents.get(dims.name_of(subscript) or "") == size for subscript, size in written)
    again = load.operand in {operand for operand, _ in accesses(region.body[1:])}
    return load.operand if read == written and not load.gathers and whole and len(set(axes)) == len(axes) and not again else None


def _sized(region: Region, operand: str, subscripts: Sequence[Dim]) -> list[tuple[Dim, Dim]]:
    """The subscripts of an operand's dimensions with their sizes, but for those of size 1 at place 0, which a region need not have."""
    found = zip(subscripts, region.operand(operand).type.shape, strict=True)
    return [(subscript, size) for subscript, size in found if (subscript, size) != (0, 1)]


def _last_reads(graph: Graph, units: Sequence[Unit]) -> Mapping[Value, int]:
    """The last unit that reads each value; what the caller gets, and what a state keeps, is read after all of them."""
    last: dict[Value, int] = {}
    for number, unit in enumerate(units):
        for value in _read(unit):
            last[value] = number
    last.update(dict.fromkeys(graph.outputs, len(units)))
    return last


def _read(unit: Unit) -> Iterable[Value]:
    values = unit.op.operands if isinstance(unit, HostOp) else unit.group.inputs
    return (value for value in values if value is not None)
