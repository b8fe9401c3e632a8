"""Places that data or the caller give as numbers: right ones from both ends, wrong ones refused before a kernel relies on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.export import Dim

import ourcc
from ourcc.compiler.backends.cuda import CudaBackend
from ourcc.compiler.importers.torch.export import import_exported
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import simplify
from ourcc.ir.errors import IndexRangeError, InputError
from ourcc.ir.graph import Module
from ourcc.ir.plan import CheckPlace, Launch
from ourcc.ir.target import gpu_target
from ourcc.passes.lower.build_plan import Lowered

from ...compiler.test_gpu_kernels import run_plan as run_in_triton
from .test_telling import Function, run

ROWS = 11


def put(i: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    w = w.clone()
    w[i[0].item()] = 7.0
    return w


OF_DATA: dict[str, Callable[..., torch.Tensor]] = {
    "read": lambda i, w: w[i[0].item()] * 2,
    "read two": lambda i, w: w[i[0].item(), i[1].item()] + w[i[1].item()],
    "select and scatter": lambda i, w: torch.select_scatter(w, w[0] + 1, 0, i[0].item()),
    "put": put,
    "put a column": lambda i, w: torch.select_scatter(w, w[:, 0] + w[i[0].item(), 0], 1, i[1].item()),
}


def made(function: Callable[..., Any], inputs: tuple[Any, ...], unchecked: bool = False, sizes: Any = None) -> tuple[Module, Lowered, Any]:
    """A function's module, its plan for Hopper, and its engine for this machine."""
    program = torch.export.export(Function(function), inputs, dynamic_shapes=None if sizes is None else {"inputs": sizes})
    options = build_options({"targets": ["sm_90a"], "unchecked_indices": unchecked})
    module = import_exported(program, options)
    simplify(module, options)
    engine = ourcc.build(program, targets=["native"], tune="off", unchecked_indices=unchecked)
    return module, CudaBackend().lower(module, gpu_target("sm_90a")), engine


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, or that it refuses."""
    try:
        return np.asarray(call())
    except (IndexRangeError, InputError, IndexError, RuntimeError):
        return None


def expect(got: Any, wanted: Any) -> None:
    assert (got is None) == (wanted is None)
    if wanted is not None:
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("name", OF_DATA)
def test_a_place_of_the_data_is_as_in_eager(name: str) -> None:
    function = OF_DATA[name]
    module, found, engine = made(function, (torch.tensor([2, 1]), torch.zeros(ROWS, 3)))
    w = np.arange(3 * ROWS, dtype=np.float32).reshape(ROWS, 3)
    refused = 0
    for first in (0, 2, ROWS - 1, ROWS, ROWS + 4, -1, -ROWS, -ROWS - 1, 10**6, -(2**62)):
        for second in (0, 2, -3) if first in (2, -ROWS) else (1,):
            i = np.array([first, second])
            wanted = outcome(lambda i=i: function(torch.from_numpy(i), torch.from_numpy(w)))
            expect(outcome(lambda i=i: run(module, found, i, w)[0]), wanted)
            expect(outcome(lambda i=i: engine(i, w)), wanted)
            expect(outcome(lambda i=i: run_in_triton(module, found, [i, w], {})[0]), wanted)
            refused += wanted is None
    assert refused == 5
    steps = found.plan.steps
    relying = [n for n, step in enumerate(steps) if isinstance(step, Launch) and step.symbols]
    assert all(n < relying[0] for n, step in enumerate(steps) if isinstance(step, CheckPlace))


def test_a_place_is_checked_without_a_kernel() -> None:
    _, found, _ = made(OF_DATA["read"], (torch.tensor([2, 1]), torch.zeros(ROWS, 3)))
    assert [type(step).__name__ for step in found.plan.steps] == ["Launch", "Host", "CheckPlace", "Launch"]


def test_a_place_of_the_data_is_told_as_it_was_given() -> None:
    module, found, engine = made(OF_DATA["read"], (torch.tensor([2, 1]), torch.zeros(ROWS, 3)))
    w = np.zeros((ROWS, 3), np.float32)
    for wrong in (ROWS, -ROWS - 1):
        for call in (lambda i: run(module, found, i, w), lambda i: engine(i, w)):
            with pytest.raises(IndexRangeError, match=rf"index {wrong} of axis 0 of input '\w+' is out of range, expected -11\.\.10"):
                call(np.array([wrong, 0]))


@pytest.mark.parametrize("numbers", [(2**62, 4), (2**33, 2**31), (-(2**62), 4), (2**62, 2**62 - 1), (3, 4), (2, 5), (-1, 11), (-3, 4)])
def test_places_beyond_64_bits_are_outside(numbers: tuple[int, int]) -> None:
    def function(i: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.select_scatter(w, w[0] + 1, 0, i[0].item() * i[1].item())

    module, found, engine = made(function, (torch.tensor([2, 1]), torch.zeros(ROWS, 3)))
    i, w = np.array(numbers), np.arange(3 * ROWS, dtype=np.float32).reshape(ROWS, 3)
    place = numbers[0] * numbers[1]
    is_there = -ROWS <= place < ROWS
    wanted = function(torch.from_numpy(i), torch.from_numpy(w)).numpy() if is_there else None
    expect(outcome(lambda: run(module, found, i, w)[0]), wanted)
    expect(outcome(lambda: engine(i, w)), wanted)


def test_unchecked_indices_write_nowhere_else() -> None:
    """Indices may be left unchecked, because kernels mask them; a place is relied on."""
    function = OF_DATA["select and scatter"]
    module, found, engine = made(function, (torch.tensor([2, 1]), torch.zeros(ROWS, 3)), unchecked=True)
    for call in (lambda i: run(module, found, i, np.zeros((ROWS, 3), np.float32)), lambda i: engine(i, np.zeros((ROWS, 3), np.float32))):
        with pytest.raises(IndexRangeError, match="index 11 of axis 0"):
            call(np.array([ROWS, 0]))


def test_a_place_of_the_callers_is_checked_before_the_first_step() -> None:
    function = lambda n, w: torch.select_scatter(w, w[0] + 1, 0, n)  # noqa: E731
    module, found, engine = made(function, (3, torch.zeros(ROWS, 3)), sizes=(Dim.DYNAMIC, None))
    assert isinstance(found.plan.steps[0], CheckPlace)
    w = np.arange(3 * ROWS, dtype=np.float32).reshape(ROWS, 3)
    for n in (0, 3, ROWS - 1, ROWS, 10**6):
        wanted = outcome(lambda n=n: function(n, torch.from_numpy(w)))
        expect(outcome(lambda n=n: run(module, found, np.array(n), w)[0]), wanted)
        expect(outcome(lambda n=n: engine(np.array(n), w)), wanted)


def test_a_slice_that_is_put_must_lie_inside() -> None:
    def function(i: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        n = i[0].item()
        torch._check(n >= 0)
        torch._check(n <= ROWS - 3)
        return torch.slice_scatter(w, w[:3] + 1, 0, n, n + 3)

    module, found, engine = made(function, (torch.tensor([2, 1]), torch.zeros(ROWS, 3)))
    w = np.arange(3 * ROWS, dtype=np.float32).reshape(ROWS, 3)
    for n in (0, 2, ROWS - 3, ROWS - 2, -1):
        i = np.array([n, 0])
        wanted = outcome(lambda i=i: function(torch.from_numpy(i), torch.from_numpy(w)))
        expect(outcome(lambda i=i: run(module, found, i, w)[0]), wanted)
        expect(outcome(lambda i=i: engine(i, w)), wanted)
        expect(outcome(lambda i=i: run_in_triton(module, found, [i, w], {})[0]), wanted)
