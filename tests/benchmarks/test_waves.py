"""Products whose tiles fill no whole waves: by machine code no strategy that was passed over is much faster than the one that is taken."""

from __future__ import annotations

import random

import pytest

from ourcc.ir.target import GPU_BOARDS

from .scripts import KERNELS, script

waves = script("waves", KERNELS)
BETTER = 1.05
"""How many times as fast as what is taken another strategy may be."""
DRAWN = random.Random(2).sample([(board, sizes) for board in ("h100", "b200") for sizes in waves.SIZES], 2)


@pytest.mark.parametrize(("board", "sizes"), [("h100", (1536, 3072, 12288)), *DRAWN])
def test_what_is_taken_is_not_slower(board: str, sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waves, "TILES", 1)
    target = GPU_BOARDS[board]
    problem = waves.posed(sizes, target)
    rows = waves.judged(problem, target)
    taken = rows[waves.taken(problem, target)]
    assert taken.estimate <= BETTER * min(each.estimate for each in rows.values()), rows
    if (board, sizes) == ("h100", (1536, 3072, 12288)):
        assert rows["stream_k"] is taken and taken.estimate < 0.9 * rows["tensor"].estimate
