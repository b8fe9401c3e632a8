"""Tokenizers of GGUF files: the same tokens as the tokenizer that the file was written from, and the same text back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tokenizers

from ourcc.compiler.language.tokenizer import CUTS, tokenizer_json
from ourcc.ir.errors import CompilerError, EngineError
from ourcc.runtime.language.tokens import Pieces, Tokenizer

TEXTS = [
    *("Why is the sky blue?", "wörter 🙂 日本語", "a  b\n\n c\t", "", "I'll we've 12345 67", "x=1;\r\n\r\ny", "<|end|> no end", "ﬁ é"),
    "".join(map(chr, range(1, 400))),
]


def byte_level(cut: str) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """A tokenizer of 320 words, and what a GGUF file says of it."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([digits, level]) if cut == "smollm" else level
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=320, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(["the sky is blue, the sea is 12 12 34 times as green; we've why is it so  so"] * 9, trainer)
    model = json.loads(made.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return made, {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": cut,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([3, *[1] * (len(tokens) - 1)], np.int32),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
    }


@pytest.mark.parametrize("cut", ["gpt-2", "smollm"])
def test_the_same_tokens(cut: str) -> None:
    theirs, metadata = byte_level(cut)
    ours = Tokenizer(tokenizer_json(metadata, "m.gguf"))
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text).ids
        assert ours.decode(ours.encode(text), special=True) == text


@pytest.mark.parametrize("cut", CUTS)
def test_every_way_to_cut_gives_the_text_back(cut: str) -> None:
    ours = Tokenizer(tokenizer_json(byte_level(cut)[1], "m.gguf"))
    for text in TEXTS[:-2]:
        assert ours.decode(ours.encode(text), special=True) == text


def test_numbers_are_cut_as_each_model_has_them() -> None:
    _, metadata = byte_level("llama-bpe")
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "1234"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 1]
    last = len(metadata["tokenizer.ggml.tokens"]) - 1
    assert last not in Tokenizer(tokenizer_json(metadata, "m")).encode("1234")
    # A word of the vocabulary is taken whole, whatever its pairs.
    metadata["tokenizer.ggml.tokens"][last] = "123"
    assert Tokenizer(tokenizer_json(metadata, "m")).encode("123") == [last]


def test_a_file_that_does_not_say_how_is_cut_as_llama_cpp_does() -> None:
    _, metadata = byte_level("default")
    named = tokenizer_json(metadata, "m")
    del metadata["tokenizer.ggml.pre"]
    assert tokenizer_json(metadata, "m") == named
    cut = tokenizers.Tokenizer.from_str(named).pre_tokenizer
    assert cut is not None
    for text, pieces in (
        ("it's 12345 a+b", "it|'|s|Ġ|123|45|Ġa|+|b"),
        ("x...  y\n\nz", "x|...|Ġ|Ġy|Ċ|Ċ|z"),
        ("a 1", "a|Ġ|1"),
    ):
        assert "|".join(piece for piece, _ in cut.pre_tokenize_str(text)) == pieces


def pieces_metadata() -> dict[str, Any]:
    bytes_ = [f"<0x{n:02X}>" for n in range(256)]
    words = ["▁", "a", "b", "ab", "▁ab", "▁a", "c", "abc"]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *words]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(words)],
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(n) for n in (5, 6, 7, 2, 1, 3, 8, 4)],
        "tokenizer.ggml.unknown_token_id": 0,
    }


def test_pieces_join_by_their_scores() -> None:
    metadata = pieces_metadata()
    tokens, ours = metadata["tokenizer.ggml.tokens"], Tokenizer(tokenizer_json(metadata, "m"))
    assert [tokens[n] for n in ours.encode("abc ab")] == ["▁ab", "c", "▁ab"]
    assert [tokens[n] for n in ours.encode("é")] == ["▁", "<0xC3>", "<0xA9>"]
    for text in ("abc ab", "a é 🙂 b", "cab  ab"):
        assert ours.decode(ours.encode(text)) == text


def test_characters_come_whole() -> None:
    ours = Tokenizer(tokenizer_json(byte_level("default")[1], "m"))
    text = "🙂 wörter 日"
    pieces = Pieces(ours)
    told = [pieces.add(token) for token in ours.encode(text)]
    assert "".join(told) == text and "\N{REPLACEMENT CHARACTER}" not in "".join(told)
    assert pieces.rest() == ""


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tokenizer.ggml.model": "t5"}, "kind 't5' is not supported"),
        ({"tokenizer.ggml.pre": "other"}, "tokenizer.ggml.pre is 'other'"),
        ({"tokenizer.ggml.tokens": 3}, "no list of words"),
        ({"tokenizer.ggml.merges": ["a"]}, "no list of pairs"),
        ({"tokenizer.ggml.token_type": [1]}, "1 entries for"),
    ],
)
def test_what_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(CompilerError, match=message):
        tokenizer_json({**byte_level("default")[1], **changed}, "m.gguf")
    with pytest.raises(CompilerError, match="scores has 1 entries"):
        tokenizer_json({**pieces_metadata(), "tokenizer.ggml.scores": [1.0]}, "m.gguf")


def test_lengths_of_batches_are_no_part_of_a_text() -> None:
    """A tokenizer that was used on batches is saved with what it cut and filled up texts to."""
    held, _ = byte_level("gpt-2")
    plain = Tokenizer(held.to_str()).encode("the sky is blue and the sea is green")
    held.enable_truncation(5)
    held.enable_padding(length=8)
    assert Tokenizer(held.to_str()).encode("the sky is blue and the sea is green") == plain and len(plain) > 8
    assert len(Tokenizer(held.to_str()).encode("a")) == 1


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (tokenizers.models.WordLevel({"a": 0}, unk_token="nope"), "b"),
        (tokenizers.models.WordPiece({"a": 0}, unk_token="nope"), "b"),
        (tokenizers.models.Unigram([("a", 0.0)]), "b"),
    ],
)
def test_what_the_library_raises_is_an_error_of_the_engine(made: Any, text: str) -> None:
    with pytest.raises(EngineError, match="cannot read the text"):
        Tokenizer(tokenizers.Tokenizer(made).to_str()).encode(text)


def test_panics_of_the_library_are_errors_too() -> None:
    """They are no `Exception`, and would pass by whoever expects one."""
    held, _ = byte_level("gpt-2")
    said = json.loads(held.to_str())
    said["model"]["continuing_subword_prefix"] = "##"
    with pytest.raises(EngineError, match=r"tokenizer\.json of the engine"):
        Tokenizer(json.dumps(said)).encode("the sky")
