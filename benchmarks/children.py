"""Work in child processes: each gives back its memory and one JSON object, and may fail alone."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ourcc.runtime.replace import replace_file

RESULTS = Path(__file__).resolve().parent / "results"


def run_child(script: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run a script that writes its result to the file named by --child; its output is shown as it comes.

    What it wrote before it failed is kept, with an `error` beside.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        done = subprocess.run([sys.executable, script, "--child", str(result), *arguments], check=False)
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
        is_done = done.returncode == 0 and bool(found)
        return found if is_done else found | {"error": f"the process ended with status {done.returncode}"}


def write_json(path: Path, data: object) -> None:
    """Write JSON that reads well and whose keys keep their order, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, [(json.dumps(data, indent=1) + "\n").encode()])


def read_json(path: Path) -> dict[str, Any]:
    """What `write_json` wrote; nothing where there is no such file."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def chosen(names: str, known: Sequence[str]) -> list[str]:
    """The names of a comma-separated list; an unknown one ends the program."""
    wanted = [name for name in names.split(",") if name]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"got {', '.join(unknown)}, expected some of {', '.join(known)}")
    return wanted
