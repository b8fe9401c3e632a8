"""Activations near the ends of f32 whose products fit it: as right, to the bit, as the same numbers many powers of two nearer to 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ourcc
from ourcc.passes.quantize import QUANTIZATIONS

UP, LARGEST = 2.0**120, float(np.finfo(np.float32).max)
TARGETS = ["x86-64", "x86-64-v3", "native"]


def linear(random: np.random.Generator, k: int, n: int) -> torch.nn.Linear:
    """A layer whose results are at most half the largest magnitude of its input, however they are summed up."""
    layer = torch.nn.Linear(k, n, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(random.uniform(-0.5 / k, 0.5 / k, (n, k)).astype(np.float32)))
    return layer.eval()


def rows(random: np.random.Generator, k: int) -> torch.Tensor:
    """Rows of magnitudes up to that of the largest number: one of signs alone, drawn ones, and one that holds a single number."""
    x = random.uniform(-1, 1, (5, k)).astype(np.float32)
    x[0], x[1] = np.sign(x[0]), x[1] / np.abs(x[1]).max()
    x[2] = 0
    x[2, random.integers(k)] = 1
    x[3] *= 1e-3
    return torch.from_numpy(x) * (LARGEST / UP)


@pytest.mark.parametrize("name", [name for name in QUANTIZATIONS if "-weight" not in name])
def test_a_result_that_fits_is_right_however_large_its_factors_are(name: str, request: pytest.FixtureRequest) -> None:
    random = np.random.default_rng([sum(map(ord, name)), request.config.getoption("--seed", 0)])
    for k in (64, 128, int(random.choice([1, 3, 32, 40, 96, 160, 256]))):
        layer, x = linear(random, k, int(random.choice([1, 8, 17, 40]))), rows(random, k)
        target = str(random.choice(TARGETS))
        engine = ourcc.build(torch.export.export(layer, (x,)), quantize=name, targets=[target], tune="off")
        near, far = (torch.as_tensor(engine(given)) for given in (x, x * UP))
        assert torch.isfinite(far).all(), (k, target)
        torch.testing.assert_close(far, near * UP, rtol=0, atol=0)
