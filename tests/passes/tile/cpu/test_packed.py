"""Long sums of products are sums of partial ones, and as accurate as that makes them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ourcc.compiler.backends.cpu import lower_cpu
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir import dims
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS
from ourcc.ir.target import AVX2, AVX512, AVX512_BF16, CpuLevel
from ourcc.ir.tile.ladder import expand_ladders
from ourcc.ir.tile.program import Dot, For, Full, Let, Local, Store, TileProgram, statements, walk
from ourcc.ir.tile.verify import verify
from ourcc.ir.types import DType, TensorType, bf16, f32, i8, u8
from ourcc.passes.lower.layout import constant_layouts
from ourcc.passes.lower.schedule import cheapest
from ourcc.passes.regions.contraction import read_contraction
from ourcc.passes.regions.simplify_region import simplify_region
from ourcc.passes.tile.cpu.matrix import ladder
from ourcc.passes.tile.cpu.packed import Packed
from ourcc.passes.tile.cpu.register_blocks import CHAIN, STEP
from ourcc.passes.tile.schedule import Problem, matches
from ourcc.runtime.engine import Engine


def loops(program: TileProgram) -> list[tuple[For, bool]]:
    """The loops over contracted axes, outermost first, each with whether it starts a partial sum."""
    (launch,) = program.launches
    found = [s for s in statements(launch.body) if isinstance(s, For) and s.carries]
    return [(loop, any(isinstance(s, Let) and isinstance(s.value, Full) for s in loop.body)) for loop in found]


def product(length: int) -> TileProgram:
    """The tile program of a product that contracts `length` elements."""
    region = region_of(OPS["matmul"], [TensorType(f32, (64, length)), TensorType(f32, (length, 64))], {})
    assert region is not None
    problem = Problem(simplify_region(region, dims.NO_FACTS), dims.NO_FACTS, {})
    (match,) = matches([Packed()], problem, AVX512)
    program = Packed().tile(match, next(iter(Packed().space(match, AVX512))), AVX512)
    verify(program, problem.symbols)
    return program


def convolution(channels: int) -> TileProgram:
    """The tile program of a 3 x 3 convolution between two others, where the pipeline puts channels last."""
    module = Module("convolution")
    graph = module.functions["main"] = Graph("main")
    value = graph.add_input("x", TensorType(f32, (1, channels, 8, 8)))
    builder = Builder(module, graph)
    for number, taps in enumerate((1, 3, 1)):
        weight = module.add_constant(f"w{number}", np.ones((channels, channels, taps, taps), np.float32))
        around = (taps // 2, taps // 2)
        value = builder.conv(value, weight, strides=(1, 1), dilations=(1, 1), before=around, after=around)
    graph.set_outputs([value])
    scheduled = lower_cpu(module, AVX512, cheapest(AVX512)).scheduled.values()
    (program,) = [unit.program for unit in scheduled if len(loops(unit.program)) > 1]
    return program


def test_a_short_sum_is_one_chain() -> None:
    assert loops(product(768)) == []
    assert loops(product(CHAIN)) == []


@pytest.mark.parametrize(("length", "step"), [(1536, 512), (3072, 512), (2816, 352), (5000, STEP)])
def test_a_long_sum_goes_in_even_steps(length: int, step: int) -> None:
    ((loop, starts),) = loops(product(length))
    assert loop.kind == "tile" and loop.step == step and starts


def test_a_sum_that_no_step_divides_stays_whole() -> None:
    assert loops(product(1376)) == []


@pytest.mark.parametrize(("channels", "columns_first"), [(16, False), (512, True)])
def test_columns_come_before_rows_that_share_what_no_cache_holds(channels: int, columns_first: bool) -> None:
    """All rows of an image are multiplied by the same weights: where these are many, a tile of them serves all rows in turn."""
    (launch,) = convolution(channels).launches
    assert (launch.grid[0].step is not None) == columns_first and launch.grid[-1].step is not None


@given(st.integers(1, 64), st.lists(st.integers(1, 200), max_size=3))
def test_rows_that_are_left_are_one_block(height: int, lengths: list[int]) -> None:
    """Blocks of a ladder cover what they are for, and what whole blocks leave goes in one, or in two where tiles have no such height."""
    height = height if height <= 16 else 32
    found = ladder(height, lengths)
    assert list(found) == sorted(set(found), reverse=True) and found[0] == height
    for length in lengths:
        left, blocks = length % height, 0
        for rows in found[1:]:
            blocks, left = blocks + left // rows, left % rows
        assert left == 0
        assert blocks <= 2 or len(set(lengths)) > 1


@pytest.mark.parametrize(
    ("channels", "expected"),
    [(64, [False, False]), (128, [True, False]), (256, [False, True]), (512, [False, True]), (1024, [False, False, True])],
)
def test_a_convolution_starts_anew_where_few_terms_are_left(channels: int, expected: list[bool]) -> None:
    """9 taps of 64 channels are few terms; of 128 channels three taps make a partial sum, of more each tap."""
    assert [starts for _, starts in loops(convolution(channels))] == expected


@pytest.mark.parametrize(
    "options", [{}, {"quantize": "int8-weight"}, {"sparsity": "2:4"}, {"quantize": "int8-weight", "sparsity": "2:4"}], ids=str
)
@pytest.mark.parametrize("length", [2048, 2816])
def test_a_long_product_is_right(length: int, options: dict[str, str]) -> None:
    module, random = Module("long"), np.random.default_rng(0)
    graph = module.functions["main"] = Graph("main")
    builder = Builder(module, graph)
    x = graph.add_input("x", TensorType(f32, (module.declare("B", 1, 64), length)))
    graph.set_outputs([builder.matmul(x, module.add_constant("w", random.standard_normal((length, 40)).astype(np.float32)))])
    engine = Engine(compile_module(module, build_options({"targets": ["native"], "tune": "off", "threads": 1, **options})))
    for rows in (1, 5, 29):
        given = random.standard_normal((rows, length)).astype(np.float32)
        stepwise, wide = (interpret(module, [given], wide=mode)[0] for mode in (False, True))
        verdict = judge(engine(given), stepwise, wide)
        assert verdict.passed, verdict.reason


def test_partial_sums_are_accurate() -> None:
    """Positive terms, where the error of one chain grows most: it would be about 1e-5 of the sum."""
    module, random, length = Module("long"), np.random.default_rng(0), 4096
    graph = module.functions["main"] = Graph("main")
    x = graph.add_input("x", TensorType(f32, (16, length)))
    weight = random.random((length, 64), np.float32) + 0.5
    graph.set_outputs([Builder(module, graph).matmul(x, module.add_constant("w", weight))])
    engine = Engine(compile_module(module, build_options({"targets": ["native"], "tune": "off", "threads": 1})))
    given = random.random((16, length), np.float32) + 0.5
    exact = given.astype(np.float64) @ weight.astype(np.float64)
    chain = np.zeros((16, 64), np.float32)
    for k in range(length):
        chain = (chain.astype(np.float64) + np.outer(given[:, k], weight[k]).astype(np.float64)).astype(np.float32)
    ours, one_chain = (float(np.abs(answer / exact - 1).max()) for answer in (engine(given), chain))
    assert ours < one_chain / 2


def test_the_rows_of_a_merged_view_are_rows() -> None:
    """As in the output projection of an encoder: [S * B, k] is read at B * i + j, and B is no axis."""
    module = parse_module("""
module @m symbols { B in 1..512, S in 1..512 } {
  func @main(%x: f32[B*S, 64], %w: f32[64, 64], %r: f32[B, S, 64]) -> f32[B, S, 64] {
    %p = matmul(%x, %w) : f32[B*S, 64]
    %v = reshape(%p) {shape = [S, B, 64]} : f32[S, B, 64]
    %t = transpose(%v) {permutation = [1, 0, 2]} : f32[B, S, 64]
    %y = add(%r, %t) : f32[B, S, 64]
    return %y
  }
}
""")
    unit, *_ = lower_cpu(module, AVX512, cheapest(AVX512)).scheduled.values()
    assert unit.schedule.strategy == "packed"
    found = read_contraction(unit.problem.region)
    assert not isinstance(found, str)
    assert (len(found.rows), len(found.columns)) == (2, 1)


def test_what_is_streamed_last_makes_no_tests_of_padding() -> None:
    """The channels of a row-major image that is padded, not the window's columns, which lie side by side."""
    text = """
module @m {
  func @main(%x: f32[1, 16, 9, 9], %w: f32[32, 16, 3, 3]) -> f32[1, 32, 9, 9] {
    %y = conv(%x, %w, _) {strides = [1, 1], dilations = [1, 1], before = [1, 1], after = [1, 1]} : f32[1, 32, 9, 9]
    return %y
  }
}
"""
    units = lower_cpu(parse_module(text), AVX512, cheapest(AVX512)).scheduled.values()
    (found,) = [c for c in (read_contraction(unit.problem.region) for unit in units) if not isinstance(c, str)]
    assert found.over[-1] == "j"


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "is_copied"),
    [(192, 1000, 1024, True), (8, 1000, 1024, False), (192, 100, 1024, False), (192, 1000, 64, False)],
)
def test_a_matrix_that_many_rows_read_is_copied_where_its_rows_lie_apart(rows: int, depth: int, columns: int, is_copied: bool) -> None:
    """Few rows read it once, a short block of it stays in the first cache, and narrow rows lie side by side."""
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    x, w = (graph.add_input(name, TensorType(f32, shape)) for name, shape in (("x", (rows, depth)), ("w", (depth, columns))))
    graph.set_outputs([Builder(module, graph).matmul(x, w)])
    (unit,) = lower_cpu(module, AVX512, cheapest(AVX512)).scheduled.values()
    (launch,) = unit.program.launches
    assert any(isinstance(s, Local) and s.name.startswith("panel") for s in statements(launch.body)) is is_copied
    drawn = [np.random.default_rng(n).standard_normal(value.shape).astype(np.float32) for n, value in enumerate((x, w))]
    (expected,), (exact,) = interpret(module, drawn), interpret(module, drawn, wide=True)
    answer = Engine(compile_module(module, build_options({"target": "native"})), threads=1)(*drawn)
    assert judge(np.asarray(answer), expected, exact).passed


@pytest.mark.parametrize(("rows", "terms", "columns"), [(13, 48, 40), (5, 36, 17), (40, 200, 64), (1, 64, 33)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("kinds", [(u8, i8), (i8, i8), (bf16, bf16)], ids=str)
@pytest.mark.parametrize("level", ["native", "x86-64-v3"])
def test_a_right_factor_that_a_call_brings_lies_in_groups(
    rows: int, terms: int, columns: int, turned: bool, kinds: tuple[DType, DType], level: str
) -> None:
    module, numbers = Module("net"), np.random.default_rng(rows)
    graph = module.functions["main"] = Graph("main")
    shapes = [(2, rows, terms), (2, columns, terms) if turned else (2, terms, columns)]
    x, y = (graph.add_input(name, TensorType(kind, shape)) for name, kind, shape in zip("xy", kinds, shapes, strict=True))
    wide = {"wide": True} if kinds[0] == bf16 else {}
    graph.set_outputs([Builder(module, graph).matmul(x, y, transpose_b=turned, **wide)])
    given = [
        numbers.integers(0, 256, shape).astype(np.uint8).view(kind.numpy)
        if kind.is_integer
        else numbers.integers(-8, 9, shape).astype(kind.numpy)  # sums of such numbers are exact in any order
        for kind, shape in zip(kinds, shapes, strict=True)
    ]
    got = np.asarray(Engine(compile_module(module, build_options({"target": level})), threads=1)(*given))
    right = given[1].astype(np.float64)
    np.testing.assert_array_equal(got, given[0].astype(np.float64) @ (right.swapaxes(1, 2) if turned else right))


@pytest.mark.parametrize(
    ("level", "kind", "grouped"), [(AVX512, bf16, False), (AVX512, i8, True), (AVX512_BF16, bf16, True), (AVX512_BF16, f32, False)]
)
def test_panels_lie_in_groups_where_they_are_added_up_so(level: CpuLevel, kind: DType, grouped: bool) -> None:
    """Pairs of bf16 only for the instruction: without it both would be widened one after the other, which takes twice as long."""
    left = u8 if kind == i8 else kind
    region = region_of(OPS["matmul"], [TensorType(left, (48, 64)), TensorType(kind, (64, 512))], {"wide": True} if kind == bf16 else {})
    assert region is not None
    problem = Problem(simplify_region(region, dims.NO_FACTS), dims.NO_FACTS, {})
    (match,) = matches([Packed()], problem, level)
    program = Packed().tile(match, next(iter(Packed().space(match, level))), level)
    verify(program, problem.symbols)
    panels = [s for s in statements(program.launches[0].body) if isinstance(s, Local) and s.name == "panel"]
    assert any(panel.layout is not None for panel in panels) == grouped


@pytest.mark.parametrize("level", [AVX2, AVX512], ids=["AVX2", "AVX-512"])
@pytest.mark.parametrize("rows", [dims.symbol("B"), 29])
@pytest.mark.parametrize("columns", [256, 192, 80])
def test_blocks_of_few_rows_have_as_many_columns_as_registers_hold(level: CpuLevel, rows: dims.Dim, columns: int) -> None:
    """One row of one vector would add to one register, and wait for it at each step."""
    facts = dims.Facts({"B": dims.Range(1, 4096)})
    whole = region_of(OPS["matmul"], [TensorType(f32, (rows, 64)), TensorType(f32, (64, columns))], {})
    assert whole is not None
    region = simplify_region(whole, facts)
    weight = region.inputs[1].name
    problem = Problem(region, facts, constant_layouts(region, frozenset({weight})), frozenset({weight}))
    (match,) = matches([Packed()], problem, level)
    for schedule in Packed().space(match, level):
        program = Packed().tile(match, schedule, level)
        verify(program, facts)
        for height, width in blocks(program):
            fits = [n * level.lanes for n in (1, 2, 4) if height * n + n + 1 <= level.registers]
            whole_ones = [n for n in fits if columns % n == 0 and schedule["n"] % n == 0]
            assert width == schedule["nr"] if height == schedule["mr"] else width >= max(schedule["nr"], *whole_ones)


def blocks(program: TileProgram) -> list[tuple[int, int]]:
    """Rows and columns of register blocks: those of the axes of each sum of products."""
    (launch,) = expand_ladders(program).launches
    steps = {s.name: s.step for s in statements(launch.body) if isinstance(s, For)}
    dots = [value for s in statements(launch.body) if isinstance(s, (Let, Store)) for value in walk(s.value) if isinstance(value, Dot)]
    return [(steps[dot.type.axes[0]] if len(dot.type.axes) > 1 else 1, steps[dot.type.axes[-1]]) for dot in dots]
