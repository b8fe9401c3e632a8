"""How the command line speaks: tables and progress bars for people, one JSON object for machines."""

from __future__ import annotations

import json
import math
import sys
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from ...ir.errors import ContractError
from ..progress import SILENT, Progress
from ..report.table import Cell, Report, Table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


def print_report(report: Report, *, as_json: bool) -> None:
    """Print a command's answer; with violations the exit status is theirs."""
    if as_json:
        print_json(report.to_data())
    else:
        _print_for_people(report)
    if report.violations and as_json:
        # The object already names them: an error object after it would make two.
        click.get_current_context().exit(ContractError.exit_status)
    if report.violations:
        count = len(report.violations)
        raise ContractError(f"{count} {'promise does' if count == 1 else 'promises do'} not hold", note="\n".join(report.violations))


def print_json(data: Any) -> None:
    """One JSON object on standard output; NaN and infinities, which JSON lacks, become null."""
    click.echo(json.dumps(_finite(data), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, dict):
        return {str(key): _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data


def _console(*, error: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    # A pipe has no width: a table cut at 80 columns would lose what it was asked for.
    return Console(file=stream, width=None if stream.isatty() else 200, highlight=False, markup=False, emoji=False)


def _print_for_people(report: Report) -> None:
    width = max((len(name) for name in report.facts), default=0)
    for name, value in report.facts.items():
        click.echo(f"{name.replace('_', ' '):{width}}  {format_cell(value)}")
    if report.tables:
        console = _console()
        for table in report.tables:
            _print_table(console, table)
    if report.text is not None:
        click.echo(report.text.rstrip("\n"))


def _print_table(console: Console, table: Table) -> None:
    from rich import box
    from rich.table import Table as Grid

    grid = Grid(title=table.name, title_justify="left", title_style="bold", box=box.SIMPLE, pad_edge=False)
    # A column that says nothing in any row only takes room; --json has it.
    shown = [n for n in range(len(table.columns)) if not table.rows or any(row[n] is not None for row in table.rows)]
    for n in shown:
        numbers = bool(table.rows) and all(_is_number(row[n]) for row in table.rows)
        grid.add_column(table.columns[n].replace("_", " "), justify="right" if numbers else "left", overflow="fold")
    for row in table.rows:
        grid.add_row(*(format_cell(row[n]) for n in shown))
    console.print(grid)
    for note in table.notes:
        console.print(note, style="dim")


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def format_cell(cell: Cell) -> str:
    """A value as people read it."""
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


class Bars(AbstractContextManager["Bars"]):
    """Progress on standard error: a bar a stage where that is a terminal, else one line a stage."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Bars:
        if sys.stderr.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Bar(*columns, console=_console(error=True))
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._finish()
            self._bar.stop()

    def _finish(self) -> None:
        if self._bar is not None and self._task is not None:
            total = self._bar.tasks[self._task].total
            self._bar.update(self._task, total=total or 1, completed=total or 1)

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin a stage; the one before is done."""
        if self._bar is None:
            click.echo(f"{name} ...", err=True)
            return
        self._finish()
        self._task = self._bar.add_task(name, total=total)

    def advance(self, steps: int = 1) -> None:
        """Count steps of the stage."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, steps)

    def note(self, message: str) -> None:
        """Print a line above the bars."""
        if self._bar is None:
            click.echo(f"  {message}", err=True)
        else:
            self._bar.console.print(f"  {message}")


class _Quiet(AbstractContextManager[Progress]):
    def __enter__(self) -> Progress:
        return SILENT

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None


def show_progress(*, as_json: bool) -> AbstractContextManager[Progress]:
    """Progress for people; silence when a machine listens."""
    return _Quiet() if as_json else Bars()
