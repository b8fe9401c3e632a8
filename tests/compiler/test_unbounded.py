"""Sizes without any bound, as torch.compile gives them: every kernel has a form, and attention keeps its own whatever follows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from .torch_models import agree, compiled

pytestmark = pytest.mark.usefixtures("fresh")
Function = Callable[[torch.Tensor], torch.Tensor]
SIZES = ((2, 9), (3, 40), (1, 7))


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(x.shape[0], x.shape[1], 4, 16).transpose(1, 2)


def attention(x: torch.Tensor) -> torch.Tensor:
    """Four heads, joined again."""
    return F.scaled_dot_product_attention(heads(x), heads(x), heads(x)).transpose(1, 2).reshape(x.shape)


AFTER_ATTENTION: dict[str, Function] = {
    "nothing": lambda y: y,
    "relu": torch.relu,
    "bias": lambda y: y + torch.arange(64, dtype=y.dtype),
    "rows": lambda y: torch.relu(y).reshape(-1, 64),
    "turned": lambda y: y.transpose(1, 2) * 2,
    "sum": lambda y: y.sum(-1),
}
OTHERS: dict[str, Function] = {
    "symbolic heads": lambda x: (x @ x.transpose(1, 2)).softmax(-1) @ x,
    "sums of sums": lambda x: x.sum(-1).amax(-1),
    "sums of a softmax over rows": lambda x: (x @ x.transpose(1, 2)).softmax(-1).sum(1),
    "sums of a softmax": lambda x: x.softmax(-1).sum(1),
    "two softmaxes": lambda x: x.softmax(-1).softmax(-2),
    "sum of a product": lambda x: (x @ x.transpose(1, 2)).sum(-1),
    "softmax of a product": lambda x: (x @ x.transpose(1, 2)).softmax(-1),
    "standardized": lambda x: (x - x.mean((1, 2), keepdim=True)) / x.std((1, 2), keepdim=True),
    "four products": lambda x: x @ x.transpose(1, 2) @ x @ x.transpose(1, 2),
}


def check(function: Function, dtype: torch.dtype = torch.float32) -> None:
    fast = compiled(function, dynamic=True)
    for batch, sequence in SIZES:
        x = torch.randn(batch, sequence, 64, dtype=dtype)
        with torch.no_grad():
            agree(fast(x), function(x), function(x.double()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("after", AFTER_ATTENTION)
def test_what_follows_attention(after: str, dtype: torch.dtype) -> None:
    check(lambda x: AFTER_ATTENTION[after](attention(x)), dtype)


@pytest.mark.parametrize("name", OTHERS)
def test_no_size_is_known(name: str) -> None:
    check(OTHERS[name])
