"""What fusion decided, as tables: what is in memory first, what could be computed where it is read before all else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...ir.workload import Workload
from .table import Table

COLUMNS = ("value", "function", "op", "verdict", "where", "bytes", "operations", "why", "source")
BRIEF = ("value", "function", "op", "verdict", "bytes", "operations", "why")
MISSED = ("pattern", "value", "why", "source")
VERDICTS = ("kept", "beside", "view", "inlined")
"""Verdicts, those that cost memory first."""
PLACES = 2
"""So many kernels that compute a value are named."""
LARGEST = 10
"""So many values in memory are worth a sentence in `explain`."""


def fusion_tables(part: str, rows: Sequence[Mapping[str, Any]], missed: Sequence[Mapping[str, Any]], workload: Workload) -> list[Table]:
    """A row a value, but for movements that are folded into what reads them; then the patterns that were nearly recognised."""
    shown = sorted((row for row in rows if not is_folded(row)), key=_importance)
    notes = [
        "kept: written to memory, and read from there; beside: written by a kernel that computes and reads it; view: written in another"
        " shape at once; inlined: computed where it is read, and never written",
        "bytes: what memory moves for a value that is kept, one write and all reads",
        "operations: what those who read it compute again where it is not kept, at most: products compute a factor once for many rows",
        *([f"sizes are those of the workload: {workload}"] if workload.sizes else []),
    ]
    folded = Counter(row["op"] for row in rows if is_folded(row))
    if folded:
        named = ", ".join(f"{count} {op}" for op, count in folded.most_common())
        notes.append(f"not listed, since a movement is a change of subscripts in what reads it: {named}")
    several = len({row.get("function") for row in rows}) > 1
    cells = tuple(tuple(None if column == "function" and not several else _cell(row, column) for column in COLUMNS) for row in shown)
    table = Table(f"fusion of {part}", COLUMNS, cells, tuple(notes), BRIEF)
    return [table, *([missed_table(missed)] if missed else [])]


def missed_table(missed: Sequence[Mapping[str, Any]]) -> Table:
    """Patterns that were not recognised although they look like it, and what was missing."""
    return Table("patterns not recognised", MISSED, tuple(tuple(row[column] or None for column in MISSED) for row in missed))


def is_folded(row: Mapping[str, Any]) -> bool:
    """Whether a row is a movement that is only a change of subscripts."""
    return bool(row["is_movement"]) and row["verdict"] == "inlined"


def largest_kept(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The values for which memory moves most."""
    kept = [row for row in rows if row["verdict"] in ("kept", "beside")]
    return sorted(kept, key=lambda row: -row["bytes"])[:LARGEST]


def _importance(row: Mapping[str, Any]) -> tuple[bool, int, int]:
    return not row["is_choice"], VERDICTS.index(row["verdict"]), -row["bytes"]


def _cell(row: Mapping[str, Any], column: str) -> str | int | None:
    if column != "where":
        return row.get(column) or None if column in ("function", "source", "why") else row[column]
    names = row["where"]
    return ", ".join(names[:PLACES]) + (f" and {len(names) - PLACES} more" if len(names) > PLACES else "") or "host"
