"""Attention in register blocks: many rows of a head, few of them, and one row of all heads that read the same keys."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir import dims
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS
from ourcc.ir.region import Region
from ourcc.ir.target import AVX2, AVX512, CpuLevel
from ourcc.ir.tile.ladder import expand_ladders
from ourcc.ir.tile.program import Dot, For, Full, If, Let, Store, statements
from ourcc.ir.tile.verify import verify
from ourcc.ir.types import DType, TensorType, bf16, boolean, f16, f32
from ourcc.passes.regions.simplify_region import simplify_region
from ourcc.passes.tile.cpu.attention import CpuAttention
from ourcc.passes.tile.cpu.attention_launch import TOGETHER, AttentionLaunch
from ourcc.passes.tile.schedule import Problem, matches
from ourcc.runtime.engine import Engine

FACTS = dims.Facts({"S": dims.Range(1, 64), "T": dims.Range(1, 300)})


def types(heads: int, groups: int, depth: int, dtype: DType = f32, rows: dims.Dim | None = None) -> list[TensorType]:
    """Queries, keys, values and what is added to scores; how many there are calls know."""
    rows, columns = dims.symbol("S") if rows is None else rows, dims.symbol("T")
    around = [(1, heads, rows, depth), (1, groups, columns, depth), (1, groups, columns, depth), (rows, columns)]
    return [TensorType(dtype, shape) for shape in around]


@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
@pytest.mark.parametrize(
    ("heads", "groups", "depth", "dtype"),
    [(3, 1, 64, f32), (8, 2, 32, f32), (16, 1, 24, f32), (22, 2, 16, f32), (4, 4, 64, f32), (6, 2, 64, bf16)],
)
@pytest.mark.parametrize("is_one", [False, True])
def test_heads_that_share_keys(heads: int, groups: int, depth: int, dtype: DType, is_one: bool, target: str) -> None:
    """One row, as many as fill a block, and some that are left over, beside the reference; a call for one row alone as well."""
    rows = 1 if is_one else None

    def network() -> Module:
        module = Module("net", FACTS)
        graph = module.functions["main"] = Graph("main")
        values = [graph.add_input(name, kind) for name, kind in zip("qkvm", types(heads, groups, depth, dtype, rows), strict=True)]
        graph.set_outputs([Builder(module, graph).attention(*values, scale=depth**-0.5)])
        return module

    engine = Engine(compile_module(network(), build_options({"target": target})), threads=1)
    numbers = np.random.default_rng(heads)
    for size, length in ((1, 1), (1, 131), (1, 64)) if is_one else ((1, 1), (1, 131), (4, 33), (13, 64), (29, 300)):
        shapes = [
            tuple(dims.evaluate(n, {"S": size, "T": length}) for n in kind.shape) for kind in types(heads, groups, depth, dtype, rows)
        ]
        given = [numbers.standard_normal(shape).astype(dtype.numpy) for shape in shapes]
        (step,), (exact,) = interpret(network(), given), interpret(network(), given, wide=True)
        verdict = judge(np.asarray(engine(*given)), step, exact)
        assert verdict.passed, f"{size} x {length}: {verdict.reason}"


@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
@pytest.mark.parametrize("seed", range(12))
def test_few_rows_of_any_head_size(seed: int, target: str) -> None:
    """Drawn problems of one row or few, whose head sizes fill no whole number of vectors, and whose keys end anywhere."""
    draw = random.Random(seed)
    groups, members, rows = draw.randint(1, 4), draw.randint(1, 5), draw.choice([1, 1, 1, 2, 3, 5])
    depth, features, columns = draw.randint(1, 150), draw.choice([20, 24, 33, 40, 48, 72, 96, 100, 112, 136, 200]), draw.randint(1, 300)
    heads = groups * members
    shapes = [(1, heads, rows, depth), (1, groups, columns, depth), (1, groups, columns, features)]
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    values = [graph.add_input(name, TensorType(f32, shape)) for name, shape in zip("qkv", shapes, strict=True)]
    graph.set_outputs([Builder(module, graph).attention(*values, scale=depth**-0.5)])
    numbers = np.random.default_rng(seed)
    given = [numbers.standard_normal(shape).astype(np.float32) for shape in shapes]
    (step,), (exact,) = interpret(module, given), interpret(module, given, wide=True)
    verdict = judge(np.asarray(Engine(compile_module(module, build_options({"target": target})), threads=1)(*given)), step, exact)
    assert verdict.passed, f"{shapes}: {verdict.reason}"


@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
@pytest.mark.parametrize("dtype", [f32, bf16, f16], ids=str)
@pytest.mark.parametrize("rise", [0.1, 3.0, -3.0])
@pytest.mark.parametrize("rows", [1, 70])
def test_scores_that_rise_along_the_columns(rows: int, rise: float, dtype: DType, target: str) -> None:
    """Each step of columns lies higher than those before it: by little, so that the base stays, by more, and by all or nothing."""
    shapes = [(1, 2, rows, 64), (1, 2, 700, 64), (1, 2, 700, 64)]
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    values = [graph.add_input(name, TensorType(dtype, shape)) for name, shape in zip("qkv", shapes, strict=True)]
    graph.set_outputs([Builder(module, graph).attention(*values, scale=0.125)])
    numbers = np.random.default_rng(0)
    # In sixteenths, so that scores are exact in whatever order they are added up.
    query, key, value = (np.round(numbers.standard_normal(shape) * 16) / 16 for shape in shapes)
    query[..., 0], key[..., 0] = 8.0, np.round(np.arange(700) * rise * 16) / 16
    given = [array.astype(np.float32).astype(dtype.numpy) for array in (query, key, value)]
    (step,), (exact,) = interpret(module, given), interpret(module, given, wide=True)
    verdict = judge(np.asarray(Engine(compile_module(module, build_options({"target": target})), threads=1)(*given)), step, exact)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("level", [AVX2, AVX512], ids=["AVX2", "AVX-512"])
@pytest.mark.parametrize("rows", [1, 2, 13])
@pytest.mark.parametrize("depth", [8, 20, 24, 33, 40, 80, 96, 112, 136, 500])
def test_register_blocks_fill_steps_of_columns(depth: int, rows: int, level: CpuLevel) -> None:
    """The verifier proves of every schedule that what it stores lies inside its tiles."""
    whole = region_of(OPS["attention"], types(4, 2, depth, rows=rows), {"scale": 0.125, "causal": False, "safe": False})
    assert whole is not None
    problem = Problem(simplify_region(whole, FACTS), FACTS, {})
    (match,) = matches([CpuAttention()], problem, level)
    for schedule in CpuAttention().space(match, level):
        assert schedule["t"] % schedule["nr"] == 0
        verify(CpuAttention().tile(match, schedule, level), FACTS)


@pytest.mark.parametrize("level", [AVX2, AVX512], ids=["AVX2", "AVX-512"])
@pytest.mark.parametrize("depth", [16, 24, 48, 64, 80])
def test_schedules_of_one_order_add_up_as_many_scores_at_a_time(depth: int, level: CpuLevel) -> None:
    """Those of one row, and those of rows that calls know, which serve the same calls."""
    found: dict[object, set[int]] = {}
    for rows in (1, None):
        whole = region_of(OPS["attention"], types(8, 2, depth, rows=rows), {"scale": 0.125, "causal": False, "safe": False})
        assert whole is not None
        problem = Problem(simplify_region(whole, FACTS), FACTS, {})
        (match,) = matches([CpuAttention()], problem, level)
        for schedule in CpuAttention().space(match, level):
            launch = AttentionLaunch(problem, schedule, match.found, level)
            found.setdefault(CpuAttention().order(match, schedule, level), set()).add(launch.lanes)
    assert all(len(lanes) == 1 for lanes in found.values())


@pytest.mark.parametrize("level", [AVX2, AVX512], ids=["AVX2", "AVX-512"])
@pytest.mark.parametrize("heads", [3, 8, 22])
def test_a_row_of_each_head_is_a_row_of_a_register_block(heads: int, level: CpuLevel) -> None:
    """So that one row has as many sums at once as the registers hold, and waits for none."""
    whole = region_of(OPS["attention"], types(2 * heads, 2, 64), {"scale": 0.125, "causal": False, "safe": False})
    assert whole is not None
    problem = Problem(simplify_region(whole, FACTS), FACTS, {})
    (match,) = matches([CpuAttention()], problem, level)
    schedules = [schedule for schedule in CpuAttention().space(match, level) if schedule["heads"] == heads]
    assert schedules
    for schedule in schedules:
        program = CpuAttention().tile(match, schedule, level)
        verify(program, FACTS)
        (launch,) = expand_ladders(program).launches
        steps = {s.name: s.step for s in statements(launch.body) if isinstance(s, For)}
        dots = [s.value for s in statements(launch.body) if isinstance(s, Let) and isinstance(s.value, Dot)]
        found = {(steps[dot.type.axes[0]], steps[dot.type.axes[1]]) for dot in dots if dot.type.axes[0].startswith("member")}
        together = max(n for n in range(1, TOGETHER + 1) if heads % n == 0)
        vectors = max(n for n in (1, 2, 4) if together * n + n + 1 <= level.registers)
        assert found == {(together, vectors * level.lanes)}


@pytest.mark.parametrize("target", ["native", "x86-64-v3"])
@pytest.mark.parametrize("kind", ["below", "steep", "window", "one", "none"])
@pytest.mark.parametrize(("heads", "groups", "depth"), [(6, 2, 32), (12, 2, 24), (16, 2, 40), (4, 4, 32)])
def test_blocks_that_a_mask_leaves_nothing_of_are_passed_over(heads: int, groups: int, depth: int, kind: str, target: str) -> None:
    """Masks that calls bring: places before each token, more and more of them, some before it, one place, rows of which nothing is kept."""

    def network() -> Module:
        module = Module("net", FACTS)
        graph = module.functions["main"] = Graph("main")
        *others, added = types(heads, groups, depth)
        values = [graph.add_input(name, each) for name, each in zip("qkv", others, strict=True)]
        kept = graph.add_input("m", TensorType(boolean, added.shape))
        graph.set_outputs([Builder(module, graph).attention(*values, kept, scale=depth**-0.5, safe=kind == "none")])
        return module

    engine = Engine(compile_module(network(), build_options({"target": target})), threads=1)
    for rows, columns in ((64, 300), (13, 300), (37, 300), (60, 60), (1, 300)):
        shapes = [tuple(dims.evaluate(n, {"S": rows, "T": columns}) for n in each.shape) for each in types(heads, groups, depth)[:3]]
        given = [np.random.default_rng(rows).standard_normal(shape).astype(np.float32) for shape in shapes]
        place, own = np.arange(columns)[None], np.arange(columns - rows, columns)[:, None]
        masks = {"below": place <= own, "window": (place <= own) & (place > own - 40), "one": place == 3 * (own % 7)}
        masks["none"] = (place <= own) & (own % 3 > 0)
        masks["steep"] = place <= 8 * np.arange(rows)[:, None]
        given.append(masks[kind])
        (step,), (exact,) = interpret(network(), given), interpret(network(), given, wide=True)
        verdict = judge(np.asarray(engine(*given)), step, exact)
        assert verdict.passed, f"{rows} x {columns}: {verdict.reason}"
    problem = Problem(simplify_region(_masked(), FACTS), FACTS, {})
    (match,) = matches([CpuAttention()], problem, AVX512)
    schedule = next(each for each in CpuAttention().space(match, AVX512) if each["mr"] > 1)
    (launch,) = CpuAttention().tile(match, schedule, AVX512).launches
    assert any(isinstance(statement, If) for statement in statements(launch.body))


def _masked() -> Region:
    *others, added = types(6, 2, 32)
    found = region_of(OPS["attention"], [*others, TensorType(boolean, added.shape)], {"scale": 0.125, "causal": False, "safe": False})
    assert found is not None
    return found


@pytest.mark.parametrize(("columns", "clears"), [(128, 0), (77, 1), (None, 1)])
def test_columns_beyond_the_last_are_zeros_where_they_are_multiplied(columns: int | None, clears: int) -> None:
    """What memory holds there may be numbers below the normal range, which processors take a hundred cycles for."""
    kinds = [
        TensorType(f32, tuple(columns if columns and size == dims.symbol("T") else size for size in kind.shape)) for kind in types(4, 2, 64)
    ]
    whole = region_of(OPS["attention"], kinds, {"scale": 0.125, "causal": False, "safe": False})
    assert whole is not None
    problem = Problem(simplify_region(whole, FACTS), FACTS, {})
    (match,) = matches([CpuAttention()], problem, AVX512)
    (launch,) = CpuAttention().tile(match, next(iter(CpuAttention().space(match, AVX512))), AVX512).launches
    stores = [s for s in statements(launch.body) if isinstance(s, Store) and s.operand == "keys" and isinstance(s.value, Full)]
    assert len(stores) == clears
