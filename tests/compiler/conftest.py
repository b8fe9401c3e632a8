"""Fixtures of tests that go through torch.compile; torch is imported only where one asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ourcc.compiler import backend
    from ourcc.compiler.sharing import KeptEngines, PackedWeights


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
    from ourcc.compiler import backend, sharing

    made = sharing.PackedWeights()
    monkeypatch.setattr(backend, "packed_weights", lambda: made)
    return made


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> KeptEngines:
    """Kept engines that no other test has made."""
    from ourcc.compiler import backend, sharing

    made = sharing.KeptEngines()
    monkeypatch.setattr(backend, "kept_engines", lambda: made)
    return made
