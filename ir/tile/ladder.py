"""Ladders: a loop with `tail (4, 1)` becomes a sequence of loops, each over the whole blocks that the one before left.

    for ii in i step 12 tail (4, 1) { .. }      i of 96 rows, clipped to B
  becomes
    for ii in i.first..i.first + n12 step 12 { .. }          n12 = n // 12 * 12, n = min(i.first + 96, B) - i.first
    for ii in i.first + n12..i.first + n4 step 4 { .. }      n4  = n12 + (n - n12) // 4 * 4
    for ii in i.first + n4..i.first + n step 1 { .. }

The bodies are the same text: only the extent of the axis differs. A last rung above 1 is masked as usual; a rung that
is provably empty is left out.
"""

from __future__ import annotations

from dataclasses import replace

from .. import dims
from ..dims import NO_FACTS, Dim, Facts
from .bounds import open_ends
from .program import For, If, Launch, Statement, TileProgram
from .proof import at_most, simplify
from .scope import Scope, launch_scope


def expand_ladders(program: TileProgram, symbols: Facts = NO_FACTS) -> TileProgram:
    """The program with no `tail` in it; `symbols` are the facts under which empty rungs are left out."""
    return replace(program, launches=tuple(expand_launch(launch, symbols) for launch in program.launches))


def expand_launch(launch: Launch, symbols: Facts = NO_FACTS) -> Launch:
    """The launch with no `tail` in it."""
    return replace(launch, body=_expand_body(launch_scope(launch, symbols), launch.body))


def _expand_body(scope: Scope, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    result: list[Statement] = []
    for statement in body:
        if isinstance(statement, For):
            for loop in _rungs(scope, statement):
                result.append(replace(loop, body=_expand_body(scope.enter(loop), loop.body)))
            continue
        if isinstance(statement, If):
            otherwise = _expand_body(scope, statement.otherwise)
            statement = replace(statement, body=_expand_body(scope, statement.body), otherwise=otherwise)
        result.append(statement)
        scope = scope.enter(statement)
    return tuple(result)


def _rungs(scope: Scope, loop: For) -> list[For]:
    if not loop.tail:
        return [loop]
    low, high = (loop.low, loop.high) if loop.kind != "walk" else _walked(scope, loop)
    plain = replace(loop, kind="tile", parent=None, tail=())
    loops: list[For] = []
    start = low
    for step in (loop.step, *loop.tail):
        left = high - start
        last = step == loop.tail[-1]
        end = simplify(scope, high if last else start + left // step * step)
        if not at_most(scope, end, start):
            loops.append(replace(plain, low=start, high=end, step=step))
            start = end
    return loops


def _walked(scope: Scope, loop: For) -> tuple[Dim, Dim]:
    """The range that a walk covers: its parent's tile, clipped to the parent's domain."""
    parent = scope.axis(loop.parent or "")
    first: Dim = parent.base if parent.modulus == 0 else dims.symbol(parent.first)
    high = first + parent.extent
    for end in open_ends(scope, parent):
        high = dims.minimum(high, end)
    return first, simplify(scope, high)
