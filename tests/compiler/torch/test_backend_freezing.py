"""Frozen parameters under torch.compile: a change is seen, modules that share a graph take turns, what is written stays unfrozen."""

from __future__ import annotations

import copy
import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from ourcc.compiler.torch import backend

from ..torch_models import agree, check, compiled, conv_net, load, mlp

pytestmark = pytest.mark.usefixtures("fresh")


def step(model: nn.Linear) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with torch.enable_grad():
        model(torch.randn(3, 6)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def assign(model: nn.Linear) -> None:
    model.weight.data = torch.randn_like(model.weight)


def replace(model: nn.Linear) -> None:
    model.weight = nn.Parameter(torch.randn_like(model.weight))


def add(model: nn.Linear) -> None:
    model.weight.add_(1)


CHANGES = {"load_state_dict": load, "optimizer": step, "data": assign, "replaced": replace, "in place": add}


@pytest.mark.parametrize("freeze", [True, False], ids=["frozen", "read as they lie"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_parameter_is_seen(change: str, freeze: bool, graphs: list[backend.CompiledGraph]) -> None:
    model, x = nn.Linear(6, 4), torch.randn(3, 6)
    fast = check(model, x, freeze=freeze)
    with torch.no_grad():
        CHANGES[change](model)
    check(model, x, fast=fast)
    check(model, x, fast=fast)
    assert len(graphs) == 1
    assert graphs[0].builds == (2 if freeze else 1)


def test_without_freezing_writes_through_data_are_seen() -> None:
    model, x = nn.Linear(6, 4), torch.randn(3, 6)
    fast = check(model, x, freeze=False)
    model.weight.data.add_(1)
    check(model, x, fast=fast)


def test_parameters_that_change_all_the_time_are_read_where_they_lie(graphs: list[backend.CompiledGraph]) -> None:
    model, x = nn.Linear(6, 4), torch.randn(3, 6)
    fast = check(model, x)
    for _ in range(backend.REPACKS + 4):
        load(model)
        check(model, x, fast=fast)
    assert graphs[0].builds == backend.REPACKS + 2
    assert graphs[0].build is not None
    assert graphs[0].build.watched == ()


def test_modules_that_take_turns_are_packed_once_each(graphs: list[backend.CompiledGraph]) -> None:
    """One graph serves layers of one kind; each keeps its packed parameters."""
    layers = [nn.Linear(6, 4) for _ in range(3)]
    fast = [compiled(layer) for layer in layers]
    for _ in range(3):
        for layer, call in zip(layers, fast, strict=True):
            check(layer, torch.randn(3, 6), fast=call)
    assert len(graphs) == 1 and graphs[0].builds == 3
    load(layers[1])
    for layer, call in zip(layers, fast, strict=True):
        check(layer, torch.randn(3, 6), fast=call)
    assert graphs[0].builds == 4 and len(graphs[0].others) == 2


def test_parameters_that_are_gone_are_not_kept(graphs: list[backend.CompiledGraph]) -> None:
    model, x = nn.Linear(6, 4), torch.randn(3, 6)
    fast = check(model, x)
    for change in CHANGES.values():
        with torch.no_grad():
            change(model)
        gc.collect()
        check(model, x, fast=fast)
        assert graphs[0].others == ()


def test_buffers_that_a_graph_writes_are_not_frozen(graphs: list[backend.CompiledGraph]) -> None:
    model = conv_net().train()
    eager = copy.deepcopy(model)
    fast = compiled(model)
    for seed in range(3):
        x = torch.randn(4, 3, 17, 17, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            wide = copy.deepcopy(eager).double()
            agree(fast(x), eager(x), wide(x.double()))
        states = (list(m.state_dict().values()) for m in (model, eager, wide))
        agree(*states)
    assert [graph.builds for graph in graphs] == [1]
    check(model.eval(), x)


def test_tied_parameters() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    fast = check(model, torch.randn(2, 6))
    with torch.no_grad():
        model[0].weight.mul_(-1)
    check(model, torch.randn(2, 6), fast=fast)


def test_threads_that_call_at_once_compile_once(graphs: list[backend.CompiledGraph]) -> None:
    model, x = mlp(), torch.randn(7, 12)
    fast = check(model, x)
    load(model[0])

    def call(_: int) -> torch.Tensor:
        # Whether gradients are on is each thread's own.
        with torch.no_grad():
            return fast(x)

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(call, range(8)))
    assert len(graphs) == 1 and graphs[0].builds == 2
    assert all(torch.equal(answer, answers[0]) for answer in answers)
    check(model, x, fast=fast)


@pytest.mark.parametrize("made_under", [True, False], ids=["made under inference_mode", "called under inference_mode"])
def test_inference_mode(made_under: bool, graphs: list[backend.CompiledGraph]) -> None:
    """Torch counts no writes to tensors made under it: they are read where they lie, and so never stale."""
    with torch.inference_mode(made_under):
        model = nn.Linear(6, 4)
    x = torch.randn(3, 6)
    fast = compiled(model)
    with torch.inference_mode():
        for _ in range(2):
            agree(fast(x), model(x), copy.deepcopy(model).double()(x.double()))
            add(model)
    (graph,) = graphs
    assert bool(graph.build and graph.build.watched) is not made_under
