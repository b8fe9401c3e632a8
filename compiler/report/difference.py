"""What two programs do not share: ops that only one of them has, and ops of both with other attributes, types or operands.

Ops are paired in the order of the program by their structure: those that are the same and read the same, then those that share
weights, what they read, or at least attributes and types, and those of one name last, so that an op that was put in between does not make
all that follows look new. Names are no difference, be they of values, inputs, outputs or symbols.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from ...ir.graph import Graph, Module, Op, Value
from ...ir.graph.text import op_text, value_text
from .table import Cell, Report, Table
from .wording import Wording, has_values, inputs_paired, symbols_paired

COLUMNS = ("where", "function", "op", "value", "what")
ONLY, CHANGED = "only in", "changed"

Row = tuple[Cell, ...]
Key = Callable[["_Pairing", Op, bool], Hashable]


def differences(left: Module, right: Module, names: tuple[str, str]) -> Report:
    """The report on two programs, called by `names`."""
    turned, called = has_values(left) and has_values(right), symbols_paired(left, right)
    wordings = Wording(turned=turned), Wording(called, turned)
    rows = list(_symbols(left, right, called))
    same = 0
    for name in dict.fromkeys([*left.functions, *right.functions]):
        one, other = left.functions.get(name), right.functions.get(name)
        if one is None or other is None:
            held, which = (one, "A") if one is not None else (other, "B")
            rows.append((f"{ONLY} {which}", name, None, None, f"a function of {len(held or ())} ops"))
            continue
        pairing = _Pairing(one, other, wordings)
        found = list(pairing.rows())
        rows += found
        same += len(pairing.pairs) - sum(row[0] == CHANGED and row[2] not in ("input", "output") for row in found)
    counts = {where: sum(row[0] == where for row in rows) for where in (f"{ONLY} A", f"{ONLY} B", CHANGED)}
    facts: dict[str, Cell] = {"A": names[0], "B": names[1], "same ops": same, **counts}
    notes = ("what an op computes is compared, not where it stands in the user's sources",)
    tables = (Table("differences", COLUMNS, tuple(rows), notes, COLUMNS),) if rows else ()
    return Report(facts, tables, None if rows else "the programs are the same, but for names and sources")


def _symbols(left: Module, right: Module, called: Mapping[str, str]) -> Iterator[Row]:
    """Symbols by the left's names."""
    ones = {name: f"{name} in {bounds}" for name, bounds in left.facts.ranges.items()}
    others = {called[name]: f"{called[name]} in {bounds}" for name, bounds in right.facts.ranges.items()}
    for name in dict.fromkeys([*ones, *others]):
        one, other = ones.get(name), others.get(name)
        if one is None or other is None:
            yield (f"{ONLY} {'A' if other is None else 'B'}", None, "symbol", name, one or other)
        elif one != other:
            yield (CHANGED, None, "symbol", name, f"{one} -> {other}")


class _Pairing:
    """Which op of one function is which of another; `partners` are the values of the left that are values of the right."""

    def __init__(self, left: Graph, right: Graph, wordings: tuple[Wording, Wording]) -> None:
        self.left, self.right = left, right
        self.wordings = wordings
        self.pairs: dict[Op, Op] = {}
        self.paired: set[Op] = set()
        self.partners: dict[Value, Value] = {}
        self.partners.update(inputs_paired(left, right))
        for key in (_weighted, _reading, _alike, _named):
            self._pair(_exact)
            self._pair(key)

    def _pair(self, key: Key) -> None:
        """Pair the ops left over that have one key: those of one name first, then in order."""
        waiting: dict[Hashable, deque[Op]] = {}
        for op in self.right:
            known = key(self, op, False) if op not in self.paired else None
            if known is not None:
                waiting.setdefault(known, deque()).append(op)
        for op in self.left:
            known = key(self, op, True) if op not in self.pairs else None
            found = waiting.get(known) if known is not None else None
            if found:
                other = next((each for each in found if _name(each) == _name(op)), found[0]) if len(found) > 1 else found[0]
                found.remove(other)
                self.pairs[op] = other
                self.paired.add(other)
                self.partners.update(zip(op.results, other.results, strict=False))

    def wording(self, is_left: bool) -> Wording:
        """How one side says what both may say."""
        return self.wordings[0 if is_left else 1]

    def read(self, value: Value | None, is_left: bool, op: Op | None = None, place: int = 0) -> Hashable:
        """What a value is called on the right: itself, or its partner; a constant is what it holds as `op` reads it."""
        if value is None:
            return None
        if value.constant is not None:
            return self.wording(is_left).constant(op, place, value)
        return self.partners.get(value, id(value)) if is_left else value

    def operands(self, op: Op, is_left: bool) -> Hashable:
        """What an op reads."""
        return _ordered(op, [self.read(value, is_left, op, place) for place, value in enumerate(op.operands)])

    def types(self, op: Op, is_left: bool) -> list[str]:
        """The types of an op's results."""
        return [self.wording(is_left).type(result) for result in op.results]

    def rows(self) -> Iterator[Row]:
        """All that is not the same."""
        function = self.left.name
        yield from self._inputs()
        for op in self.left:
            other = self.pairs.get(op)
            if other is None:
                yield (f"{ONLY} A", function, op.name, _name(op), op_text(op, source=False))
            else:
                yield from ((CHANGED, function, op.name, _name(op), what) for what in self._changes(op, other))
        for op in self.right:
            if op not in self.paired:
                yield (f"{ONLY} B", function, op.name, _name(op), op_text(op, source=False))
        yield from self._outputs()

    def _inputs(self) -> Iterator[Row]:
        sides = (self.left.arguments, True), (self.right.arguments, False)
        ones, others = ({value: self.wording(is_left).type(value) for value in values} for values, is_left in sides)
        paired = {value: self.partners[value] for value in ones if self.partners.get(value) in others}
        for value, other in paired.items():
            if ones[value] != others[other]:
                yield (CHANGED, self.left.name, "input", value.name, f"{ones[value]} -> {others[other]}")
        yield from ((f"{ONLY} A", self.left.name, "input", value.name, type) for value, type in ones.items() if value not in paired)
        yield from (
            (f"{ONLY} B", self.left.name, "input", value.name, type) for value, type in others.items() if value not in paired.values()
        )

    def _outputs(self) -> Iterator[Row]:
        """Outputs of one name, then those in one place; what comes out may differ by its type, or be another value."""
        sides = [dict(zip(graph.result_names, graph.results, strict=True)) for graph in (self.left, self.right)]
        paired = {name: name for name in sides[0] if name in sides[1]}
        paired |= zip(*([name for name in side if name not in paired] for side in sides), strict=False)
        for name, called in paired.items():
            mine, its = sides[0][name], sides[1][called]
            types = self.wording(True).type(mine), self.wording(False).type(its)
            if types[0] != types[1]:
                yield (CHANGED, self.left.name, "output", name, f"{types[0]} -> {types[1]}")
            elif self.read(mine, True) != self.read(its, False):
                yield (CHANGED, self.left.name, "output", name, f"{value_text(mine)} -> {value_text(its)}")
        for where, is_left, side, known in (("A", True, sides[0], paired.keys()), ("B", False, sides[1], paired.values())):
            for name in (name for name in side if name not in known):
                yield (f"{ONLY} {where}", self.left.name, "output", name, self.wording(is_left).type(side[name]))

    def _changes(self, op: Op, other: Op) -> Iterator[str]:
        """What is not the same of two ops that are paired, in one sentence each op."""
        ones, others = self.wording(True).attributes(op), self.wording(False).attributes(other)
        found = [
            f"{name}: {ones.get(name, '-')} -> {others.get(name, '-')}"
            for name in dict.fromkeys([*ones, *others])
            if ones.get(name) != others.get(name)
        ]
        one, two = ", ".join(self.types(op, True)), ", ".join(self.types(other, False))
        found += [f"type: {one} -> {two}"] if one != two else []
        found += [f"{len(op.operands)} operands -> {len(other.operands)}"] if len(op.operands) != len(other.operands) else []
        if self.operands(op, True) != self.operands(other, False):
            for place, (mine, its) in enumerate(zip(op.operands, other.operands, strict=False)):
                if self.read(mine, True, op, place) != self.read(its, False, other, place):
                    found.append(_operand(place, mine, its))
        if found:
            yield "; ".join(found)


def _operand(number: int, mine: Value | None, its: Value | None) -> str:
    one, two = ("none" if value is None else value_text(value) for value in (mine, its))
    if mine is not None and its is not None and mine.constant is not None and its.constant is not None and mine.type == its.type:
        return f"other values in {one}" if one == two else f"operand {number}: {one} -> {two}, other values"
    return f"operand {number}: {one} -> {two}{', another value' if one == two else ''}"


def _exact(pairing: _Pairing, op: Op, is_left: bool) -> Hashable:
    """The same op on the same values."""
    return *_alike(pairing, op, is_left), pairing.operands(op, is_left)


def _named(pairing: _Pairing, op: Op, is_left: bool) -> Hashable:
    return op.name, _name(op)


def _reading(pairing: _Pairing, op: Op, is_left: bool) -> Hashable:
    """The same kind of op on the same computed values, whatever its attributes and weights are."""
    computed = (value for value in op.operands if value is not None and value.constant is None)
    return op.name, _ordered(op, [pairing.read(value, is_left) for value in computed])


def _ordered(op: Op, read: Sequence[Hashable]) -> Hashable:
    """What an op reads as a key: where its operands can be exchanged either order is the same."""
    return frozenset(Counter(read).items()) if "commutative" in op.definition.traits else tuple(read)


def _weighted(pairing: _Pairing, op: Op, is_left: bool) -> Hashable:
    """The same kind of op with the same constants; None where there are none."""
    read = enumerate(op.operands)
    held = [pairing.read(value, is_left, op, place) for place, value in read if value is not None and value.constant is not None]
    return (op.name, *held) if held else None


def _alike(pairing: _Pairing, op: Op, is_left: bool) -> tuple[Hashable, ...]:
    """The same kind of op with the same attributes and types."""
    return op.name, *sorted(pairing.wording(is_left).attributes(op).items()), *pairing.types(op, is_left)


def _name(op: Op) -> str | None:
    return op.results[0].name if op.results else None


__all__ = ["differences"]
