"""The choice of the next token: its distribution, its seeds, its bounds."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir.errors import InputError
from ourcc.runtime.language.sampling import Sampling, _drawn

LOGITS = np.log(np.array([0.4, 0.3, 0.2, 0.06, 0.04], np.float32))


def shares(sampling: dict[str, object], count: int = 4000) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """How often each token is drawn over seeds."""
    drawn = [Sampling(seed=seed, **sampling).choose(LOGITS, [1, 2]) for seed in range(count)]  # type: ignore[arg-type]
    return np.bincount(drawn, minlength=len(LOGITS)) / count


def near(found: np.ndarray[tuple[int, ...], np.dtype[np.float64]], expected: list[float], count: int = 4000) -> bool:
    """Whether counts fit probabilities: chi squared below what one in a million samples exceeds."""
    probabilities = np.array(expected)
    assert not found[probabilities == 0].any()
    kept = probabilities > 0
    return bool((count * (found - probabilities)[kept] ** 2 / probabilities[kept]).sum() < 40)


def test_greedy_takes_the_smallest_of_equals() -> None:
    assert Sampling().choose(np.array([1, 3, 3, 2], np.float32), []) == 1
    assert Sampling(bias={0: 5.0}).choose(np.array([1, 3, 3, 2], np.float32), []) == 0


def test_draws_follow_the_probabilities() -> None:
    assert near(shares({"temperature": 1.0}), [0.4, 0.3, 0.2, 0.06, 0.04])
    squares = np.array([0.4, 0.3, 0.2, 0.06, 0.04]) ** 2
    assert near(shares({"temperature": 0.5}), list(squares / squares.sum()))
    assert near(shares({"temperature": 1.0, "top_k": 2}), [4 / 7, 3 / 7, 0, 0, 0])
    assert near(shares({"temperature": 1.0, "top_p": 0.65}), [4 / 7, 3 / 7, 0, 0, 0])
    assert near(shares({"temperature": 1.0, "top_p": 0.75}), [4 / 9, 3 / 9, 2 / 9, 0, 0])
    assert near(shares({"temperature": 1.0, "min_p": 0.4}), [4 / 9, 3 / 9, 2 / 9, 0, 0])
    assert near(shares({"temperature": 1.0, "top_p": 1e-9}), [1, 0, 0, 0, 0])


def test_a_draw_depends_on_seed_and_place_alone() -> None:
    sampling = Sampling(temperature=1.0, seed=5)
    first = [sampling.choose(LOGITS, [0] * n) for n in range(50)]
    assert first == [Sampling(temperature=1.0, seed=5).choose(LOGITS, [3] * n) for n in range(50)]
    assert first != [Sampling(temperature=1.0, seed=6).choose(LOGITS, [0] * n) for n in range(50)]
    assert len(set(first)) > 2


def test_what_is_there_already_becomes_less_likely() -> None:
    logits = np.array([2.0, 1.5, -1.0, -1.2], np.float32)
    assert Sampling(repetition_penalty=2.0).choose(logits, [0]) == 1
    assert Sampling(repetition_penalty=2.0).choose(logits[2:], [0]) == 1


@pytest.mark.parametrize("bad", [[np.nan, 1.0], [-np.inf, -np.inf], [np.inf, 0.0]])
def test_logits_that_are_no_numbers(bad: list[float]) -> None:
    for temperature in (0.0, 1.0):
        with pytest.raises(InputError, match="NaN or no finite number"):
            Sampling(temperature=temperature).choose(np.array(bad, np.float32), [])


@pytest.mark.parametrize(
    "options",
    [
        *({"temperature": value} for value in (-1.0, float("nan"), float("inf"))),
        *({"top_p": value} for value in (0.0, 1.5, -1.0)),
        *({"top_k": value} for value in (-1, 1.5)),
        *({"min_p": value} for value in (-0.1, 2.0)),
        *({"repetition_penalty": value} for value in (0.0, -1.0, float("inf"))),
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


def test_a_bias_outside_of_the_vocabulary() -> None:
    with pytest.raises(InputError, match="bias of token 9"):
        Sampling(bias={9: 1.0}).choose(LOGITS, [])


@pytest.mark.parametrize("seed", range(60))
def test_what_is_kept_is_what_sorting_all_keeps(seed: int) -> None:
    """Small and large vocabularies with ties, some tokens impossible: as the definition says, which sorts everything."""
    drawn = np.random.default_rng(seed)
    size = int(drawn.choice([1, 5, 64, 65, 3000, 20000]))
    scores = drawn.standard_normal(size) * drawn.choice([0.0, 1.0, 6.0])
    scores = np.round(scores) if seed % 3 == 0 else scores
    scores[1:][drawn.random(size - 1) < (0.3 if seed % 4 == 0 else 0)] = -np.inf
    top_k, min_p = int(drawn.choice([0, 1, 7, 300, 30000])), float(drawn.choice([0, 0, 0.02, 1]))
    top_p = float(drawn.choice([1, 0.95, 0.4]))
    best = int(np.argmax(scores))
    tokens, weights = Sampling(temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p)._kept(scores, best)
    tokens = np.arange(size) if tokens is None else tokens
    order = np.argsort(-scores, kind="stable")[: top_k or None]
    expected = np.exp((scores[order] - scores[best]) / 0.8)
    share = (np.cumsum(expected) - expected) / expected.sum()
    kept = expected >= min_p
    kept &= (share < top_p) if top_p < 1 else True
    at_the_edge = order[np.abs(share - top_p) < 1e-12]
    assert set(tokens) ^ set(order[kept]) <= set(at_the_edge)
    np.testing.assert_allclose(weights, np.exp((scores[tokens] - scores[best]) / 0.8))


@pytest.mark.parametrize("seed", range(30))
def test_a_draw_falls_where_the_sum_of_all_weights_before_says(seed: int) -> None:
    """Also at both ends, with weights of zero there and whole blocks of them."""
    drawn = np.random.default_rng(seed)
    weights = drawn.random(int(drawn.choice([1, 2, 255, 256, 257, 5000])))
    weights[drawn.random(len(weights)) < 0.3] = 0
    weights[drawn.integers(len(weights))] = 1
    weights[: seed * 20] *= float(seed % 3 > 0 or seed * 20 >= len(weights))
    sums = np.cumsum(weights)
    for share in (0.0, *drawn.random(50), 1 - 2**-53):
        place = _drawn(weights, share)
        below, above = sums[place] - weights[place], sums[place]
        assert weights[place] > 0
        assert below - 1e-9 <= share * sums[-1] <= above + 1e-9
