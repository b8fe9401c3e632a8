"""What two programs do not share: ops that only one of them has, and ops of both with other attributes, types or operands.

Ops are paired in the order of the program: those that are the same and read the same, then those that share a name, weights, what they
read, or at least attributes and types, so that an op that was put in between, or renamed, does not make all that follows look new.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator

from ...ir.graph import Graph, Module, Op, Value
from ...ir.graph.text import attribute_text, op_text, value_text
from .table import Cell, Report, Table

COLUMNS = ("where", "function", "op", "value", "what")
ONLY, CHANGED = "only in", "changed"

Row = tuple[Cell, ...]
Key = Callable[["_Pairing", Op, bool], Hashable]


def differences(left: Module, right: Module, names: tuple[str, str]) -> Report:
    """The report on two programs, called by `names`."""
    rows = list(_symbols(left, right))
    same = 0
    for name in dict.fromkeys([*left.functions, *right.functions]):
        one, other = left.functions.get(name), right.functions.get(name)
        if one is None or other is None:
            held, which = (one, "A") if one is not None else (other, "B")
            rows.append((f"{ONLY} {which}", name, None, None, f"a function of {len(held or ())} ops"))
            continue
        pairing = _Pairing(one, other)
        found = list(pairing.rows())
        rows += found
        same += len(pairing.pairs) - sum(row[0] == CHANGED and row[2] not in ("input", "output") for row in found)
    counts = {where: sum(row[0] == where for row in rows) for where in (f"{ONLY} A", f"{ONLY} B", CHANGED)}
    facts: dict[str, Cell] = {"A": names[0], "B": names[1], "same ops": same, **counts}
    notes = ("what an op computes is compared, not where it stands in the user's sources",)
    tables = (Table("differences", COLUMNS, tuple(rows), notes, COLUMNS),) if rows else ()
    return Report(facts, tables, None if rows else "the programs are the same, but for names and sources")


def _symbols(left: Module, right: Module) -> Iterator[Row]:
    ones, others = ({name: f"{name} in {bounds}" for name, bounds in module.facts.ranges.items()} for module in (left, right))
    for name in dict.fromkeys([*ones, *others]):
        one, other = ones.get(name), others.get(name)
        if one is None or other is None:
            yield (f"{ONLY} {'A' if other is None else 'B'}", None, "symbol", name, one or other)
        elif one != other:
            yield (CHANGED, None, "symbol", name, f"{one} -> {other}")


class _Pairing:
    """Which op of one function is which of another; `partners` are the values of the left that are values of the right."""

    def __init__(self, left: Graph, right: Graph) -> None:
        self.left, self.right = left, right
        self.pairs: dict[Op, Op] = {}
        self.paired: set[Op] = set()
        self.partners: dict[Value, Value] = {}
        named = {value.name: value for value in right.inputs}
        self.partners.update((value, named[value.name]) for value in left.inputs if value.name in named)
        for key in (_named, _weighted, _reading, _alike):
            self._pair(_exact)
            self._pair(key)

    def _pair(self, key: Key) -> None:
        """Pair the ops left over that have one key, in order; of several those of one name first."""
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

    def read(self, value: Value | None, is_left: bool) -> Hashable:
        """What a value is called on the right: itself, or its partner; a constant is what it holds."""
        if value is None:
            return None
        if value.constant is not None:
            return str(value.type), value.constant.digest
        return self.partners.get(value, id(value)) if is_left else value

    def rows(self) -> Iterator[Row]:
        """All that is not the same."""
        function = self.left.name
        yield from self._ports("input", _typed(self.left.arguments), _typed(self.right.arguments))
        for op in self.left:
            other = self.pairs.get(op)
            if other is None:
                yield (f"{ONLY} A", function, op.name, _name(op), op_text(op, source=False))
            else:
                yield from ((CHANGED, function, op.name, _name(op), what) for what in self._changes(op, other))
        for op in self.right:
            if op not in self.paired:
                yield (f"{ONLY} B", function, op.name, _name(op), op_text(op, source=False))
        results = [dict(zip(graph.result_names, map(_of, graph.results), strict=True)) for graph in (self.left, self.right)]
        yield from self._ports("output", *results)
        for name, mine, its in zip(self.left.result_names, self.left.results, self.right.results, strict=False):
            if self.read(mine, True) != self.read(its, False) and mine.type == its.type:
                yield (CHANGED, function, "output", name, f"{value_text(mine)} -> {value_text(its)}")

    def _ports(self, kind: str, ones: dict[str, str], others: dict[str, str]) -> Iterator[Row]:
        for name in dict.fromkeys([*ones, *others]):
            one, other = ones.get(name), others.get(name)
            if one is None or other is None:
                yield (f"{ONLY} {'A' if other is None else 'B'}", self.left.name, kind, name, one or other)
            elif one != other:
                yield (CHANGED, self.left.name, kind, name, f"{one} -> {other}")

    def _changes(self, op: Op, other: Op) -> Iterator[str]:
        """What is not the same of two ops that are paired, in one sentence each op."""
        found = [
            f"{name}: {_attribute(op, name)} -> {_attribute(other, name)}"
            for name in dict.fromkeys([*op.attrs, *other.attrs])
            if _attribute(op, name) != _attribute(other, name)
        ]
        one, two = ", ".join(map(_of, op.results)), ", ".join(map(_of, other.results))
        found += [f"type: {one} -> {two}"] if one != two else []
        found += [f"{len(op.operands)} operands -> {len(other.operands)}"] if len(op.operands) != len(other.operands) else []
        for number, (mine, its) in enumerate(zip(op.operands, other.operands, strict=False)):
            if self.read(mine, True) != self.read(its, False):
                found.append(_operand(number, mine, its))
        if found:
            yield "; ".join(found)


def _operand(number: int, mine: Value | None, its: Value | None) -> str:
    one, two = ("none" if value is None else value_text(value) for value in (mine, its))
    if mine is not None and its is not None and mine.constant is not None and its.constant is not None and mine.type == its.type:
        return f"other values in {one}" if one == two else f"operand {number}: {one} -> {two}, other values"
    return f"operand {number}: {one} -> {two}{', another value' if one == two else ''}"


def _exact(pairing: _Pairing, op: Op, is_left: bool) -> Hashable:
    """The same op on the same values."""
    attributes = tuple((name, _attribute(op, name)) for name in sorted(op.attrs))
    return op.name, attributes, tuple(map(_of, op.results)), tuple(pairing.read(value, is_left) for value in op.operands)


def _named(pairing: _Pairing, op: Op, is_left: bool) -> Hashable:
    return op.name, _name(op)


def _reading(pairing: _Pairing, op: Op, is_left: bool) -> Hashable:
    """The same kind of op on the same computed values, whatever its attributes and weights are."""
    computed = (value for value in op.operands if value is not None and value.constant is None)
    return op.name, tuple(pairing.read(value, is_left) for value in computed)


def _weighted(pairing: _Pairing, op: Op, is_left: bool) -> Hashable:
    """The same kind of op with the same constants; None where there are none."""
    held = [pairing.read(value, is_left) for value in op.operands if value is not None and value.constant is not None]
    return (op.name, *held) if held else None


def _alike(pairing: _Pairing, op: Op, is_left: bool) -> Hashable:
    return op.name, *((name, _attribute(op, name)) for name in sorted(op.attrs)), *map(_of, op.results)


def _name(op: Op) -> str | None:
    return op.results[0].name if op.results else None


def _attribute(op: Op, name: str) -> str:
    return attribute_text(op.attrs[name]) if name in op.attrs else "-"


def _of(value: Value) -> str:
    return str(value.type)


def _typed(values: Iterable[Value]) -> dict[str, str]:
    return {value.name: str(value.type) for value in values}


__all__ = ["differences"]
