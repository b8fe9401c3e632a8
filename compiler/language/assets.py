"""What callers of a language model need beside its functions: its tokenizer, its chat template, the tokens that end a turn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...ir.errors import EngineError, ModelError
from ...ir.extras import is_installed
from ...runtime.language.facts import FACTS, TOKENIZER, LanguageFacts
from ...runtime.language.tokens import Tokenizer
from ..importers.checkpoints.stored import Checkpoint
from .caches import CACHES
from .config import Config, chunk_of
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


_Made = tuple[tuple[int, ...], tuple[int, ...], str | None, str | None, tuple[str, str]]
"""Tokens that begin a text and that end a turn, the template, the tokenizer, what the template knows as begin and end of a text."""


def _of_gguf(checkpoint: Checkpoint) -> _Made:
    metadata = checkpoint.metadata
    ends = tuple(dict.fromkeys(int(metadata[name]) for name in _ENDS if isinstance(metadata.get(name), int)))
    is_piece = metadata.get("tokenizer.ggml.model") == "llama"
    begins = metadata.get("tokenizer.ggml.add_bos_token", is_piece) and isinstance(metadata.get("tokenizer.ggml.bos_token_id"), int)
    template = metadata.get("tokenizer.chat_template")
    text = tokenizer_json(metadata, checkpoint.name) if "tokenizer.ggml.model" in metadata else None
    begin = (int(metadata["tokenizer.ggml.bos_token_id"]),) if begins else ()
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    numbers = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")]
    begun, ended = (tokens[n] if isinstance(n, int) and 0 <= n < len(tokens) else "" for n in numbers)
    return begin, ends, _template(template, checkpoint), text, (begun, ended)


def _of_folder(checkpoint: Checkpoint) -> _Made:
    texts = checkpoint.texts
    said = _object(checkpoint, "tokenizer_config.json")
    generation = _object(checkpoint, "generation_config.json")
    ends = generation.get("eos_token_id", checkpoint.metadata.get("eos_token_id"))
    numbers = tuple(each for each in (ends if isinstance(ends, list) else [ends]) if isinstance(each, int))
    template = texts.get("chat_template.jinja", said.get("chat_template"))
    begun, ended = (_word(said.get(f"{name}_token")) for name in ("bos", "eos"))
    tokenizer = _object(checkpoint, "tokenizer.json")
    return _prefix(tokenizer), numbers, _template(template, checkpoint), texts.get("tokenizer.json"), (begun, ended)


def _word(said: Any) -> str:
    """A special token as a config says it: its text, or an object with it."""
    text = said.get("content") if isinstance(said, Mapping) else said
    return text if isinstance(text, str) else ""


def _prefix(tokenizer: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokens that a tokenizer.json puts before every text."""
    step = tokenizer.get("post_processor")
    steps = step.get("processors", [step]) if isinstance(step, Mapping) else []
    found: list[int] = []
    for each in steps if isinstance(steps, list) else []:
        if not isinstance(each, Mapping) or each.get("type") != "TemplateProcessing":
            continue
        for part in each.get("single", []):
            special = part.get("SpecialToken") if isinstance(part, Mapping) else None
            if special is None:
                break
            found += each.get("special_tokens", {}).get(special.get("id"), {}).get("ids", [])
    return tuple(token for token in found if isinstance(token, int))


def _template(said: Any, checkpoint: Checkpoint) -> str | None:
    """The chat template; of several by name the one that is called default."""
    if isinstance(said, list):
        said = next((each.get("template") for each in said if isinstance(each, Mapping) and each.get("name") == "default"), said)
    if said is not None and not isinstance(said, str):
        raise ModelError(
            f"{checkpoint.name}: the chat template is {type(said).__name__}, expected a text, or several of which one is default"
        )
    return said


def _object(checkpoint: Checkpoint, name: str) -> Mapping[str, Any]:
    try:
        found = json.loads(checkpoint.texts.get(name, "{}"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{checkpoint.name}: {name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{checkpoint.name}: {name} is no object")
    return found
