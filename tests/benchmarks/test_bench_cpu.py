"""The benchmark of models on the CPU: what counts as missed, what is kept and tried again, what tables and pictures hold."""

from __future__ import annotations

import argparse
import json
import types
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ourcc.compiler.targets.machine import read_cpu

from .scripts import script

RATES = {"fma_gflops": 100.0, "bf16_dot_gflops": 200.0, "int8_dot_gops": 400.0, "read_gbytes_per_second": 20.0}
TILES = RATES | {"bf16_matrix_gflops": 2000.0, "int8_matrix_gops": 4000.0}


bench_cpu, goals, report, rates, zoo = (script(name) for name in ("bench_cpu", "bench_goals", "bench_report", "machine_rates", "zoo"))


def contender(what: str, side: str, least: float | None, wrong: bool = False) -> dict[str, Any]:
    if least is None:
        return {"what": what, "side": side, "refused": "ValueError: no such op"}
    times = {"minimum_ms": least, "median_ms": least + 1, "samples_ms": [least, least + 1]}
    return {"what": what, "side": side, "largest": 1e-6, "relative": 1e-6, "wrong": wrong, **times}


def row(precision: str = "f32", ours: float | None = 10.0, peers: tuple[float | None, ...] = (12.0, 15.0), **more: Any) -> dict[str, Any]:
    """10 ms of 0.5 billion operations: half of what RATES give in float32."""
    found = [contender("ourcc", "ours", ours), contender("ourcc f32", "reference", more.pop("own", 30.0))]
    found += [contender(f"peer {number}", "peer", least) for number, least in enumerate(peers)]
    usual = {"model": "vit", "title": "ViT", "size": "B=1", "threads": 1, "depthwise": False, "gflop": 0.5, "rates": RATES}
    return {"precision": precision, "two_of_the_same_apart": 0.01, **usual, "contenders": found} | more


def kinds(given: dict[str, Any]) -> list[str]:
    return [miss.kind for miss in goals.missed(given)]


def test_the_best_of_both_sides_are_compared() -> None:
    assert goals.ratio(row()) == pytest.approx(1.2)
    assert goals.ratio(row(), "reference") == pytest.approx(3.0)
    assert goals.ratio(row(ours=None)) is None and goals.ratio(row(peers=(None,))) is None
    assert goals.share(row()) == pytest.approx(0.5) and goals.share(row("bf16")) == pytest.approx(0.25)
    assert goals.share(row("int8", rates=TILES)) == pytest.approx(0.0125) and goals.share(row("int4")) is None


def test_a_wrong_answer_is_no_peer_and_none_of_ours() -> None:
    quick = row()
    quick["contenders"].append(contender("peer 2", "peer", 1.0, wrong=True))
    assert goals.ratio(quick) == pytest.approx(1.2)
    quick["contenders"][0]["wrong"] = True
    assert goals.ratio(quick) is None and kinds(quick) == ["answer"]


def test_what_a_row_misses() -> None:
    assert kinds(row()) == []
    assert kinds(row(peers=(11.0,))) == ["ratio"]
    assert kinds(row(peers=(9.9,))) == ["ratio", "floor"]
    assert kinds(row(peers=(11.0,), gflop=0.9)) == [] and kinds(row(peers=(11.0,), gflop=0.89)) == ["ratio"]
    assert kinds(row(peers=(11.0,), gflop=0.86, depthwise=True)) == []
    assert kinds(row(peers=(9.9,), gflop=0.95)) == ["floor"]
    assert kinds(row("bf16", peers=(10.5,))) == ["ratio"] and kinds(row("bf16", peers=(10.5,), gflop=1.81)) == []
    assert kinds(row("bf16", peers=(19.0,), rates=TILES)) == ["ratio"]
    assert kinds(row("bf16", peers=(12.0,), rates=TILES)) == ["ratio", "floor"]
    assert kinds(row("bf16", peers=(1.0,), rates={"fma_gflops": 100.0})) == []
    assert kinds(row("int8", model="bert", own=24.0)) == ["own"] and kinds(row("int8", own=24.0)) == []
    assert kinds(row("int8", model="bert", own=26.0)) == [] and kinds(row("int8", rates=TILES)) == ["ratio"]
    assert kinds(row("int4", peers=(1.0,))) == []
    assert kinds(row(ours=None)) == ["answer"]


def test_a_mean_makes_rows_good_where_the_goal_is_one() -> None:
    (found,) = goals.verdicts([row("int8", peers=(20.0,)), row("int8", peers=(10.0,), size="B=2")])
    assert found["geometric_mean"] == pytest.approx(2**0.5, abs=1e-3) and found["least"] == 1.0
    assert found["is_met"] and list(found["missed"]) == ["ViT, B=2"]
    (found,) = goals.verdicts([row("f32", peers=(20.0,)), row("f32", peers=(11.0,), size="B=2")])
    assert found["geometric_mean"] > 1.15 and not found["is_met"]
    (found,) = goals.verdicts([row("int8", peers=(20.0,)), row("int8", ours=None)])
    assert not found["is_met"] and found["compared"] == 1
    assert "is_met" not in goals.verdicts([row("int4")])[0]
    assert [(each["precision"], each["threads"]) for each in goals.verdicts([row(), row(threads=2), row()])] == [("f32", 1), ("f32", 2)]


def test_products_of_few_rows_wait_for_their_weights() -> None:
    """20 MB at 20 GB/s take 1 ms, at 85 % of it 1.18 ms; 0.1 billion operations in f32 2 ms at half the rate, in int8 0.5 ms."""

    def missed(format: str, rows: int, milliseconds: float, times: float = 9.0) -> list[str]:
        given = {"rows": rows, "bytes": 20e6, "minimum_ms": milliseconds, "times_as_fast_as_f32": times}
        return [miss.kind for miss in goals.product_missed(format, given, 0.1e9, RATES)]

    assert missed("fp8-weight", 1, 1.17) == [] and missed("fp8-weight", 1, 1.19) == ["bound"]
    assert missed("fp8-weight", 4, 1.99) == [] and missed("fp8-weight", 4, 2.01) == ["bound"]
    assert missed("mxfp4-a8", 4, 1.17) == [] and missed("mxfp4-a8", 4, 1.19) == ["bound"]
    assert missed("int4-a8", 1, 1.0, 5.9) == ["own"] and missed("int4-weight", 1, 1.0, 3.6) == [] and missed("f32", 1, 1.0, 1.0) == []
    assert missed("int4-a8", 4, 1.0, 5.9) == [] and missed("int8", 128, 99.0) == []


def results(rows: list[dict[str, Any]]) -> dict[str, Any]:
    machine = {"cpu": "Some CPU", "flags": ["avx2"], "versions": {"torch": "2"}}
    return {"layers": None, "machine": machine, "models": {"vit": {"f32/1": rows, "int8/1": {"error": "the process ended with status -9"}}}}


def test_the_table_tells_every_row_and_every_refusal() -> None:
    rows = [row(), row("int4", ours=None), row(peers=(9.0, None), size="B=2", threads=2)]
    rows[1]["contenders"][3]["wrong"] = True
    text = report.markdown(results(rows), rows)
    assert "| ViT | B=1 | **10.00** (11.00) [1e-06] |" in text and "| **1.20** | 50% | 1.0% | met |" in text
    assert "0.90 of 1.15 and 50% of 90%; below 1.00" in text
    assert "- ourcc, int4, ViT: ValueError: no such op" in text and "- vit int8/1: the process ended with status -9" in text
    assert (
        "f32 100.0 GFLOP/s" in text
        and "## f32, 2 threads" in text
        and "| f32 | 2 | 1 | 0.90 | 0.90 | 1.15 | 1.00 | missed by 1 of 1 |" in text
    )
    tables = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({line.count("|") for line in tables if line.startswith("| ViT | B=1 | **")}) == 1


def test_the_picture_has_a_bar_for_each_ratio() -> None:
    rows = [row(title="A & B"), row("int8"), row(threads=2), row("int4", ours=None)]
    root = ElementTree.fromstring(report.picture(rows))
    titles = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["A & B, B=1, f32: 1.20", "ViT, B=1, int8: 1.20", "ViT, B=1, f32: 1.20"]
    assert ElementTree.fromstring(report.picture([])).tag.endswith("svg")


def options(**more: Any) -> argparse.Namespace:
    usual = {"precisions": "f32,int4", "threads": "1,2", "layers": None, "rounds": 1, "peers": "eager", "seconds_per_model": 1.0}
    return argparse.Namespace(**usual | more)


def test_what_is_outstanding() -> None:
    kept = {"f32/1": [row()], "f32/2": {"error": "it failed"}}
    assert bench_cpu.outstanding(kept, "vit", options()) == [("f32", 2), ("int4", 1), ("int4", 2)]
    assert bench_cpu.outstanding(kept, "resnet50", options()) == [("f32", 2)]


def test_a_process_that_ends_costs_one_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def child(script: str, arguments: list[str]) -> dict[str, Any]:
        cells = arguments[arguments.index("--cells") + 1]
        asked.append(cells)
        if cells.startswith("f32/1"):
            return {"f32/1": [row()], "error": "it was killed"}
        return {cell: [row()] for cell in cells.split(",")}

    monkeypatch.setattr(bench_cpu, "run_child", child)
    kept: dict[str, Any] = {}
    bench_cpu.measured("vit", kept, options(), lambda: None)
    assert asked == ["f32/1,f32/2,int4/1,int4/2", "int4/1,int4/2"]
    assert kept["f32/2"] == {"error": "it was killed"} and all(isinstance(kept[cell], list) for cell in ("f32/1", "int4/1", "int4/2"))
    assert bench_cpu.outstanding(kept, "vit", options()) == [("f32", 2)]


def test_times_of_another_machine_are_not_mixed(tmp_path: Path) -> None:
    facts = {"cpu": "one", "processors": 2, "compiler": "gcc", "versions": {"torch": "2"}}
    path = tmp_path / "bench.json"
    assert bench_cpu.earlier(path, facts, options()) == {}
    path.write_text(json.dumps({"layers": None, "machine": facts, "models": {"vit": {}}}))
    assert bench_cpu.earlier(path, facts, options()) == {"vit": {}}
    with pytest.raises(SystemExit, match=r"cpu one, now other: remove it"):
        bench_cpu.earlier(path, facts | {"cpu": "other"}, options())
    with pytest.raises(SystemExit, match=r"layers None, now 2"):
        bench_cpu.earlier(path, facts, options(layers=2))


def test_rates_are_the_best_of_all_rows_of_as_many_threads() -> None:
    slow = {name: rate / 2 for name, rate in RATES.items()}
    models = {
        "bert": {"int8/1": [row("int8", rates=slow)], "f32/1": [row()], "f32/2": [row(threads=2, rates=slow)], "int4/1": {"error": ""}}
    }
    found = bench_cpu.rows_of(models)
    assert [(each["precision"], each["threads"]) for each in found] == [("f32", 1), ("f32", 2), ("int8", 1)]
    assert [each["rates"]["fma_gflops"] for each in found] == [100.0, 50.0, 100.0]


def test_how_far_answers_are_apart() -> None:
    eager = np.array([3.0, -4.0], np.float32)
    assert bench_cpu._apart(eager * 1.01, eager) == {"largest": 0.01, "relative": 0.01, "wrong": False}
    assert bench_cpu._apart(-eager, eager)["wrong"] and bench_cpu._apart(eager * np.nan, eager)["wrong"]
    with pytest.raises(ValueError, match=r"shape \(1, 2\), expected \(2,\)"):
        bench_cpu._apart(eager[None], eager)


def test_every_precision_has_ours_its_peers_and_a_line_of_rates() -> None:
    contenders = script("bench_contenders").CONTENDERS
    assert tuple(contenders) == bench_cpu.PRECISIONS == tuple(report.COLOURS)
    for each in contenders.values():
        assert {"ours", "peer"} <= {one.side for one in each} and len({one.name for one in each}) == len(each)
        assert all(one.name.startswith(bench_cpu.PEERS if one.side == "peer" else "ourcc") for one in each)
    assert set(report.RATES) == set(rates.KINDS)


def test_rates_are_of_the_instructions_that_the_machine_has() -> None:
    features = read_cpu().features
    found = rates.measured_rates(2)
    assert all(rate > 0 for rate in found.values()) and {"fma_gflops", *rates.BANDWIDTHS} <= set(found)
    assert ("bf16_dot_gflops" in found) == ("avx512_bf16" in features)
    assert ("int8_dot_gops" in found) == bool({"avx512_vnni", "avx_vnni"} & features)
    assert ("int8_matrix_gops" in found) == ("bf16_matrix_gflops" in found)


def test_operations_of_attention_are_counted() -> None:
    """Two products of 8 x 8 x 16 for each of three heads, two operations a term."""

    class Attention(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    model = types.SimpleNamespace(module=Attention())
    assert zoo.operations(model, [torch.zeros(1, 3, 8, 16)]) == 2 * 3 * 8 * 8 * 16 * 2
