"""What importing costs and loads: the command line and the runtime start fast, and bring nothing heavy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    "code",
    [
        "import ourcc",
        "import ourcc.runtime",
        "import ourcc.ir",
        "import ourcc.compiler.options, ourcc.compiler.targets.registry",
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
    assert {name for name in loaded if name.startswith("ourcc.compiler.cli.")} == {"ourcc.compiler.cli.main", "ourcc.compiler.cli.streams"}


def test_the_runtime_knows_nothing_above_it() -> None:
    modules = [f"ourcc.runtime.{path.stem}" for path in (ROOT / "runtime").glob("*.py") if path.stem != "__init__"]
    loaded = loaded_by(f"import {', '.join(['ourcc.runtime', *sorted(modules)])}")
    above = ("ourcc.compiler", "ourcc.autotune", "ourcc.passes", "ourcc.codegen")
    assert {name for name in loaded if name.startswith(above)} == set()
    assert {name for name in loaded if name.partition(".")[0] in ("torch", "sympy")} == set()


def test_loading_an_engine_and_looking_at_one_loads_no_compiler(tmp_path: Path) -> None:
    """What is said of a file that is none comes behind all that loading imports."""
    path = tmp_path / "m.ourcc"
    code = f"import ourcc\ntry: ourcc.load({str(path)!r})\nexcept ourcc.CompilerError: pass"
    path.write_bytes(b"PK\3\4" + bytes(9000))
    compilers = (
        "ourcc.passes",
        "ourcc.codegen",
        "ourcc.autotune",
        "ourcc.compiler.backends",
        "ourcc.compiler.targets",
        "ourcc.compiler.options",
    )
    loaded = loaded_by(code)
    assert "ourcc.runtime.engine" in loaded and {name for name in loaded if name.startswith(compilers)} == set()
    looked = loaded_by("import ourcc.compiler.commands.inspect")
    assert {name for name in looked if name.startswith(("ourcc.codegen.c.printer", "ourcc.codegen.triton"))} == set()


def test_no_room_is_a_top_level_module() -> None:
    assert loaded_by("import ourcc.runtime, ourcc.compiler.options, ourcc.compiler.cli.build") & set(ROOMS) == set()
    assert {name for name in ROOMS if name in sys.modules and str(ROOT) in str(getattr(sys.modules[name], "__file__", ""))} == set()


def foreign(code: str, beyond: str = "") -> set[str]:
    """The top-level modules of others that a program loads, beyond Python's own and those of another program."""
    loaded = {name.partition(".")[0] for name in loaded_by(code)} - {name.partition(".")[0] for name in loaded_by(beyond)}
    return {name for name in loaded - set(sys.stdlib_module_names) if not name.startswith("_")}


def test_the_help_loads_few_modules() -> None:
    assert foreign(HELP) == {"ourcc", "click"}
    ours = {name for name in loaded_by(HELP) if name.startswith("ourcc")}
    assert ours == {
        *("ourcc", "ourcc.compiler", "ourcc.compiler.cli", "ourcc.compiler.cli.main", "ourcc.compiler.cli.streams"),
        *("ourcc.ir", "ourcc.ir.errors", "ourcc.ir.spelling"),
    }


def test_the_runtime_brings_numpy_only() -> None:
    assert foreign("import ourcc.runtime") <= {"ourcc", "numpy", "ml_dtypes"}
    assert foreign("import ourcc.runtime", beyond="import numpy, ml_dtypes") == {"ourcc"}


def test_importing_has_no_side_effects(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    code = "import threading, ourcc, ourcc.runtime, ourcc.compiler.cli.main; assert threading.active_count() == 1"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
