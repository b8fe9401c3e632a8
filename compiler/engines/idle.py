"""Options that have no effect on what a command is given: each is refused, in the same words for every command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...ir.errors import UsageError
from .kinds import MODELS, is_checkpoint, is_engine

IDLE: Mapping[str, Mapping[str, str]] = {
    "an engine": {"--shape": "its sizes are settled", "--trust-pickle": "nothing in it is pickled"},
    "a model": {"--trusted-key": "only engines and records of tuning carry signatures"},
    "a program in text": {
        "--shape": "its sizes are settled",
        "--trust-pickle": "nothing in it is pickled",
        "--trusted-key": "only engines and records of tuning carry signatures",
    },
}
"""Why an option changes nothing, by what is given."""


def refuse_idle(subject: Path, given: Mapping[str, object], otherwise: str = "a model") -> None:
    """UsageError for an option that is given and has no effect on this subject; `otherwise` is what a file of no known suffix is."""
    is_model = subject.suffix in MODELS or is_checkpoint(subject)
    what = "an engine" if is_engine(subject) else "a model" if is_model else otherwise
    for flag in (flag for flag, value in given.items() if value and flag in IDLE[what]):
        hint = f"leave {flag} out, or give it with the model" if what != "a model" else f"leave {flag} out"
        raise UsageError(f"got {flag} for {what}, expected none: {IDLE[what][flag]}", hint=hint)


__all__ = ["IDLE", "refuse_idle"]
