"""What callers of a language model need beside its functions: its tokenizer, its chat template, the tokens that end a turn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...ir.errors import ModelError
from ...runtime.language.facts import FACTS, TOKENIZER, Facts
from ..importers.checkpoints.stored import Checkpoint
from .config import Config
from .tokenizer import tokenizer_json

_ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


def assets_of(checkpoint: Checkpoint, config: Config, slots: int, context: int) -> dict[str, bytes]:
    """The files, by name; without a tokenizer in the checkpoint the model speaks in tokens alone."""
    made = _of_gguf(checkpoint) if checkpoint.kind == "gguf" else _of_folder(checkpoint)
    begin, end, template, tokenizer = made
    for token in begin:
        if not 0 <= token < config.vocabulary:
            raise ModelError(f"{checkpoint.name}: token {token} is said to begin a text, the vocabulary has {config.vocabulary}")
    # A token that the model cannot make ends nothing.
    end = tuple(token for token in end if 0 <= token < config.vocabulary)
    facts = Facts(config.architecture, config.vocabulary, context, slots, begin, end, template)
    files = {FACTS: facts.to_json()}
    return files if tokenizer is None else {**files, TOKENIZER: tokenizer.encode()}


_Made = tuple[tuple[int, ...], tuple[int, ...], str | None, str | None]


def _of_gguf(checkpoint: Checkpoint) -> _Made:
    metadata = checkpoint.metadata
    ends = tuple(dict.fromkeys(int(metadata[name]) for name in _ENDS if isinstance(metadata.get(name), int)))
    is_piece = metadata.get("tokenizer.ggml.model") == "llama"
    begins = metadata.get("tokenizer.ggml.add_bos_token", is_piece) and isinstance(metadata.get("tokenizer.ggml.bos_token_id"), int)
    template = metadata.get("tokenizer.chat_template")
    text = tokenizer_json(metadata, checkpoint.name) if "tokenizer.ggml.model" in metadata else None
    begin = (int(metadata["tokenizer.ggml.bos_token_id"]),) if begins else ()
    return begin, ends, template if isinstance(template, str) else None, text


def _of_folder(checkpoint: Checkpoint) -> _Made:
    texts = checkpoint.texts
    said = _object(checkpoint, "tokenizer_config.json")
    generation = _object(checkpoint, "generation_config.json")
    ends = generation.get("eos_token_id", checkpoint.metadata.get("eos_token_id"))
    numbers = tuple(each for each in (ends if isinstance(ends, list) else [ends]) if isinstance(each, int))
    template = texts.get("chat_template.jinja", said.get("chat_template"))
    begin = checkpoint.metadata.get("bos_token_id")
    begins = (begin,) if said.get("add_bos_token") and isinstance(begin, int) else ()
    return begins, numbers, template if isinstance(template, str) else None, texts.get("tokenizer.json")


def _object(checkpoint: Checkpoint, name: str) -> Mapping[str, Any]:
    try:
        found = json.loads(checkpoint.texts.get(name, "{}"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{checkpoint.name}: {name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{checkpoint.name}: {name} is no object")
    return found
