"""The scripts of benchmarks/ and benchmarks/kernels/ as modules: those of a folder import each other by plain names."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
KERNELS = BENCHMARKS / "kernels"


def script(name: str, folder: Path = BENCHMARKS) -> ModuleType:
    """A script of a folder."""
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
