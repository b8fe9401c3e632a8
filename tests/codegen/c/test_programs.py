"""The twelve tile programs, printed as C: right at sizes that divide no tile, the same bits for any number of threads."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ourcc.ir.target import CpuLevel
from ourcc.ir.tile.program import TileProgram

SHARED = Path(__file__).parents[2] / "ir" / "tile" / "test_programs.py"


def shared_cases() -> Any:
    """The programs' inputs and references, which the interpreter's tests own."""
    spec = importlib.util.spec_from_file_location("tile_program_cases", SHARED)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


CASES = shared_cases()


@pytest.mark.parametrize("name", CASES.CASES)
def test_printed_program_agrees_with_numpy(name: str, level: CpuLevel, run_c: Callable[..., dict[str, Any]]) -> None:
    program: TileProgram = CASES.program(name)
    for case in CASES.sizes(name):
        arrays = case.packed(program)
        one = run_c(program, arrays, case.symbols, level, case.facts)
        CASES.judge(case, one)
        two = run_c(program, arrays, case.symbols, level, case.facts, threads=2)
        for output, array in one.items():
            assert np.array_equal(array.view(np.uint8), two[output].view(np.uint8)), output
