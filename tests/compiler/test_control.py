"""torch.cond and while_loop by both roads: the data decide, and the engine runs its own functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import ourcc
from ourcc.compiler import backend

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def either(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin() + n, lambda x: x.cos(), (x,)) * 2


def nested(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    def small(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(n.sum() > 2, lambda x: x - n, lambda x: x * n, (x,))

    return torch.cond(x.max() < 0.5, small, lambda x: x.flip(0).contiguous(), (x,))


def rounds(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    start = (torch.zeros((), dtype=torch.int64), x.clone())
    count, value = torch._higher_order_ops.while_loop(lambda i, v: i < n, lambda i, v: (i + 1, v * 0.5 + x), start)
    return value + count


def sized(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """The size of an input is a number inside."""
    return torch.cond(n.sum() > 1, lambda x: x * x.shape[0], lambda x: x + x.shape[0] * 2, (x,))


PROGRAMS: tuple[Program, ...] = (either, nested, rounds, sized)


class Model(torch.nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.weight = torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return self.program(x * self.weight, n)


def inputs(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(count)
    return [(sign * torch.rand(count, 3), torch.tensor(number)) for number in (0, 1, 5) for sign in (1, -1)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_compiled(program: Program, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Any] = []
    made = backend.CompiledGraph.__init__

    def noted(self: Any, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        graphs.append(self)

    monkeypatch.setattr(backend.CompiledGraph, "__init__", noted)
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="ourcc", dynamic=dynamic)
    with torch.no_grad():
        for x, n in [*inputs(4), *(inputs(7) if dynamic else [])]:
            assert torch.allclose(compiled(x, n), program(x, n), atol=1e-5)
    plans = [list(graph.engine.contents.best.plans) for graph in graphs if graph.engine is not None]
    assert plans and all(len(names) > 1 for names in plans), "the graph was left to torch"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_exported(program: Program) -> None:
    model = Model(program).eval()
    batch = torch.export.Dim("batch", min=1, max=9)
    exported = torch.export.export(model, inputs(4)[0], dynamic_shapes=({0: batch}, None))
    engine = ourcc.build(exported, targets=["native"], tune="off")
    with torch.no_grad():
        for x, n in (*inputs(4), *inputs(9)):
            assert torch.allclose(engine(x, n), model(x, n), atol=1e-5)
