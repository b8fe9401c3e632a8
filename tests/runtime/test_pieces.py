"""Bytes in several parts are the same bytes in pieces of one size, and none is copied."""

from __future__ import annotations

import random

import pytest

from ourcc.runtime.pieces import regroup


@pytest.mark.parametrize("size", [1, 7, 64])
def test_pieces_are_the_bytes(size: int) -> None:
    rng = random.Random(size)
    for _ in range(100):
        parts = [rng.randbytes(rng.choice((0, 1, size - 1, size, size + 1, 3 * size, rng.randrange(200)))) for _ in range(rng.randrange(7))]
        pieces = list(regroup([memoryview(part) if rng.random() < 0.5 else part for part in parts], size))
        assert b"".join(part for piece in pieces for part in piece) == b"".join(parts)
        assert all(sum(map(len, piece)) == size for piece in pieces[:-1])
        assert all(0 < sum(map(len, piece)) <= size for piece in pieces)
        assert all(any(part.obj is given for given in parts) for piece in pieces for part in piece)
