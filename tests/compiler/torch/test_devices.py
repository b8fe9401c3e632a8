"""Where the tensors of graphs lie: fake tensors say that they are on a GPU, which this machine need not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ourcc.compiler.options import build_options
from ourcc.compiler.torch import backend
from ourcc.compiler.torch.backend import CompiledGraph
from ourcc.compiler.torch.devices import device_target, devices_of, expect_writable, on_device, with_target
from ourcc.ir.errors import UnsupportedError

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def traced(function: Callable[..., Any], *places: str) -> tuple[Any, list[Any]]:
    """A graph of a function of matrices that are there, and these."""
    with FakeTensorMode():
        fakes = [torch.empty(3, 4, device=place) for place in places]
        return make_fx(function)(*fakes), fakes


def graph(function: Callable[..., Any], *places: str) -> CompiledGraph:
    module, fakes = traced(function, *places)
    return CompiledGraph(module, fakes, options=build_options({"tune": "off"}), is_inference=True, by_device=True)


def says(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], name: str) -> None:
    """Let torch's driver tell of a GPU."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, (9, 0), "NVIDIA Hopper")


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("function", "places", "target"),
    [
        (lambda x: x + 1, ["cpu"], "native"),
        (lambda x: x + 1, ["cuda"], "sm_90a"),
        (lambda x: torch.ops.aten._to_copy(x, device=GPU) + 1, ["cpu"], "sm_90a"),
        (lambda x: torch.ops.aten._to_copy(x, device=CPU) + 1, ["cuda"], "sm_90a"),
        (lambda: torch.ones(3, device="cuda") * 2, [], "sm_90a"),
        (lambda: torch.arange(3) * 2, [], "native"),
        (lambda x: torch.ones(4, device="cuda"), ["cpu"], "sm_90a"),
        (lambda x: (torch.ones(4, device="cuda").sum(), x.max(0)), ["cpu"], "sm_90a"),
    ],
)
def test_a_graph_is_compiled_for_the_gpu_that_any_of_its_tensors_is_on(function: Any, places: list[str], target: str) -> None:
    made = graph(function, *places)
    assert made.refused is None and [each.name for each in made.options.targets] == [target]


@pytest.mark.usefixtures("hopper")
def test_constants_have_devices_too() -> None:
    module, _ = traced(lambda x: x + 1, "cpu")
    with module.graph.inserting_before():
        module.register_buffer("table", torch.zeros(3, 4, device="meta"))
        module.graph.get_attr("table")
    assert devices_of(module, []) == (torch.device("meta"), CPU)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([torch.device("meta"), CPU], "tensors are on cpu, meta, expected cpu or cuda"),
        ([GPU, torch.device("cuda", 1)], "tensors of one graph are on cuda:0, cuda:1, expected one GPU"),
    ],
)
def test_graphs_of_several_devices_are_refused(found: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        with_target(build_options({}), found)


def test_a_graph_that_is_refused_says_so() -> None:
    made = graph(lambda x: x + 1, "meta")
    assert made.refused is not None and "expected cpu or cuda" in made.refused.message


@pytest.mark.parametrize(
    ("capability", "name", "target"),
    [
        ((9, 0), "NVIDIA H100 80GB HBM3", "h100"),
        ((9, 0), "NVIDIA H200", "h200"),
        ((9, 0), "NVIDIA GH200 480GB", "sm_90a"),
        ((10, 0), "NVIDIA B200", "b200"),
        ((10, 3), "NVIDIA B300 SXM6 AC", "b300"),
        ((10, 3), "NVIDIA GB300", "sm_103a"),
        ((12, 0), "NVIDIA GeForce RTX 5090", "sm_120a"),
        ((8, 0), "NVIDIA A100", None),
    ],
)
def test_the_target_of_a_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], name: str, target: str | None) -> None:
    says(monkeypatch, capability, name)
    if target is not None:
        assert device_target(GPU).name == target
        return
    with pytest.raises(UnsupportedError, match="cuda:0 has architecture sm_80, expected one of sm_90a, sm_100a, sm_103a, sm_120a"):
        device_target(GPU)


def test_answers_are_brought_to_where_torch_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine here is the CPU's; what brings an answer to the GPU is seen, and does nothing."""
    brought: list[Any] = []

    def seen(tensor: Any, device: Any) -> Any:
        brought.append(device)
        return tensor

    monkeypatch.setattr(backend, "on_device", seen)
    module, fakes = traced(lambda x: (torch.ops.aten._to_copy(x, device=GPU) + 1, x * 2, torch.ones(2, device="cuda")), "cpu")
    made = CompiledGraph(module, fakes, options=build_options({"target": "native", "tune": "off"}), is_inference=True)
    x = torch.randn(3, 4)
    moved, stays, ones = made(x)
    assert torch.equal(moved, x + 1) and torch.equal(stays, x * 2) and torch.equal(ones, torch.ones(2))
    assert brought == [GPU, CPU, GPU]


def test_an_answer_is_moved_once() -> None:
    x = torch.randn(3)
    assert on_device(x, CPU) is x and on_device(x, None) is x
    assert on_device(x, torch.device("meta")).device.type == "meta"


def test_what_is_written_must_lie_where_it_is_computed() -> None:
    gpu = backend.build_options({"target": "sm_90a"}).targets[0]
    cpu = backend.build_options({"target": "native"}).targets[0]
    expect_writable({"cache": GPU}, gpu)
    expect_writable({"cache": CPU}, cpu)
    for target, device, place in ((gpu, CPU, "cuda"), (cpu, GPU, "cpu")):
        with pytest.raises(UnsupportedError, match=f"the graph writes 'cache', which is on {device}, and computes on {place}"):
            expect_writable({"cache": device}, target)
