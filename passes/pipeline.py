"""Pipelines as text: `canonicalize, fold_constants{limit=4096}`, read and spelled from the passes' fields."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Any

from ..ir.errors import UsageError
from . import load_pass
from .base import Pass

Option = bool | int | float | str | None

_STEP = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*(?:\{([^{}]*)\})?\s*(,|$)")
_OPTION = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*("(?:[^"\\]|\\.)*"|[^,"\s]+)\s*(,|$)')


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """The passes that a text names; UsageError says which part cannot be read."""
    passes, position = [], 0
    while position < len(text.rstrip()):
        match = _STEP.match(text, position)
        if match is None:
            hint = "a pipeline is pass{option=value}, pass, ..."
            raise UsageError(f"cannot read pipeline at {text[position : position + 40]!r}", hint=hint)
        passes.append(make_pass(match[1], _parse_options(match[1], match[2] or "")))
        position = match.end()
    return tuple(passes)


def pipeline_text(passes: Sequence[Pass]) -> str:
    """The text that `parse_pipeline` reads as these passes."""
    return ", ".join(pass_text(step) for step in passes)


def pass_text(step: Pass) -> str:
    """One pass with the options that differ from their default."""
    options = []
    for field in dataclasses.fields(step):
        value = getattr(step, field.name)
        if value != field.default:
            options.append(f"{field.name}={_option_text(value)}")
    return f"{step.name}{{{', '.join(options)}}}" if options else step.name


def make_pass(name: str, options: dict[str, Option]) -> Pass:
    """A pass with options; UsageError for one that it does not have, or of another type."""
    kind = load_pass(name)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for option, value in options.items():
        if option not in fields:
            raise UsageError(f"pass {name} has no option {option!r}", hint=f"its options are {', '.join(fields) or 'none'}")
        default: Any = fields[option].default
        allowed = (int, float) if isinstance(default, float) else type(default)
        if default is not None and (not isinstance(value, allowed) or isinstance(value, bool) != isinstance(default, bool)):
            raise UsageError(f"pass {name}: option {option} is {_option_text(value)}, expected a value like {_option_text(default)}")
    made = kind(**options)
    made.check()
    return made


def _parse_options(name: str, text: str) -> dict[str, Option]:
    options: dict[str, Option] = {}
    position = 0
    while position < len(text.rstrip()):
        match = _OPTION.match(text, position)
        if match is None:
            hint = "options are name=value, name=value"
            raise UsageError(f"pass {name}: cannot read options at {text[position : position + 40]!r}", hint=hint)
        options[match[1]] = _parse_option(match[2])
        position = match.end()
    return options


def _parse_option(text: str) -> Option:
    if text in ("true", "false"):
        return text == "true"
    if text == "none":
        return None
    if text.startswith('"'):
        try:
            return str(json.loads(text))
        except ValueError as error:
            raise UsageError(f"cannot read the string {text}") from error
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _option_text(value: Option) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return repr(value)
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", value) is not None and _parse_option(value) == value
    return value if plain else json.dumps(value)
