"""Indices that were divided into parts become one again where the parts lie together in memory."""

from __future__ import annotations

import pytest

from ourcc.ir import dims
from ourcc.ir.dims_text import parse_dim
from ourcc.ir.tile.address import recombined


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("k % 3 + 3 * (k // 3)", "k"),
        ("k % 3 + 3 * (k // 3 % 5) + 15 * (k // 15)", "k"),
        ("2 * (k % 3) + 6 * (k // 3)", "2 * k"),
        ("N * (k % 4) + 4 * N * (k // 4)", "N * k"),
        ("r % 28 + 28 * (r // 28 % 28) + 100352 * (r // 784)", "r % 784 + 100352 * (r // 784)"),
        ("k % 3 + 4 * (k // 3)", "k % 3 + 4 * (k // 3)"),
        ("k % 3 + 3 * (j // 3)", "k % 3 + 3 * (j // 3)"),
        ("(k + 1) % 3 + 3 * (k // 3)", "(k + 1) % 3 + 3 * (k // 3)"),
    ],
)
def test_parts_that_lie_together(before: str, after: str) -> None:
    found = recombined(parse_dim(before))
    assert found == parse_dim(after)
    for k in (-7, 0, 5, 44, 2001):
        values = {"k": k, "j": k + 1, "r": k, "N": 6}
        assert dims.evaluate(found, values) == dims.evaluate(parse_dim(before), values)
