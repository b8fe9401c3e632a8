"""The table of fusion: what could be computed where it is read first, movements counted in a note, engines that do not say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ourcc.compiler.commands.inspect import inspect
from ourcc.compiler.options import InspectOptions, build_options
from ourcc.compiler.pipeline import compile_again, compile_module
from ourcc.compiler.report.fit import fit
from ourcc.compiler.report.fusion import fusion_tables, largest_kept
from ourcc.ir.errors import EngineError
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.workload import parse_workload
from ourcc.runtime.contents import EngineContents
from ourcc.runtime.engine import Engine

HEADS, SQUARE = "f32[B, 4, 16, 8]", "f32[B, 4, 16, 16]"
TEXT = f"""module @m symbols {{ B in 1..4 }} {{
  func @main(%q: f32[B, 16, 4, 8], %k: {HEADS}, %v: {HEADS}) -> ({HEADS}, {SQUARE}, f32[B, 4, 8, 16]) {{
    %t = transpose(%q) {{permutation = [0, 2, 1, 3]}} : {HEADS}
    %e = exp(%t) : {HEADS}
    %s = matmul(%e, %k) {{transpose_b = true}} : {SQUARE}
    %p = softmax(%s) {{axis = -1}} : {SQUARE}
    %y = matmul(%p, %v) : {HEADS}
    %u = transpose(%k) {{permutation = [0, 1, 3, 2]}} : f32[B, 4, 8, 16]
    %w = neg(%u) : f32[B, 4, 8, 16]
    return %y, %p, %w
  }}
}}
"""


@pytest.fixture(scope="module")
def contents() -> EngineContents:
    return compile_module(parse_module(TEXT), build_options({"targets": ["native"], "tune": "off"}))


def test_what_a_reader_could_compute_comes_first(contents: EngineContents) -> None:
    (rows,) = contents.report["fusion"].values()
    assert [(row["value"], row["is_movement"]) for row in rows if row["verdict"] == "inlined"] == [("t", True), ("u", True)]
    table, missed = fusion_tables("here", rows, contents.report["missed"], parse_workload(["B=1"]))
    values = [row["value"] for row in table.to_data()]
    assert values[:2] == ["s", "e"] and sorted(values) == ["e", "p", "s", "w", "y"]
    (e,) = (row for row in table.to_data() if row["value"] == "e")
    elements = 1 * 4 * 16 * 8  # at B = 1: the only symbol, and the batch
    assert (e["bytes"], e["operations"]) == (2 * 4 * elements, 15 * elements)
    assert any("2 transpose" in note for note in table.notes) and any("B=1" in note for note in table.notes)
    assert missed.to_data() == [{"pattern": "attention", "value": "y", "why": "weights are also an output", "source": None}]
    lines = fit(table, 80)
    assert max(map(len, lines)) <= 80 and "left out for want of room: where" in lines[-1]


def test_the_largest_values_in_memory(contents: EngineContents) -> None:
    (rows,) = contents.report["fusion"].values()
    found = largest_kept(rows)
    assert found[0]["value"] == "s" and not {"t", "u"} & {row["value"] for row in found}
    assert [row["bytes"] for row in found] == sorted((row["bytes"] for row in found), reverse=True)


def test_kernels_are_named_that_compute_a_value(contents: EngineContents) -> None:
    ((part, rows),) = contents.report["fusion"].items()
    known = {row["kernel"] for row in contents.report["kernels"][part]}
    assert all(row["where"] and set(row["where"]) <= known for row in rows)


def test_an_engine_that_is_made_again_says_it_again(contents: EngineContents) -> None:
    again = compile_again(contents, build_options({"targets": ["native"], "tune": "off"}))
    assert (again.report["fusion"], again.report["missed"]) == (contents.report["fusion"], contents.report["missed"])


def test_an_engine_of_an_earlier_version_does_not_say(contents: EngineContents, tmp_path: Path) -> None:
    report = {name: rows for name, rows in contents.report.items() if name not in ("fusion", "missed")}
    Engine(replace(contents, report=report)).save(tmp_path / "old.ourcc")
    with pytest.raises(EngineError, match="engine does not say what fusion decided") as error:
        inspect(InspectOptions(tmp_path / "old.ourcc", fusion=True))
    assert "--rebuild" in (error.value.hint or "")
