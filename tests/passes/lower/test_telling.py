"""Checks that kernels of GPUs make on the way: which kernel tells of what, and that a wrong index or divisor is the error it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.export import Dim

from ourcc.compiler.backends.built import pack
from ourcc.compiler.backends.cuda import CudaBackend
from ourcc.compiler.importers.torch.export import import_exported
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import simplify
from ourcc.ir.errors import IndexRangeError, ZeroDivisorError
from ourcc.ir.graph import Module
from ourcc.ir.ops.check import IN_RANGE, told
from ourcc.ir.plan import Check, Launch, storage
from ourcc.ir.plan.interpret import run_plan
from ourcc.ir.target import gpu_target
from ourcc.passes.lower.build_plan import Lowered

from ...compiler.test_gpu_kernels import run_plan as run_in_triton

Array = np.ndarray[Any, Any]
ROWS = Dim("ROWS", min=0, max=10_000)
MOST, LEAST = 2**63 - 1, -(2**63)


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


def lowered(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...], sizes: Any = None) -> tuple[Module, Lowered]:
    """A function and its plan for Hopper; `sizes` are those that are symbols."""
    program = torch.export.export(Function(function), inputs, dynamic_shapes=None if sizes is None else {"inputs": sizes})
    options = build_options({"targets": ["sm_90a"]})
    module = import_exported(program, options)
    simplify(module, options)
    return module, CudaBackend().lower(module, gpu_target("sm_90a"))


def run(module: Module, found: Lowered, *inputs: Array) -> list[Array]:
    constants = {name: pack(how, module) for name, how in found.plan.constants.items()}
    with np.errstate(all="ignore"):
        return run_plan(found.plan, found.kernels, constants, inputs)


def launches(found: Lowered) -> int:
    return sum(isinstance(step, Launch) for step in found.plan.steps)


def kept(found: Lowered) -> list[bool]:
    """Of each check, whether a kernel with other results tells of it."""
    return [isinstance(found.plan.named[step.worst].storage, storage.Verdict) for step in found.plan.steps if isinstance(step, Check)]


def integers(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], Any, int, bool]] = {
    "rows": (lambda i, w: torch.nn.functional.embedding(i, w), (integers(13), torch.zeros(11, 70)), None, 11, False),
    "any rows": (lambda i, w: torch.nn.functional.embedding(i, w), (integers(3, 5), torch.zeros(11, 7)), ({1: ROWS}, None), 11, False),
    "narrow": (lambda i, w: torch.nn.functional.embedding(i, w), (integers(9, dtype=torch.int32), torch.zeros(11, 8)), None, 11, False),
    "along": (lambda i, x: torch.gather(x, 1, i), (integers(3, 700), torch.zeros(3, 9)), None, 9, False),
    "one by one": (lambda i, x: x[i], (integers(1500), torch.zeros(17)), None, 17, True),
    "of any": (lambda i, x: x[i], (integers(5), torch.zeros(4, 6)), (None, {0: ROWS}), 4, True),
    "in a norm": (lambda i, w: torch.nn.functional.layer_norm(w[i], (48,)), (integers(6), torch.zeros(11, 48)), None, 11, True),
    "folded": (lambda i, x: x[i.reshape(2, 3)], (integers(6), torch.zeros(7, 5)), None, 7, True),
    "put": (lambda i, x: x.index_fill(0, i, 2.0), (integers(6), torch.zeros(7, 5)), None, 7, True),
}


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_that_reads_all_indices_tells_of_the_worst(name: str) -> None:
    function, inputs, sizes, limit, negative = CASES[name]
    module, found = lowered(function, inputs, sizes)
    if name != "put":
        assert launches(found) == 1
    assert kept(found) == [True]
    generator, low = np.random.default_rng(len(name)), -limit if negative else 0
    indices = generator.integers(low, limit, inputs[0].shape).astype(inputs[0].numpy().dtype)
    x = generator.standard_normal(inputs[1].shape).astype(np.float32)
    (answer,) = run(module, found, indices, x)
    np.testing.assert_allclose(answer, function(torch.from_numpy(indices), torch.from_numpy(x)), rtol=2e-5, atol=1e-5)
    bits = np.iinfo(indices.dtype)
    for wrong, worst in (
        ([limit], limit),
        ([low - 1], low - 1),
        ([low - 1, low - 3, low - 2], low - 3),
        ([low - 9, limit + 2, limit], limit + 2),
        ([bits.max], bits.max),
        ([bits.min], max(bits.min, IN_RANGE + 1)),
    ):
        spoiled = indices.copy().reshape(-1)
        spoiled[generator.choice(spoiled.size, len(wrong), replace=False)] = wrong
        with pytest.raises(IndexRangeError, match=rf"^index {worst} of input .* is out of range, expected {low}\.\.{limit - 1}$"):
            run(module, found, spoiled.reshape(indices.shape), x)


def test_no_rows_and_one_row_of_any_number_of_them() -> None:
    function, inputs, sizes, *_ = CASES["any rows"]
    module, found = lowered(function, inputs, sizes)
    x = np.arange(77, dtype=np.float32).reshape(11, 7)
    for rows in (0, 1, 2, 33):
        indices = np.random.default_rng(rows).integers(0, 11, (3, rows))
        np.testing.assert_array_equal(run(module, found, indices, x)[0], x[indices])
        if rows:
            indices[-1, -1] = 11
            with pytest.raises(IndexRangeError, match="index 11 of"):
                run(module, found, indices, x)


def test_where_a_kernel_may_read_no_index_a_launch_of_its_own_does() -> None:
    """Rows of a table that may be empty: then nothing is gathered, and a wrong index is an error all the same."""
    module, found = lowered(lambda i, x: x[i], (integers(5), torch.zeros(4, 6)), (None, {1: ROWS}))
    assert kept(found) == [False] and launches(found) == 2
    for width in (0, 3):
        x = np.ones((4, width), np.float32)
        assert run(module, found, np.array([0, 3, -4, 1, 2]), x)[0].shape == (5, width)
        with pytest.raises(IndexRangeError, match=r"index 4 of .* expected -4\.\.3"):
            run(module, found, np.array([0, 4, -4, 1, 2]), x)


def test_what_several_kernels_read_one_tells_of() -> None:
    module, found = lowered(lambda i, x, y: (x[i], y[i] + 1), (integers(5), torch.zeros(4, 6), torch.zeros(4, 70)))
    assert kept(found) == [True] and launches(found) == 2
    x, y = np.ones((4, 6), np.float32), np.ones((4, 70), np.float32)
    assert (run(module, found, np.array([0, 3, -4, 1, 2]), x, y)[1] == 2).all()
    with pytest.raises(IndexRangeError, match="index -5 of"):
        run(module, found, np.array([0, 3, -5, 1, 2]), x, y)


def test_two_checks_of_one_kernel_are_asked_in_their_order() -> None:
    module, found = lowered(lambda i, j, x: x[i, j], (integers(5), integers(5), torch.zeros(4, 6)))
    assert kept(found) == [True, True] and launches(found) == 1
    good, x = np.array([0, 3, -4, 1, 2]), np.ones((4, 6), np.float32)
    run(module, found, good, good, x)
    with pytest.raises(IndexRangeError, match=r"index 5 of .* expected -6\.\.5|index 6 of .* expected -6\.\.5"):
        run(module, found, good, good + 3, x)
    with pytest.raises(IndexRangeError, match=r"index 6 of .* expected -4\.\.3"):
        run(module, found, good + 3, good + 3, x)


def test_a_kernel_that_divides_tells_of_a_divisor_that_is_0() -> None:
    module, found = lowered(lambda x, y: x // y, (integers(700), integers(700)))
    assert kept(found) == [True] and launches(found) == 1
    x = np.arange(700) - 350
    y = np.where(x == 0, 7, x)[::-1].copy()
    np.testing.assert_array_equal(run(module, found, x, y)[0], x // y)
    y[698] = 0
    with pytest.raises(ZeroDivisorError, match="divides integers by 0"):
        run(module, found, x, y)


@pytest.mark.parametrize("name", ["rows", "along", "in a norm"])
def test_the_text_for_triton_tells_the_same(name: str) -> None:
    function, inputs, sizes, limit, _ = CASES[name]
    module, found = lowered(function, inputs, sizes)
    generator = np.random.default_rng(3)
    indices, x = generator.integers(0, limit, inputs[0].shape), generator.standard_normal(inputs[1].shape).astype(np.float32)
    (answer,) = run_in_triton(module, found, (indices, x), {})
    np.testing.assert_allclose(answer, function(torch.from_numpy(indices), torch.from_numpy(x)), rtol=2e-5, atol=1e-5)
    for wrong in (limit, -limit - 1):
        indices.reshape(-1)[-1] = wrong
        with pytest.raises(AssertionError, match=str(wrong)):
            run_in_triton(module, found, (indices, x), {})


def test_the_larger_of_two_numbers_is_that_of_the_worse_index() -> None:
    """An index that is too large comes before one that is too small, and of these the smallest."""
    ordered = [MOST, 7, 0, LEAST + 1, -(2**40), -6, -1]
    raised = [index if index >= 0 else IN_RANGE - index for index in ordered]
    assert raised == sorted(raised, reverse=True) and IN_RANGE < min(raised) and max(raised) <= MOST
    assert [told(number) for number in (*raised, IN_RANGE)] == [*ordered, IN_RANGE]


def test_before_a_state_is_written_every_check_is_read() -> None:
    """Rows that are looked up are told of by their kernel; where rows are put a launch looks before they are written."""

    class Keeping(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", torch.zeros(16, 8))
            self.table = torch.nn.Parameter(torch.ones(50, 8))

        def forward(self, ids: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
            found = torch.nn.functional.embedding(ids, self.table)
            self.rows.index_copy_(0, places, found)  # type: ignore[operator]
            return found * 2

    program = torch.export.export(Keeping().eval(), (integers(4), torch.arange(4)))
    options = build_options({"targets": ["sm_90a"]})
    module = import_exported(program, options)
    simplify(module, options)
    found = CudaBackend().lower(module, gpu_target("sm_90a"))
    assert sorted(kept(found)) == [False, True]
    checks = [number for number, step in enumerate(found.plan.steps) if isinstance(step, Check)]
    assert max(checks) < found.plan.first_write < len(found.plan.steps)
