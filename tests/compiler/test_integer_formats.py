"""Weights in every format of bytes, dense and 2:4 sparse, times rounded activations: sums of integers, on every level."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest

from ourcc.codegen.c.printer import kernels_of
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir.errors import Source
from ourcc.ir.formats import FORMATS, format_of, sparse_name
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.target import CPU_LEVELS
from ourcc.ir.types import TensorType, f32
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline
from ourcc.runtime.engine import Engine

LEVELS = [level.name for level in CPU_LEVELS if level.name != "x86-64"]
WHOLE = ("int8.tensor", "int8", "uint8.tensor", "uint8")
"""Formats with one scale for a whole channel or more: their products need no blocks."""
BYTES = [name for each in FORMATS if each not in WHOLE for name in (each, sparse_name(each)) if format_of(name).has_bytes]
ROWS = (1, 3, 8, 9, 17, 40, 64)


def coded(name: str, k: int, columns: int, seed: int, most: int) -> tuple[Module, np.ndarray]:
    """x times a weight in a format, x rounded to codes; and the weight. Positions of sparse ones are any, two at one place too."""
    known, numbers = format_of(name), np.random.default_rng(seed)
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(f32, (module.declare("B", 1, most), k)))
    fields = {}
    for field, kind in zip(known.fields, known.types((columns, k), 1), strict=True):
        shape = tuple(int(str(size)) for size in kind.shape)
        drawn: Any = numbers.integers(0, 256, shape) if not kind.dtype.is_float else 2.0 ** numbers.integers(-1, 2, shape)
        if field.name == "e":  # the exponent of a power of two
            drawn = numbers.integers(126, 130, shape)
        fields[field.name] = np.asarray(drawn).astype(kind.dtype.numpy)
    held = [module.add_constant(f"w.{name}", array) for name, array in fields.items()]
    b.source = Source("fc")
    graph.set_outputs([b.matmul(x, b.decode(*held, format=known.name, axis=1, dtype=f32), transpose_b=True)])
    PassManager(parse_pipeline("quantize_activations"), strict=True).run(module)
    return module, known.decoded(fields)


def whole_numbers(rows: int, k: int, seed: int) -> np.ndarray:
    """Numbers that are their own codes: whole ones, of which each block has one of the largest magnitude."""
    numbers = np.random.default_rng(seed)
    data = numbers.integers(-127, 128, (rows, k)).astype(np.float32)
    data[:, :: min(k, 16)] = 127 * numbers.choice([-1, 1], data[:, :: min(k, 16)].shape)
    return data


def engine(module: Module, level: str, **options: str) -> Engine:
    return Engine(compile_module(module, build_options({"targets": ["native"], "emulate": level, "tune": "off", **options})), threads=1)


def products(built: Engine) -> list[str]:
    """The sources of the kernels that multiply."""
    ((part, rows),) = built.contents.report["kernels"].items()
    files = built.contents.parts[part].files
    return [kernels_of(bytes(files[f"{row['kernel']}.c"]).decode()) for row in rows if row["strategy"].startswith("packed")]


def check(built: Engine, weight: np.ndarray, seed: int, most: int) -> None:
    for rows in (rows for rows in ROWS if rows <= most):
        data = whole_numbers(rows, weight.shape[1], seed + rows)
        expected, size = data.astype(np.float64) @ weight.T.astype(np.float64), np.abs(data) @ np.abs(weight).T
        assert (np.abs(built(data) - expected) <= 2.0**-22 * size).all(), rows


@pytest.mark.parametrize(("name", "level"), [(name, LEVELS[n % len(LEVELS)]) for n, name in enumerate(BYTES)])
def test_every_format_of_bytes_is_multiplied_as_integers(name: str, level: str) -> None:
    """Sums of whole numbers are exact but for the scales; contracts say what was multiplied."""
    draw, group = random.Random(name), format_of(name).group
    # Long groups are of many parts, whose kernels take long to build: of these few rows are enough.
    most = 64 if group < 256 else 3
    module, weight = coded(name, max(64, group) * draw.choice([1, 2, 3]), draw.choice([16, 40, 64]), 1, most)
    built = engine(module, level)
    (row,) = built.contents.report["contract"]
    assert "int8-activation" in row["realised"]
    assert products(built) and all(re.search(r"dot4_|tdpb", text) for text in products(built))
    check(built, weight, 1, most)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("quantize", ["int8", "int4-a8", "mxfp4-a8"])
def test_levels_give_the_same_bits(quantize: str, level: str) -> None:
    """As the graph's reference has it, on levels with tiles and without, at all numbers of rows; K of whole bytes of positions or not."""
    for k in (64, 192) if quantize != "int8" else (20, 72, 4104):
        built, plain = (engine(dense(k, 48), each, quantize=quantize, sparsity="2:4") for each in (level, LEVELS[0]))
        for rows in ROWS:
            data = np.random.default_rng(rows + k).standard_normal((rows, k)).astype(np.float32)
            assert np.array_equal(built(data), plain(data)), (k, rows)


def dense(k: int, columns: int) -> Module:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    x = graph.add_input("x", TensorType(f32, (module.declare("B", 1, 64), k)))
    weight = np.random.default_rng(k).standard_normal((columns, k)).astype(np.float32)
    graph.set_outputs([b.relu(b.matmul(x, module.add_constant("w", weight), transpose_b=True))])
    return module
