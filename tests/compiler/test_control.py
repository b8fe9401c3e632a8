"""torch.cond and while_loop by both roads: the data decide, and the engine runs its own functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan_op
from torch._higher_order_ops.scan import scan

import ourcc
from ourcc.compiler.backends.built import pack
from ourcc.compiler.importers.torch.export import import_exported
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import lower, simplify
from ourcc.compiler.targets.registry import TARGETS
from ourcc.compiler.torch import backend
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import interpret
from ourcc.ir.graph.text import module_text
from ourcc.ir.graph.verify import verify
from ourcc.ir.plan.interpret import run_plan

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


def running(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Two values carried, two run over, one read from around, backwards over the second axis."""

    def step(held: tuple[torch.Tensor, ...], rows: tuple[torch.Tensor, ...]) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        total, most = held[0] + rows[0] * n, torch.maximum(held[1], rows[1])
        return (total, most), (total - most, rows[0].sum().reshape(1) + most[:1])

    start = (x.sum(1) * 0, x.sum(1) - 1)
    held, rows = scan(step, start, (x, x * 2), dim=1, reverse=True)
    return rows[0].sum(0) + held[0].sum() + held[1].sum() + rows[1].sum()


def scanned_branch(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """A scan inside a branch, and a loop inside the scan."""

    def step(held: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        after = torch.cond(row.sum() > 0, lambda h, r: h + r, lambda h, r: h * 0.5 - r, (held, row))
        return after, after * 2

    def rows(x: torch.Tensor) -> torch.Tensor:
        return scan(step, x[0] * 0.5, x)[1]

    return torch.cond(n > 1, rows, lambda x: x.sin(), (x,))


def mapped(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return torch._higher_order_ops.map(lambda row, n: row.sin() * n + row.sum(), x, n)


def associated(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Affine functions one after the other; the public function takes this op only on a GPU and is plain ops elsewhere."""

    def compose(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> list[torch.Tensor]:
        return [a * c, c * b + d]

    slopes, offsets = associative_scan_op(compose, [x, x * 2], ())
    return slopes + offsets * n


PROGRAMS: tuple[Program, ...] = (either, nested, rounds, sized, running, scanned_branch, mapped, associated)


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
    module, plain = import_exported(exported), import_exported(exported)
    verify(module)
    assert module_text(parse_module(module_text(module))) == module_text(module)
    simplify(plain, build_options({}))
    lowered = lower(plain, TARGETS["cpu"])
    constants = {key: pack(held, plain) for key, held in lowered.constants.items()}
    with torch.no_grad():
        for x, n in (*inputs(4), *inputs(1), *inputs(9)):
            arrays, expected = [x.numpy(), n.numpy()], model(x, n)
            planned = run_plan(lowered.plan, lowered.kernels, constants, arrays, functions=lowered.plans)
            for got in (engine(x, n), *interpret(module, arrays), *interpret(module, arrays, wide=True), *planned):
                assert torch.allclose(torch.as_tensor(got).to(expected.dtype), expected, atol=1e-5)
