"""How often the parts of a kernel run: the loops of its source, with the sizes that it is launched for.

Machine code does not say how often a loop runs; the source does. Integer arithmetic of the kernel is followed for a few
of its programs, each `for` over a range is counted, and the blocks of machine code take the count of the innermost `for`
that most of their lines stand in.
"""

from __future__ import annotations

import ast
import operator
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

PROGRAMS = 2048
"""Programs of a grid that are followed at most, spread over it without a period."""

_SPREAD = 2654435761

_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "min": min,
    "minimum": min,
    "max": max,
    "maximum": max,
    "cdiv": lambda left, right: -(-left // right),
    "abs": abs,
}


@dataclass(frozen=True)
class SourceLoop:
    """A `for` of the source: its lines, and how often a program runs its body, on average over programs.

    A loop that is `flattened` becomes one with those inside it: blocks of both stand in one machine loop.
    """

    first: int
    last: int
    runs: float
    flattened: bool


class UnknownTrips(ValueError):
    """A loop whose bounds depend on what a kernel reads."""


def loops_of(name: str, source: str, first_line: int, sizes: Mapping[str, Any], grid: Sequence[int]) -> tuple[SourceLoop, ...]:
    """The loops of the kernel `name`; its source begins with `first_line`, `sizes` are known names, `grid` programs by axis.

    UnknownTrips if a bound is not an integer expression of sizes and the program's place.
    """
    offset = first_line - 1
    totals: Counter[tuple[int, int, bool]] = Counter()
    places = _places(grid)
    for each in _followed(name, source, sizes, places, grid):
        totals.update(each)
    return tuple(
        SourceLoop(first + offset, last + offset, total / len(places), flattened)
        for (first, last, flattened), total in sorted(totals.items())
    )


def lengths_of(name: str, source: str, sizes: Mapping[str, Any], grid: Sequence[int]) -> list[float]:
    """How often each program runs bodies of loops, in order of the grid; empty where there are too many to follow all."""
    places = _places(grid)
    if len(places) < prod(grid):
        return []
    return [sum(each.values()) for each in _followed(name, source, sizes, places, grid)]


def _followed(
    name: str, source: str, sizes: Mapping[str, Any], places: Sequence[tuple[int, ...]], grid: Sequence[int]
) -> Iterator[Counter[tuple[int, int, bool]]]:
    """The runs of each loop in programs at these places."""
    tree = ast.parse(textwrap.dedent(source))
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    for place in places:
        totals: Counter[tuple[int, int, bool]] = Counter()
        _Program(dict(sizes), place, tuple(grid), totals).run(function.body, 1.0)
        yield totals


def _places(grid: Sequence[int]) -> list[tuple[int, ...]]:
    total = 1
    for size in grid:
        total *= size
    numbers = range(total) if total <= PROGRAMS else [n * _SPREAD % total for n in range(PROGRAMS)]
    found = []
    for number in numbers:
        place = []
        for size in grid:
            place.append(number % size)
            number //= size
        found.append(tuple(place))
    return found


@dataclass
class _Program:
    """One program followed through its source: names with known integers; all else is None."""

    names: dict[str, Any]
    place: tuple[int, ...]
    grid: tuple[int, ...]
    totals: Counter[tuple[int, int, bool]]

    def run(self, body: Sequence[ast.stmt], runs: float) -> None:
        for each in body:
            if isinstance(each, ast.Assign | ast.AnnAssign | ast.AugAssign):
                self._assign(each)
            elif isinstance(each, ast.For):
                self._loop(each, runs)
            elif isinstance(each, ast.While):
                raise UnknownTrips(f"line {each.lineno}: a while loop")
            elif isinstance(each, ast.If):
                self._branch(each, runs)

    def _branch(self, node: ast.If, runs: float) -> None:
        known = self.value(node.test)
        if known is None or known:
            self.run(node.body, runs)
        if known is None or not known:
            self.run(node.orelse, runs)

    def _loop(self, node: ast.For, runs: float) -> None:
        bounds = [self.value(each) for each in node.iter.args] if isinstance(node.iter, ast.Call) else [None]
        if not bounds or any(each is None for each in bounds):
            raise UnknownTrips(f"line {node.lineno}: {ast.unparse(node.iter)}")
        steps = range(*bounds)
        self.totals[node.lineno, node.end_lineno or node.lineno, _is_flattened(node)] += runs * len(steps)
        if not steps:
            return
        # One step in the middle stands for all: bounds of inner loops are taken there.
        if isinstance(node.target, ast.Name):
            self.names[node.target.id] = steps[len(steps) // 2]
        self.run(node.body, runs * len(steps))

    def _assign(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = None if isinstance(node, ast.AugAssign) or node.value is None else self.value(node.value)
        for target in targets:
            for name in (each.id for each in ast.walk(target) if isinstance(each, ast.Name)):
                self.names[name] = value if isinstance(target, ast.Name) else None

    def value(self, node: ast.expr) -> Any:
        """The integer (or truth) that an expression is, None if it is not known."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, int | str) else None
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return _known(operator.neg, self.value(node.operand))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return _known(operator.not_, self.value(node.operand))
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return _known(_BINARY[type(node.op)], self.value(node.left), self.value(node.right))
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compared(node)
        if isinstance(node, ast.Call):
            return self._called(node)
        return None

    def _compared(self, node: ast.Compare) -> Any:
        operators = {
            ast.Eq: operator.eq,
            ast.NotEq: operator.ne,
            ast.Lt: operator.lt,
            ast.LtE: operator.le,
            ast.Gt: operator.gt,
            ast.GtE: operator.ge,
        }
        chosen = operators.get(type(node.ops[0]))
        return None if chosen is None else _known(chosen, self.value(node.left), self.value(node.comparators[0]))

    def _called(self, node: ast.Call) -> Any:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
        values = [self.value(each) for each in node.args]
        if name in ("program_id", "num_programs") and len(values) == 1 and isinstance(values[0], int):
            chosen = self.place if name == "program_id" else self.grid
            return chosen[values[0]] if values[0] < len(chosen) else (0 if name == "program_id" else 1)
        if name in ("multiple_of", "max_contiguous", "assume", "to"):
            return values[0] if values else None
        return _known(_FUNCTIONS[name], *values) if name in _FUNCTIONS else None


def _is_flattened(node: ast.For) -> bool:
    keywords = node.iter.keywords if isinstance(node.iter, ast.Call) else []
    return any(each.arg == "flatten" and isinstance(each.value, ast.Constant) and each.value.value is True for each in keywords)


def _known(function: Callable[..., Any], *values: Any) -> Any:
    if any(not isinstance(each, int) for each in values):
        return None
    try:
        return function(*values)
    except ZeroDivisionError:
        return None


QUARTER = 0.25
"""The share of a machine loop's lines that make it the loop of the source which they stand in, and not of one inside."""


def loop_at(lines: Sequence[int], loops: Sequence[SourceLoop]) -> SourceLoop | None:
    """The loop of the source that a machine loop of these lines is: the outermost with a share of them; None if they stand in none.

    Lines of a loop inside are there too where that one was unrolled.
    """
    votes = Counter(found for line in lines if (found := innermost(line, loops)) is not None)
    enough = [loop for loop, number in votes.items() if number >= QUARTER * votes.total()]
    return max(enough, key=lambda loop: loop.last - loop.first, default=None)


def innermost(line: int, loops: Sequence[SourceLoop]) -> SourceLoop | None:
    """The innermost loop of the source that a line stands in."""
    return min((each for each in loops if each.first <= line <= each.last), key=lambda each: each.last - each.first, default=None)


def shares_of(copies: Sequence[int]) -> list[float]:
    """The share of a source loop's runs of each machine loop for it, given how many steps each holds.

    The one with the most does nearly all of the work; one with fewer does what remains, which is half a round on average
    and is left out beside it.
    """
    most = max(copies)
    return [1 / most if held == most else 0.0 for held in copies]
