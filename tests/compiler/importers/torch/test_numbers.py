"""Numbers beside tensors of 16 bits: which of them torch rounds first, over all codes, and which it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import ourcc
from ourcc.compiler.importers.torch.export import import_exported
from ourcc.compiler.importers.torch.tensors import array_of
from ourcc.compiler.torch import backend
from ourcc.ir.graph.reference import interpret

Function = Callable[[torch.Tensor, float], torch.Tensor]

DTYPES = (torch.float16, torch.bfloat16)
NUMBERS = (1e5, 1e-8, 2051, 0.1, -3.3, 1 / 3, 0.5)
T = torch.tensor

FUNCTIONS: dict[str, Function] = {
    "a product": lambda x, s: x * s,
    "a product with a number before": lambda x, s: s * x,
    "a product with a scalar tensor": lambda x, s: x * T(s),
    "a product with a scalar tensor before": lambda x, s: T(s) * x,
    "a product in place": lambda x, s: x.clone().mul_(s),
    "a quotient": lambda x, s: x / s,
    "a number over a tensor": lambda x, s: s / x,
    "a scalar tensor over a tensor": lambda x, s: T(s) / x,
    "a quotient in place": lambda x, s: x.clone().div_(s),
    "a chain": lambda x, s: (x * s) / s,
    "floor division": lambda x, s: x // s,
    "a quotient rounded down": lambda x, s: torch.div(x, s, rounding_mode="floor"),
    "a quotient truncated": lambda x, s: torch.div(x, s, rounding_mode="trunc"),
    "a scalar tensor truncated": lambda x, s: torch.div(T(s), x, rounding_mode="trunc"),
    "a sum": lambda x, s: x + s,
    "a difference": lambda x, s: s - x,
    "a sum with a scalar tensor": lambda x, s: x + T(s),
    "less": lambda x, s: x < s,
    "equal": lambda x, s: x == s,
    "less than a scalar tensor": lambda x, s: x < T(s),
    "equal to a scalar tensor": lambda x, s: x == T(s),
    "a choice": lambda x, s: torch.where(x > 1, x, T(s)),
    "leaky": lambda x, s: F.leaky_relu(x, s),
}


class Module(torch.nn.Module):
    def __init__(self, function: Any, *rest: Any) -> None:
        super().__init__()
        self.function, self.rest = function, rest

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, *self.rest)


def codes(dtype: torch.dtype) -> torch.Tensor:
    """All codes, in an order that gives each a neighbour of another size."""
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
    return every[torch.randperm(every.numel(), generator=torch.Generator().manual_seed(0))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_code_beside_each_number_is_as_in_eager(name: str, dtype: torch.dtype) -> None:
    x, function = codes(dtype), FUNCTIONS[name]
    module = Module(lambda x: tuple(function(x, number) for number in NUMBERS))
    results = interpret(import_exported(torch.export.export(module, (x,), strict=False)), [array_of(x)])
    for number, found, eager in zip(NUMBERS, results, module(x), strict=True):
        expected = array_of(eager)
        assert found.dtype == expected.dtype
        assert np.array_equal(found.astype(np.float64), expected.astype(np.float64), equal_nan=True), number


@pytest.mark.parametrize("dtype", DTYPES)
def test_engines_and_compiled_functions_do_the_same(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * 100000, x / 1e5, x * 1e-8, x // 0.1, x * 2051

    x = codes(dtype)
    engine = ourcc.build(Module(function), (x,), targets=["cpu"])
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend.ourcc)
    for run in (engine, compiled):
        for found, expected in zip(run(x), function(x), strict=True):
            assert found.dtype == expected.dtype
            assert torch.equal(found.double().nan_to_num(7.0), expected.double().nan_to_num(7.0))


def test_numbers_that_vary_are_not_rounded_first() -> None:
    def function(x: torch.Tensor, number: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return x * number, x / number

    x = codes(torch.float16)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend.ourcc, dynamic=True)
    for number in (2051, 100000, 7, 2051.5, 0.1, 1e5):
        for found, expected in zip(compiled(x, number), function(x, number), strict=True):
            assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0)), number


REFUSED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clamp": lambda x: x.clamp(-1e5, 1e5),
    "clamp_min": lambda x: x.clamp_min(1e5),
    "hardtanh": lambda x: F.hardtanh(x, -1e5, 1e5),
    "sub": lambda x: torch.sub(x, x, alpha=1e5),
    "rsub": lambda x: torch.rsub(x, x, alpha=1e5),
    "pow": lambda x: x**1e5,
    "full": lambda x: x + torch.full((2,), 1e5, dtype=torch.float16),
    "full_like": lambda x: torch.full_like(x, 1e5),
    "masked_fill": lambda x: x.masked_fill(x > 1, 1e5),
    "threshold": lambda x: F.threshold(x, 1e5, 1e5),
    "pad": lambda x: F.pad(x, (1, 1), value=1e5),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_number_out_of_range_is_refused_where_eager_refuses_it(name: str) -> None:
    x, function = torch.ones(2, dtype=torch.float16), REFUSED[name]
    torch._dynamo.reset()
    for run in (function, torch.compile(function, backend=backend.ourcc)):
        with pytest.raises(RuntimeError, match="without overflow"):
            run(x)
    bfloat = x.bfloat16()
    if name != "full":
        assert torch.equal(torch.compile(function, backend=backend.ourcc)(bfloat), function(bfloat))


def test_a_variance_of_more_halves_than_a_half_can_count() -> None:
    x = torch.randn(70000, generator=torch.Generator().manual_seed(0)).mul(3).half()
    for function in (torch.var, torch.std, lambda x: torch.var_mean(x)[0], lambda x: x.view(7, -1).var(-1)):
        got = interpret(import_exported(torch.export.export(Module(function), (x,), strict=False)), [array_of(x)])[0]
        assert np.allclose(got.astype(np.float64), array_of(function(x)).astype(np.float64), rtol=2.0**-10)


@pytest.mark.parametrize("dtype", DTYPES)
def test_spelled_functions_of_16_bits_are_recognized_behind_such_numbers(dtype: torch.dtype) -> None:
    def gelu(x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))

    def attention(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ x.transpose(-1, -2) * 0.11180339887498948, -1) @ x

    for function, op in ((gelu, "gelu"), (attention, "attention")):
        x = torch.randn(2, 4, 32, 80, generator=torch.Generator().manual_seed(0)).to(dtype)
        engine = ourcc.build(Module(function), (x,), targets=["cpu"])
        assert op in {row.op for row in engine.contract}
        assert torch.allclose(engine(x).float(), function(x).float(), atol=2.0**-5 if dtype == torch.bfloat16 else 2.0**-8)


def test_products_with_factors_are_rounded_once() -> None:
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).half()
    for alpha, beta in ((1e5, 1.0), (1e-8, 0.1), (0.1, 1e5), (1 / 3, 0.0)):

        def function(x: torch.Tensor, alpha: float = alpha, beta: float = beta) -> torch.Tensor:
            return torch.addmm(x * 2.0**-12, x * 2.0**-9, x * 2.0**-9, alpha=alpha, beta=beta)

        got = interpret(import_exported(torch.export.export(Module(function), (x,), strict=False)), [array_of(x)])[0]
        assert np.allclose(got.astype(np.float64), array_of(function(x)).astype(np.float64), rtol=2.0**-9, atol=2.0**-23)
