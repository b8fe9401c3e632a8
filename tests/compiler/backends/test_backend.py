"""Every target has a backend, and there is one backend for a family."""

from __future__ import annotations

import pytest

from ourcc.compiler.backends.backend import Backend, backend_of
from ourcc.compiler.targets.registry import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_has_the_backend_of_its_family(name: str) -> None:
    found = backend_of(TARGETS[name])
    assert {type(backend_of(target)) for target in TARGETS.values() if target.family == TARGETS[name].family} == {type(found)}
    assert all(callable(getattr(found, method)) for method in vars(Backend) if not method.startswith("_"))
