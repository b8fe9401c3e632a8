"""Lengths of keys and values that torch has not compared are one symbol, and kernels compute the attention."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._dynamo
import torch.fx.experimental._config as symbols
from torch.nn.functional import scaled_dot_product_attention


@pytest.fixture(autouse=True)
def apart() -> Iterator[None]:
    """Equal sizes of several inputs are symbols of their own."""
    torch._dynamo.reset()
    with symbols.patch(use_duck_shape=False):
        yield
    torch._dynamo.reset()


def test_lengths_of_keys_and_values_are_one() -> None:
    compiled = torch.compile(scaled_dot_product_attention, backend="ourcc", options={"require": "no-fallback"})
    with torch.no_grad():
        for length in (5, 7, 12):
            torch.manual_seed(length)
            q, k, v = (torch.randn(1, 2, size, 8) for size in (3, length, length))
            for each in (k, v):
                torch._dynamo.mark_dynamic(each, 2)
            torch.testing.assert_close(compiled(q, k, v), scaled_dot_product_attention(q, k, v))
