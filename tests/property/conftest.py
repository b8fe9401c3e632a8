"""Makes the generator importable here, and lets a longer run be asked for: --cases N, --seed N."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=int, default=400, help="how many generated modules to compile")
    parser.addoption("--seed", type=int, default=0, help="another number draws other modules")
