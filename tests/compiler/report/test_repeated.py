"""Long tables show rows of repeated layers once, short ones as they are; no row is lost and no number that is the same."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ourcc.compiler.cli import output
from ourcc.compiler.report.repeated import LONG, fold
from ourcc.compiler.report.table import Report, Table

LAYERS = [(f"layers.{layer}.{part}", f"more than 128 ops in {part}_{layer}", 7) for layer in range(30) for part in ("attention", "mlp")]
TABLE = Table("kept", ("source", "why", "bytes"), (("head", "read by 2", 7), *LAYERS, ("layers.3.mlp", "another reason", 7)))


def test_rows_that_differ_in_numbers_of_names_are_one() -> None:
    folded = fold(TABLE, ("source", "why")).folded
    assert folded is not None and folded.columns == ("times", "source", "why", "bytes")
    assert folded.rows == (
        (1, "head", "read by 2", 7),
        (30, "layers.*.attention", "more than 128 ops in attention_*", 7),
        (30, "layers.*.mlp", "more than 128 ops in mlp_*", 7),
        (1, "layers.3.mlp", "another reason", 7),
    )
    assert "--wide and --json have every row" in folded.notes[0]
    # What is no name is compared whole.
    assert fold(TABLE, ("source",)) is TABLE
    assert fold(Table("t", TABLE.columns, TABLE.rows[:LONG]), ("source", "why")).folded is None


def test_rows_of_any_names_that_say_the_same_are_one() -> None:
    rows = [
        (f"/net/{part}/conv", "conv", f"the axis has {size} elements") for part, size in (("stem", 3), ("a.b1", 16), ("b", 24), ("head", 8))
    ]
    table = Table("contract", ("source", "op", "why"), (*rows, ("fc1", "linear", None), ("fc2", "linear", None), ("last", "conv", None)))
    folded = fold(table, ("source", "why"), 2, any_of="source").folded
    assert folded is not None and folded.rows == (
        (4, "/net/*", "conv", "the axis has * elements"),
        (2, "fc*", "linear", None),
        (1, "last", "conv", None),
    )
    assert "which differ here alone; --wide and --json have every row" in folded.notes[0] and len(folded.notes[0]) < 100
    alone = fold(table, ("source", "why"), 2).folded
    assert alone is not None and len(alone.rows) == 6


def test_people_see_them_once_and_machines_all(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report(tables=(fold(TABLE, ("source", "why")),))
    for is_wide, lines in ((False, 4), (True, 62)):
        monkeypatch.setattr(output, "asked", lambda what, is_wide=is_wide: is_wide)
        output.print_report(report, as_json=False)
        shown = capsys.readouterr().out
        assert len(re.findall(r"^ +\d* *(?:head|layers)", shown, re.M)) == lines and ("layers.*.mlp" in shown) != is_wide
    assert len(report.to_data()["kept"]) == 62


@pytest.mark.parametrize("seed", range(20))
def test_drawn_tables_keep_every_row(seed: int) -> None:
    draw = np.random.default_rng(seed)
    names = [f"{'ab'[draw.integers(2)]}{draw.integers(3)}.{'xy'[draw.integers(2)]}{draw.integers(12)}" for _ in range(90)]
    table = Table("t", ("name", "size"), tuple((name, int(draw.integers(2))) for name in names))
    folded = fold(table, ("name",)).folded
    assert folded is not None
    assert sum(int(row[0] or 0) for row in folded.rows) == len(table.rows)
    for name, size in table.rows:
        fits = [
            row for row in folded.rows if row[2] == size and re.fullmatch(str(row[1]).replace(".", r"\.").replace("*", "[0-9]+"), str(name))
        ]
        assert len(fits) == 1
