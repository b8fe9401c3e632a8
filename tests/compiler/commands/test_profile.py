"""`bench --kernels`: one row a launch, costs counted at the sizes of the call, a trace and a picture that open."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from ourcc.compiler.cli.main import run
from ourcc.compiler.commands.profile import Profile, Roof, Rounds, draw_roofline, kernels_table, profile, profile_table, roof_of, trace
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.compiler.progress import SILENT, Silent
from ourcc.compiler.targets.machine import Rates
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.plan import Launch
from ourcc.ir.region.cost import cost_of, symbolic_cost
from ourcc.ir.region.text import parse_region
from ourcc.runtime.contents import EngineContents
from ourcc.runtime.engine import Engine

MODULE = """
module @m symbols { B in 1..64 } {
  func @main(%x: f32[B, 96], %w: f32[96, 128]) -> (f32[B, 128], f32[128, B]) {
    %h = matmul(%x, %w) : f32[B, 128]
    %y = relu(%h) : f32[B, 128]
    %s = softmax(%y) {axis = 1} : f32[B, 128]
    %t = transpose(%s) {permutation = [1, 0]} : f32[128, B]
    return %y, %t
  }
}
"""
RATES = Rates(100.0, 10.0)


@pytest.fixture(scope="module")
def contents() -> EngineContents:
    return compile_module(parse_module(MODULE), build_options({"targets": ["native"], "tune": "off", "workload": ["B=1", "B=64"]}))


@pytest.fixture(scope="module")
def profiles(contents: EngineContents) -> list[Profile]:
    return profile(Engine(contents), "main", [np.ones((24, 96), np.float32), np.ones((96, 128), np.float32)], 1, 3, SILENT).profiles


def test_every_launch_is_timed_in_every_round(contents: EngineContents, profiles: list[Profile]) -> None:
    launches = [step for step in contents.best.plan.steps if isinstance(step, Launch)]
    assert [item.launch for item in profiles] == launches and len(launches) >= 2
    assert all(len(item.samples) == 3 and min(item.samples) > 0 for item in profiles)


def test_costs_are_those_of_the_sizes_of_the_call(profiles: list[Profile]) -> None:
    product = profiles[0]
    assert "matmul" in str(product.row["source_ops"])
    assert product.operations >= 2 * 24 * 96 * 128 and product.operations < 2.2 * 24 * 96 * 128
    assert product.bytes == 4 * (24 * 96 + 96 * 128 + 24 * 128)


@pytest.mark.parametrize("sizes", [{"S": 1, "V": 3}, {"S": 40, "V": 3}, {"S": 7, "V": 500}])
def test_symbolic_costs_are_those_at_every_size(sizes: dict[str, int]) -> None:
    from ourcc.ir import dims

    text = """region @r(%x0: i64[S], %x1: f32[V, 8], %x2: u4[S, 8]) -> %y0: f32[i S] {
  axes i: S, j: 8
  %t0 = sum j: mul(%x1[%g0, j] with (%g0 = %x0[i]), cast(%x2[i, j], f32)) : f32[i]
  %y0[i] = %t0
}
"""
    region = parse_region(text)
    operations, bits = symbolic_cost(region)
    cost = cost_of(region, sizes)
    assert dims.evaluate(operations, sizes) == cost.operations and dims.evaluate(bits, sizes) / 8 == cost.bytes


@pytest.mark.parametrize("sizes", [{"S": 1}, {"S": 40}])
def test_heads_that_share_a_key_read_it_once(sizes: dict[str, int]) -> None:
    from ourcc.ir import dims

    text = """region @r(%x0: f32[9, 64], %x1: f32[3, S, 64]) -> %y0: f32[9, S] {
  axes h: 9, i: S, j: 64
  %t0 = sum j: mul(%x0[h, j], %x1[h // 3, i, j]) : f32[h, i]
  %y0[h, i] = %t0
}
"""
    region = parse_region(text)
    expected = 4 * (9 * 64 + 3 * sizes["S"] * 64 + 9 * sizes["S"])
    assert cost_of(region, sizes).bytes == expected == dims.evaluate(symbolic_cost(region)[1], sizes) / 8


def test_a_call_that_is_not_timed_costs_and_changes_nothing(contents: EngineContents) -> None:
    engine = Engine(contents, threads=1)
    x, w = np.random.default_rng(0).standard_normal((5, 96), np.float32), np.ones((96, 128), np.float32)
    before = engine(x, w)
    profile(Engine(contents), "main", [x, w], 2, 2, SILENT)
    for one, other in zip(before, engine(x, w), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_table_is_sorted_by_time_and_shares_add_up(profiles: list[Profile]) -> None:
    rows = profile_table(Rounds(profiles, (10**9,) * 3), Roof(RATES, "said")).to_data()
    medians = [float(row["median_us"] or 0) for row in rows]
    assert medians == sorted(medians, reverse=True) and sum(float(row["share"] or 0) for row in rows) == pytest.approx(1, abs=0.01)
    assert {row["launch"] for row in rows} == set(range(len(profiles)))


def test_kernels_that_are_launched_more_than_once_are_added_up(profiles: list[Profile]) -> None:
    once = [item for n, item in enumerate(profiles) if item.kernel not in {other.kernel for other in profiles[:n]}]
    assert once and kernels_table(Rounds(once, (10**9,) * 3), Roof(RATES, "said")) is None
    twice = [*profiles, dataclasses.replace(profiles[0], samples=tuple(10**7 + n for n in profiles[0].samples))]
    table = kernels_table(Rounds(twice, (10**9,) * 3), Roof(RATES, "said"))
    assert table is not None
    first, *others = table.to_data()
    own = [item for item in twice if item.kernel == profiles[0].kernel]
    assert first["kernel"] == profiles[0].kernel and first["launches"] == len(own)
    assert float(first["total_us"] or 0) == pytest.approx(sum(item.median for item in own) * 1e6, abs=0.01)
    assert sum(float(row["share"] or 0) for row in table.to_data()) == pytest.approx(1, abs=0.01)
    assert sum(int(row["launches"] or 0) for row in (first, *others)) == len(twice)


def test_trace_and_picture_open(profiles: list[Profile]) -> None:
    (text,) = trace(profiles)
    events = json.loads(text)["traceEvents"]
    assert len(events) == len(profiles) and all(event["ph"] == "X" and event["dur"] > 0 for event in events)
    (svg,) = draw_roofline(profiles, RATES)
    discs = ElementTree.fromstring(svg).findall("{http://www.w3.org/2000/svg}circle")
    assert len(discs) == sum(item.operations > 0 for item in profiles)
    assert all(0 <= float(disc.attrib["cx"]) <= 760 and 0 <= float(disc.attrib["cy"]) <= 460 for disc in discs)


@pytest.fixture
def engine_file(contents: EngineContents, tmp_path: Path) -> Path:
    Engine(contents).save(tmp_path / "m.ourcc")
    return tmp_path / "m.ourcc"


def test_the_command_prints_rows_and_writes_files(engine_file: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["bench", str(engine_file), "--kernels", "--rounds", "2", "--json", "--shape", "B=16"]
    assert run([*words, "--trace", str(tmp_path / "t.json"), "--picture", str(tmp_path / "r.svg")]) == 0
    rows = json.loads(capsys.readouterr().out)["launches"]
    assert rows and json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert ElementTree.parse(tmp_path / "r.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--trace", "t.json"], 2, "got --trace or --picture without --kernels"),
        (["--kernels", "--trace", "ENGINE"], 2, "has the suffix .ourcc, and gets a file of JSON"),
        (
            ["--kernels", "--trace", "x.svg", "--picture", "x.svg"],
            2,
            "the suffix .svg, and gets a file of JSON",
        ),
        (["--kernels", "--picture", "r.png"], 2, "--picture: output 'r.png' has the suffix .png, and gets an SVG picture"),
        (["--kernels", "--picture", "/absent/r.svg"], 2, "there is no folder"),
    ],
)
def test_wrong_words(words: list[str], status: int, message: str, engine_file: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(engine_file.parent)
    assert run(["bench", str(engine_file), *(str(engine_file) if word == "ENGINE" else word for word in words)]) == status
    assert message in capsys.readouterr().err


SCORES = """
module @scores symbols { S in 1..2000 } {
  func @main(%x: f32[8, S, 64], %k: f32[2, 512, 64]) -> f32[8, S, 64] {
    %y = attention(%x, %k, %k, _) {scale = 0.125, causal = false, safe = false} : f32[8, S, 64]
    return %y
  }
}
"""


def test_a_launch_is_told_by_the_kernel_that_ran() -> None:
    """One row of heads that share keys goes in one block, many rows head by head."""
    found = compile_module(parse_module(SCORES), build_options({"targets": ["native"], "tune": "off", "workload": ["S=1", "S=512"]}))
    few, many = (
        profile(Engine(found), "main", [np.ones((8, rows, 64), np.float32), np.ones((2, 512, 64), np.float32)], 1, 1, SILENT).profiles[0]
        for rows in (8, 40)
    )
    assert few.launch == many.launch and few.kernel != many.kernel
    assert (few.row["when"], many.row["when"]) == ("1 <= N0 <= 16", None)
    assert few.operations / 8 == many.operations / 40


def test_the_report_says_at_which_sizes_and_what_is_outside_of_launches(engine_file: Path) -> None:
    from ourcc.compiler.commands.bench import bench
    from ourcc.compiler.options import BenchOptions

    *_, table = bench(BenchOptions(engine_file, rounds=2, kernels=True)).tables
    text = " ".join(table.notes)
    assert (
        "by their medians, of inputs " in text
        and "outside of launches: " in text
        and ("before, between and after" in text or "reached by" in text)
        and "us of a call (median)" in text
    )


def test_the_roof_is_the_best_of_several_samples_and_what_kernels_reach(contents: EngineContents, profiles: list[Profile]) -> None:
    """Another job on the core while one sample was taken lowers nothing; no kernel computes faster than the machine."""
    low, high, middle = Rates(1e-3, 5.0), Rates(1e6, 4.0), Rates(50.0, 3.0)
    found = roof_of([low, high, middle], profiles, 1)
    assert found.rates == Rates(1e6, 5.0) and found.source == "the best of 3 samples before, between and after"
    found = roof_of([low, low], profiles, 1)
    fastest = max(profiles, key=lambda item: item.operations / item.minimum)
    assert found.source.startswith(f"reached by {fastest.kernel}, above the best of 2 samples")
    assert found.rates.fma_gflops == pytest.approx(fastest.operations / fastest.minimum * 1e-9)
    assert roof_of([low], profiles, 2).rates.fma_gflops == pytest.approx(found.rates.fma_gflops / 2)
    compute = dataclasses.replace(found.rates, read_gbytes_per_second=1e9)
    assert all(item.floor(compute) <= item.minimum * (1 + 1e-9) for item in profiles)


def test_rates_are_sampled_before_between_and_after_the_rounds(contents: EngineContents) -> None:
    inputs, seen = [np.ones((24, 96), np.float32), np.ones((96, 128), np.float32)], list[int]()

    class Counted(Silent):
        count = 0

        def advance(self, steps: int = 1) -> None:
            self.count += steps

    progress = Counted()
    found = profile(Engine(contents), "main", inputs, 1, 4, progress, lambda: seen.append(progress.count))
    assert seen == [0, 2, 4] and all(len(item.samples) == 4 for item in found.profiles)
    assert all(call > sum(item.samples[n] for item in found.profiles) for n, call in enumerate(found.calls)) and len(found.calls) == 4


def test_what_is_outside_of_launches_is_of_the_same_round(profiles: list[Profile]) -> None:
    """A round in which everything took long, and one in which nothing did, do not meet."""
    items = [dataclasses.replace(item, samples=(1000, 9000, 5000)) for item in profiles]
    calls = tuple(len(items) * own + rest for own, rest in ((1000, 2000), (9000, 3000), (5000, 9000)))
    text = " ".join(profile_table(Rounds(items, calls), Roof(RATES, "said")).notes)
    assert "outside of launches: 3.0 us of a call" in text
    assert Rounds([], (2000, 4000, 9000)).outside() == pytest.approx(4e-6)
