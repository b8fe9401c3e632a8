"""What every command shares: the flags for machines and for debugging, and groups of options used by several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])

READABLE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)
READABLE_DATA = click.Path(exists=True, readable=True, path_type=Path)
WRITABLE = click.Path(dir_okay=False, writable=True, path_type=Path)


def command(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    """A command with --json (passed on as `as_json`) and --debug (seen by the entry point, which shows tracebacks)."""

    def wrap(function: Callable[..., Any]) -> click.Command:
        debug = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
        as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables and progress.")
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
        return click.command(name, context_settings=settings)(as_json(debug(function)))

    return wrap


def shape_option(function: Function) -> Function:
    """--shape NAME=AXES, any number of times."""
    text = "Sizes of an input's axes or of a symbol: NAME=1..64,128, ids=B:1..32,S:1..512 or batch=1|8|32 (repeatable)."
    return click.option("--shape", "shapes", multiple=True, metavar="NAME=AXES", help=text)(function)


def target_option(function: Function) -> Function:
    """--target NAME, any number of times."""
    text = "What to build for: cpu, native, sm_90a, sm_100a or sm_120a (repeatable; default: native)."
    return click.option("--target", "targets", multiple=True, metavar="NAME", help=text)(function)


def trust_option(function: Function) -> Function:
    """--trust-pickle."""
    text = "Unpickle members of a .pt2 file that the model needs; this runs code from the file."
    return click.option("--trust-pickle", is_flag=True, help=text)(function)
