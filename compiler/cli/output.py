"""How the command line speaks: tables and progress bars for people, one JSON object for machines, logs for the curious."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from ...ir.errors import ContractError
from ..engines.outputs import is_standard_output
from ..environment import environment, said_columns
from ..progress import SILENT, Progress
from ..report.fit import fit, format_cell, wrap
from ..report.table import Report, Table
from .streams import tell

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

QUIET, WIDE = "ourcc.quiet", "ourcc.wide"
"""Where a command's context keeps -q and --wide."""
_SURROGATE = re.compile("[\ud800-\udfff]")
LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
"""What -v, given so many times, lets through."""


def asked(what: str) -> bool:
    """Whether the running command was given -q or --wide."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(what))


@contextmanager
def listening(verbosity: int) -> Iterator[None]:
    """Send the package's log to standard error, as much of it as -v asks for."""
    logger, handler = logging.getLogger("ourcc"), _ToStandardError()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    before = logger.level
    logger.setLevel(LEVELS[min(verbosity, len(LEVELS) - 1)])
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class _ToStandardError(logging.Handler):
    """Standard error as it is at the time, which is not that of the start under a test or a redirection."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(self.format(record))


def width_of(stream: Any) -> int | None:
    """What COLUMNS says, else the columns of the stream's own terminal; None for a pipe or a file, which have no width."""
    said = said_columns()
    if said is not None:
        return said
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (AttributeError, OSError, ValueError):
        return None


def print_error(text: str) -> None:
    """An error on standard error, its lines no longer than a terminal's."""
    _tell_wrapped(text)


def _tell_wrapped(text: str) -> None:
    width = width_of(sys.stderr)
    tell("\n".join(part for line in text.split("\n") for part in wrap(line, width)))


def print_report(report: Report, *, as_json: bool, written: Iterable[Path | None] = ()) -> None:
    """Print a command's answer; with violations the exit status is theirs.

    Where one of the files that were `written` is standard output, it stands there alone: who reads it wants nothing behind it.
    """
    if any(path is not None and is_standard_output(path) for path in written):
        pass
    elif as_json:
        print_json(report.to_data())
    else:
        _print_for_people(report)
    if report.violations and as_json:
        # The object already names them: an error object after it would make two.
        click.get_current_context().exit(ContractError.exit_status)
    if report.violations:
        count = len(report.violations)
        message = report.failure or f"{count} {'promise does' if count == 1 else 'promises do'} not hold"
        raise ContractError(message, note="\n".join(report.violations), hint=report.hint)


def print_json(data: Any) -> None:
    """One JSON object on standard output; NaN and infinities, which JSON lacks, become null."""
    text = json.dumps(_finite(data), indent=2, ensure_ascii=False, allow_nan=False)
    # A file's name that is not UTF-8, or an output that is not, has JSON's own spelling.
    is_plain = text.isascii() or ((sys.stdout.encoding or "").lower() == "utf-8" and not _SURROGATE.search(text))
    click.echo(text if is_plain else json.dumps(_finite(data), indent=2, allow_nan=False))


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, dict):
        return {str(key): _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data


def _print_for_people(report: Report) -> None:
    longest = max((len(name) for name in report.facts), default=0)
    width = None if asked(WIDE) else width_of(sys.stdout)
    for name, value in report.facts.items():
        text = wrap(" " * (longest + 2) + format_cell(value), width)
        click.echo("\n".join([f"{name.replace('_', ' '):{longest}}  {text[0].lstrip()}", *text[1:]]))
    for number, table in enumerate(report.tables):
        if number or report.facts:
            click.echo()
        _print_table(table)
    if report.text is not None:
        click.echo(report.text.rstrip("\n"))


def _print_table(table: Table) -> None:
    width = None if asked(WIDE) else width_of(sys.stdout)
    table = table if asked(WIDE) else table.folded or table
    title, *lines = (table.name, *fit(table, width, *_signs()))
    click.echo(click.style(title, bold=True) if has_style(sys.stdout) else title)
    for line in lines:
        click.echo(line)


def _signs() -> tuple[str, str]:
    """The sign of a cut and of a rule, as far as the output's encoding has them."""
    try:
        "…─".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "...", "-"
    return "…", "─"


def has_style(stream: Any) -> bool:
    """Whether bold and colours are wanted: on a terminal, unless NO_COLOR is set."""
    return bool(stream.isatty()) and not environment().no_color


def _console() -> Console:
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False, markup=False, emoji=False)


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
            self._bar = Bar(*columns, console=_console())
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
            _tell_wrapped(f"{name} ...")
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
            _tell_wrapped(f"  {message}")
        else:
            self._bar.console.print(f"  {message}")


class _Quiet(AbstractContextManager[Progress]):
    def __enter__(self) -> Progress:
        return SILENT

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None


def show_progress(*, as_json: bool) -> AbstractContextManager[Progress]:
    """Progress for people; silence when a machine listens, or -q asks for it."""
    return _Quiet() if as_json or asked(QUIET) else Bars()
