"""The tokenizer of a GGUF file as the text of a tokenizer.json, which the `tokenizers` library reads.

Source: `tokenizer.ggml.*` in ggml's `docs/gguf.md`; how each kind cuts text before it is joined is `tokenizer.ggml.pre`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...ir.errors import ModelError, UnsupportedError
from .said import Said

LONGEST = 1024
"""No token of a vocabulary has more characters."""
CONTROL, USER_DEFINED, BYTE = 3, 4, 6
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CUTS = {
    # What llama.cpp does where a file says nothing.
    "default": (
        r"[\p{P}\$\+<=>\^~\|]+",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
        r"\p{N}+",
        r"[0-9][0-9][0-9]",
    ),
    "llama-bpe": (_CONTRACTIONS + r"\p{N}{1,3}" + _REST,),
    "qwen2": (_CONTRACTIONS + r"\p{N}" + _REST,),
}
"""What each kind cuts out, one after the other, each inside of what those before have left or cut out."""
_SAME = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "smaug-bpe": "llama-bpe", "deepseek-r1-qwen": "qwen2"}
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
_DIGITS = {"type": "Digits", "individual_digits": True}
CUTS = ("gpt-2", "smollm", *_CUTS, *_SAME)


def tokenizer_json(metadata: Mapping[str, Any], file: str) -> str:
    """The tokenizer that the metadata of a GGUF file describes."""
    kind, tokens = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise ModelError(f"{file}: tokenizer.ggml.tokens is no list of words")
    if max(map(len, tokens)) > LONGEST:
        raise ModelError(f"{file}: a token has {max(map(len, tokens))} characters, at most {LONGEST} are read")
    types = [int(each) for each in _numbers(metadata, "token_type", file)] or [1] * len(tokens)
    if len(types) != len(tokens):
        raise ModelError(f"{file}: tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens")
    if kind == "gpt2":
        made = _byte_level(metadata, tokens, file)
    elif kind == "llama":
        made = _sentence_piece(metadata, tokens, types, file)
    else:
        raise UnsupportedError(f"{file}: a tokenizer of kind {kind!r} is not supported, only gpt2 and llama")
    added = [
        {
            "id": n,
            "content": tokens[n],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": each == CONTROL,
        }
        for n, each in enumerate(types)
        if each in (CONTROL, USER_DEFINED)
    ]
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "post_processor": None, **made}
    return json.dumps(whole, ensure_ascii=False)


def _numbers(metadata: Mapping[str, Any], name: str, file: str) -> Sequence[float]:
    """A list of numbers of the metadata, or none."""
    found = metadata.get(f"tokenizer.ggml.{name}", ())
    if not isinstance(found, (list, tuple, np.ndarray)) or not all(isinstance(each, (int, float, np.number)) for each in found):
        raise ModelError(f"{file}: tokenizer.ggml.{name} is no list of numbers")
    if not np.isfinite(np.asarray(found, np.float64)).all():
        raise ModelError(f"{file}: tokenizer.ggml.{name} holds what is no number")
    return list(found)


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str], file: str) -> dict[str, Any]:
    """Pairs of bytes joined in the order in which the file lists them."""
    cut = metadata.get("tokenizer.ggml.pre", "default")
    cut = _SAME.get(cut, cut) if isinstance(cut, str) else cut
    if not isinstance(cut, str) or cut not in CUTS:
        raise UnsupportedError(f"{file}: tokenizer.ggml.pre is {cut!r}, which is not supported, only {', '.join(CUTS)}")
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list) or not all(isinstance(each, str) and each.count(" ") == 1 for each in merges):
        raise ModelError(f"{file}: tokenizer.ggml.merges is no list of pairs")
    steps = [{"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False} for each in _CUTS.get(cut, ())]
    steps = [_DIGITS] if cut == "smollm" else steps
    return {
        "normalizer": {"type": "NFC"} if cut == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, {**_BYTE_LEVEL, "use_regex": cut not in _CUTS}]},
        "decoder": {**_BYTE_LEVEL, "use_regex": True},
        "model": _model(tokens, [each.split(" ") for each in merges], ignore_merges=cut == "llama-bpe"),
    }


def _sentence_piece(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int], file: str) -> dict[str, Any]:
    """Pieces joined by their scores, the best first; what no piece holds is spelled in bytes."""
    said = Said(metadata, file)
    scores = [float(each) for each in _numbers(metadata, "scores", file)]
    if len(scores) != len(tokens):
        raise ModelError(f"{file}: tokenizer.ggml.scores has {len(scores)} entries for {len(tokens)} tokens")
    places = {token: n for n, token in enumerate(tokens)}
    pairs = [
        (-scores[place], places[token[:cut]], places[token[cut:]], token[:cut], token[cut:])
        for token, place in places.items()
        if types[place] not in (CONTROL, BYTE)
        for cut in range(1, len(token))
        if token[:cut] in places and token[cut:] in places
    ]
    space = [{"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]
    begin = [{"type": "Prepend", "prepend": "\u2581"}] if said.flag("tokenizer.ggml.add_space_prefix", True) else []
    back: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if begin else []
    unknown = said.integer("tokenizer.ggml.unknown_token_id", 0, least=0)
    named = tokens[unknown] if unknown < len(tokens) else None
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*begin, *space]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [*back, *strip]},
        "model": {
            **_model(tokens, [[left, right] for *_, left, right in sorted(pairs)]),
            "unk_token": named,
            "fuse_unk": True,
            "byte_fallback": True,
        },
    }


def _model(tokens: Sequence[str], merges: list[list[str]], ignore_merges: bool = False) -> dict[str, Any]:
    return {
        **{"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None},
        **{"fuse_unk": False, "byte_fallback": False, "ignore_merges": ignore_merges},
        "vocab": {token: n for n, token in enumerate(tokens)},
        "merges": merges,
    }
