"""Rows taken of a coded table: the codes are taken, not the table decoded; the same numbers, one kernel."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir.formats import FORMATS
from ourcc.ir.graph import Builder, Graph, Module, Value
from ourcc.ir.graph.reference import interpret
from ourcc.ir.plan import Launch
from ourcc.ir.types import TensorType, f32, i64
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline
from ourcc.runtime.engine import Engine

ROWS, WIDTH = 40, 64
INDICES = np.array([[3, -1, 0], [39, 3, -40]], np.int64)


def started() -> tuple[Module, Builder, Value]:
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    ids = graph.add_input("ids", TensorType(i64, (module.declare("B", 1, 8), 3)))
    return module, Builder(module, graph), ids


def table(module: Module, b: Builder, kind: str) -> Value:
    random = np.random.default_rng(0)
    if kind in FORMATS:
        fields = FORMATS[kind].encoded(random.standard_normal((ROWS, WIDTH)).astype(np.float32))
        held = [module.add_constant(f"w.{field.name}", fields[field.name]) for field in FORMATS[kind].fields]
        made: Value = b.decode(*held, format=kind, axis=1)
        return made
    codes = module.add_constant("w", random.integers(-128, 128, (ROWS, WIDTH)).astype(np.int8))
    shapes = {"one": (), "rows": (ROWS,), "columns": (WIDTH,), "blocks": (ROWS, 2), "blocks of rows": (ROWS // 8, WIDTH)}
    scale = module.add_constant("s", random.uniform(0.01, 0.1, shapes[kind]).astype(np.float32))
    zero = module.add_constant("z", random.integers(-9, 9, shapes[kind]).astype(np.int8))
    axis, block = {"one": (None, 0), "rows": (0, 0), "columns": (1, 0), "blocks": (1, 32), "blocks of rows": (0, 8)}[kind]
    made = b.dequantize(codes, scale, zero, axis=axis, block=block, dtype=f32)
    return made


@pytest.mark.parametrize("kind", ["one", "rows", "columns", "blocks", "int4.g32", "mxfp4", "q8_0", "uint8"])
def test_codes_are_taken_and_then_decoded(kind: str) -> None:
    module, b, ids = started()
    module.main.set_outputs([b.add(b.take(table(module, b, kind), ids, axis=0), 1.0)])
    (before,) = interpret(module, [INDICES])
    PassManager(parse_pipeline("pack_codes, eliminate_dead_code"), strict=True).run(module)
    coded = next(op for op in module.main if op.name in ("dequantize", "decode"))
    assert all(value is None or value.op is None or value.op.name == "take" for value in coded.operands)
    (after,) = interpret(module, [INDICES])
    np.testing.assert_array_equal(after, before)
    contents = compile_module(module, build_options({"target": "native"}))
    assert len([step for step in contents.best.plan.steps if isinstance(step, Launch)]) <= 2  # one, and the check of the indices
    np.testing.assert_array_equal(Engine(contents, threads=1)(INDICES), before)


@pytest.mark.parametrize(("kind", "axis"), [("blocks of rows", 0), ("nvfp4", 0), ("fp8.e4m3.block", 0), ("int4.g32", 1)])
def test_what_rows_share_stays(kind: str, axis: int) -> None:
    if kind == "fp8.e4m3.block":
        module, b, ids = started()
        x = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
        fields = FORMATS[kind].encoded(x)
        whole: Value = b.decode(*(module.add_constant(f"w.{n}", array) for n, array in fields.items()), format=kind, axis=1)
    else:
        module, b, ids = started()
        whole = table(module, b, kind)
    module.main.set_outputs([b.take(whole, ids, axis=axis)])
    (before,) = interpret(module, [INDICES])
    PassManager(parse_pipeline("pack_codes, eliminate_dead_code"), strict=True).run(module)
    assert [op.name for op in module.main][-1] == "take"
    np.testing.assert_array_equal(interpret(module, [INDICES])[0], before)


def test_a_table_that_is_a_weight_as_well_is_read_twice_and_stored_once() -> None:
    module, b, ids = started()
    whole = table(module, b, "rows")
    taken = b.take(whole, ids, axis=0)
    module.main.set_outputs([b.matmul(taken, whole, transpose_b=True)])
    (before,) = interpret(module, [INDICES])
    contents = compile_module(module, build_options({"target": "native"}))
    got = Engine(contents, threads=1)(INDICES)
    np.testing.assert_allclose(got, before, rtol=1e-4, atol=1e-4)
    assert sum(constant.data.size for file in contents.weights.values() for constant in file.values()) < 2 * ROWS * WIDTH * 2
