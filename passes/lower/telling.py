"""Checks of indices and divisors without a launch of their own: on GPUs a kernel that reads them all tells of one that is wrong."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...ir import dims
from ...ir.dims import Dim
from ...ir.graph import Graph, Value
from ...ir.ops.rounding import holds
from ...ir.target import GPU_TARGETS
from ...ir.tile.program import TileProgram
from ..fusion.partition import HostOp
from ..tile.tell import Question, names_of, telling
from .in_place import copied, in_place
from .schedule import Scheduled, Tell

Unit = Scheduled | HostOp
ASKS = ("worst_index", "worst_divisor")
REARRANGES = ("reshape", "transpose")
"""Ops whose result has the very elements of their operand."""


@dataclass
class Telling:
    """Gives checks to kernels that read what is checked. Equal programs that tell the same stay one.

    Where nothing is kept between calls, verdicts are read at the end of a call. Before a state is written they are read in between: then
    what refuses stands behind the kernel that tells.
    """

    target: str
    programs: dict[tuple[int, Question], tuple[TileProgram, TileProgram | None]] = field(default_factory=dict)

    def units(self, graph: Graph, units: Sequence[Unit]) -> list[Unit]:
        """The units of a graph, without those whose work others do beside their own."""
        result = list(units)
        for unit in units if self.target in GPU_TARGETS else ():
            if isinstance(unit, Scheduled) and _asks(unit):
                self._give(graph, unit, result)
        return result

    def _give(self, graph: Graph, asking: Scheduled, units: list[Unit]) -> None:
        """Let the first unit tell that can, in place of the asking one."""
        checked = _checked(asking)
        if checked is None:
            return
        refusals = [unit for unit in units if isinstance(unit, HostOp) and asking.group.outputs[0] in unit.op.operands]
        for number, unit in enumerate(units):
            if not isinstance(unit, Scheduled) or _asks(unit) or checked not in unit.group.inputs:
                continue
            told = self._told(unit, asking, checked)
            if told is None or (graph.states and not _is_early(graph, units, refusals, number)):
                continue
            units[number] = told
            units[:] = _without(units, (asking,))
            if graph.states:
                _move_behind(told, refusals, units)
            return

    def _told(self, unit: Scheduled, asking: Scheduled, checked: Value) -> Scheduled | None:
        """The unit with programs, for all classes of sizes, that tell what the asking one does."""
        op = asking.group.ops[-1]
        name = _free(unit)
        asked = unit.problem.region.inputs[unit.group.inputs.index(checked)].name
        tells = (*unit.tells, Tell(name, asking.group.outputs[0], asking.group.ops))
        made = []
        for each in (unit, *unit.variants):
            size = op.attrs.get("size")
            own = None if size is None else _own_size(each, size)
            if size is not None and own is None:
                return None
            program = self._program(each, Question(asked, name, own, op.attrs.get("negative", False)), int(copied(unit) is not None))
            if program is None:
                return None
            made.append(replace(each, program=program, tells=tells))
        return replace(made[0], variants=tuple(made[1:]))

    def _program(self, unit: Scheduled, question: Question, first: int) -> TileProgram | None:
        """A unit's program with the answer in its launch `first` or one behind it: a first one that only copies may be left out."""
        key = id(unit.program), question
        if key not in self.programs:
            # With the program, so that its number stays its own.
            self.programs[key] = unit.program, telling(unit.program, question, unit.problem.symbols, first)
        return self.programs[key][1]


def _asks(unit: Scheduled) -> bool:
    return len(unit.group.outputs) == 1 and unit.group.ops[-1].name in ASKS and unit.group.ops[-1].results == (unit.group.outputs[0],)


def _checked(asking: Scheduled) -> Value | None:
    """The operand of the asking unit that has the very integers which are checked."""
    value = asking.group.ops[-1].operands[0]
    while value is not None and value not in asking.group.inputs:
        op = value.op
        if op is None or not (op.name in REARRANGES or (op.name == "cast" and _is_kept(op.operands[0], value))):
            return None
        value = op.operands[0]
    return value


def _is_kept(narrow: Value | None, wide: Value) -> bool:
    return narrow is not None and narrow.dtype.is_integer and wide.dtype.is_integer and holds(wide.dtype, narrow.dtype)


def _is_early(graph: Graph, units: Sequence[Unit], refusals: Sequence[Unit], number: int) -> bool:
    """Whether what refuses may wait for a unit: nothing between writes a state, or runs on the host."""
    first = min((n for n, unit in enumerate(units) if any(unit is each for each in refusals)), default=number)
    between = _without(units[first : number + 1], refusals)
    written = in_place(graph, units)
    return all(isinstance(each, Scheduled) and written.keys().isdisjoint(each.group.outputs) for each in between)


def _own_size(unit: Scheduled, size: Dim) -> Dim | None:
    """A size of the graph as one that the kernels of a unit know."""
    if isinstance(size, int):
        return size
    known = (extent for param in unit.program.params.values() for extent in param.shape)
    return next((extent for extent in known if dims.equal(unit.bound(extent), size) is True), None)


def _free(unit: Scheduled) -> str:
    """A name with which no name in the programs of a unit begins."""
    taken = [name for each in (unit, *unit.variants) for name in names_of(each.program)]
    names = (f"told{number or ''}" for number in itertools.count())
    return next(name for name in names if not any(other.startswith(name) for other in taken))


def _move_behind(told: Scheduled, refusals: Sequence[Unit], units: list[Unit]) -> None:
    """Let what refuses by a unit's verdicts stand behind it, in the order in which it stood before."""
    units[:] = _without(units, refusals)
    behind = 1 + next(n for n, unit in enumerate(units) if unit is told)
    while behind < len(units) and _refuses(units[behind]):
        behind += 1
    units[behind:behind] = refusals


def _without(units: Sequence[Unit], some: Sequence[Unit]) -> list[Unit]:
    return [unit for unit in units if not any(unit is each for each in some)]


def _refuses(unit: Unit) -> bool:
    return isinstance(unit, HostOp) and unit.op.name == "refuse_index"
