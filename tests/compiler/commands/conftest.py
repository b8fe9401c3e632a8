"""Commands are tested in one process: what a peer sets for its whole process is set back."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def inductor_as_it_was() -> Iterator[None]:
    """Inductor's freezing, which the peer turns on, makes torch trace other tests' modules anew when their parameters change."""
    yield
    config = sys.modules.get("torch._inductor.config")
    if config is not None:
        config.freezing = False  # type: ignore[attr-defined]
