"""Makes the generator importable here, and lets a longer run be asked for: --cases N, --seed N."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=int, default=200, help="how many generated modules to compile")
    parser.addoption("--seed", type=int, default=0, help="another number draws other modules")


@pytest.fixture(scope="module", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory, cache_at: Callable[[Path], str]) -> Iterator[None]:
    """Records, reproducers and all else that builds leave are a file's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OURCC_CACHE_DIR", cache_at(tmp_path_factory.mktemp("cache")))
        yield
