"""Peers of kernels: what they launch, what is refused, how ours stand beside them; and the build of every offered schedule."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ourcc.ir.errors import ToolchainError

from .scripts import BENCHMARKS, KERNELS, script

RESULTS = json.loads((BENCHMARKS / "results" / "kernels.json").read_text(encoding="utf-8"))


believe, compare, launches, recorded, inductor, every, ours, equivalents, measure, hardware = (
    script(name, KERNELS)
    for name in ("believe", "compare", "launches", "recorded", "inductor", "every", "ours", "equivalents", "measure", "hardware")
)


# --- what peers launch ------------------------------------------------------------------------------------------------


def rms_norm(rows: int, columns: int) -> Any:
    """A launch of our own kernel for the published norm, taken down."""

    def run() -> None:
        tensors = [torch.empty(shape, dtype=torch.bfloat16) for shape in ((rows, columns), (rows, columns), (columns,))]
        equivalents.rms_norm[(rows,)](*tensors, torch.empty(rows), N=columns, WIDTH=columns, num_warps=4)

    (found,) = recorded.recorded(run, {})
    return found


def test_a_launch_is_taken_down() -> None:
    found = rms_norm(8, 1024)
    assert found.grid == (8,) and found.options == {"num_warps": 4}
    assert found.types == {"y": "*bf16", "x": "*bf16", "weight": "*bf16", "inverse": "*fp32"} and found.divisible == frozenset(found.types)
    assert found.constants == {"N": 1024, "WIDTH": 1024}
    assert found.unique == 2 * (2 * 8 * 1024 + 1024) + 4 * 8


def test_a_launch_that_was_taken_down_is_compiled() -> None:
    launch = launches.compiled(rms_norm(8, 1024), 90)
    assert launch.grid == (8,) and launch.cubin.warps == 4 and launch.cubin.constants["N"] == 1024


def test_numbers_are_specialised_as_triton_does() -> None:
    class Function:
        """As much of a jitted function as is asked for."""

        arg_names = ("x", "one", "even", "odd", "rate", "off", "WIDTH")
        constexprs = (6,)

        @staticmethod
        def fn(x: Any, one: int, even: int, odd: int, rate: float, off: Any, WIDTH: int) -> None:
            pass

    found = recorded.wanted_of(Function, (torch.empty(4), 1, 32, 7, 0.5, None), {"WIDTH": 64}, lambda names: (names["odd"],), {"length": 9})
    assert found.constants == {"one": 1, "off": None, "WIDTH": 64} and found.divisible == {"x", "even"}
    assert found.types == {"x": "*fp32", "even": "i32", "odd": "i32", "rate": "fp32"} and found.grid == (7,)
    assert found.sizes["length"] == 9 and found.sizes["even"] == 32


def test_loads_that_are_known_count_loops() -> None:
    source = "def kernel(x):\n    n = tl.load(x + 1)\n    m = tl.load(x)\n    p = tl.program_id(0).to(INDEX_DTYPE)\n"
    assert launches._with_known_loads(source, {"n": 7}) == "def kernel(x):\n    n = 7\n    m = tl.load(x)\n    p = tl.program_id(0)\n"
    flat = "    FLAT : tl.constexpr = {}\n    for n in tl.range(0, 9, flatten=FLAT):\n        pass\n"
    assert "flatten=True" in launches._with_known_loads(flat.format(True), {}) and "flatten=FLAT" in launches._with_known_loads(
        flat.format(False), {}
    )


def test_loops_in_functions_that_are_called_are_not_estimated() -> None:
    import triton
    import triton.language as tl

    @triton.jit
    def inner(x, N: tl.constexpr):  # type: ignore[no-untyped-def]
        total = 0.0
        for at in range(N):
            total += tl.load(x + at)
        return total

    @triton.jit
    def outer(x, y, N: tl.constexpr):  # type: ignore[no-untyped-def]
        tl.store(y, inner(x, N))

    outer.fn.__globals__["inner"] = inner
    try:
        assert launches._helpers_with_loops(outer) == ["inner"] and launches._helpers_with_loops(inner) == []
    finally:
        del outer.fn.__globals__["inner"]


def test_what_calls_a_library_is_no_peer() -> None:
    text = "        extern_kernels.mm(a, b, out=c)\n        kernel_0.run(c, buf0, 4, stream=stream0)\n"
    with pytest.raises(launches.NotEstimated, match=r"calls mm"):
        inductor.steps_of(text)


def test_inductor_writes_kernels_for_a_device_that_is_not_there(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(KERNELS / "peers.py"), "--machine", "H100", "--only", "rows softmax 4096", "--most", "1"]
    environment = {**os.environ, "OURCC_CACHE_DIR": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    said = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=True).stdout
    (kept,) = (tmp_path / "kernels" / "judged").glob("*.json")
    best = json.loads(kept.read_text(encoding="utf-8"))["best"]["Inductor"]
    assert f"Inductor {best['us']}" in said and best["kernels"][0]["grid"] >= 1 and best["kernels"][0]["spills"][0] == 0
    # 33.5 MB are read and as many written: no machine is faster than its memory.
    assert best["us"] > 2 * 4096 * 4096 * 2 / 3.35e12 * 1e6
    again = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=True).stdout
    assert f"Inductor {best['us']}" in again


# --- ours beside them -------------------------------------------------------------------------------------------------


def judged(us: float | None, whole: bool = True) -> dict[str, Any]:
    best = {} if us is None else {"Inductor": {"us": us, "title": "t", "kernels": [{"configuration": "c"}]}}
    return {"best": best, "judged": 3, "refused": {"it aborts": 1}, "whole": whole}


def row(problem: str, us: float | None) -> dict[str, Any]:
    found = {"group": "rows", "problem": problem, "machine": "H100"}
    return found | ({"refused": "no strategy"} if us is None else {"us": us, "bound": "memory"})


def test_ratios_and_goals() -> None:
    rows = [row("a", 10.0), row("b", 10.0), row("c", None), row("d", 10.0), row("e", 10.0), row("f", 1.0), row("g", 1.0)]
    peers = {("rows", name, "H100"): judged(us) for name, us in (("a", 8.0), ("b", 10.5), ("c", 1.0), ("d", None), ("f", 4.0), ("g", 50.0))}
    lines = compare.compared(rows, peers, {("rows", "f", "H100"): "it misses work"})
    assert [line.get("ratio") for line in lines] == [0.8, 1.05, None, None, None, None]
    assert [line["reason"] for line in lines[2:]] == [
        "ours: no strategy",
        "it aborts",
        "ours: it misses work",
        "Inductor takes 50.0 us, ours 1.0: it has no kernel made for this",
    ]
    (found,) = compare.classes(lines)
    assert (found["problems"], found["mean"], found["least"], found["worst"], found["below"]) == (2, 0.917, 0.8, "a", 1)
    assert found["mean missed by"] == pytest.approx(0.083) and found["least missed by"] == pytest.approx(0.05)
    page = compare.page(lines, rows)
    assert "missed by 0.083" in page and "missed by 0.05" in page and "it aborts" in page
    assert compare.picture(lines).count("<circle") == 2


def test_estimates_that_miss_work_are_not_believed() -> None:
    problem = next(each for each in ours.problems() if each.name == "bf16 4096")
    machine = script("machines", KERNELS).H100
    assert believe.doubt(problem, machine, 200.0, [{"gigaop": 137.4}]) is None
    assert "below the 23.0 us" in believe.doubt(problem, machine, 10.0, [{"gigaop": 137.4}])
    assert believe.doubt(problem, machine, 200.0, [{"gigaop": 60.0}, {"gigaop": 0.0}]) == "estimated with 60 of 137 billion operations"
    assert "no matrix instruction counted, below the 1030.1 us" in believe.doubt(problem, machine, 200.0, [{"gigaop": 0.0}])
    assert "that matrix units need" in str(believe.doubt(problem, machine, 100.0, [{"gigaop": 137.4}]))
    causal = next(each for each in ours.problems() if "causal" in each.name)
    assert believe.gigaop(causal) == pytest.approx(2 * 32 * 4096**2 * 64 / 1e9)
    window = next(each for each in ours.problems() if each.window == 1024)
    looked = sum(min(row + 1, 1024) for row in range(8192))
    assert believe.gigaop(window) == pytest.approx(4 * 32 * 128 * looked / 1e9, rel=0.01)


def test_goals_that_are_met() -> None:
    lines = compare.compared([row("a", 10.0)], {("rows", "a", "H100"): judged(11.0, whole=False)})
    (found,) = compare.classes(lines)
    assert found["mean missed by"] == found["least missed by"] == 0.0 and not found["whole"]
    assert compare.page(lines, []).count("| met ") == 2


def test_shares_of_published_rates() -> None:
    rows = [{"group": "square products", "problem": "bf16 8192", "machine": "H100", "us": 1790.8}]
    assert "| 614 | 614 | 1.00 |" in compare.shares(rows)


def test_the_comparison_is_of_these_results() -> None:
    times = {(each["group"], each["problem"], each["machine"]): each.get("us") for each in RESULTS["problems"]}
    lines = [line for line in RESULTS["compared"] if "ratio" in line]
    assert len(lines) >= 60 and RESULTS["classes"] == compare.classes(RESULTS["compared"])
    for line in lines:
        assert times[line["group"], line["problem"], line["machine"]] == line["us"]
        assert line["ratio"] == pytest.approx(line["peer us"] / line["us"], abs=1e-3) and line["peer us"] == min(line["peers"].values())
    for line in RESULTS["compared"]:
        assert ("ratio" in line) != ("reason" in line)


# --- every schedule ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def offer() -> Any:
    problem = next(each for each in ours.problems() if each.name == "bf16 1024")
    found = every.offers(problem, "sm_90a")
    assert len(found) > 5 and len({each.kind for each in found}) == len(found)
    return found[0]


@pytest.fixture(scope="module")
def built(offer: Any) -> Any:
    match, schedule = offer.candidate
    machine = every.gpu_target(offer.architecture)
    (launch,) = match.program(schedule, machine).launches
    return every.compile_kernel(
        every.print_launch(replace(launch, name="kernel"), match.problem.symbols, None, machine.processors), machine
    )


def test_a_good_kernel_has_no_fault(built: Any) -> None:
    assert every.faults(built, every.gpu_target("sm_90a")) == []


def test_a_plan_that_disagrees_with_its_cubin_is_a_fault(built: Any) -> None:
    machine = every.gpu_target("sm_90a")
    threads = f".reqntid {32 * built.kernel.warps}"
    assert threads in built.ptx
    more = replace(built, ptx=built.ptx.replace(threads, f".reqntid {32 * built.kernel.warps + 128}"))
    assert every.faults(more, machine) == [f"the cubin has {built.kernel.warps + 4} warps, a plan launches {built.kernel.warps}"]
    fewer = replace(built, ptx=built.ptx.replace(".param", ".reg", 1))
    assert [each.split()[-1] for each in every.faults(fewer, machine)] == ["5"]
    large = replace(built, resources=replace(built.resources, shared=10**6))
    assert "1000000 bytes of shared memory" in every.faults(large, machine)


@pytest.mark.parametrize("error", [ToolchainError("triton did not answer within 60 s"), RuntimeError("what no one foresaw")])
def test_a_toolchain_that_fails_is_a_refusal(offer: Any, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(every, "FOLDER", tmp_path)
    monkeypatch.setattr(every, "compile_kernel", fail)
    (reason,) = every.refusals(offer)
    assert str(error) in reason


def test_what_was_built_is_not_built_again(offer: Any, built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(every, "FOLDER", tmp_path)
    monkeypatch.setattr(every, "compile_kernel", lambda *_: built)
    answers = iter([["it spills"], ["another text"]])
    monkeypatch.setattr(every, "faults", lambda *_: next(answers))
    assert every.refusals(offer) == every.refusals(offer) == ["it spills"]
    assert "1 built, 1 refused" in every.summary([(offer, ["it spills"])])
    other = replace(built.kernel, source=built.kernel.source + "\n")
    assert every.known(other, every.gpu_target("sm_90a")) == ["another text"]


def test_one_of_each_kind_comes_first() -> None:
    listed = [each for each in ours.problems() if each.group == "elementwise"]
    offered = every.in_turn(listed, 2)
    kinds = {offer.kind for offer in offered}
    assert len(offered) > len(kinds) and {offer.kind for offer in offered[: len(kinds)]} == kinds
    assert sorted(offer.title for offer in offered) == sorted(
        offer.title for each in listed for architecture in every.ARCHITECTURES for offer in every.offers(each, architecture)
    )
    assert [offer.title for offer in every.in_turn(listed, 2)] == [offer.title for offer in offered]


def test_a_sample_of_all_schedules_builds() -> None:
    """`make kernels-all` builds all of them."""
    listed = list(ours.problems())
    sample = every.drawn(listed, 3, 4)
    assert [each.title for each in sample] == [each.title for each in every.drawn(listed, 3, 4)]
    for each in sample:
        assert not [reason for reason in every.refusals(each) if reason.startswith("unforeseen") or "cubin" in reason], each.title


def test_measured_times_stand_first_on_the_page() -> None:
    known = hardware.measured("H100")
    assert len(known) == 70 and hardware.measured("B200") == []
    page = (BENCHMARKS / "results" / "kernels.md").read_text(encoding="utf-8")
    assert page.index(hardware.summary(known)) < page.index("## Beside peers")
    assert hardware.table(known, RESULTS["problems"]) in page


def test_measured_classes_have_their_mean_and_their_least() -> None:
    rows = [hardware.Measured("rows", name, "H100", ours, 40.0, 10.0) for name, ours in (("a", 10.0), ("b", 40.0), ("c", 80.0))]
    (line,) = hardware.summary(rows).splitlines()[2:]
    assert line == "| rows | H100 | 3 | 1.26 | 0.50 | c | 0.12 to 1.00 |"
    assert hardware.table(rows[:1], []).splitlines()[2] == "| rows: a | H100 | - | 10.0 | 40.0 | 4.00 |"
