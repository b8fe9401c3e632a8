"""Axes that a call makes empty: where eager knows no answer the engine says so, and where it knows one it is the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim, export

from ourcc import build
from ourcc.ir.errors import IndexRangeError

FUNCTIONS: dict[str, Callable[[torch.Tensor], object]] = {
    "select": lambda x: x[:, 0],
    "select_last": lambda x: x[:, -1] * 2,
    "select_scatter": lambda x: torch.select_scatter(x, torch.ones(3), 1, 0),
    "narrow": lambda x: x.narrow(1, 0, 1) + 1,
    "argmax": lambda x: x.argmax(1),
    "argmin_of_all": lambda x: x.argmin(),
    "amax": lambda x: x.amax(1),
    "amin": lambda x: (x * x).amin((0, 1)),
    "max_of_all": lambda x: x.max(),
    "max": lambda x: x.max(1),
    "min_of_rows": lambda x: x.min(0),
    "aminmax": lambda x: x.aminmax(),
    "largest_norm": lambda x: x.norm(float("inf"), 1),
    "top_k": lambda x: x.topk(1, 1)[0],
    "reflect": lambda x: F.pad(x[None], (1, 1), mode="reflect"),
    "replicate": lambda x: F.pad(x[None], (1, 1), mode="replicate"),
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(1),
    "softmax": lambda x: x.softmax(1),
    "attention": lambda x: ((torch.ones(1, 2, 4, 3) @ x.expand(1, 2, 3, -1)) * 0.3).softmax(-1) @ x.mT.expand(1, 2, -1, 3),
    "masked_attention": lambda x: ((torch.ones(1, 2, 4, 3) @ x.expand(1, 2, 3, -1)) + x[:1]).softmax(-1) @ x.mT.expand(1, 2, -1, 3),
    "any": lambda x: (x > 0).any(1),
    "flip": lambda x: x.flip(1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_eager_with_every_size(name: str) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> object:
            return FUNCTIONS[name](x)

    given = torch.randn(3, 5)
    program = export(Model(), (given,), dynamic_shapes=({1: Dim("n", min=0, max=9)},))
    engine = build(program)
    refused = 0
    for size in (5, 0, 1, 2, 3, 0, 9):
        x = torch.randn(3, size)
        try:
            expected = Model()(x)
        except (IndexError, RuntimeError):
            refused += 1
            with pytest.raises(IndexRangeError, match=r"is out of range, expected"):
                engine(x)
            continue
        torch.testing.assert_close(engine(x), expected, equal_nan=True)
    calm = ("min_of_rows", "sum", "mean", "softmax", "attention", "masked_attention", "any", "flip")
    assert (refused == 0) == (name in calm), f"eager refused {refused} of these sizes"


def test_a_build_that_checks_no_indices_checks_axes() -> None:
    """The host knows sizes without looking at data."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.amax(1)

    program = export(Model(), (torch.randn(3, 5),), dynamic_shapes=({1: Dim("n", min=0, max=9)},))
    engine = build(program, unchecked_indices=True)
    assert engine(torch.randn(3, 1)).shape == (3,)
    with pytest.raises(IndexRangeError, match="index 0 of axis 1 of input 'x' is out of range, expected none") as error:
        engine(torch.randn(3, 0))
    assert "unchecked" not in str(error.value)
