"""What importing costs and loads: the command line and the runtime start fast, and bring nothing heavy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ourcc

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "triton", "sympy", "onnx", "onnxruntime", "networkx", "transformers", "rich", "matplotlib")
ROOMS = ("ir", "passes", "codegen", "runtime", "compiler", "autotune")
HELP = "from ourcc.compiler.cli.main import run; run(['--help'])"


def python(code: str) -> str:
    # Outside the checkout, so that its folders cannot be found as top-level modules.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(code: str) -> set[str]:
    return set(json.loads(python(f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))").splitlines()[-1]))


def best_time(code: str, rounds: int = 5) -> float:
    """The fastest of some fresh processes: the machine may be busy, the code cannot be faster than it is."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        python(code)
        times.append(time.perf_counter() - start)
    return min(times)


@pytest.mark.parametrize(
    "code",
    [
        "import ourcc",
        "import ourcc.runtime",
        "import ourcc.ir",
        "import ourcc.compiler.options, ourcc.compiler.targets",
        HELP,
        "from ourcc.compiler.cli.main import run; run(['inspect', '--help'])",
    ],
)
def test_nothing_heavy_is_loaded(code: str) -> None:
    loaded = loaded_by(code)
    assert {name for name in loaded if name.partition(".")[0] in HEAVY} == set()


def test_the_help_loads_no_command_and_no_numpy() -> None:
    loaded = loaded_by(HELP)
    assert "numpy" not in loaded
    assert {name for name in loaded if name.startswith("ourcc.compiler.cli.")} == {"ourcc.compiler.cli.main"}


def test_the_runtime_knows_nothing_above_it() -> None:
    modules = [f"ourcc.runtime.{path.stem}" for path in (ROOT / "runtime").glob("*.py") if path.stem != "__init__"]
    loaded = loaded_by(f"import {', '.join(['ourcc.runtime', *sorted(modules)])}")
    above = ("ourcc.compiler", "ourcc.autotune", "ourcc.passes", "ourcc.codegen")
    assert {name for name in loaded if name.startswith(above)} == set()
    assert {name for name in loaded if name.partition(".")[0] in ("torch", "sympy")} == set()


def test_no_room_is_a_top_level_module() -> None:
    assert loaded_by("import ourcc.runtime, ourcc.compiler.options, ourcc.compiler.cli.build") & set(ROOMS) == set()
    assert {name for name in ROOMS if name in sys.modules and str(ROOT) in str(getattr(sys.modules[name], "__file__", ""))} == set()


def test_the_help_answers_fast() -> None:
    assert best_time(HELP) < 0.3


def test_the_runtime_is_imported_fast() -> None:
    assert best_time("import numpy, ourcc.runtime") - best_time("import numpy") < 0.15


def test_the_front_door_has_its_public_names_only() -> None:
    expected = {"build", "load", "explain", "Engine", "CompilerError", "InternalError", "__version__"}
    assert expected <= set(ourcc.__all__) == set(dir(ourcc))
    assert callable(ourcc.build) and callable(ourcc.load) and callable(ourcc.explain)
    with pytest.raises(AttributeError, match="module 'ourcc' has no attribute 'magic'"):
        _ = ourcc.magic
    for name in sorted(set(ourcc.__all__) - {"Engine"}):
        assert getattr(ourcc, name) is not None


def test_importing_has_no_side_effects(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    code = "import threading, ourcc, ourcc.runtime, ourcc.compiler.cli.main; assert threading.active_count() == 1"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
