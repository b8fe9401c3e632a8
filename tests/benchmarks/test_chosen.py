"""A word that chooses nothing of a benchmark is one line of error that lists what there is, before anything is judged."""

from __future__ import annotations

import argparse
import sys

import pytest

from .scripts import KERNELS, script

chosen = script("chosen", KERNELS).chosen
THINGS = ("rows 1", "rows 2", "columns, 1", "columns, 2")


def taken(*words: str) -> list[str]:
    found: list[str] = chosen(argparse.ArgumentParser(prog="p"), words, THINGS, str)
    return found


def test_a_part_of_a_name_chooses() -> None:
    assert taken("") == list(THINGS)
    assert taken("columns, ") == ["columns, 1", "columns, 2"] and taken("1") == ["rows 1", "columns, 1"]
    assert taken("2", "rows") == ["rows 2", "columns, 2", "rows 1"]


def test_an_error_lists_no_more_than_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        chosen(argparse.ArgumentParser(prog="p"), ["x"], range(1000), lambda n: f"number {n}")
    error = capsys.readouterr().err
    assert error.startswith("p: error: nothing is called 'x', expected a part of one of: number 0; ") and error.endswith("960 more\n")


@pytest.mark.parametrize(
    ("name", "words", "listed"),
    [
        ("measure", ["--only", "nonsense"], "; "),
        ("waves", ["--only", "nonsense"], "H100 "),
        ("few_rows", ["--only", "nonsense"], "H100 bf16 8; H100 int8 1"),
        ("tuned", ["--rows", "3"], "expected one of 8, 16"),
        ("every", ["--only", "nonsense"], "; "),
        ("end_to_end", ["--only", "nonsense"], "; "),
        ("schedules", ["--only", "nonsense,more"], "; "),
        ("device", ["--only", "nonsense"], "; "),
    ],
)
def test_every_script_refuses(
    name: str, words: list[str], listed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = script(name, KERNELS)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
    with pytest.raises(SystemExit, match="2"):
        module.main()
    shown = capsys.readouterr()
    assert not shown.out and shown.err.count("\n") == 1 and shown.err.startswith(f"{name}.py: error: ") and listed in shown.err
