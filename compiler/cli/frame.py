"""What every command shares: the flags for people, machines and debugging, and groups of options used by several."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ...ir.errors import UsageError
from ...ir.spelling import closest, nearest
from ...ir.target import GPU_BOARDS
from ...runtime.kinds import Kind
from ..engines.kinds import how_to_build
from ..engines.outputs import check_output
from ..targets.registry import TARGETS
from .output import QUIET, WIDE, listening

Function = TypeVar("Function", bound=Callable[..., Any])


class Readable(click.Path):
    """A file (or a folder, where `dir_okay`) that is there; for one that is not, the nearest name beside it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(value))
        if not os.path.lexists(path) and (suggestion := self._beside(path)):
            self.fail(f"File {os.fsdecode(value)!r} does not exist; {suggestion}", param, ctx)
        if path.is_dir() and not self.dir_okay:
            hint = how_to_build(path)
            self.fail(f"{os.fsdecode(value)!r} is a folder, expected a file{f'; {hint}' if hint else ''}", param, ctx)
        return super().convert(value, param, ctx)

    def _beside(self, path: Path) -> str | None:
        try:
            names = sorted(each.name for each in path.parent.iterdir() if self.dir_okay or not each.is_dir())
        except OSError:
            return None
        # What names end in says nothing of how near they are, but chooses among files of one name.
        found = closest(path.stem, [Path(name).stem for name in names], cutoff=0.65)
        alike = [name for name in names if Path(name).stem == found]
        return nearest(path.name, alike, cutoff=0.0)


class Writable(click.Path):
    """A file of some kinds to write: what would keep it from being written is said before the work begins."""

    def __init__(self, *kinds: Kind) -> None:
        super().__init__(dir_okay=False, path_type=Path)
        self.kinds = kinds

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return check_output(Path(os.fsdecode(value)), *self.kinds)
        except UsageError as error:
            option = param.opts[0] if param is not None else "-o"
            raise UsageError(f"{option}: {error.message}", hint=error.hint) from error


READABLE = Readable(exists=True, dir_okay=False, readable=True, path_type=Path)
READABLE_DATA = Readable(exists=True, readable=True, path_type=Path)


class Text(click.types.StringParamType):
    """Words for a model, which may be none; whatever else is given on a command line is a path, a name, a number or a list."""


class Command(click.Command):
    """A command whose errors all know whose help to point to, and to which no word is given in vain."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            self._check_words(ctx, args)
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def _check_words(self, ctx: click.Context, args: list[str]) -> None:
        """Refuse an empty word, which an unset variable leaves, and an option given twice of which the last would win."""
        values, _, order = self.make_parser(ctx).parse_args(list(args))
        for parameter in order:
            name = parameter.opts[0] if isinstance(parameter, click.Option) else parameter.make_metavar(ctx)
            value = values[parameter.name]
            if isinstance(parameter, click.Option) and not _may_repeat(parameter) and order.count(parameter) > 1:
                listed = f": {name} A,B" if (parameter.metavar or "").endswith(",...") else ""
                raise click.UsageError(f"{name} is given {order.count(parameter)} times, expected once{listed}", ctx)
            words = value if isinstance(value, (list, tuple)) else (value,)
            if not isinstance(parameter.type, Text) and any(isinstance(word, str) and not word.strip() for word in words):
                raise click.UsageError(f"got an empty word for {name}; a variable that is not set leaves one", ctx)


def _may_repeat(option: click.Option) -> bool:
    """Whether an option counts, collects or only says yes, so that a second one contradicts no first."""
    return option.multiple or option.count or option.is_flag


def command(name: str, *, has_tables: bool = True) -> Callable[[Callable[..., Any]], click.Command]:
    """A command with the flags that all have; --json is passed on as `as_json`, the others are kept in the context.

    --debug is seen by the entry point, which shows tracebacks.
    """
    shared = [
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables and progress."),
        *([click.option("--wide", is_flag=True, expose_value=False, callback=_keep(WIDE), help=_WIDE)] if has_tables else []),
        click.option("-v", "--verbose", count=True, expose_value=False, callback=_listen, help="Log what is done; -vv: every detail."),
        click.option("-q", "--quiet", is_flag=True, expose_value=False, callback=_keep(QUIET), help="Print results and errors only."),
        click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."),
    ]

    def wrap(function: Callable[..., Any]) -> click.Command:
        for option in reversed(shared):
            function = option(function)
        made = click.command(name, Command, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})(function)
        # A command's own options come first in its help.
        made.params = [*made.params[len(shared) :], *made.params[: len(shared)]]
        return made

    return wrap


_WIDE = "Show all columns of tables whole, however long the lines."


def _keep(key: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def keep(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        context.meta[key] = value

    return keep


def _listen(context: click.Context, parameter: click.Parameter, value: int) -> None:
    context.with_resource(listening(value))


def shape_option(function: Function) -> Function:
    """--shape NAME=AXES, any number of times."""
    text = "Sizes of an input's axes or of a symbol: NAME=1..64,128, ids=B:1..32,S:1..512 or batch=8 (repeatable)."
    return click.option("--shape", "shapes", multiple=True, metavar="NAME=AXES", help=text)(function)


def workload_option(function: Function) -> Function:
    """--workload SIZES, any number of times."""
    text = (
        "Sizes that calls will have, with a weight if not 1: B=1,S=128 or B=8,S=512:0.2; kernels are scheduled for them (repeatable;"
        " default: 1 for a batch, which is the first of several symbols or leads every input, 128 for others)."
    )
    return click.option("--workload", multiple=True, metavar="NAME=SIZE,..[:WEIGHT]", help=text)(function)


def target_option(function: Function) -> Function:
    """--target NAME, any number of times."""
    targets, boards = (", ".join(name for name in TARGETS if (name in GPU_BOARDS) == is_board) for is_board in (False, True))
    text = f"What to build for: {targets}, or a board, whose figures then choose the schedules: {boards} (repeatable; default: native)."
    return click.option("--target", "targets", multiple=True, metavar="NAME", help=text)(function)


def trust_option(function: Function) -> Function:
    """--trust-pickle."""
    text = "Unpickle members of a .pt2 file that the model needs; this runs code from the file."
    return click.option("--trust-pickle", is_flag=True, help=text)(function)
