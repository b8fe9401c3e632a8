"""Loads that follow a program's last fold are issued before it where registers hold them: both are waited for at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ....ir import dims
from ....ir.tile.program import AxisDecl, Launch, Let, Load, Reduce, Ref, Scan, Statement, Store, TileType, transform, walk
from ...regions.simplify_region import unused

HELD = 48
"""Words that a thread holds at most across a fold: with them, and with what it computes in, 1,024 threads of a processor share its
registers. With more the programs that are beside each other are fewer, which estimates say costs more than the wait.
"""


def loads_ahead(launch: Launch) -> Launch:
    """The launch with loads moved in front of its last fold, as many as fit; the same meaning.

    Before: s = reduce sum j: x[j]    store y[j] = x[j] * s * w[j]        After: w = load w[j]    s = reduce ..    store y[j] = x[j] * s * w
    """
    if any(not isinstance(statement, (Let, Store, AxisDecl)) for statement in launch.body):
        return launch
    folds = [number for number, statement in enumerate(launch.body) if _folds(statement)]
    if not folds:
        return launch
    before, after = launch.body[: folds[-1]], launch.body[folds[-1] :]
    held = _Held(launch, before)
    room = HELD - sum(held.words(type) for type in _live(before, after))
    moved: dict[Load, Ref] = {}
    for load in _loads(after[1:]):
        if load not in moved and held.may_move(load) and held.words(load.type) <= room:
            room -= held.words(load.type)
            moved[load] = Ref(held.unique(f"{load.operand}_ahead"), load.type)
    if not moved:
        return launch
    first = tuple(Let(ref.name, load) for load, ref in moved.items())
    rest = tuple(_with(statement, moved) for statement in after[1:])
    return replace(launch, body=(*before, *first, after[0], *rest))


class _Held:
    """What is known in front of a fold: names, axes and their extents, and how many threads share a tile."""

    def __init__(self, launch: Launch, before: Sequence[Statement]) -> None:
        self.extents: Mapping[str, int] = {
            **{axis.name: axis.step for axis in launch.grid if axis.step is not None},
            **{each.name: each.extent for each in before if isinstance(each, AxisDecl)},
        }
        self.threads = 32 * int(launch.hint("warps", 4))
        self.written = {each.operand for each in launch.body if isinstance(each, Store)}
        self.read = {load.operand for load in _loads(before)}
        self.known = {each.name for each in before if isinstance(each, Let)}
        self.taken = {each.name for each in launch.body if isinstance(each, (Let, AxisDecl))}
        self.taken |= {param.name for param in launch.params} | {axis.name for axis in launch.grid}

    def words(self, type: TileType) -> int:
        """Registers of a thread that a tile takes."""
        elements = math.prod(self.extents[axis] for axis in type.axes)
        return -(-elements * type.dtype.bits // (32 * self.threads)) if elements > self.threads else 1

    def may_move(self, load: Load) -> bool:
        """Whether all that a load names is known, and nothing that the program writes. What was read before is read again where it
        takes too many registers to stay.
        """
        named = {name for subscript in load.subscripts for name in dims.symbols(subscript)}
        is_known = all(name[1:] in self.known for name in named if name.startswith("%"))
        return is_known and load.operand not in self.written | self.read and self.extents.keys() >= set(load.type.axes)

    def unique(self, name: str) -> str:
        """A name that the launch has not."""
        found = unused(name, self.taken)
        self.taken.add(found)
        return found


def _folds(statement: Statement) -> bool:
    return isinstance(statement, Let) and any(isinstance(part, (Reduce, Scan)) and part.value.type.axes for part in walk(statement.value))


def _live(before: Sequence[Statement], after: Sequence[Statement]) -> Iterable[TileType]:
    """The types of what is named in front of the fold and read behind it."""
    read = {part.name for each in after[1:] if isinstance(each, (Let, Store)) for part in walk(each.value) if isinstance(part, Ref)}
    return [each.value.type for each in before if isinstance(each, Let) and each.name in read]


def _loads(after: Sequence[Statement]) -> Iterable[Load]:
    return [part for each in after if isinstance(each, (Let, Store)) for part in walk(each.value) if isinstance(part, Load)]


def _with(statement: Statement, moved: Mapping[Load, Ref]) -> Statement:
    """A statement that reads what was loaded ahead."""
    if not isinstance(statement, (Let, Store)):
        return statement
    return replace(statement, value=transform(statement.value, lambda part: moved.get(part) if isinstance(part, Load) else None))
