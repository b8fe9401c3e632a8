"""Fixtures: a stand-in for the commands, and what tests that go through torch.compile need; torch is imported only then."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ourcc.compiler.torch import backend
    from ourcc.compiler.torch.sharing import KeptEngines, PackedWeights


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stands in for every module of commands; a test sets the functions that it expects to be called."""
    from ourcc.compiler import commands

    module = ModuleType("ourcc.compiler.commands.any")
    for name in ("bench", "build", "cache", "explain", "inspect", "load", "optimize", "tune", "verify"):
        monkeypatch.setitem(sys.modules, f"{commands.__name__}.{name}", module)
        monkeypatch.setattr(commands, name, module, raising=False)
    return module


@pytest.fixture
def fresh() -> Iterator[None]:
    """No graph of another test, seeded weights, one thread."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    torch.set_num_threads(threads)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[backend.CompiledGraph]:
    """Every graph that torch hands to the backend, in order."""
    from .torch_models import recorded

    return recorded(monkeypatch)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> PackedWeights:
    """A pool of packed weights that no other test has filled."""
    from ourcc.compiler.torch import backend, sharing

    made = sharing.PackedWeights()
    monkeypatch.setattr(backend, "packed_weights", lambda: made)
    return made


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> KeptEngines:
    """Kept engines that no other test has made."""
    from ourcc.compiler.torch import backend, sharing

    made = sharing.KeptEngines()
    monkeypatch.setattr(backend, "kept_engines", lambda: made)
    return made
