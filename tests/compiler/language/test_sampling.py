"""Tokens that the engine chooses: those that its own logits give, whatever is asked; what is no number is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ourcc
from ourcc.ir.errors import InputError
from ourcc.ir.ops.table import OPS
from ourcc.runtime.language.model import LanguageModel
from ourcc.runtime.language.options import Generation
from ourcc.runtime.language.sampling import Sampling, operands
from ourcc.runtime.language.sequence import Sequences

from .conftest import model_of, save, tokenizer_of
from .test_architectures import tokens_of

Both = tuple[LanguageModel, Any, Path]
OPTIONS: list[Generation] = [
    {},
    {"repetition_penalty": 1.5, "bias": {5: 2.0, 6: float("-inf")}},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.6, "top_k": 7, "seed": 1},
    {"temperature": 1.3, "top_p": 0.8, "seed": 2},
    {"temperature": 1.3, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2, "bias": {9: 1.0}, "seed": 4},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_token_is_what_the_engines_own_logits_give(both: Both, options: Generation) -> None:
    engine, prompt = both[0], tokens_of(9)
    answer = engine.generate(prompt, max_tokens=12, ignore_end=True, **options)
    list(answer)
    text, sequence = list(prompt), engine.sequence()
    for token in answer.told.made:
        row = sequence.logits(text)[None]
        expected, _ = OPS["sample_token"].body(row, *operands([(Sampling(**options), text, len(text))]))  # type: ignore[misc]
        assert token == expected[0]
        text.append(token)


def test_a_seed_makes_the_same_text_again(both: Both) -> None:
    given: Generation = {"max_tokens": 20, "ignore_end": True, "temperature": 1.0, "top_p": 0.9}
    texts = ["".join(both[0].generate(tokens_of(5), seed=seed, **given)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_texts_of_a_batch_are_asked_for_in_ways_of_their_own(both: Both) -> None:
    batched: Any = ourcc.build(both[2].parent, tune="off", batch=4)
    prompts, given = [tokens_of(3 + n, seed=n) for n in range(len(OPTIONS))], {"max_tokens": 10, "ignore_end": True}
    each = [{**options, **({"logprobs": 2} if number % 2 else {})} for number, options in enumerate(OPTIONS)]
    answer = batched.generate_batch(prompts, each=each, **given)
    list(answer)
    for prompt, options, told in zip(prompts, each, answer.all_told, strict=True):
        alone = batched.generate(prompt, **options, **given)
        list(alone)
        assert told.made == alone.told.made and told.logprobs == alone.told.logprobs


def test_logits_come_back_where_scores_are_asked_for(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    given, call = list[tuple[str, tuple[int, ...]]](), Sequences._call

    def noted(self: Sequences, group: Any, name: str, inputs: Any) -> Any:
        found = call(self, group, name, inputs)
        given.append((name, (found[1] if name == "sample" else found).shape))
        return found

    monkeypatch.setattr(Sequences, "_call", noted)
    for logprobs in (None, 0):
        list(both[0].generate(tokens_of(4), max_tokens=3, ignore_end=True, speculate=0, logprobs=logprobs))
    assert given == [("sample", (0, 297))] * 3 + [("sample", (1, 297))] * 3


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "top_k": 3, "top_p": 0.5}])
def test_logits_that_are_no_numbers_are_an_error(tmp_path: Path, options: Generation) -> None:
    model = model_of("llama")
    with torch.no_grad():
        model.get_output_embeddings().weight[7, 3] = float("nan")
    save(model, tmp_path)
    tokenizer_of(tmp_path)
    engine: Any = ourcc.build(tmp_path, tune="off")
    with pytest.raises(InputError, match="logits after 4 tokens hold NaN or no finite number"):
        list(engine.generate(tokens_of(4), **options))


def test_a_bias_outside_of_the_vocabulary_is_refused_before_anything_is_read(both: Both) -> None:
    with pytest.raises(InputError, match="bias of token 297: the vocabulary has 297"):
        both[0].generate([5], bias={297: 1.0})
    with pytest.raises(InputError, match="prompt 1: bias of token -1"):
        both[0].generate_batch([[5], [6]], each=[{}, {"bias": {-1: 1.0}}])


def test_a_cache_that_holds_no_numbers_chooses_nothing_and_is_doubted(both: Both) -> None:
    sequence = both[0].sequence()
    sequence.logits(tokens_of(9))
    for name in sequence.session.states:
        sequence.session.set_state(name, np.full_like(sequence.session.state(name), np.nan))
    ((chosen, rows),) = sequence.owner.sample([(sequence, [*tokens_of(9), 5, 6], 2, Sampling(), False)])
    assert chosen == [-1, -1] and rows.shape == (0, 297) and not sequence.owner.pages.is_sound(sequence.held)
