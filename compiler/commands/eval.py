"""`ourcc eval`: how well a language model predicts a text, alone or beside another one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ...ir.errors import InputError, UsageError
from ...runtime.language.facts import TOKENIZER
from ...runtime.language.model import LanguageModel
from ...runtime.language.scoring import Comparison, Scores, compare, score, sizes_of
from ..engines.kinds import check_order
from ..progress import SILENT, Progress
from ..report.table import Cell, Report, Table
from .language import load_language

BEHIND = 8
"""Tokens that are shown in front of a place."""


def evaluate(
    engine: Path,
    text: Path,
    *,
    against: Path | None = None,
    window: int | None = None,
    stride: int | None = None,
    target: str | None = None,
    threads: int | None = None,
    trusted_keys: Iterable[bytes] | None = None,
    progress: Progress = SILENT,
) -> Report:
    """Perplexity and bits per byte of a text file; `against` another engine also how far their predictions lie apart."""
    check_order(engine, text, "ourcc eval {} {}")
    said = read_text(text)
    keys = None if trusted_keys is None else tuple(trusted_keys)
    paths = (engine,) if against is None else (engine, against)
    models = [load_language(path, target=target, threads=threads, trusted_keys=keys, progress=progress) for path in paths]
    for path, model in zip(paths, models, strict=True):
        if TOKENIZER not in model.contents.assets:
            raise UsageError(f"{str(path)!r} holds no tokenizer, which a text needs", hint="build it from a model that has one")
    window, stride = sizes_of(models, window, stride)
    tokens = models[0].prompt_tokens(said, raw=True)
    own = len(tokens) - len(models[0].facts.begin)
    if len(tokens) < 2:
        raise InputError(f"{text.name}: a text of {own} tokens, in which none follows another", hint="give a longer one")
    facts: dict[str, Cell] = {"engine": str(engine), **({} if against is None else {"other": str(against)}), "text": str(text)}
    size = len(said.encode())
    facts |= {"bytes": size, "tokens": own, "scored": len(tokens) - 1, "window": window, "stride": stride}
    if len(models) == 1:
        progress.stage("score", len(tokens) - 1)
        scores = score(models[0], tokens, window, stride, progress.advance)
        return Report(facts | _facts(scores, tokens, own, size))
    _check_tokenizers(models, said, tokens)
    progress.stage("score both", len(tokens) - 1)
    (found,) = compare(*models, tokens=tokens, window=window, stride=stride, told=progress.advance)
    other = {f"other_{name}": value for name, value in _facts(found.second, tokens, own, size).items()}
    agreement: dict[str, Cell] = {"top1_agreement": _rounded(found.agreement)}
    return Report(facts | _facts(found.first, tokens, own, size) | other | agreement, tuple(_tables(found, models[0], tokens)))


def read_text(file: Path) -> str:
    """A text file; InputError for one that is empty or no text."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {file.name}: {error.strerror or error}") from error
    if not data:
        raise InputError(f"{file.name} is empty, expected a text")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{file.name} is no UTF-8 text: byte {error.start} is {data[error.start]:#04x}", hint="convert it") from error
    if "\0" in text:
        raise InputError(f"{file.name} is no text: byte {data.index(0)} is 0")
    return text


def _check_tokenizers(models: list[LanguageModel], text: str, tokens: list[int]) -> None:
    """UsageError unless both engines read every text as the same tokens, as far as their words and this text tell."""
    first, second = models
    hint = "compare engines of one model, or of models that share a tokenizer"
    if first.facts.vocabulary != second.facts.vocabulary or first.tokenizer.words() != second.tokenizer.words():
        raise UsageError("the engines have other words: probabilities of tokens that differ cannot be compared", hint=hint)
    if second.prompt_tokens(text, raw=True) != tokens:
        raise UsageError("the engines cut the text into other tokens, so their predictions cannot be compared", hint=hint)


def _facts(scores: Scores, tokens: list[int], own: int, size: int) -> dict[str, Cell]:
    return {
        "perplexity": _rounded(scores.perplexity),
        "bits_per_byte": _rounded(scores.bits_per_byte(own, size)),
        "top1": _rounded(float(np.mean(scores.likeliest == np.asarray(tokens[1:])))),
    }


def _rounded(value: float) -> float:
    """A figure to eight digits."""
    return float(f"{value:.8g}")


def _tables(found: Comparison, model: LanguageModel, tokens: list[int]) -> list[Table]:
    """How far the models lie apart in the mean and at most, and what stands where they do most."""
    apart = np.abs(found.first.log_probabilities - found.second.log_probabilities)
    measures = {"KL(ENGINE || OTHER)": found.forward, "KL(OTHER || ENGINE)": found.backward, "|log-probability|, text": apart}
    begun = len(model.facts.begin)
    rows, places = [], []
    for name, values in measures.items():
        place = int(np.argmax(values))
        mean = math.fsum(values) / len(values)
        rows.append((name, _rounded(mean), _rounded(float(values[place])), place + 1 - begun))
        places.append(place)
    notes = (
        "in nats; KL(P || Q) is the sum of P log(P / Q) over the vocabulary: how far Q lies from P",
        "|log-probability|, text: how far apart both say that of the text's own tokens is",
        "at_token: the number, from 0, of the text's token where it is greatest",
    )
    shown: list[tuple[Cell, ...]] = []
    for place in dict.fromkeys(places):
        before = model.tokenizer.decode(tokens[max(place + 1 - BEHIND, 0) : place + 1], special=True)
        words = (int(tokens[place + 1]), int(found.first.likeliest[place]), int(found.second.likeliest[place]))
        shown.append((place + 1 - begun, repr(before), *(repr(model.tokenizer.decode([word], special=True)) for word in words)))
    columns = ("at_token", "behind", "text", "engine_expects", "other_expects")
    return [Table("differences", ("what", "mean", "greatest", "at_token"), tuple(rows), notes), Table("places", columns, tuple(shown))]
