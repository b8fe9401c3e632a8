"""The measure of kernels without a GPU: trips, the formula, defects that must show, and results that are frozen."""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import pytest

from .scripts import BENCHMARKS, KERNELS, script

RESULTS = json.loads((BENCHMARKS / "results" / "kernels.json").read_text(encoding="utf-8"))


machines, trips, walk, cubins, estimates, equivalents, validate, ours, measure, counted = (
    script(name, KERNELS)
    for name in ("machines", "trips", "walk", "cubins", "estimate", "equivalents", "validate", "ours", "measure", "counted")
)
reading = importlib.import_module("ourcc.codegen.sass.reading")
H100, B200 = machines.H100, machines.B200


# --- trips ------------------------------------------------------------------------------------------------------------


def runs(body: str, grid: tuple[int, ...] = (1,), **sizes: int) -> list[float]:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return [loop.runs for loop in trips.loops_of("kernel", f"def kernel(x):\n{lines}", 1, sizes, grid)]


def test_trips_of_loops_in_loops() -> None:
    assert runs("for i in range(0, 100, 10):\n    for j in tl.range(3):\n        pass\nfor k in range(N):\n    pass", N=7) == [10, 30, 7]


def test_trips_are_averages_over_programs() -> None:
    causal = "first = tl.program_id(0) * 128\nfor k in tl.range(0, first + 128, 128):\n    pass"
    assert runs(causal, (32, 4)) == [16.5]
    assert runs(causal, (32, 4096))[0] == pytest.approx(16.5, rel=0.03)
    assert runs("for t in tl.range(tl.program_id(0), 300, tl.num_programs(0)):\n    pass", (132,)) == [pytest.approx(300 / 132)]


def test_trips_know_what_a_kernel_computes_with_integers() -> None:
    assert runs("n = tl.cdiv(N, 64) * 2 - N % 3\nm = min(n, 5) << 1\nfor i in range(m):\n    pass", N=130) == [10]
    assert runs("if SPLIT:\n    for i in range(4):\n        pass\nelse:\n    for i in range(8):\n        pass", SPLIT=0) == [8]


@pytest.mark.parametrize(
    "body",
    ["for i in range(tl.load(x)):\n    pass", "while x:\n    pass", "for i in x:\n    pass", "n = N // 0\nfor i in range(n):\n    pass"],
)
def test_bounds_that_nobody_knows_are_an_error(body: str) -> None:
    with pytest.raises(trips.UnknownTrips, match=r"line [0-9]+"):
        runs(body, N=1)


@pytest.mark.parametrize("seed", range(30))
def test_drawn_loops_run_as_python_runs_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lines: list[str] = []
    counts: list[int] = []

    def draw(depth: int, outer: int) -> None:
        for _ in range(rng.integers(1, 3)):
            first, last, step = int(rng.integers(0, 5)), int(rng.integers(0, 40)), int(rng.integers(1, 9))
            times = len(range(first, last, step))
            lines.append("    " * depth + f"for v{depth} in range({first}, {last}, {step}):")
            counts.append(outer * times)
            if depth < 3 and rng.random() < 0.6 and times:
                draw(depth + 1, outer * times)
            else:
                lines.append("    " * (depth + 1) + "pass")

    draw(0, 1)
    assert runs("\n".join(lines)) == counts


def test_lines_choose_the_outermost_loop_with_a_share() -> None:
    outer, inner = trips.SourceLoop(1, 20, 4.0, False), trips.SourceLoop(5, 9, 32.0, False)
    assert trips.loop_at([6, 7, 8, 9], (outer, inner)) == inner
    assert trips.loop_at([6, 7, 8, 2], (outer, inner)) == outer
    assert trips.loop_at([6] * 9 + [2], (outer, inner)) == inner
    assert trips.loop_at([30], (outer, inner)) is None


def test_machine_loops_share_the_runs_of_a_source_loop() -> None:
    assert trips.shares_of([1]) == [1.0] and trips.shares_of([4]) == [0.25] and trips.shares_of([8, 1]) == [0.125, 0.0]


# --- kernels ----------------------------------------------------------------------------------------------------------


def compiled(name: str, capability: int, types: str, constants: dict[str, Any], aligned: bool = True, **options: int) -> Any:
    names = [name for name in getattr(equivalents, name).arg_names if name not in constants]
    kinds = dict(zip(names, (f"*{kind}" for kind in types.split()), strict=True))
    return cubins.compile_function(getattr(equivalents, name), capability, kinds, constants, options, aligned)


def product(
    capability: int = 90,
    sizes: tuple[int, int, int] = (4096, 4096, 4096),
    tile: tuple[int, int, int] = (128, 256, 64),
    aligned: bool = True,
    stages: int = 3,
    warps: int = 8,
) -> Any:
    (m, n, k), (bm, bn, bk) = sizes, tile
    constants = {"M": m, "N": n, "K": k, "BM": bm, "BN": bn, "BK": bk, "GROUP": 8}
    cubin = compiled("product", capability, "bf16 bf16 bf16", constants, aligned, num_warps=warps, num_stages=stages)
    return estimates.Launch(cubin, (m // bm * (n // bn),), 2.0 * (m * k + n * k + m * n))


def rows(width: int = 4096, aligned: bool = True, count: int = 2048) -> Any:
    cubin = compiled("rms_norm", 90, "bf16 bf16 bf16 fp32", {"N": width, "WIDTH": width}, aligned, num_warps=8)
    return estimates.Launch(cubin, (count,), 4.0 * width * count)


@pytest.mark.parametrize(("capability", "machine"), [(90, H100), (100, B200)])
def test_a_product_by_hand(capability: int, machine: Any) -> None:
    """The example of docs/kernels.md: 512 tiles of 128 x 256, 64 steps of 64."""
    found = estimates.estimate(product(capability), machine)
    steps = {90: 64, 100: 65}[capability]  # Blackwell's first step stands before its loop, which is counted in full
    assert found.program.operations == 2 * 128 * 256 * 64 * steps
    assert found.program.units["matrix"] == found.program.operations / machine.matrix["bf16"]
    assert found.program.copied == pytest.approx((128 + 256) * 64 * 2 * 64, rel=0.02)
    assert found.program.stored == 128 * 256 * 2
    assert found.resident == 1 and found.waves == 512 / machine.processors
    assert found.seconds == estimates.FITTED.started + estimates.beside(estimates.FITTED.overlap, *found.times.values())
    # A program alone is the matrix unit's work or the way of its operands, and what stands before, between and behind its steps.
    slowest = max(found.program.units["matrix"], found.program.copied / machines.PORT_BYTES)
    assert slowest < found.program.alone[0] < 1.1 * slowest


def test_residents_are_what_registers_shared_memory_and_warps_allow() -> None:
    cubin = rows().cubin
    for registers, shared, warps, expected in ((64, 0, 8, 4), (32, 0, 4, 16), (255, 0, 8, 1), (32, 100_000, 4, 2), (16, 0, 32, 2)):
        assert estimates.residents(replace(cubin, registers=registers, shared=shared, warps=warps), H100) == expected
    with pytest.raises(ValueError, match="does not fit a processor"):
        estimates.residents(replace(cubin, registers=255, warps=32), H100)


def test_residents_share_tensor_memory() -> None:
    plain = replace(rows().cubin, registers=64, shared=0, warps=4)
    found = [estimates.residents(replace(plain, columns=columns), B200) for columns in (0, 32, 128, 256, 512)]
    assert found == [8, 8, 4, 2, 1]
    assert cubins.columns_of("@%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r13], 256;\n") == 256
    assert product(100).cubin.columns == 256 and product(90).cubin.columns == 0


def test_inline_assembly_stands_where_it_begins() -> None:
    """Its printer numbers the rows of one access on: they would lie beyond a short loop."""
    ptx = """
\t.loc\t1 16 19
\t// begin inline asm
\t.loc\t1 16 19
\tmov.u32 %r6, 0x0;
\t.loc\t1 17 19
\tld.global.v4.b32 { %r6 }, [ %rd10 + 0 ];

\t// end inline asm
\t.loc\t1 20 30
\tst.global.b16 [ %rd9 + 0 ], { %rs17 };
\t.loc\t1 7 12, function_name $L__info_string0, inlined_at 1 19 10
\twgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16
"""
    assert cubins.marks_of(ptx) == {"16": [1, 0], "20": [1, 0], "19": [0, 1]}


def test_no_estimate_is_below_what_memory_or_the_matrix_unit_need() -> None:
    for launch in (product(), rows()):
        found = estimates.estimate(launch, H100)
        assert found.seconds > launch.unique / H100.memory
        assert found.seconds > found.program.operations * launch.programs / (H100.processors * H100.clock * H100.matrix["bf16"])
        assert 0 < found.share <= 1


# --- one program walked through ---------------------------------------------------------------------------------------

START = "        .text.kernel:\n"


def walked(*instructions: str, warps: int = 4, latency: float = 500.0) -> float:
    lines = "".join(f"        /*{16 * at:04x}*/                   {each} ;\n" for at, each in enumerate((*instructions, "EXIT")))
    found = reading.read_kernel(START + lines)
    return sum(walk.walked(found, [1.0] * len(found.regions), warps, H100, latency))


def test_an_instruction_waits_for_what_it_reads() -> None:
    apart, chained = ["FADD R4, R5, R6", "FADD R7, R8, R9"], ["FADD R4, R5, R6", "FADD R7, R4, R9"]
    assert walked(*chained) - walked(*apart) == machines.DELAYS["float"] - 1
    assert walked(*chained, warps=32) == walked(*apart, warps=32)  # other warps go meanwhile


def test_a_load_is_waited_for_where_its_number_is_read() -> None:
    load, other, use = "LDG.E R4, desc[UR4][R2.64]", "FADD R8, R9, R10", "FADD R5, R4, R6"
    assert walked(load, use) > 500 > walked(load, other)
    assert walked(load, use, latency=900) - walked(load, use) == 400
    assert walked(load, *[other] * 100, use) == walked(load, use)


def test_a_wait_for_copies_leaves_as_many_groups_as_it_says() -> None:
    copies = ["LDGSTS.E.BYPASS.128 [R9], desc[UR14][R10.64]", "LDGDEPBAR"] * 2
    assert walked(*copies, "DEPBAR.LE SB0, 0x0") > 500
    assert walked(*copies, "DEPBAR.LE SB0, 0x2") < 100


def test_products_are_waited_for_as_the_code_says() -> None:
    product = "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24, gsb0"
    assert walked(*[product] * 4, "WARPGROUP.DEPBAR.LE gsb0, 0x0") > 4 * 64 > walked(*[product] * 4, "WARPGROUP.DEPBAR.LE gsb0, 0x4")


def test_regions_that_run_seldom_take_what_they_add() -> None:
    product, wait = "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24, gsb0", "WARPGROUP.DEPBAR.LE gsb0, "
    lines = (".L_x_0:", *[product] * 4, f"{wait}0x1", "@P0 BRA `(.L_x_1)", f"{wait}0x0", ".L_x_1:", "@P1 BRA `(.L_x_0)", "EXIT")
    at = itertools.count()
    text = "".join(f"{each}\n" if each.endswith(":") else f"        /*{16 * next(at):04x}*/                   {each} ;\n" for each in lines)
    found = reading.read_kernel(START + text)
    runs = [64.0 if region.first in found.flow.always(0) else 1.0 for region in found.regions if region.loop == 0] + [1.0]
    often = [time for time, run in zip(walk.walked(found, runs, 4, H100, 500.0), runs, strict=True) if run == 64.0]
    assert sum(often) >= 4 * 64  # what a pass multiplies is not waited for in a block that few passes run
    assert sum(walk.walked(found, [64.0] * len(runs), 4, H100, 500.0)[:2]) > sum(often)


def test_programs_of_unlike_lengths_end_later() -> None:
    source = "def kernel(x):\n    for k in range(tl.program_id(0) + 1):\n        pass\n"
    assert trips.lengths_of("kernel", source, {}, (4,)) == [1, 2, 3, 4]
    assert trips.lengths_of("kernel", source, {}, (4096,)) == []


# --- defects ----------------------------------------------------------------------------------------------------------


def edited(launch: Any, change: Callable[[str], str]) -> Any:
    """The launch with its listing changed in the loop that multiplies; a change that finds nothing fails."""
    before = launch.cubin.listing
    after = change(before)
    assert after != before
    return replace(launch, cubin=replace(launch.cubin, listing=after))


def beside_the_last_matrix_instruction(*instructions: str) -> Callable[[str], str]:
    """Instructions put in front of the last matrix instruction, which stands in the loop."""

    def change(text: str) -> str:
        lines = text.splitlines(keepends=True)
        at = max(number for number, line in enumerate(lines) if re.search(r"\b(HGMMA|UTCHMMA)", line))
        return "".join(lines[:at] + [f"        /*ffff0*/                   {each} ;\n" for each in instructions] + lines[at:])

    return change


ADDED = {
    "spills in the loop": ["STL.64 [R1], R4", "LDL.64 R4, [R1]"] * 24,
    "narrow stores to shared memory": ["STS.U16 [R4], R6"] * 96,
    "more barriers": ["BAR.SYNC.DEFER_BLOCKING 0x0"] * 8,
    "masks": ["ISETP.GE.AND P0, PT, R4, R5, PT", "SEL R6, R6, RZ, P0"] * 64,
    "64-bit addresses": ["IMAD.WIDE R4, R6, 0x4, R8", "IADD3.X R5, R6, R7, RZ, P0, !PT"] * 48,
    "conversions by tables": ["MUFU.EX2 R4, R5"] * 32,
}


@pytest.mark.parametrize(("capability", "machine"), [(90, H100), (100, B200)])
@pytest.mark.parametrize("defect", ADDED)
def test_what_is_added_to_the_loop_shows(defect: str, capability: int, machine: Any) -> None:
    # Tiles of 128 x 128 have four times the processors' work of their bytes: no other bound hides the defect.
    good = product(capability, tile=(128, 128, 64), stages=2)
    bad = edited(good, beside_the_last_matrix_instruction(*ADDED[defect]))
    one, other = (counted_seconds(each, machine) for each in (good, bad))
    assert other > 1.01 * one, defect


def counted_seconds(launch: Any, machine: Any) -> float:
    """Seconds of the processors, beside which cache and memory may be slower for these tiles."""
    return estimates.estimate(launch, machine).times["processors"]


def test_waiting_for_each_step_shows() -> None:
    good = product()
    bad = edited(good, lambda text: text.replace("WARPGROUP.DEPBAR.LE gsb0, 0x1", "WARPGROUP.DEPBAR.LE gsb0, 0x0"))
    assert counted_seconds(bad, H100) > 1.02 * counted_seconds(good, H100)


def test_loads_that_are_not_asynchronous_show() -> None:
    good, bad = product(), product(aligned=False)
    assert counted.row_of(bad, H100)["plain loads"] > 0 == counted.row_of(good, H100)["plain loads"]
    assert estimates.estimate(bad, H100).seconds > 1.3 * estimates.estimate(good, H100).seconds


def test_narrow_loads_show() -> None:
    good, bad = rows(32768), rows(32768, aligned=False)
    assert counted_seconds(bad, H100) > 1.1 * counted_seconds(good, H100)


def test_pointers_instead_of_descriptors_show() -> None:
    constants = {"M": 8192, "N": 8192, "K": 4096, "BM": 128, "BN": 256, "BK": 64, "GROUP": 8, "PROGRAMS": 132}
    launches = [
        estimates.Launch(
            compiled(name, 90, "bf16 bf16 bf16", constants, num_warps=8, num_stages=3), (132,), 2.0 * (8192 * 8192 + 2 * 8192 * 4096)
        )
        for name in ("product_by_descriptors", "product_persistent")
    ]
    good, bad = (counted_seconds(each, H100) for each in launches)
    assert bad > good


def test_too_few_programs_show() -> None:
    few = product(sizes=(128, 4096, 16384))
    many = product(sizes=(128, 4096, 16384), tile=(64, 64, 64), warps=4)
    assert few.programs == 16 and many.programs == 128
    assert estimates.estimate(few, H100).seconds > 1.5 * estimates.estimate(many, H100).seconds


def test_too_few_bytes_in_flight_show() -> None:
    deep = product(sizes=(64, 8192, 8192), tile=(64, 64, 32), stages=6, warps=4)
    flat = product(sizes=(64, 8192, 8192), tile=(64, 64, 32), stages=2, warps=4)
    good, bad = (estimates.estimate(each, H100) for each in (deep, flat))
    assert bad.flight < good.flight and bad.bound == "latency" and bad.seconds > 1.1 * good.seconds


def test_too_many_registers_show() -> None:
    good = rows()
    bad = replace(good, cubin=replace(good.cubin, registers=168))
    assert estimates.estimate(bad, H100).seconds > 1.1 * estimates.estimate(good, H100).seconds


@functools.cache
def measured_points() -> tuple[Any, ...]:
    """Read for the tests that look: it estimates every kernel, which whoever only collects tests does not wait for."""
    return validate.read_measured()


# --- what is frozen ---------------------------------------------------------------------------------------------------


def test_the_results_are_of_this_estimator() -> None:
    """A change of the estimator runs `make kernels` again, which prints both tables; the new results go with the change."""
    assert RESULTS["digest"] == measure.digest()
    assert RESULTS["fitted"] == vars(estimates.FITTED)


def test_points_have_sources_and_are_enough() -> None:
    points = json.loads(validate.POINTS.read_text(encoding="utf-8"))
    assert all(point["source"] and ("us" in point) != ("tflops" in point) for point in points)
    kinds = Counter(point["fit"] for point in points)
    assert kinds[True] >= 10 and kinds[False] >= 12
    own = [point.name for point in measured_points()]
    assert [*(point["name"] for point in points), *own] == [row["point"] for row in RESULTS["points"]]
    assert len(own) == 70


def test_what_was_measured_is_kept_as_it_was() -> None:
    """The file of measured kernels says the same times as the results of that run, the first."""
    run = json.loads((BENCHMARKS / "results" / "gpu_h100_first.json").read_text(encoding="utf-8"))["problems"]
    ours_of = [sum(time for name, time in row["ours"].items() if name.startswith("kernel_")) for row in run]
    assert [point.seconds * 1e6 for point in measured_points()] == pytest.approx(ours_of, rel=1e-9)


def test_kernels_that_were_made_later_are_estimated_as_well() -> None:
    """The last run on a device measured other kernels than those that were fitted to: most are as near, and none is far off."""
    run = json.loads((BENCHMARKS / "results" / "gpu_h100.json").read_text(encoding="utf-8"))["problems"]
    ratios = [sum(each["us"] for each in row["kernels"]) / sum(row["ours"].values()) for row in run]
    errors = sorted(abs(ratio - 1) for ratio in ratios)
    assert len(errors) == 70 and median(errors) <= 0.12
    assert errors[-3] <= 0.40 and errors[-1] <= 0.50, "a matrix product of 1,024 rows and a window of 49 places are the worst"


@pytest.mark.parametrize("own", [False, True])
def test_held_out_points_are_as_near_as_is_said(own: bool) -> None:
    chosen = [row for row in RESULTS["points"] if not row["fit"] and (": " in row["point"]) == own]
    errors = [abs(row["us"] / row["measured"] - 1) for row in chosen]
    assert len(errors) >= 20 and median(errors) <= 0.20 and max(errors) <= 0.40


def test_some_points_again() -> None:
    points = json.loads(validate.POINTS.read_text(encoding="utf-8"))
    stored = {row["point"]: row for row in RESULTS["points"]}
    generator = random.Random(1)
    again = [*map(validate.point_of, generator.sample(points, 3)), *generator.sample(measured_points(), 6)]
    for found in validate.compare(again):
        assert found.estimate.seconds * 1e6 == pytest.approx(stored[found.point.name]["us"], rel=1e-9)
        assert found.point.seconds * 1e6 == pytest.approx(stored[found.point.name]["measured"], rel=1e-9)


def test_pairs_are_ordered_by_rates() -> None:
    def one(work: float, measured: float, estimated: float) -> Any:
        point = validate.Point("", H100, measured, work, False, (), "", False)
        return validate.Compared(point, replace(estimates.estimate(rows(), H100), seconds=estimated))

    assert validate.right_order([one(1, 1.0, 1.0), one(1, 2.0, 1.5)]) == (1, 1)
    assert validate.right_order([one(1, 1.0, 1.0), one(1, 2.0, 0.5)]) == (0, 1)
    assert validate.right_order([one(1, 1.0, 1.0), one(2, 2.0, 9.0)]) == (0, 0)


# --- ours -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", [H100, B200])
def test_a_problem_of_the_list(machine: Any) -> None:
    """What is counted is what the problem needs."""
    problem = next(each for each in ours.problems() if each.name == "bf16 2048")
    row = measure.problem_row(problem, machine)
    (kernel,) = row["kernels"]
    assert kernel["gigaop"] == pytest.approx(2 * 2048**3 / 1e9, rel=0.1)
    assert kernel["spills"] == [0, 0] and row["us"] > 1e6 * 2 * 2048**3 / (machine.processors * machine.clock * machine.matrix["bf16"])


SAMPLED = random.Random(5).sample([row for row in RESULTS["problems"] if "us" in row], 3)
WORSE = 1.02


@pytest.mark.parametrize("row", SAMPLED, ids=lambda row: f"{row['problem']} on {row['machine']}")
def test_kernels_are_no_worse_than_the_results_say(row: dict[str, Any]) -> None:
    """A change that makes a kernel worse runs `make kernels` again, so that it shows in review."""
    problem = next(each for each in ours.problems() if (each.group, each.name) == (row["group"], row["problem"]))
    now = measure.problem_row(problem, machines.MACHINES[row["machine"]])
    assert now["us"] <= WORSE * row["us"]
    assert sum(each["spills"][0] for each in now["kernels"]) <= sum(each["spills"][0] for each in row["kernels"])


def test_a_refusal_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = next(ours.problems())
    monkeypatch.setattr(ours, "build", lambda *_: ours.Built(problem, (), "it aborts"))
    row = measure.problem_row(problem, H100)
    assert row["refused"] == "it aborts" and "it aborts" in measure.table([row])


def test_both_tables_are_shown() -> None:
    old = [{"group": group, "problem": "a", "machine": "H100", "us": time} for group, time in (("one", 1.0), ("other", 2.0))]
    new = [{**old[0], "us": 1.5}, {**old[1]}, {"group": "new", "problem": "b", "machine": "H100", "us": 1.0}]
    assert measure.changed(old, new) == "  one: a (H100): 1.0 -> 1.5"
    assert "no time differs" in measure.changed(old, old)


def test_peers_keep_the_estimator_that_judged_them() -> None:
    line = {
        "group": "one",
        "problem": "a",
        "machine": "H100",
        "judged": 3,
        "whole": True,
        "peers": {"Inductor": 2.0},
        "configuration": "t; c",
    }
    known = measure.recalled({"digest": "old", "compared": [line, {**line, "problem": "b", "estimator": "older"}]})
    assert [row["estimator"] for row in known.values()] == ["old", "older"] and measure.recalled(None) == {}
    rows = [{"group": "one", "problem": name, "machine": "H100", "us": 1.0, "bound": "memory"} for name in "ab"]
    again = {("one", "b", "H100"): {**known["one", "b", "H100"], "estimator": "new"}}
    again["one", "b", "H100"]["best"] = {"Inductor": {**known["one", "b", "H100"]["best"]["Inductor"], "us": 2.5}}
    compare = script("compare", KERNELS)
    lines = compare.compared(rows, known | again)
    page = compare.page(lines, rows, "new")
    assert "one: a * | H100" in page and "one: b | H100" in page and "Of 2 problems 1 have peers" in page
    before = {"digest": "old", "compared": compare.compared(rows, known)}
    assert measure.rejudged(before, lines) == "  one: b (H100): Inductor 2.0 -> 2.5"
    assert "none was judged again" in measure.rejudged({"digest": "old", "compared": lines}, lines)
