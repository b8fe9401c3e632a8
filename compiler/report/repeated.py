"""Rows that say the same as one: of repeated layers, whose names differ in numbers alone, or of whatever names, and how many they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from .table import Cell, Row, Table

LONG, WORDY = 40, 8
"""Tables of more rows than a screen has are folded, and those whose rows take several lines each, which sentences do."""
TIMES = "times"
NUMBER = re.compile(r"[0-9]+")
ANY = "*"
PART = re.compile(r".*[/.:]")
"""A name up to the last sign that ends a part of it."""


def fold(table: Table, names: Sequence[str], most: int = LONG, any_of: str | None = None) -> Table:
    """The table, for people with one row for all that differ in the numbers of the columns `names` alone, if it has more than `most`.

    Names in the column `any_of` may differ altogether.
    """
    if len(table.rows) <= most:
        return table
    groups: dict[Row, list[Row]] = {}
    for row in table.rows:
        cells = zip(table.columns, row, strict=True)
        key = tuple(None if name == any_of else _key(cell) if name in names else cell for name, cell in cells)
        groups.setdefault(key, []).append(row)
    if len(groups) == len(table.rows):
        return table
    rows = tuple((len(group), *_common(group)) for group in groups.values())
    said = "rows of repeated layers, which differ in this number alone" if any_of is None else "rows, which differ here alone"
    note = f"{ANY} in a name: {TIMES} {said}; --wide and --json have every row"
    brief = (TIMES, *table.brief) if table.brief else ()
    shown = replace(table, columns=(TIMES, *table.columns), rows=rows, notes=(*table.notes, note), brief=brief)
    return replace(table, folded=shown)


def _key(cell: Cell) -> Cell:
    return NUMBER.sub(ANY, cell) if isinstance(cell, str) else cell


def _common(rows: Sequence[Row]) -> Iterator[Cell]:
    """The cells of rows that are alike, with a sign for each number that is not the same in all."""
    for cells in zip(*rows, strict=True):
        first = cells[0]
        if all(cell == first for cell in cells):
            yield first
            continue
        texts = [str(cell) for cell in cells]
        if len({NUMBER.sub(ANY, text) for text in texts}) > 1:
            yield _shared(texts)
            continue
        numbers = [
            number if len(set(each)) == 1 else ANY
            for number, *each in zip(NUMBER.findall(texts[0]), *map(NUMBER.findall, texts), strict=True)
        ]
        parts = NUMBER.split(texts[0])
        yield "".join(part + number for part, number in zip(parts, [*numbers, ""], strict=True))


def _shared(names: Sequence[str]) -> str:
    """How names begin that have little in common: a whole part of a path, or nothing, then the sign for the rest."""
    found = PART.match("".join(signs[0] for signs in takewhile(lambda signs: len(set(signs)) == 1, zip(*names, strict=False))))
    return f"{found[0] if found else ''}{ANY}"
