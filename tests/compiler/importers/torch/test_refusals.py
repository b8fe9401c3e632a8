"""What torch refuses to run is refused under torch.compile and by `build`; what it merely has no kernel for is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import ourcc
from ourcc.compiler.importers.torch.refusals import LIMIT, NO_KERNEL, refusal
from ourcc.compiler.torch import backend
from ourcc.ir.errors import UnsupportedError

Function = Callable[..., Any]

X = torch.arange(12.0).reshape(3, 4)
BOOLS = X % 3 == 0
WHOLE = X.int()

REFUSED: dict[str, tuple[Function, str]] = {
    "relu of bools": (lambda: torch.relu(BOOLS), "Boolean inputs not supported for relu"),
    "argmax of bools": (lambda: BOOLS.argmax(0), "does not support bool input"),
    "a difference with bools": (lambda: X - BOOLS, "Subtraction, .* with a bool tensor is not supported"),
    "1 - bools": (lambda: 1 - BOOLS, "Subtraction, .* with a bool tensor is not supported"),
    "floats - True": (lambda: X - True, "Subtraction, .* with a bool tensor is not supported"),
    "a factor True": (lambda: torch.add(X, X, alpha=True), "Boolean alpha only supported for Boolean results"),
    "a product of two dtypes": (lambda: X @ X.double().t(), "to have the same dtype"),
    "rows of another dtype": (lambda: X.index_add(0, torch.tensor([1]), X[:1].double()), "must have the same scalar type"),
    "classes in 32 bits": (lambda: F.cross_entropy(X, WHOLE[:, 0]), "expected target dtype to be Long or Byte"),
    "a negative power of integers": (lambda: WHOLE**-1, "Integers to negative integer powers are not allowed"),
    "statistics of another dtype": (lambda: F.batch_norm(X, X[0].double(), X[0].double()), "expected scalar type|mixed dtype"),
    "relu of complex numbers": (lambda: torch.relu(X.to(torch.complex64)), "clamp is not supported for complex types"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses_is_refused(name: str) -> None:
    function, message = REFUSED[name]
    for compiler in ("aot_eager", backend.ourcc):
        torch._dynamo.reset()
        with pytest.raises(RuntimeError, match=message):
            torch.compile(function, backend=compiler)()


class Logits(torch.nn.Module):
    """A step of masks that people write, and torch refuses."""

    def forward(self, mask: torch.Tensor) -> torch.Tensor:
        return (1.0 - mask) * -10000.0


def test_a_build_names_what_torch_refuses() -> None:
    with pytest.raises(UnsupportedError, match="torch refuses it: Subtraction"):
        ourcc.build(Logits(), (BOOLS,), targets=["cpu"])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda: BOOLS.clamp(False, True), BOOLS),
        (lambda: WHOLE.to(torch.uint16) > 3, WHOLE > 3),
        (lambda: torch.relu(X.to(torch.float8_e4m3fn)), X.to(torch.float8_e4m3fn)),
    ],
)
def test_what_torch_has_no_kernel_for_is_computed(function: Function, expected: torch.Tensor) -> None:
    with pytest.raises(NotImplementedError, match=NO_KERNEL):
        function()
    found = torch.compile(function, backend=backend.ourcc)()
    assert found.dtype == expected.dtype and torch.equal(found.float(), expected.float())


def test_a_decomposition_may_refuse_what_torch_computes() -> None:
    """Torch's own decomposition of addcmul takes no float factor of integers; its operator does."""

    def function() -> torch.Tensor:
        return torch.addcmul(WHOLE, WHOLE, WHOLE, value=1.5)

    assert torch.equal(torch.compile(function, backend=backend.ourcc)(), function())


def test_asking_changes_nothing_and_is_bounded() -> None:
    fake = torch._subclasses.FakeTensorMode()
    drawn, large = fake.from_tensor(BOOLS), fake.from_tensor(torch.empty((), dtype=torch.bool).expand(LIMIT + 1))
    state = torch.get_rng_state()
    assert refusal(torch.ops.aten.bernoulli.default, (drawn,), {}) is None
    assert torch.equal(torch.get_rng_state(), state)
    assert refusal(torch.ops.aten.relu.default, (large,), {}) is None
    assert refusal(torch.ops.aten.relu.default, (drawn,), {}) == "Boolean inputs not supported for relu"
