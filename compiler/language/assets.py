"""What callers of a language model need beside its functions: its tokenizer, its chat template, the tokens that end a turn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...ir.errors import EngineError, ModelError
from ...ir.extras import is_installed
from ...runtime.language.facts import FACTS, TOKENIZER, WORDS, LanguageFacts
from ...runtime.language.tokens import Tokenizer
from ..importers.checkpoints.stored import Checkpoint
from .caches import CACHES
from .config import Config, chunk_of
from .said import Said
from .tokenizer import tokenizer_json

_ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


def assets_of(checkpoint: Checkpoint, config: Config, context: int, cache: str, sequences: int, places: int) -> dict[str, bytes]:
    """The files, by name; without a tokenizer in the checkpoint the model speaks in tokens alone."""
    made = _of_gguf(checkpoint) if checkpoint.kind == "gguf" else _of_folder(checkpoint)
    begin, end, template, tokenizer, words = made
    for token in begin:
        if not 0 <= token < config.vocabulary:
            raise ModelError(f"{checkpoint.name}: token {token} is said to begin a text, the vocabulary has {config.vocabulary}")
    # A token that the model cannot make ends nothing.
    end = tuple(token for token in end if 0 <= token < config.vocabulary)
    token = 2 * config.layers * config.groups * CACHES[cache].row_bytes(config.head)
    own = (config.architecture, config.vocabulary, context)
    facts = LanguageFacts(*own, begin, end, template, chunk_of(config, context), words, cache, token, sequences, places)
    if tokenizer is not None and is_installed("tokenizers"):
        try:
            Tokenizer(tokenizer)
        except EngineError as error:
            raise ModelError(f"{checkpoint.name}: its tokenizer is damaged", note=error.message) from error
    files = {FACTS: facts.to_json()}
    return files if tokenizer is None else {**files, TOKENIZER: tokenizer.encode()}


_Made = tuple[tuple[int, ...], tuple[int, ...], str | None, str | None, tuple[str, ...]]
"""Tokens that begin a text and that end a turn, the template, the tokenizer, the words that the template knows."""


def _of_gguf(checkpoint: Checkpoint) -> _Made:
    metadata, said = checkpoint.metadata, Said(checkpoint.metadata, checkpoint.name)
    ends = tuple(dict.fromkeys(token for name in _ENDS for token in said.tokens(name)))
    first, *others = (said.token(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "unknown", "padding"))
    begins = said.flag("tokenizer.ggml.add_bos_token", said.word("tokenizer.ggml.model", "") == "llama")
    text = tokenizer_json(metadata, checkpoint.name) if "tokenizer.ggml.model" in metadata else None
    tokens = metadata.get("tokenizer.ggml.tokens", []) if text is not None else []
    words = tuple(tokens[n] if n is not None and n < len(tokens) else "" for n in (first, *others))
    begin = (first,) if begins and first is not None else ()
    return begin, ends, _template(metadata.get("tokenizer.chat_template"), checkpoint), text, words


def _of_folder(checkpoint: Checkpoint) -> _Made:
    texts = checkpoint.texts
    said = _said(checkpoint, "tokenizer_config.json")
    generation = _said(checkpoint, "generation_config.json")
    own = Said(checkpoint.metadata, f"{checkpoint.name}/config.json")
    ends = (generation if "eos_token_id" in generation.data else own).tokens("eos_token_id")
    template = texts.get("chat_template.jinja", said.data.get("chat_template"))
    words = tuple(map(said.special, WORDS))
    tokenizer = _said(checkpoint, "tokenizer.json")
    return _prefix(tokenizer), ends, _template(template, checkpoint), texts.get("tokenizer.json"), words


def _prefix(tokenizer: Said) -> tuple[int, ...]:
    """The tokens that a tokenizer.json puts before every text."""
    step = tokenizer.inner("post_processor")
    found: list[int] = []
    try:
        for each in step.get("processors", [step]):
            if each.get("type") != "TemplateProcessing":
                continue
            for part in each["single"]:
                if "SpecialToken" not in part:
                    break
                found += Said(each["special_tokens"][part["SpecialToken"]["id"]], tokenizer.file).tokens("ids")
    except (AttributeError, KeyError, TypeError) as error:
        raise tokenizer.bad("post_processor", step, "steps as the tokenizers library writes them") from error
    return tuple(found)


def _template(said: Any, checkpoint: Checkpoint) -> str | None:
    """The chat template; of several by name the one that is called default."""
    if isinstance(said, list):
        said = next((each.get("template") for each in said if isinstance(each, Mapping) and each.get("name") == "default"), said)
    if said is not None and not isinstance(said, str):
        raise ModelError(
            f"{checkpoint.name}: the chat template is {type(said).__name__}, expected a text, or several of which one is default"
        )
    return said


def _said(checkpoint: Checkpoint, name: str) -> Said:
    try:
        found = json.loads(checkpoint.texts.get(name, "{}"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{checkpoint.name}: {name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{checkpoint.name}: {name} is no object")
    return Said(found, f"{checkpoint.name}/{name}")
