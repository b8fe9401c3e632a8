"""The entry of the command line: finds the command, runs it, and turns every outcome into one exit status."""

from __future__ import annotations

import errno
import gc
import importlib
import itertools
import sys
import traceback
from collections.abc import Sequence
from typing import Any, TypeGuard

import click

from ... import __version__
from ...ir.errors import CompilerError, InternalError, UsageError
from ...ir.spelling import nearest
from .streams import ReaderGoneError, is_abandoned, open_streams, tell, unwritten

USAGE_STATUS = 2
INTERRUPTED_STATUS = 130
ABANDONED_STATUS = 141
"""What shells say of a program that SIGPIPE ended."""

# One line a command: its name, its help, in the order in which a user meets them. The module of the same name is
# imported when the command is used, so that `ourcc --help` stays fast.
COMMANDS: dict[str, str] = {
    "build": "Compile a model into an engine.",
    "run": "Run an engine on inputs from files.",
    "generate": "Let a language model write.",
    "chat": "Talk to a language model.",
    "eval": "Score a text with a language model, alone or beside another one.",
    "plan": "Tell what a language model takes before it is built.",
    "bench": "Measure an engine or a model, alone or against others.",
    "verify": "Compare an engine's answers with its model's.",
    "inspect": "Show what is in an engine or a model.",
    "tune": "Measure schedules on this machine's CPU and improve an engine.",
    "cache": "Look into the tuning stores.",
    "opt": "Run passes on a program.",
    "runtime": "Write the C runtime, which runs engines without Python.",
    "doctor": "Tell what this machine can build, run and measure.",
}


_SCALES = (
    "int8 finds its scales while the engine runs, from what it is given; a calibrated model is an ONNX file that a quantizer wrote with"
    " QuantizeLinear and DequantizeLinear (QDQ), and is built as it comes"
)
FOREIGN = dict.fromkeys(("--calibrate", "--calibration", "--calibration-data"), _SCALES)
"""Options that other programs have and no command here, with what there is instead."""
FLAGS = frozenset({"--json", "--wide", "-v", "-vv", "--verbose", "-q", "--quiet", "--debug"})
"""The flags of every command."""


class CommandGroup(click.Group):
    """Commands below a word; the flags that all of them have may also stand before their name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        flags = list(itertools.takewhile(lambda word: word in FLAGS, args))
        rest = args[len(flags) :]
        return super().parse_args(ctx, [*rest[:1], *flags, *rest[1:]] if rest and not rest[0].startswith("-") else args)


class CommandTable(CommandGroup):
    """Commands that are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f".{cmd_name}", __package__)
        command: click.Command = module.command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            help_text = nearest(args[0], COMMANDS) or f"expected one of {', '.join(COMMANDS)}"
            raise click.UsageError(f"unknown command: got {args[0]!r}; {help_text}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # Click takes every broken pipe for standard output's, which breaks none (`streams`): this one is of a file or a store.
            raise CompilerError(_system_text(error)) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=CommandTable, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ourcc")
def group() -> None:
    """A deep-learning graph compiler: a model in, a fast engine out.

    Exit status: 0 done, 1 the request cannot be met, 2 wrong usage, 3 a contract or accuracy bound was violated,
    70 internal error; 141 where a language model stopped writing, since nobody read on. Others have their own status, read or not.
    """


def main() -> None:
    """The console script."""
    # What a command makes lives until it ends: the collector need not look at it over and over.
    gc.set_threshold(100_000)
    open_streams()
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status; nothing escapes but a request to exit."""
    as_json, debug = "--json" in arguments, "--debug" in arguments
    try:
        status = group.main(list(arguments), prog_name="ourcc", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        tell(error.format_message())
        return USAGE_STATUS
    except (click.Abort, KeyboardInterrupt):
        tell("interrupted")
        return INTERRUPTED_STATUS
    except ReaderGoneError:
        return ABANDONED_STATUS
    # The one place that may catch everything: what is not a known error is our bug, and says so.
    except Exception as error:  # noqa: BLE001
        return _report(error, list(arguments), as_json=as_json, debug=debug)


def _report(error: Exception, arguments: list[str], *, as_json: bool, debug: bool) -> int:
    if debug:
        tell("".join(traceback.format_exception(error)).rstrip())
    lost = unwritten(sys.stdout)
    if _is_of_stream(error):
        why = "it is closed" if error.errno == errno.EBADF else (error.strerror or str(error)).lower()
        lost, error = error, CompilerError(f"cannot write to standard output: {why}")
    data = _describe(error, arguments)
    from .output import print_error, print_json

    status: int = data["status"]
    if as_json and lost is None:
        try:
            print_json({"error": data})
            sys.stdout.flush()
            if not is_abandoned(sys.stdout):
                return status
        except OSError:
            unwritten(sys.stdout)
    print_error(f"error: {data['text']}")
    return status


def _is_of_stream(error: Exception) -> TypeGuard[OSError]:
    """Whether a write to no file failed: errors of files have their name."""
    return isinstance(error, OSError) and error.filename is None and error.errno in (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG)


def _describe(error: Exception, arguments: list[str]) -> dict[str, Any]:
    kind = type(error).__name__
    if isinstance(error, click.ClickException):
        text, hint = _usage(error)
        return _told("UsageError", UsageError(text, hint=hint))
    if isinstance(error, CompilerError):
        return _told(kind, error)
    if isinstance(error, MemoryError):
        return _told("OutOfMemoryError", CompilerError(f"out of memory: {error or 'the machine has no more'}"))
    if isinstance(error, OSError) and error.errno is not None:
        return _told("SystemError", CompilerError(_system_text(error)))
    reproducer = error.reproducer if isinstance(error, InternalError) else None
    if reproducer is None:
        from .reproducer import write_reproducer

        reproducer = write_reproducer(error, arguments)
    message = f"internal error: {error}" if isinstance(error, InternalError) else f"internal error: {kind}: {error}"
    hint = "this is a bug of ours; please report it with the reproducer (--debug shows the traceback)"
    told = _told(kind, CompilerError(message, note=None if reproducer else "no reproducer could be written", hint=hint))
    where = f"{message}\n  reproducer: {reproducer}" if reproducer else message
    return {**told, "status": InternalError.exit_status, "text": told["text"].replace(message, where, 1), "reproducer": reproducer}


def _told(kind: str, error: CompilerError) -> dict[str, Any]:
    """Every error as JSON has it: the same names, whatever went wrong."""
    source = None if error.source is None else str(error.source)
    parts = {"message": error.message, "source": source, "note": error.note, "hint": error.hint, "reproducer": None}
    return {"kind": kind, "status": error.exit_status, "text": str(error), **parts}


def _usage(error: click.ClickException) -> tuple[str, str]:
    """What is wrong with a command line, and whose help to read."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = "ourcc" if context is None else context.command_path
    if isinstance(error, click.NoSuchOption):
        known = (
            [] if context is None else [name for parameter in context.command.params for name in parameter.opts if name.startswith("--")]
        )
        suggestion = nearest(error.option_name, known, cutoff=0.65)
        text = f"no such option: got {error.option_name!r}"
        if error.option_name in FOREIGN:
            return text, FOREIGN[error.option_name]
        text += f"; {suggestion}" if suggestion else ""
    else:
        message = error.format_message().rstrip(".")
        text = message[:1].lower() + message[1:]
    return text, f"'{path} --help' shows the usage"


def _system_text(error: OSError) -> str:
    what = (error.strerror or str(error)).lower()
    if error.errno == errno.ENOSPC:
        what = "no space left on the disk; nothing was written"
    return f"{what}: {error.filename!r}" if error.filename is not None else what
