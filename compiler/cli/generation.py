"""The options of commands that let a language model write, and what they tell at the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...ir.errors import InputError, UsageError
from .frame import Text

if TYPE_CHECKING:
    from ...runtime.language.model import LanguageModel
    from ...runtime.language.writing import Told

Function = TypeVar("Function", bound=Callable[..., Any])
NAMES = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "stop", "speculate", "logprobs")

DRAWING = ("top_k", "top_p", "min_p", "seed")
"""Options of the draw, which a temperature of 0 does not make."""


def generation_options(function: Function) -> Function:
    """How text is made; what is not given is as `generate` has it."""
    options = (
        click.option("--max-tokens", type=int, metavar="N", help="Make at most so many tokens.  [default: 256]"),
        click.option(
            "--temperature", type=float, metavar="T", help="Draw, the more evenly the higher; 0 takes the likeliest.  [default: 0]"
        ),
        click.option("--top-k", type=int, metavar="K", help="Draw from the K likeliest tokens.  [default: all]"),
        click.option("--top-p", type=float, metavar="P", help="Draw from the fewest tokens whose probabilities add up to P.  [default: 1]"),
        click.option(
            "--min-p", type=float, metavar="P", help="Draw from tokens at least P times as likely as the likeliest.  [default: 0]"
        ),
        click.option("--repetition-penalty", type=float, metavar="R", help="Make tokens that are there already less likely.  [default: 1]"),
        click.option("--seed", type=int, metavar="N", help="The draw's seed.  [default: 0]"),
        click.option("--stop", type=Text(), multiple=True, metavar="TEXT", help="End before this text (repeatable)."),
        click.option(
            "--speculate",
            type=int,
            metavar="N",
            help="Guess N tokens at once by what followed the last ones before; 0 for none.  [default: as many as hold]",
        ),
        click.option("--logprobs", type=int, metavar="K", help="With --json: each token's log-probability, and the K likeliest."),
    )
    function = machine_options(function)
    for option in reversed(options):
        function = option(function)
    return function


def machine_options(function: Function) -> Function:
    """--threads and --target: where an engine runs."""
    threads = click.option("--threads", type=click.IntRange(1, 4096), metavar="N", help="Threads (default: all that this process may use).")
    target = click.option("--target", metavar="NAME", help="Run this target or level of the engine (default: the best here).")
    return threads(target(function))


def asked(given: dict[str, Any], as_json: bool) -> dict[str, Any]:
    """The options that were given; UsageError for a value that no model takes, and for an option that changes nothing."""
    from ...runtime.language.options import read_generation

    found = {name: given[name] for name in NAMES if given[name] not in (None, ())}
    for name, value in found.items():
        try:
            # Each by itself, as if tokens were drawn: whether they are is looked at below.
            read_generation({"temperature": 1.0, name: value})  # type: ignore[misc]
        except InputError as error:
            raise UsageError(f"--{name.replace('_', '-')}: {error.message}", hint=error.hint) from error
    idle = [f"--{name.replace('_', '-')}" for name in DRAWING if name in found] if not found.get("temperature") else []
    if idle:
        hint = f"give --temperature 0.7, say, or leave out {', '.join(idle)}"
        raise UsageError(f"{idle[0]} has no effect: the temperature is 0, which takes the likeliest token", hint=hint)
    if "logprobs" in found and not as_json:
        raise UsageError("--logprobs has no effect: only --json shows them", hint="give --json, or leave it out")
    return found


def outcome(text: str, told: Told) -> str:
    """A generation as one JSON object."""
    said = {"text": text, "tokens": told.made, "read": told.read, "ended": told.ended, "tokens_per_second": told.rate}
    scores = [{"token": each.token, "logprob": each.logprob, "top": each.top} for each in told.logprobs]
    guesses = {"guessed": told.guessed, "accepted": told.accepted} if told.guessed else {}
    return json.dumps({**said, **guesses, **({"logprobs": scores} if scores else {})})


def summary(model: LanguageModel, told: Told) -> str:
    """One line: tokens, seconds, and how much of what memory gives was used."""
    parts = [f"{told.read} tokens read, {len(told.made)} made ({told.ended})", f"first after {told.first:.2f} s"]
    if told.rate and not told.guessed and model.facts.sequences == 1:
        parts.append(
            f"then {told.rate:.1f} tokens/s of {model.moved_bytes / 1e6:.0f} MB each: {told.rate * model.moved_bytes / 1e9:.1f} GB/s"
        )
    elif told.rate:
        parts.append(f"then {told.rate:.1f} tokens/s")
    if told.guessed:
        parts.append(f"{told.accepted} of {told.guessed} guesses were right")
    return "; ".join(parts)
