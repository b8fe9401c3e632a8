"""`nest`: where it offers itself, and loops whose lanes stride across memory, which take the lines that they read whole."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.compiler.backends.cpu import lower_cpu
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir.dims import Facts
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.region.text import parse_region
from ourcc.ir.target import AVX2, AVX512
from ourcc.ir.tile.program import For, statements
from ourcc.passes.lower.schedule import cheapest
from ourcc.passes.tile.cpu.nest import Nest
from ourcc.passes.tile.cpu.nest_axes import TURNED
from ourcc.passes.tile.schedule import Match, Problem, Refusal, matches
from ourcc.runtime.engine import Engine

FOLDS = """region @region(%x0: f32[i S, j S], %x1: f32[j S, e 16]) -> %y0: f32[i S, e 16] {
  axes i: S, j: S, e: 16, d: 16
  %t0 = sum d: mul(%x1[i, d], %x1[j, d]) : f32[i, j]
  %t1 = max j: %t0 : f32[i]
  %t2 = sum j: mul(sub(%t0, %t1), %x1[j, e]) : f32[i, e]
  %y0[i, e] = %t2
}
"""


@pytest.mark.parametrize(("high", "why"), [(None, "%t0 varies over j, which has no bound"), (64, None)])
def test_a_fold_inside_needs_a_bound(high: int | None, why: str | None) -> None:
    problem = Problem(parse_region(FOLDS), Facts().with_range("S", 1, high), {})
    match = Nest().match(problem, AVX2)
    if why is not None:
        assert match == Refusal(why)
    else:
        assert isinstance(match, Match)
        assert all(Nest().tile(match, schedule, AVX2).launches for schedule in Nest().space(match, AVX2))


def turned(rows: int | str, columns: int) -> str:
    return f"""
module @m symbols {{ N in 1..4096 }} {{
  func @main(%x: f32[{rows}, {columns}]) -> f32[{columns}, {rows}] {{
    %t = transpose(%x) {{permutation = [1, 0]}} : f32[{columns}, {rows}]
    %y = sin(%t) : f32[{columns}, {rows}]
    return %y
  }}
}}
"""


@pytest.mark.parametrize(("columns", "blocked"), [(64, True), (50, True), (16, True), (5, False)])
def test_an_axis_that_lies_along_lines_is_taken_in_blocks(columns: int, blocked: bool) -> None:
    (unit,) = lower_cpu(parse_module(turned(40, columns)), AVX512, cheapest(AVX512)).scheduled.values()
    (launch,) = unit.program.launches
    steps = {axis.name: axis.step for axis in launch.grid}
    assert (TURNED in steps.values()) is blocked
    inner = [s for s in statements(launch.body) if isinstance(s, For) and s.step == 1]
    assert bool(inner) is blocked


@pytest.mark.parametrize("rows", [1, 3, 16, 33, 100, 257])
@pytest.mark.parametrize("columns", [16, 17, 64, 130])
def test_what_is_turned_is_right(rows: int, columns: int) -> None:
    engine = _engine(columns)
    x = np.random.default_rng(rows).normal(size=(rows, columns)).astype(np.float32)
    np.testing.assert_allclose(engine(x), np.sin(x.T), rtol=1e-5, atol=1e-6)


ENGINES: dict[int, Engine] = {}


def _engine(columns: int) -> Engine:
    if columns not in ENGINES:
        options = build_options({"targets": ["native"], "tune": "off"})
        ENGINES[columns] = Engine(compile_module(parse_module(turned("N", columns)), options), threads=2)
    return ENGINES[columns]


WINDOW = """region @region(%x0: f32[i 96, 56, 56], %x1: f32[i 96, l 7, m 7]) -> %y0: f32[j 50, k 50, i 96] {
  axes i: 96, j: 50, k: 50, l: 7, m: 7
  %t0 = sum l, m: mul(%x0[i, j + l, k + m], %x1[i, l, m]) : f32[i, j, k]
  %y0[j, k, i] over (i, j, k) = %t0
}
"""


def test_lanes_are_an_axis_that_fills_them() -> None:
    """Most accesses step through the window by one element, and 7 of them would leave most lanes idle."""
    problem = Problem(parse_region(WINDOW), Facts(), {})
    (match,) = matches([Nest()], problem, AVX512)
    (launch,) = Nest().tile(match, next(iter(Nest().space(match, AVX512))), AVX512).launches
    assert "k" in {axis.name for axis in launch.grid if axis.step is not None}


SOFT = """region @region(%x0: f32[i 5, j N]) -> %y0: f32[i 5, j N] {
  axes i: 5, j: N
  %t0 = max j: %x0[i, j] : f32[i]
  %y0[i, j] = sub(%x0[i, j], %t0)
}
"""


@pytest.mark.parametrize(("low", "high", "loops"), [(1, 500, 4), (1, 40, 2)])
def test_whole_steps_are_not_masked(low: int, high: int, loops: int) -> None:
    """An axis of any size: whole steps first, then what is left; only the latter chooses between lanes."""
    problem = Problem(parse_region(SOFT), Facts().with_range("N", low, high), {})
    (match,) = matches([Nest()], problem, AVX512)
    (launch,) = Nest().tile(match, next(iter(Nest().space(match, AVX512))), AVX512).launches
    found = [s for s in statements(launch.body) if isinstance(s, For) and s.kind == "tile"]
    assert len(found) == loops
    masked = ["where" in str(loop.body) for loop in found]
    assert masked[: loops // 2] == [False, True][2 - loops // 2 :]


@pytest.mark.parametrize(("heads", "head"), [(12, 64), (3, 16), (4, 40)])
def test_heads_side_by_side_are_read_in_vectors(heads: int, head: int) -> None:
    text = f"""
module @m symbols {{ N in 1..64 }} {{
  func @main(%x: f32[{heads}, N, {head}]) -> f32[N, {heads * head}] {{
    %t = transpose(%x) {{permutation = [1, 0, 2]}} : f32[N, {heads}, {head}]
    %r = reshape(%t) {{shape = [N, {heads * head}]}} : f32[N, {heads * head}]
    %y = sin(%r) : f32[N, {heads * head}]
    return %y
  }}
}}
"""
    module = parse_module(text)
    (unit,) = lower_cpu(parse_module(text), AVX512, cheapest(AVX512)).scheduled.values()
    assert head in {axis.high for launch in unit.program.launches for axis in launch.grid}
    x = np.random.default_rng(0).standard_normal((heads, 5, head)).astype(np.float32)
    got = np.asarray(Engine(compile_module(module, build_options({})), threads=1)(x))
    np.testing.assert_allclose(got, np.sin(x.transpose(1, 0, 2).reshape(5, -1).astype(np.float64)), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("window", "stride"), [(3, 2), (2, 2), (3, 3), (2, 5)])
def test_windows_lie_in_lanes_however_far_apart_they_are(window: int, stride: int) -> None:
    """Single elements took fifty times as long."""
    size = (40 - 1) * stride + window
    text = f"""
module @m symbols {{ N in 1..64 }} {{
  func @main(%x: f32[N, {size}]) -> f32[N, 40] {{
    %y = max_pool(%x) {{window = [{window}], strides = [{stride}], dilations = [1], before = [0], after = [0]}} : f32[N, 40]
    return %y
  }}
}}
"""
    text = text.replace("f32[N, ", "f32[N, 3, ")
    module = parse_module(text)
    (unit,) = lower_cpu(module, AVX512, cheapest(AVX512)).scheduled.values()
    (launch,) = unit.program.launches
    assert AVX512.lanes in {loop.step for loop in statements(launch.body) if isinstance(loop, For)} or any(
        axis.step is not None and axis.step >= AVX512.lanes for axis in launch.grid
    )
    x = np.random.default_rng(0).standard_normal((2, 3, size)).astype(np.float32)
    got = np.asarray(Engine(compile_module(module, build_options({})), threads=1)(x))
    wanted = np.stack([x[..., n : n + 39 * stride + 1 : stride] for n in range(window)]).max(0)
    np.testing.assert_array_equal(got, wanted)


SAMPLED = """region @region(%x0: f32[i 40, N], %x1: f32[j M]) -> %y0: f32[i 40, j M] {
  axes i: 40, j: M
  %t0 = mul(exp(mul(%x1[j], %x1[j])), f32(3.0)) : f32[j]
  %t1 = cast(min(max(mul(%x1[j], f32(9.0)), f32(0.0)), f32(2.0)), i64) : i64[j]
  %y0[i, j] = mul(%x0[i, %g0] else 0.0 with (%g0 = max(min(%t1, index(N - 1)), i64(0))), add(%t0, sub(%t0, f32(1.0))))
}
"""


@pytest.mark.parametrize(("costly", "blocked"), [(True, True), (False, False)])
def test_what_rows_share_is_computed_before_a_block_of_them(costly: bool, blocked: bool) -> None:
    text = SAMPLED if costly else SAMPLED.replace("exp(mul(%x1[j], %x1[j]))", "%x1[j]").replace("add(%t0, sub(%t0, f32(1.0)))", "%t0")
    problem = Problem(parse_region(text), Facts().with_range("N", 1, 99).with_range("M", 1, 999), {})
    (match,) = matches([Nest()], problem, AVX512)
    (launch,) = Nest().tile(match, next(iter(Nest().space(match, AVX512))), AVX512).launches
    assert ({axis.name: axis.step for axis in launch.grid}["i"] == TURNED) is blocked
    inner = [s for s in statements(launch.body) if isinstance(s, For) and s.step == 1]
    assert bool(inner) is blocked
    assert not any("exp" in str(loop.body) for loop in inner)


IMAGES = """
module @m symbols {{ M in 1..4096 }} {{
  func @main(%x: f32[{batch}, {channels}, 50], %g: f32[{batch}, M]) -> f32[{batch}, {channels}, M] {{
    %s = sin(%g) : f32[{batch}, M]
    %e = exp(%s) : f32[{batch}, M]
    %d = mul(%e, %e) : f32[{batch}, M]
    %f = floor(%d) : f32[{batch}, M]
    %n = cast(%f) {{dtype = i32}} : i32[{batch}, M]
    %r = sub(%d, %f) : f32[{batch}, M]
    %n3 = reshape(%n) {{shape = [{batch}, 1, M]}} : i32[{batch}, 1, M]
    %r3 = reshape(%r) {{shape = [{batch}, 1, M]}} : f32[{batch}, 1, M]
    %nb = broadcast_to(%n3) {{shape = [{batch}, {channels}, M]}} : i32[{batch}, {channels}, M]
    %rb = broadcast_to(%r3) {{shape = [{batch}, {channels}, M]}} : f32[{batch}, {channels}, M]
    %p = take_along_axis(%x, %nb) {{axis = 2}} : f32[{batch}, {channels}, M]
    %y = mul(%p, %rb) : f32[{batch}, {channels}, M]
    return %y
  }}
}}
"""


@pytest.mark.parametrize(("batch", "channels"), [(1, 3), (2, 16), (3, 33), (1, 1)])
def test_images_are_sampled_at_places_that_channels_share(batch: int, channels: int) -> None:
    text = IMAGES.format(batch=batch, channels=channels)
    engine = Engine(compile_module(parse_module(text), build_options({"targets": ["native"], "tune": "off"})), threads=2)
    for places in (1, 7, 32, 100, 257):
        numbers = np.random.default_rng(places)
        x, g = numbers.normal(size=(batch, channels, 50)).astype(np.float32), numbers.normal(size=(batch, places)).astype(np.float32)
        d = np.exp(np.sin(g)) ** 2
        index = np.broadcast_to(np.floor(d).astype(np.int64)[:, None], (batch, channels, places))
        np.testing.assert_allclose(engine(x, g), np.take_along_axis(x, index, 2) * (d - np.floor(d))[:, None], rtol=1e-4, atol=1e-4)
