"""How tokens are chosen: what may be asked, and what the engine is told of it, held against a choice in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ourcc.ir.errors import InputError
from ourcc.ir.ops.table import OPS
from ourcc.runtime.language.sampling import MOST, Sampling, operands

Array = np.ndarray[Any, Any]


def chosen(sampling: Sampling, logits: Array, before: list[int]) -> int:
    """The token that the op chooses behind others."""
    token, _ = OPS["sample_token"].body(logits.astype(np.float32)[None], *operands([(sampling, before, len(before))]))
    return int(token[0])


def reference(sampling: Sampling, logits: Array, before: list[int]) -> tuple[Array, Array]:
    """The tokens that may be drawn, ascending, and their weights, as the definitions say them: all are sorted."""
    scores = logits.astype(np.float64)
    for token in set(before):
        scores[token] = scores[token] / sampling.repetition_penalty if scores[token] > 0 else scores[token] * sampling.repetition_penalty
    for token, value in sampling.bias.items():
        scores[token] += value
    order = np.argsort(-scores, kind="stable")[: sampling.top_k or None]
    weights = np.exp((scores[order] - scores.max()) / sampling.temperature)
    below = np.cumsum(weights) - weights < sampling.top_p * weights.sum()
    kept = (weights >= sampling.min_p) & (below if sampling.top_p < 1 else True)
    places = np.argsort(order[kept])
    return order[kept][places], weights[kept][places]


@pytest.mark.parametrize("seed", range(40))
def test_a_token_is_the_one_that_the_definitions_give(seed: int) -> None:
    random = np.random.default_rng(seed)
    logits, before = random.standard_normal(200) * 3, random.integers(0, 200, 30).tolist()
    sampling = Sampling(
        temperature=float(random.uniform(0.3, 2)),
        top_k=int(random.choice([0, 5, 50])),
        top_p=float(random.choice([1, 0.8])),
        min_p=float(random.choice([0, 0.05])),
        repetition_penalty=float(random.choice([1, 1.3])),
        seed=int(random.integers(1 << 62)),
        bias=random.choice([{}, {3: 4.0, 9: float("-inf"), before[0]: -1.0}]),
    )
    tokens, weights = reference(sampling, logits, before)
    share = np.random.Generator(np.random.Philox(key=sampling.seed, counter=len(before))).random()
    expected = tokens[np.searchsorted(np.cumsum(weights), share * weights.sum(), side="right")]
    assert chosen(sampling, logits, before) == expected


def test_greedy_takes_the_smallest_of_equals() -> None:
    assert chosen(Sampling(), np.array([1, 3, 3, 2]), []) == 1
    assert chosen(Sampling(bias={0: 5.0}), np.array([1, 3, 3, 2]), []) == 0


def test_a_draw_depends_on_seed_and_place_alone() -> None:
    logits, sampling = np.log(np.array([0.4, 0.3, 0.2, 0.06, 0.04])), Sampling(temperature=1.0, seed=5)
    first = [chosen(sampling, logits, [0] * n) for n in range(50)]
    assert first == [chosen(Sampling(temperature=1.0, seed=5), logits, [3] * n) for n in range(50)]
    assert first != [chosen(Sampling(temperature=1.0, seed=6), logits, [0] * n) for n in range(50)]
    assert len(set(first)) > 2


def test_what_is_there_already_becomes_less_likely() -> None:
    logits = np.array([2.0, 1.5, -1.0, -1.2])
    assert chosen(Sampling(repetition_penalty=2.0), logits, [0, 0]) == 1
    assert chosen(Sampling(repetition_penalty=2.0), logits[2:], [0]) == 1


def test_what_the_engine_is_told_of_several_texts() -> None:
    """Only tokens before a place count as there, each once; a row's edits name the row."""
    text = [4, 5, 4, 7]
    draws = [
        (Sampling(), text, 4),
        (Sampling(repetition_penalty=2.0, bias={5: 1.0}), text, 3),
        (Sampling(temperature=0.5, top_k=1 << 80), text, 2),
    ]
    temperature, top_k, *_, place, edited, edits = operands(draws)
    assert temperature.tolist() == [0, 0, 0.5] and top_k.tolist() == [0, 0, MOST] and place.tolist() == [4, 3, 2]
    assert edited.tolist() == [[1, 4], [1, 5], [1, 5]]
    assert edits.tolist() == [[2, 0], [2, 0], [1, 1]]
    assert operands(draws[:1])[-2].shape == operands(draws[:1])[-1].shape == (0, 2)


@pytest.mark.parametrize(
    "options",
    [
        *({"temperature": value} for value in (-1.0, float("nan"), float("inf"))),
        *({"top_p": value} for value in (0.0, 1.5, -1.0)),
        *({"top_k": value} for value in (-1, 1.5)),
        *({"min_p": value} for value in (-0.1, 2.0)),
        *({"repetition_penalty": value} for value in (0.0, -1.0, 1e101, float("inf"))),
        *({"seed": value} for value in (-1, 1 << 63, 0.5)),
    ],
)
def test_bounds(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        Sampling(**{"temperature": 1.0, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"top_k": 3}, {"seed": 1}, {"top_p": 0.9}, {"min_p": 0.1, "seed": 4}])
def test_what_changes_nothing_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(options))} has no effect: the temperature is 0"):
        Sampling(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("token", [9, -1, 5])
def test_a_bias_outside_of_the_vocabulary(token: int) -> None:
    Sampling(bias={4: 1.0}).check(5)
    with pytest.raises(InputError, match=f"bias of token {token}: the vocabulary has 5"):
        Sampling(bias={0: 1.0, token: 1.0}).check(5)


def test_a_bias_that_forbids_every_token() -> None:
    """The model is sound where the options leave it nothing to say."""
    Sampling(bias=dict.fromkeys(range(4), float("-inf"))).check(5)
    with pytest.raises(InputError, match="bias: all 5 tokens are forbidden"):
        Sampling(bias=dict.fromkeys(range(5), float("-inf"))).check(5)
