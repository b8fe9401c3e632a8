"""A small share of `make endurance`, counted and not timed: nothing stays behind, and what is killed leaves files whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "endurance.py"


def test_what_is_done_often_leaves_nothing_behind(tmp_path: Path) -> None:
    counts = {"loads": 400, "calls": 2000, "builds": 6, "recompilations": 0, "tokens": 2000, "sessions": 60, "threads": 800, "kills": 4}
    arguments = [word for name, count in counts.items() for word in (f"--{name}", str(count))]
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments, "--output", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "endurance.json").read_text(encoding="utf-8"))["rows"]
    assert {name: row["verdict"] for name, row in rows.items()} == {name: "flat" for name, count in counts.items() if count}
