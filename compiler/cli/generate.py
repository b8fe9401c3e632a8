"""`ourcc generate`: text from a prompt, by a language model's engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ...ir.errors import UsageError
from ..engines.kinds import check_order
from ..engines.trust import Trust
from .frame import Readable, Text
from .frame import command as frame
from .generation import asked, generation_options, outcome, summary
from .output import QUIET, show_progress
from .output import asked as was_asked
from .streams import say, standard_input, tell
from .trust import trusted_key_option


class EngineBeforePrompt(Readable):
    """An engine; where it is given as the prompt, the right order is told."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        # What was not given is no text yet: click fills a context in only when all of it is read.
        prompt = None if ctx is None else ctx.params.get("prompt")
        if isinstance(prompt, str) and os.path.isfile(prompt):
            check_order(Path(value), Path(prompt), "ourcc generate {} PROMPT")
        return super().convert(value, param, ctx)


@frame("generate", has_tables=False)
@click.argument("engine", type=EngineBeforePrompt(exists=True, dir_okay=False, readable=True, path_type=Path))
@click.argument("prompt", type=Text(), required=False, is_eager=True)
@click.option("--raw", is_flag=True, help="Continue PROMPT as it stands, without the model's chat template.")
@click.option("--system", type=Text(), metavar="TEXT", help="What the model is told before the prompt.")
@generation_options
@trusted_key_option
def command(engine: Path, prompt: str | None, raw: bool, system: str | None, trust: Trust, as_json: bool, **given: Any) -> None:
    """Let a language model write.

    What follows PROMPT is shown as it is made. ENGINE was built from a .gguf file or a folder with config.json and safetensors.
    Without PROMPT it is read from standard input.
    """
    if raw and system is not None:
        raise UsageError("--system goes through the chat template, which --raw leaves out")
    wanted = asked(given, as_json)
    text = prompt if prompt is not None else standard_input("give the prompt as an argument").read()
    if not text.strip() and (prompt is None or not raw):
        where = "standard input holds" if prompt is None else "got"
        hint = "give the prompt as an argument or on standard input" + (
            "" if raw else "; --raw '' begins a text from nothing, if the model has a token for it"
        )
        raise UsageError(f"{where} no prompt, expected a text that the model is to answer", hint=hint)
    from ...runtime.language.writing import Told
    from ..commands.language import load_language

    with show_progress(as_json=as_json) as progress:
        model = load_language(engine, target=given["target"], threads=given["threads"], trusted_keys=trust.keys, progress=progress)
    said = [{"role": "system", "content": system}] if system is not None else []
    tokens = model.chat_tokens([*said, {"role": "user", "content": text}]) if said else model.prompt_tokens(text, raw)
    told, whole = Told(), ""
    for piece in model.follow(model.sequence(), tokens, told, **wanted):
        whole += piece
        if not as_json:
            say(piece)
    if as_json:
        click.echo(outcome(whole, told))
        return
    click.echo()
    if not was_asked(QUIET):
        tell(summary(model, told))
