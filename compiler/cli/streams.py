"""Standard output and error as a process finds them: closed, full, or with nobody at the other end."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import click


def open_streams() -> None:
    """Give a process whose standard output or error is closed one that nobody reads, before a file of its own takes its number."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, "w", closefd=False))


def unwritten(stream: Any) -> OSError | None:
    """Why a stream takes no more, None for one that does; from then on what is printed to it goes nowhere."""
    try:
        stream.flush()
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        return error
    return None


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str, stream: Any) -> str:
    """Text for a stream: a terminal, which control characters steer, gets them spelled out, but for line ends and tabs."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text) if stream.isatty() else text


def say(text: str) -> None:
    """Text of a model on standard output, as it is made: to a file as it stands."""
    click.echo(visible(text, sys.stdout), nl=False, color=True)  # else click leaves out what looks like a style


def tell(text: str) -> None:
    """Lines on standard error, if it takes them: that nobody can read them is no reason to stop."""
    try:
        click.echo(visible(text, sys.stderr), err=True)
    except OSError:
        unwritten(sys.stderr)
