"""What the graphs of one model share: packed weights by content, engines by program; nothing where content or program differ."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ourcc.compiler.torch import backend
from ourcc.compiler.torch.sharing import FrozenOnGpu, KeptEngines, PackedWeights, Watched, admit_ones, packed_weights
from ourcc.ir import dims
from ourcc.ir.graph import ConstantData, Module
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.verify import verify
from ourcc.runtime.weights import Constant

from ..torch_models import Attention, check, compiled, load, mlp

pytestmark = pytest.mark.usefixtures("fresh")


@torch.no_grad()
def test_graphs_of_one_model_share_packed_weights(graphs: list[backend.CompiledGraph], pool: PackedWeights) -> None:
    model = mlp()
    check(model, torch.randn(3, 12))
    compiled(lambda x: model(x).exp())(torch.randn(3, 12))
    engines = [graph.build.engine for graph in graphs if graph.build]
    held = [{c.data.ctypes.data for group in engine.contents.weights.values() for c in group.values()} for engine in engines if engine]
    assert held[0] == held[1] and len(held[0]) == 4 and engines[0] is not engines[1]
    assert len(pool) == 2  # biases are read where the parameters lie


def test_shared_weights_end_with_their_graphs(graphs: list[backend.CompiledGraph], pool: PackedWeights) -> None:
    check(mlp(), torch.randn(3, 12))
    assert len(pool) == 2
    torch._dynamo.reset()
    graphs.clear()
    gc.collect()
    assert len(pool) == 0


def test_weights_that_lie_in_a_parameter_are_not_shared_by_content(graphs: list[backend.CompiledGraph]) -> None:
    """Two models with equal biases; one changes where it lies."""
    first, second = nn.Linear(6, 4), nn.Sequential(nn.Linear(6, 4), nn.ReLU())
    second[0].load_state_dict(first.state_dict())
    x = torch.randn(3, 6)
    fast = [check(model, x) for model in (first, second)]
    load(first)
    for model, call in zip((first, second), fast, strict=True):
        check(model, x, fast=call)
    assert [graph.builds for graph in graphs] == [2, 1]


# --- engines ----------------------------------------------------------------------------------------------------------


def test_a_graph_of_size_one_runs_the_engine_of_all_sizes(graphs: list[backend.CompiledGraph], engines: KeptEngines) -> None:
    model = Attention().eval()
    fast = compiled(model, dynamic=True)
    for batch in (3, 1, 5, 1):
        check(model, torch.randn(batch, 6, 32), fast=fast)
    assert [graph.is_shared for graph in graphs] == [False, True]
    assert graphs[0].engine is graphs[1].engine and len(engines) == 1
    assert graphs[1].imported is not None and graphs[1].imported.module.main.inputs[0].shape[0] == 1


def test_a_shared_engine_is_left_when_parameters_change(graphs: list[backend.CompiledGraph], engines: KeptEngines) -> None:
    """A bias is read where it lies: both graphs must notice, whichever runs first."""
    model = mlp()
    fast = compiled(model, dynamic=True)
    for batch in (3, 1):
        check(model, torch.randn(batch, 12), fast=fast)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for order in ((1, 3), (3, 1)):
        model(torch.randn(4, 12)).square().sum().backward()
        optimizer.step()
        for batch in order:
            check(model, torch.randn(batch, 12), fast=fast)
    # Size 1 first: its engine serves no other size. The other way round it is shared again.
    assert [graph.builds for graph in graphs] == [3, 3]
    assert [graph.is_shared for graph in graphs] == [False, True] and len(engines) == 1


def test_engines_of_other_weights_are_not_shared(graphs: list[backend.CompiledGraph], engines: KeptEngines) -> None:
    """Torch lets one graph serve both modules."""
    models = [mlp(), mlp()]
    for model in models:
        check(model, torch.randn(3, 12))
        assert not graphs[-1].is_shared
    assert sum(graph.builds for graph in graphs) == 2 and len(engines) == 2


def test_a_write_that_torch_cannot_see_is_not_shared(graphs: list[backend.CompiledGraph], engines: KeptEngines) -> None:
    """The same place and version, other values: the digests differ."""
    model = mlp()
    fast = compiled(model, dynamic=True)
    check(model, torch.randn(3, 12), fast=fast)
    model[0].weight.data.add_(1)
    check(model, torch.randn(1, 12), fast=fast)
    assert [graph.is_shared for graph in graphs] == [False, False] and len(engines) == 2


def test_engines_of_equal_weights_elsewhere_are_not_shared(graphs: list[backend.CompiledGraph], engines: KeptEngines) -> None:
    """The first engine reads a bias where it lies; what changes there is none of the second model's business."""
    first = mlp()
    second = copy.deepcopy(first)
    fast = [check(model, torch.randn(3, 12)) for model in (first, second)]
    load(first[0])
    for model, call in zip((first, second), fast, strict=True):
        check(model, torch.randn(3, 12), fast=call)
    assert not any(graph.is_shared for graph in graphs)


def test_other_programs_options_and_calls_are_not_shared(graphs: list[backend.CompiledGraph], engines: KeptEngines) -> None:
    x = torch.randn(3, 4)
    check(lambda x: x.tanh() + 1, x)
    check(lambda x: x.tanh() + 2, x)
    check(lambda x: x.tanh() + 1, x, threads=1)
    check(lambda x: torch.linalg.svdvals(x + 1), x)
    check(lambda x: torch.linalg.svdvals(x + 1), x)
    assert [graph.is_shared for graph in graphs] == [False] * 5 and len(engines) == 3
    check(lambda y: y.tanh() + 1, x)
    assert graphs[-1].is_shared


def test_a_promise_is_held_by_a_graph_that_shares(engines: KeptEngines, graphs: list[backend.CompiledGraph]) -> None:
    """Options are part of the program: an engine made without a promise does not keep it for another graph."""
    x = torch.randn(3, 4)
    check(lambda x: x.tanh() + 1, x, require=["no-fallback"])
    check(lambda x: x.tanh() + 1, x, require=["no-fallback"])
    assert [graph.is_shared for graph in graphs] == [False, True]
    with pytest.raises(Exception, match="no-fallback"):
        compiled(lambda x: torch.linalg.svdvals(x + 1), require=["no-fallback"])(x)


def test_an_engine_ends_with_its_graphs(graphs: list[backend.CompiledGraph], engines: KeptEngines) -> None:
    check(torch.tanh, torch.randn(3))
    assert len(engines) == 1
    torch._dynamo.reset()
    graphs.clear()
    gc.collect()
    assert len(engines) == 0


def module(symbols: str, size: str) -> Module:
    body = f"  func @main(%x: f32[{size}, 4]) -> f32[{size}, 4] {{\n    %y = tanh(%x) : f32[{size}, 4]\n    return %y\n  }}\n"
    return parse_module(f"module @m{symbols} {{\n{body}}}\n")


def test_a_symbol_may_be_one_where_the_program_verifies() -> None:
    general = module(" symbols { B in 2..8 }", "B")
    admit_ones(general)
    assert general.facts.ranges["B"] == dims.Range(1, 8)
    for kept in (" symbols { B in 3..8 }", " symbols { B in 2..8 divisor 2 }"):
        other = module(kept, "B")
        before = other.facts
        admit_ones(other)
        assert other.facts == before


def test_a_symbol_stays_where_one_would_break_the_program() -> None:
    """A symbol of 2..2 is 2, and the program says so."""
    text = "module @m symbols { B in 2..2 } {\n  func @main(%x: f32[B]) -> f32[2] {\n    %y = tanh(%x) : f32[2]\n    return %y\n  }\n}\n"
    fixed = parse_module(text)
    verify(fixed)
    admit_ones(fixed)
    assert fixed.facts.ranges["B"] == dims.Range(2, 2)


# --- parameters on a GPU ----------------------------------------------------------------------------------------------


class OnGpu:
    """A tensor of this process that says it is on a GPU, and counts its copies to the host."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.copies = tensor, 0
        self.device = torch.device("cuda", 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)

    def detach(self) -> OnGpu:
        return self

    resolve_conj = resolve_neg = detach

    def cpu(self) -> torch.Tensor:
        self.copies += 1
        return self.tensor.clone()


def test_a_frozen_parameter_on_a_gpu_is_once_in_memory() -> None:
    """Of what a build reads of it the host keeps nothing: the constant is torch's own memory, and a copy is made when asked for."""
    places = [torch.randn(4096 + 64) for _ in range(3)]
    whole, _, changed = (place[-place.data_ptr() % 256 // 4 :][:4096].view(64, 64) for place in places)
    odd = places[1][-places[1].data_ptr() % 256 // 4 + 1 :][:4032].view(63, 64)
    tensors = [OnGpu(each) for each in (whole, odd, changed)]
    module = Module("m")
    datas = [ConstantData(each.cpu().numpy()) for each in tensors]
    for n, data in enumerate(datas):
        module.add_constant(f"w{n}", data, None)
    watched = [Watched(n, each) for n, each in enumerate(tensors)]
    frozen = FrozenOnGpu(module, watched, {n: data.digest for n, data in enumerate(datas)})
    given = [Constant.of(datas[0].array), Constant.of(datas[1].array), Constant.of(datas[2].array * 2)]
    lying = [packed_weights().share(frozen.lying(constant), watched) for constant in given]
    assert [constant.on_gpu(1) for constant in lying] == [whole.data_ptr(), None, None]
    assert lying[0].on_gpu(0) is None and lying[0].nbytes == whole.nbytes and lying[0].type == given[0].type
    assert [each.copies for each in tensors] == [1, 1, 1], "the build's own"
    held = weakref.ref(datas[0].array)
    del module, datas, given
    gc.collect()
    assert held() is None, "the host's copy is still held"
    for _ in range(2):
        assert np.array_equal(lying[0].array(), whole.numpy())
    assert tensors[0].copies == 2
