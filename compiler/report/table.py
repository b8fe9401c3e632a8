"""What a command has to say, as data: facts, tables, text and violations, printed for people or as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Cell = str | int | float | bool | None


@dataclass(frozen=True)
class Table:
    """Rows under named columns; `notes` are sentences below it."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def to_data(self) -> list[dict[str, Cell]]:
        """One object a row."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True)
class Report:
    """The answer of one command; `violations` are promises that do not hold, and make the exit status 3."""

    facts: Mapping[str, Cell] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    text: str | None = None
    violations: tuple[str, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """The same as JSON data: facts by name, tables by name as lists of objects."""
        data: dict[str, Any] = dict(self.facts)
        data.update({table.name: table.to_data() for table in self.tables})
        if self.text is not None:
            data["text"] = self.text
        if self.violations:
            data["violations"] = list(self.violations)
        return data
