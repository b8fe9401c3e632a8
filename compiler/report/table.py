"""What a command has to say, as data: facts, tables, text and violations, printed for people or as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Cell = str | int | float | bool | None
Row = tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """Rows under named columns; `notes` are sentences below it."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    brief: tuple[str, ...] = ()
    """The columns to show where not all have room, the ones to keep longest first; none: the first ones that fit."""
    below: tuple[str, ...] = ()
    """Columns of words that stand below their row where not all have room beside each other."""
    keys: tuple[str, ...] = ()
    """Columns of names that other options take: they are always whole."""
    folded: Table | None = None
    """A shorter table that people see in its place, unless they ask for everything."""
    numbers: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """What machines read in the place of the cells of these columns, which are words: one value a row."""

    def to_data(self) -> list[dict[str, Any]]:
        """One object a row."""
        rows: list[dict[str, Any]] = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        for name, values in self.numbers.items():
            for row, value in zip(rows, values, strict=True):
                row[name] = value
        return rows

    def __str__(self) -> str:
        cells = [self.columns, *(tuple("-" if cell is None else str(cell) for cell in row) for row in self.rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.columns))]
        lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in cells]
        return "\n".join([f"{self.name}:", *(f"  {line}" for line in lines), *(f"  ({note})" for note in self.notes)])


@dataclass(frozen=True)
class Report:
    """The answer of one command; `violations` are promises that do not hold, and make the exit status 3."""

    facts: Mapping[str, Cell] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    text: str | None = None
    violations: tuple[str, ...] = ()
    hint: str | None = None  # what to do about the violations
    failure: str | None = None  # what they are together, if not broken promises
    numbers: Mapping[str, Mapping[str, Cell]] = field(default_factory=dict)
    """What machines read in the place of the facts of these names, which are sentences."""

    def __str__(self) -> str:
        width = max((len(name) for name in self.facts), default=0)
        parts = ["\n".join(f"{name.ljust(width)}  {'-' if value is None else value}" for name, value in self.facts.items())]
        parts += [str(table) for table in self.tables]
        parts += [self.text] if self.text is not None else []
        parts += [f"violated: {violation}" for violation in self.violations]
        return "\n\n".join(part for part in parts if part)

    def to_data(self) -> dict[str, Any]:
        """The same as JSON data: facts by name, tables by name as lists of objects."""
        data: dict[str, Any] = {**self.facts, **{name: dict(parts) for name, parts in self.numbers.items()}}
        data.update({table.name: table.to_data() for table in self.tables})
        if self.text is not None:
            data["text"] = self.text
        if self.violations:
            data["violations"] = list(self.violations)
        if self.violations and self.hint is not None:
            data["hint"] = self.hint
        return data
