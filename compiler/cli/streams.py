"""Standard output and error as a process finds them: closed, full, or with nobody at the other end."""

from __future__ import annotations

import io
import os
import re
import sys
from typing import Any, TextIO

import click

from ...ir.errors import UsageError


class ReaderGoneError(Exception):
    """Nobody reads standard output any more, and what a command still has to do is only to write to it."""


class _Output(io.FileIO):
    """Standard output: once its reader has gone (`ourcc inspect ... | head`), what is written goes nowhere.

    So a command does what it was asked for, and its exit status is that of its work, whoever reads how much of it.
    """

    is_abandoned = False

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            _to_nowhere(self.fileno())
            self.is_abandoned = True
            return memoryview(data).nbytes


def _to_nowhere(number: int) -> None:
    """Have a descriptor take everything and keep nothing."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


def open_streams() -> None:
    """Give a process whose standard streams are closed others, before a file of its own takes their numbers.

    What is told on a closed standard error goes nowhere; an answer on a closed standard output is lost, so that writing it fails.
    """
    for number, name, mode in ((0, "stdin", os.O_RDONLY), (1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY)):
        if getattr(sys, name) is not None:
            continue
        nowhere = os.open(os.devnull, mode)
        if nowhere != number:
            os.dup2(nowhere, number)
            os.close(nowhere)
        if number:
            setattr(sys, name, open(number, "w", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = _outlasting(sys.stdout)


def _outlasting(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """Standard output that outlasts its reader; what its encoding lacks is spelled out, since names of files and models may be anything."""
    stream.flush()
    buffered = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(
        buffered, stream.encoding, "backslashreplace", line_buffering=stream.line_buffering, write_through=stream.write_through
    )


def is_abandoned(stream: Any) -> bool:
    """Whether the reader of standard output has gone."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return isinstance(raw, _Output) and raw.is_abandoned


def standard_input(hint: str) -> TextIO:
    """What a command reads from; UsageError where it is closed."""
    # None is what Python has for a stream that was closed when the process began.
    if (stream := sys.stdin) is None:
        raise UsageError("standard input is closed, expected text to read from it", hint=hint)
    return stream


def unwritten(stream: Any) -> OSError | None:
    """Why a stream takes no more, None for one that does; from then on what is printed to it goes nowhere."""
    try:
        stream.flush()
    except OSError as error:
        _to_nowhere(stream.fileno())
        return error
    return None


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str, stream: Any) -> str:
    """Text for a stream: a terminal, which control characters steer, gets them spelled out, but for line ends and tabs."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text) if stream.isatty() else text


def say(text: str) -> None:
    """Text of a model on standard output, as it is made: to a file as it stands. ReaderGoneError where nobody waits for more of it."""
    click.echo(visible(text, sys.stdout), nl=False, color=True)  # else click leaves out what looks like a style
    if is_abandoned(sys.stdout):
        raise ReaderGoneError


def tell(text: str) -> None:
    """Lines on standard error, if it takes them: that nobody can read them is no reason to stop."""
    try:
        click.echo(visible(text, sys.stderr), err=True)
    except OSError:
        unwritten(sys.stderr)
