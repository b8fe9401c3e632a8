"""Products of four bytes at a time: every level's instructions against integers, at the ends of both bytes."""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path

import numpy as np
import pytest

from ourcc.codegen.c import quads
from ourcc.codegen.c.compile import compile_shared
from ourcc.codegen.c.library import Library
from ourcc.codegen.c.toolchain import Compiler
from ourcc.ir.target import CpuLevel

from .conftest import load_library

SIGNED = (-128, -127, -1, 0, 1, 64, 127)
LEFT = {"u8": (0, 1, 127, 128, 255), "u7": (0, 1, 64, quads.SMALL), "i8": SIGNED}


@pytest.mark.parametrize("kind", LEFT)
@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
def test_four_products_are_exact(kind: str, lanes: int, level: CpuLevel, compiler: Compiler, tmp_path: Path) -> None:
    pairs = np.array(list(itertools.product(LEFT[kind], SIGNED)))
    numbers = np.random.default_rng(lanes)
    ends = pairs[:, None].repeat(4, 1)  # all four alike: the sums that are furthest from zero
    drawn = pairs[numbers.integers(0, len(pairs), (64 * 16 - len(ends), 4))]
    found = np.concatenate([ends, drawn])
    left, right = (np.ascontiguousarray(found[..., n].astype(np.uint8)) for n in (0, 1))
    start = numbers.integers(-1000, 1000, len(found)).astype(np.int32)
    library = Library(level, quads.functions())
    vector, call = library.vector("i32", lanes), library.call(f"dot4_{kind}", lanes, "a", "l", "r")
    moves = "".join(f"    {vector} {name};\n    memcpy(&{name}, {name}s + {lanes} * n, sizeof {name});\n" for name in "alr")
    text = (
        f'#include "ourcc.h"\n#include <string.h>\n{library.text()}\n'
        "OURCC_EXPORT void run(int count, int32_t *as, const int32_t *ls, const int32_t *rs) {\n"
        f"    for (int n = 0; n < count; ++n) {{\n{moves}    a = {call};\n    memcpy(as + {lanes} * n, &a, sizeof a);\n    }}\n}}\n"
    )
    built = load_library(compile_shared({"quads.c": text}, level, compiler, cache=tmp_path).data)
    got = start.copy()
    built.run(len(found) // lanes, *(array.ctypes.data_as(ctypes.c_void_p) for array in (got, left, right)))
    np.testing.assert_array_equal(got, start + found.prod(axis=2).sum(axis=1))
