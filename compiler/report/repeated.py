"""Rows of repeated layers as one: rows that differ in the numbers of names alone, with how many there are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from .table import Cell, Row, Table

LONG, WORDY = 40, 8
"""Tables of more rows than a screen has are folded, and those whose rows take several lines each, which sentences do."""
TIMES = "times"
NUMBER = re.compile(r"[0-9]+")
ANY = "*"


def fold(table: Table, names: Sequence[str], most: int = LONG) -> Table:
    """The table, for people with one row for all that differ in the numbers of the columns `names` alone, if it has more than `most`."""
    if len(table.rows) <= most:
        return table
    groups: dict[Row, list[Row]] = {}
    for row in table.rows:
        groups.setdefault(tuple(_key(cell) if name in names else cell for name, cell in zip(table.columns, row, strict=True)), []).append(
            row
        )
    if len(groups) == len(table.rows):
        return table
    rows = tuple((len(group), *_common(group)) for group in groups.values())
    note = f"{ANY} in a name: {TIMES} rows of repeated layers, which differ in this number alone; --wide and --json have every row"
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
        numbers = [
            number if len(set(each)) == 1 else ANY
            for number, *each in zip(NUMBER.findall(texts[0]), *map(NUMBER.findall, texts), strict=True)
        ]
        parts = NUMBER.split(texts[0])
        yield "".join(part + number for part, number in zip(parts, [*numbers, ""], strict=True))
