"""`ourcc chat`: a conversation with a language model's engine, whose cache is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ...ir.errors import InputError
from ...runtime.kinds import SESSION
from ..engines.trust import Trust
from .frame import READABLE, Text, Writable
from .frame import command as frame
from .generation import asked, generation_options, outcome, summary
from .output import QUIET, show_progress
from .output import asked as was_asked
from .streams import say, standard_input, tell
from .trust import trusted_key_option


@frame("chat", has_tables=False)
@click.argument("engine", type=READABLE)
@click.option("--system", type=Text(), metavar="TEXT", help="What the model is told before the conversation.")
@click.option(
    "--session", type=Writable(SESSION), metavar="FILE", help="Go on with the conversation in FILE, if it is there, and keep it there."
)
@generation_options
@trusted_key_option
def command(engine: Path, system: str | None, session: Path | None, trust: Trust, as_json: bool, **given: Any) -> None:
    """Talk to a language model.

    A line at a time, until an empty line or the end of the input; with --json an object for each answer. What was said stays in
    the model's cache, so that each answer reads only what is new. Ctrl-C stops an answer, and at the prompt the conversation.
    """
    from ..commands.language import load_language

    wanted = asked(given, as_json)
    with show_progress(as_json=as_json) as progress:
        model = load_language(engine, target=given["target"], threads=given["threads"], trusted_keys=trust.keys, progress=progress)
    chat = model.load_chat(session) if session is not None and session.exists() else model.chat()
    if system is not None:
        chat.system(system)
    is_person, has_failed = standard_input("ourcc generate answers one prompt").isatty(), False
    while line := _line(is_person):
        answer, pieces = "", chat.send(line, **wanted)
        try:
            for piece in pieces:
                answer += piece
                if not as_json:
                    say(piece)
        except InputError as error:
            if chat.told.made:
                raise
            has_failed = True
            tell(f"error: {error}")
            if as_json:
                say(f"{json.dumps({'error': error.message, 'help': error.hint})}\n")
            continue
        except KeyboardInterrupt:
            # Who sits at a terminal stops the answer; at the prompt, the conversation.
            if not is_person:
                raise
            pieces.close()
        if session is not None:
            chat.save(session)
        if as_json:
            say(f"{outcome(answer, chat.told)}\n")
            continue
        click.echo()
        if not was_asked(QUIET):
            tell(summary(model, chat.told))
    if has_failed:
        raise click.exceptions.Exit(1)


def _line(is_person: bool) -> str:
    """What the user says next; nothing at the end."""
    try:
        return input("> " if is_person else "").strip()
    except EOFError:
        return ""
