"""torch.compile of what writes its arguments and buffers: the answers are eager's, and what is dense is written where it lies."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils import _pytree

from ourcc.compiler.torch import backend
from ourcc.ir.plan import Copy, Plan

Program = Callable[..., Any]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are compiled, as they come."""
    found: list[Any] = []
    made = backend.CompiledGraph.__init__

    def noted(self: Any, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        found.append(self)

    monkeypatch.setattr(backend.CompiledGraph, "__init__", noted)
    torch._dynamo.reset()
    return found


def plan_of(graph: Any) -> Plan:
    plan: Plan = graph.engine.contents.best.plans["main"]
    return plan


def moved(plan: Plan) -> list[str]:
    """The types of what is copied."""
    return [str(plan.named[step.target].type) for step in plan.steps if isinstance(step, Copy) and plan.moves(step)]


def same(program: Program, make: Callable[[], Sequence[Any]], **options: Any) -> None:
    """Three calls by both roads on tensors that go on changing: results and arguments are equal."""
    compiled = torch.compile(program, backend="ourcc", **options)
    theirs = list(make())
    ours = [_again(value) for value in theirs]
    with torch.no_grad():
        for _ in range(3):
            expected, got = program(*theirs), compiled(*ours)
            pairs = zip(_pytree.tree_leaves((expected, theirs)), _pytree.tree_leaves((got, ours)), strict=True)
            assert all(torch.allclose(left, right, atol=1e-5) for left, right in pairs)


def _again(value: torch.Tensor) -> torch.Tensor:
    """An equal tensor of the same strides."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


def put_slice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[:, 1:3] = y
    return x.sum()


def append(cache: torch.Tensor, places: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    cache.index_copy_(1, places, rows)
    return (cache * 2).sum(1)


def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    y.add_(x)
    return x + y


def exchange(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    before = x.clone()
    x.copy_(y)
    y.copy_(before)
    return x - y


def through_a_view(x: torch.Tensor) -> torch.Tensor:
    first, second = x[0], x[1]
    first.add_(second)
    return first * 2


def matrix() -> torch.Tensor:
    return torch.randn(3, 4)


@pytest.mark.parametrize(
    ("program", "make"),
    [
        (add_one, lambda: [matrix()]),
        (put_slice, lambda: [matrix(), torch.randn(3, 2)]),
        (append, lambda: [torch.zeros(2, 8, 4), torch.tensor([3, 1]), torch.randn(2, 2, 4)]),
        (both, lambda: [matrix(), matrix()]),
        (both, lambda: [torch.randn(4, 3).t(), matrix()]),
        (both, lambda: [torch.randn(6, 8)[::2, ::2], torch.randn(13)[1:].view(3, 4)]),
        (exchange, lambda: [matrix(), matrix()]),
        (through_a_view, lambda: [matrix()]),
        (through_a_view, lambda: [torch.randn(2, 0)]),
    ],
)
def test_results_and_arguments_are_eagers(program: Program, make: Callable[[], Sequence[Any]], graphs: list[Any]) -> None:
    torch.manual_seed(0)
    same(program, make)
    assert graphs and all(graph.engine is not None for graph in graphs)


def test_sizes_that_vary_are_written_by_a_copy(graphs: list[Any]) -> None:
    torch.manual_seed(0)
    same(both, lambda: [matrix(), matrix()], dynamic=True)
    assert graphs[0].imported.written and not graphs[0].imported.states


def test_one_memory_under_two_names(graphs: list[Any]) -> None:
    def shift(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.copy_(y * 2)

    compiled = torch.compile(shift, backend="ourcc")
    base = torch.arange(8.0)
    with torch.no_grad():
        for first, second in ((base[:4].clone(), base[4:].clone()), (base[:4], base[2:6]), (base[1:5], base[1:5])):
            expected = second * 2
            assert torch.equal(compiled(first, second), expected) and torch.equal(first, expected)


def test_a_slice_and_rows_are_written_where_they_lie(graphs: list[Any]) -> None:
    same(put_slice, lambda: [matrix(), torch.randn(3, 2)])
    same(append, lambda: [torch.zeros(2, 8, 4), torch.tensor([3, 1]), torch.randn(2, 2, 4)])
    assert [moved(plan_of(graph)) for graph in graphs] == [[], []]


def test_torch_knows_what_was_written(graphs: list[Any]) -> None:
    x = matrix()
    compiled = torch.compile(add_one, backend="ourcc")
    with torch.no_grad():
        before = x._version
        compiled(x)
    assert x._version > before


class Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.norm(x) + self.count


def test_buffers_that_a_module_writes(graphs: list[Any]) -> None:
    torch.manual_seed(0)
    eager = Counts().train()
    ours = copy.deepcopy(eager)
    compiled = torch.compile(ours, backend="ourcc")
    with torch.no_grad():
        for step in range(4):
            if step == 2:
                eager.count.zero_()
                ours.count.zero_()
            x = torch.randn(5, 4)
            assert torch.allclose(eager(x), compiled(x), atol=1e-5)
            for theirs, got in zip(eager.buffers(), ours.buffers(), strict=True):
                assert torch.allclose(theirs, got, atol=1e-6)


def test_a_static_cache_is_never_copied(graphs: list[Any]) -> None:
    """A language model of transformers: `generate` gives eager's tokens, and no step moves the cache."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=200,
        max_position_embeddings=128,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(1, 200, (2, 7))

    def generated() -> torch.Tensor:
        with torch.no_grad():
            asked = {"max_new_tokens": 10, "do_sample": False, "cache_implementation": "static", "disable_compile": True}
            tokens: torch.Tensor = model.generate(ids, attention_mask=torch.ones_like(ids), **asked)
            return tokens

    expected = generated()
    model.forward = torch.compile(model.forward, backend="ourcc", dynamic=False)
    assert torch.equal(generated(), expected)
    plans = [plan_of(graph) for graph in graphs if graph.engine is not None]
    assert len(plans) == 2 and all(len(plan.states) == 4 and moved(plan) == [] for plan in plans)
    assert all(not graph.imported.fallbacks for graph in graphs)


SLICES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda t: t[1:3],
    "columns": lambda t: t[:, 1:7:2],
    "flat": lambda t: t.view(-1)[5:9],
    "element": lambda t: t[2, 3],
    "all": lambda t: t,
}


@pytest.mark.parametrize("part", SLICES)
@pytest.mark.parametrize("written", ["first", "second", "both"])
def test_an_argument_that_lies_in_another_one_is_returned_where_it_lies(part: str, written: str) -> None:
    def program(x: torch.Tensor, whole: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if written != "second":
            x.mul_(2)
        if written != "first":
            whole.add_(1)
        return x, whole.sum(), x * 1, whole * 2

    compiled = torch.compile(program, backend="ourcc")
    torch._dynamo.reset()
    ours, theirs = torch.arange(32.0).view(4, 8), torch.arange(32.0).view(4, 8)
    with torch.no_grad():
        got, expected = compiled(SLICES[part](ours), ours), program(SLICES[part](theirs), theirs)
    assert torch.equal(ours, theirs)
    for left, right in zip(got, expected, strict=True):
        assert torch.equal(left, right)
    assert got[0].storage_offset() == expected[0].storage_offset() and got[0].stride() == expected[0].stride()
