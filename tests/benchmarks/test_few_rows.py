"""Few rows by weights of several formats: by machine code no strategy that was passed over is much faster than the one that is taken."""

from __future__ import annotations

import random

import pytest

from ourcc.ir.target import GPU_BOARDS

from .scripts import KERNELS, script

few_rows = script("few_rows", KERNELS)
BETTER = 1.4
"""How many times as fast as what is taken another strategy may be: prices of tiles that decode nvfp4 are too high, and parts of sums must
gain a fifth by price.
"""
DRAWN = random.Random(1).sample([(words, rows) for words in few_rows.FORMATS for rows in few_rows.ROWS], 3)


@pytest.mark.parametrize(("words", "rows"), [("bf16", 5), ("bf16", 1), *DRAWN])
def test_what_is_taken_is_not_much_slower(words: str, rows: int) -> None:
    target = GPU_BOARDS["h100"]
    problem = few_rows.posed(words, rows, target)
    found = few_rows.judged(problem, target)
    taken = found.get(few_rows.taken(problem, target))
    if taken is None:  # stream-K, which `waves` judges
        assert few_rows.taken(problem, target) == "stream_k"
        return
    assert taken.estimate <= BETTER * min(each.estimate for each in found.values()), found
    if (words, rows) == ("bf16", 5):
        assert found["vector"].estimate > 2 * taken.estimate
