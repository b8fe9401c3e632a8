"""Drawn torch programs under torch.compile answer as `aot_eager` does: values, shared memory, mutations, gradients, errors."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ourcc.compiler.importers.torch.refusals import NO_KERNEL
from ourcc.compiler.torch import backend

Function = Callable[..., Any]

SHARE = 10
"""One drawn program for so many of `--cases`: each is compiled twice."""

POINTWISE: dict[str, Function] = {
    "sin": torch.sin,
    "double": lambda x: x * 2,
    "relu": torch.relu,
    "clone": torch.clone,
    "plus 0": lambda x: x + 0,
    "row sums": lambda x: x.sum(-1, keepdim=True),
    "softmax": lambda x: x.softmax(0),
    "dropout": lambda x: F.dropout(x, 0.4),
    "bool": lambda x: x > 0,
}
DTYPES: dict[str, Function] = {
    "whole": lambda x: x.sign().to(torch.int32),
    "bytes": lambda x: (x > 0).to(torch.uint8),
    "half": lambda x: x.sign().half(),
    "wide": torch.Tensor.double,
    "places": lambda x: x.argmax(-1, keepdim=True),
    "rest of 1": lambda x: 1 - x,
    "power": lambda x: x**2,
    "product": lambda x: x @ x.float().transpose(0, 1),
    "clamp": lambda x: x.clamp(0, 1),
    "gates": lambda x: F.glu(x[:, :2]),
}
VIEWS: dict[str, Function] = {
    "t": lambda x: x.transpose(0, -1),
    "rest": lambda x: x[1:],
    "first": lambda x: x[:1],
    "steps": lambda x: x[..., ::2],
    "flat": lambda x: x.reshape(-1, 1),
    "unsqueeze": lambda x: x.unsqueeze(1).squeeze(1),
    "expand": lambda x: x[:, :1].expand(-1, 3),
    "narrow": lambda x: x.narrow(0, 0, 1),
    "detach": torch.detach,
    "alias": lambda x: x.view_as(x),
    "diagonal": lambda x: x.diagonal().unsqueeze(0),
    "halves": lambda x: x.chunk(2)[-1],
    "split": lambda x: x.split(1)[0],
    "strided": lambda x: x.as_strided((2, 1), (1, 1)),
    "contiguous": torch.Tensor.contiguous,
}
BINARY: dict[str, Function] = {
    "add": lambda x, y: x.sum() + y,
    # What is taken does not hang on the last digit of a sum.
    "where": lambda x, y: torch.where(torch.arange(y.numel()).reshape(y.shape) % 2 == 0, y, x.mean()),
    "product": lambda x, y: x @ x.transpose(0, 1) * y.sum(),
    "difference": lambda x, y: x.sum() - y,
    # Torch does not say so where there is no row to add to: then none is added.
    "rows": lambda x, y: x.index_add(0, torch.zeros(len(x[:1]), dtype=torch.int64), y[: len(x[:1]), :1].expand(len(x[:1]), x.shape[1])),
}


def in_place(x: torch.Tensor) -> torch.Tensor:
    """Write to a tensor that may be a view; a leaf of autograd is written as its detached self."""
    return x.detach().mul_(1.5) if x.is_floating_point() and 0 not in x.stride() else x


def autocast(x: torch.Tensor) -> torch.Tensor:
    """A product and a norm with float32 weights at bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        product = x.float() @ x.float().transpose(0, 1)
        if product.shape[-1] < 2:
            return product  # less its mean it is the noise of that mean
        return F.layer_norm(product, product.shape[-1:], product.new_ones(product.shape[-1], dtype=torch.float32))


def silent(x: torch.Tensor) -> torch.Tensor:
    """Something that gradients do not pass."""
    with torch.no_grad():
        return x * 3


OTHERS: dict[str, Function] = {"in place": in_place, "autocast": autocast, "silent": silent}
KINDS = ((POINTWISE, 4), (VIEWS, 6), (BINARY, 2), (OTHERS, 2), (DTYPES, 1))


@dataclass(frozen=True)
class Step:
    """One operator and the values that it reads."""

    name: str
    function: Function
    reads: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """Steps, and which values are returned (some of them twice)."""

    steps: tuple[Step, ...]
    returned: tuple[int, ...]
    gradients: tuple[bool, ...]

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(inputs)
        for step in self.steps:
            values.append(step.function(*(values[place] for place in step.reads)))
        return tuple(values[place] for place in self.returned)

    def __str__(self) -> str:
        lines = [f"v{n + 2} = {step.name}({', '.join(f'v{place}' for place in step.reads)})" for n, step in enumerate(self.steps)]
        return "\n".join([*lines, f"return {', '.join(f'v{place}' for place in self.returned)}  # gradients {self.gradients}"])


def draw(seed: int) -> Program:
    """A program of two inputs."""
    chance = random.Random(seed)
    steps: list[Step] = []
    for number in range(chance.randint(3, 8)):
        # What is computed comes first: views of inputs are AOTAutograd's own affair.
        kind = POINTWISE if number == 0 else chance.choices([kind for kind, _ in KINDS], [weight for _, weight in KINDS])[0]
        name = chance.choice(sorted(kind))
        known = len(steps) + 2
        # Late values are read more often, so that views of views come about.
        reads = tuple(max(chance.randrange(known), chance.randrange(known)) for _ in range(2 if kind is BINARY else 1))
        steps.append(Step(name, kind[name], reads))
    count = len(steps) + 2
    returned = tuple(max(chance.randrange(count), chance.randrange(count)) for _ in range(chance.randint(2, 6)))
    return Program(tuple(steps), returned, (chance.random() < 0.25, chance.random() < 0.15))


def inputs_of(program: Program) -> list[torch.Tensor]:
    torch.manual_seed(5)
    return [torch.randn(4, 4).requires_grad_(wanted) for wanted in program.gradients]


def sharing(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Which tensors share memory or are one object, and how they lie in it; alone, a tensor's place is nobody's business."""
    # Nobody can write what has no elements: whether two such are one is a matter of a kernel's shortcuts.
    tensors = [tensor if tensor.numel() else torch.empty(tensor.shape) for tensor in tensors]
    storages = [tensor.untyped_storage()._cdata for tensor in tensors]
    first = {id(tensor): number for number, tensor in reversed(list(enumerate(tensors)))}
    members = [len({id(tensor) for tensor, other in zip(tensors, storages, strict=True) if other == place}) for place in storages]
    return [
        (storages.index(place), first[id(tensor)], strides(tensor), tensor.storage_offset() if count > 1 else 0)
        for tensor, place, count in zip(tensors, storages, members, strict=True)
    ]


def strides(tensor: torch.Tensor) -> list[int | None]:
    """Strides of the axes that have any: nobody steps along one of a single element, and torch compares none."""
    return [stride if size > 1 else None for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]


def observe(program: Program, compiler: Any) -> dict[str, Any]:
    """All that can be seen of a compiled program, called twice; or the kind of its error."""
    torch._dynamo.reset()
    run = torch.compile(program, backend=compiler)
    seen: dict[str, Any] = {}
    for call in ("first", "second"):
        inputs = inputs_of(program)
        try:
            outputs = run(*inputs)
        except RuntimeError as error:
            return {"error": NO_KERNEL if NO_KERNEL in str(error) else type(error).__name__}
        seen[f"{call} values"] = [output.detach().clone() for output in outputs]
        seen[f"{call} sharing"] = sharing([*outputs, *inputs])
        seen[f"{call} gradients wanted"] = [output.requires_grad for output in outputs]
        losses = [output.float().pow(2).sum() for output in outputs if output.requires_grad]
        if losses:
            wanted = [value for value in inputs if value.requires_grad]
            seen[f"{call} gradients"] = torch.autograd.grad(sum(losses), wanted, allow_unused=True)
        seen[f"{call} written"] = [written(output, [*outputs, *inputs]) for output in outputs]
    return seen


def written(output: torch.Tensor, others: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """All tensors after a write to one of them."""
    if 0 not in output.stride():
        output.detach().fill_(7)
    return [other.detach().clone() for other in others]


def difference(name: str, expected: Any, found: Any) -> str | None:
    """What differs, in words."""
    if isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor):
        if (expected.dtype, expected.shape) != (found.dtype, found.shape):
            return f"{name}: {found.dtype} {tuple(found.shape)}, expected {expected.dtype} {tuple(expected.shape)}"
        near = torch.isclose(found.double(), expected.double(), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
        return None if near.all() else f"{name}: {found}, expected {expected}"
    if isinstance(expected, (list, tuple)) and isinstance(found, (list, tuple)) and len(expected) == len(found):
        parts = (difference(f"{name}[{n}]", *pair) for n, pair in enumerate(zip(expected, found, strict=True)))
        return next((part for part in parts if part is not None), None)
    return None if expected == found else f"{name}: {found}, expected {expected}"


TOLERANCE = 0.05
"""Values only have to tell one program from another (bfloat16 is among them); how near they must be is judged elsewhere."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        first = metafunc.config.getoption("--seed") * 1_000_000
        count = max(1, metafunc.config.getoption("--cases") // SHARE)
        metafunc.parametrize("seed", range(first, first + count))


@pytest.mark.filterwarnings("ignore:.*resize.*:UserWarning")
def test_a_drawn_program_answers_as_aot_eager_does(seed: int) -> None:
    program = draw(seed)
    expected, found = observe(program, "aot_eager"), observe(program, backend.ourcc)
    if expected.get("error") == NO_KERNEL:
        return  # torch merely lacks a kernel for a dtype: what a compiler computes there nobody contradicts
    assert expected.keys() == found.keys(), f"{program}\ngot {found.keys()}, expected {expected.keys()}"
    wrong = [text for name in expected if (text := difference(name, expected[name], found[name])) is not None]
    assert not wrong, f"{program}\n" + "\n".join(wrong)
