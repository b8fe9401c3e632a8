"""Every error a user can meet, and the one that is our own bug; exit statuses of the command line are theirs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """Where a value comes from in the user's model: an ONNX node, a Python line, an input."""

    name: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        place = f" ({self.file}:{self.line})" if self.file and self.line is not None else f" ({self.file})" if self.file else ""
        return f"{self.name}{place}"


class CompilerError(Exception):
    """The user's input or request cannot be met; `source` is where, `note` the context, `hint` what to do."""

    exit_status = 1

    def __init__(
        self,
        message: str,
        *,
        source: Source | None = None,
        note: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.source = source
        self.note = note
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.message]
        if self.source is not None:
            lines.append(f"  at {self.source}")
        if self.note:
            lines += [f"  note: {line}" if n == 0 else f"        {line}" for n, line in enumerate(self.note.splitlines())]
        if self.hint:
            lines.append(f"  help: {self.hint}")
        return "\n".join(lines)


class UsageError(CompilerError):
    """A command or an option was used wrongly."""

    exit_status = 2


class ModelError(CompilerError):
    """The model file is damaged, hostile or not what it says it is."""


class UnsupportedError(CompilerError):
    """The program is valid, and something in it is not supported yet; says what, where and the alternative."""


class VerifyError(CompilerError):
    """A program breaks a rule of its form; the message shows the neighbouring operations."""


class ParseError(CompilerError):
    """Text that should be a program is not; the message carries line and column."""


class EngineError(CompilerError):
    """An engine file is damaged, foreign, or for another machine."""


class NotAnEngineError(EngineError, UsageError):
    """A file that is known to be of another kind stands where an engine should."""


class NoLanguageModelError(UsageError, AttributeError):
    """An engine is asked for what only that of a language model has; an AttributeError, so that `hasattr` says no."""


class InputError(CompilerError):
    """A call gave wrong inputs: a name, dtype, rank or size."""


class IndexRangeError(InputError, IndexError):
    """An index of a call, or of the program itself, lies outside what it indexes; an IndexError, as it is in torch."""


class ZeroDivisorError(InputError, ZeroDivisionError, RuntimeError):
    """Integers are divided by 0; a RuntimeError, as it is in torch."""


class OutOfMemoryError(CompilerError, MemoryError):
    """The machine does not have the memory that a call, a build or a file asks for; the message has the size."""


class ToolchainError(CompilerError):
    """A compiler or library of the machine is missing or refused its input."""


class ContractError(CompilerError):
    """A contract or an accuracy bound was violated."""

    exit_status = 3


class InternalError(Exception):
    """Our bug; `reproducer` is the path of the file that reruns it."""

    exit_status = 70

    def __init__(self, message: str, reproducer: str | None = None) -> None:
        super().__init__(message)
        self.reproducer = reproducer


def is_own(failure: Exception) -> bool:
    """Whether a failure is of the compiler's own making, so that another choice may avoid it; not what a user must mend."""
    if isinstance(failure, CompilerError):
        return isinstance(failure, (UnsupportedError, VerifyError))
    return not isinstance(failure, (MemoryError, OSError))


def reason(failure: Exception) -> str:
    """A failure in one line, for a report of what was done instead."""
    message = str(failure).partition("\n")[0]
    if isinstance(failure, (CompilerError, InternalError)) and message:
        return message
    return f"{type(failure).__name__}: {message}" if message else type(failure).__name__
