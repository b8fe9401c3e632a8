"""Integers that vary and scalars captured from data: what they are in the program, and what it requires of them at run time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ourcc
from ourcc.compiler.importers.torch.export import import_exported
from ourcc.ir.errors import InputError, UnsupportedError

X = torch.arange(80.0).reshape(2, 40)


class Function(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def exported(function: Any, *arguments: Any) -> Any:
    shapes = (tuple(torch.export.Dim.DYNAMIC if isinstance(a, int) else None for a in arguments),)
    return torch.export.export(Function(function), arguments, dynamic_shapes=shapes, strict=False)


def captured(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    k: Any = x.max().long().item()
    torch._check(k >= 0)
    torch._check(k < 100)
    return torch.arange(8) + k, x * k


def rounded(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(torch.sym_int(x.mean().item() * 2))


def test_slices_whose_bounds_vary() -> None:
    def function(x: torch.Tensor, a: int, b: int, c: int) -> torch.Tensor:
        return x[:, a:b:c]

    x = torch.arange(400.0).reshape(2, 200)
    for dynamic in (None, True):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="ourcc", dynamic=dynamic)
        for bounds in ((3, 50, 1), (5, 60, 2), (124, 177, 2), (-50, -3, 2), (-300, 1000, 7)):
            assert torch.equal(compiled(x, *bounds), function(x, *bounds))


def test_a_captured_integer_is_what_the_data_say() -> None:
    engine = ourcc.build(exported(captured, X))
    for x in (X, X / 7, X * 0):
        assert all(torch.equal(got, expected) for got, expected in zip(engine(x), captured(x), strict=True))


def test_what_the_program_requires_is_checked_when_it_runs() -> None:
    engine = ourcc.build(exported(captured, X))
    with pytest.raises(InputError, match="Runtime assertion failed for expression u0 <= 99"):
        engine(X * 10)
    with pytest.raises(InputError, match="Runtime assertion failed for expression u0 >= 0"):
        engine(-X - 5)


def test_division_by_an_integer_that_is_zero_is_an_error() -> None:
    compiled = torch.compile(lambda x, a, b: x + a // b, backend="ourcc", dynamic=True)
    assert torch.equal(compiled(X, 7, -2), X - 4)
    with pytest.raises(ZeroDivisionError):
        compiled(X, 7, 0)


def test_a_size_that_has_no_form_is_refused_when_it_is_built() -> None:
    with pytest.raises(UnsupportedError):
        import_exported(exported(rounded, X))


def test_an_integer_out_of_its_range_names_the_input() -> None:
    engine = ourcc.build(exported(lambda x, k: x[:, k : k + 4] * k, X, 3))
    assert torch.equal(engine(X, 5), X[:, 5:9] * 5)
    with pytest.raises(InputError, match=r"input '.*' is 99, so"):
        engine(X, 99)
