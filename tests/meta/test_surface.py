"""The one public surface: its names, its signatures, and what a type checker says of right and wrong calls."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import pytest

import ourcc
from ourcc.compiler.options import BuildOptions, Options

ROOT = Path(__file__).parents[2]
ERRORS = ("CompilerError", "ContractError", "EngineError", "InputError", "InternalError", "ModelError", "ToolchainError")
NAMES = {*ERRORS, "UnsupportedError", "UsageError", "Engine", "LanguageModel", "Options", "__version__", "build", "explain", "load"}


def test_the_public_names_are_these() -> None:
    assert set(ourcc.__all__) == set(dir(ourcc)) == NAMES
    for name in NAMES:
        assert getattr(ourcc, name) is not None
    with pytest.raises(AttributeError, match="module 'ourcc' has no attribute 'magic'"):
        _ = ourcc.magic


def test_the_signatures_are_these() -> None:
    def names(function: object) -> list[str]:
        return [str(parameter).split(":")[0].split("=")[0].strip() for parameter in inspect.signature(function).parameters.values()]

    assert names(ourcc.build) == ["model", "example_inputs", "progress", "**options"]
    assert names(ourcc.load) == ["path", "target", "threads", "verify", "trusted_keys", "copy_weights", "graphs"]
    assert names(ourcc.explain) == ["model", "*inputs", "**options"]
    public = {name for name in vars(ourcc.Engine) if not name.startswith("_")}
    assert public == {
        "load",
        "save",
        "run",
        "session",
        "functions",
        "contents",
        "inputs",
        "outputs",
        "targets",
        "target",
        "parts",
        "part",
        "contract",
    }


def test_the_typed_options_are_those_that_are_read() -> None:
    read = {option.name for option in fields(BuildOptions)} - {"environment", "trust"}
    assert set(Options.__annotations__) == read | {"target", "shape"}


RIGHT = """
import numpy as np
import ourcc

engine = ourcc.build("m.onnx", target="cpu", shapes={"ids": ["B", "S:1..512"]}, quantize="int8-weight", tune=8, threads=2)
ourcc.build("m.onnx", targets=["cpu", "sm_90a"], require="no-fallback", sparsity="2:4", report="r.html")
loaded = ourcc.load("m.ourcc", threads=1, verify=True)
loaded(np.zeros(3), mask=np.zeros(3))
options: ourcc.Options = {"freeze": False, "tune": "cached"}
ourcc.explain("m.onnx", **options)
"""
WRONG = {
    'ourcc.build("m.onnx", tpyo=3)': 'Unexpected keyword argument "tpyo"',
    'ourcc.build("m.onnx", quantize="int7")': 'has incompatible type "Literal',
    'ourcc.build("m.onnx", threads="two")': 'has incompatible type "str"',
    'ourcc.explain("m.onnx", freze=True)': "Unexpected keyword argument",
    'ourcc.load("m.ourcc", thread=1)': 'Unexpected keyword argument "thread"',
    'options: ourcc.Options = {"fuse": True}': 'Extra key "fuse" for TypedDict "Options"',
}


BROUGHT = """
from typing import Any

model: torch.nn.Module
ids: Any
mask: Any
program: torch.export.ExportedProgram
"""
"""What README's snippets take from their reader, as a stub says it."""


def check_types(folder: Path, files: Sequence[str], *options: str) -> str:
    """What mypy prints of files in a folder, without a configuration."""
    environment = {**os.environ, "MYPYPATH": str(ROOT / ".typing")}
    read = ["--config-file", os.devnull, "--follow-imports", "silent", "--ignore-missing-imports", "--cache-dir", str(folder / "cache")]
    command = [sys.executable, "-m", "mypy", *read, *options, *files]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False).stdout


def test_a_type_checker_passes_what_the_readme_shows(tmp_path: Path) -> None:
    """Every Python snippet, strictly: with what it imports, and what its reader brings."""
    pytest.importorskip("mypy")
    pytest.importorskip("torch")
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert any(".generate(" in text for text in snippets)
    files = {f"snippet{number}.py": "import torch\n" + BROUGHT + text for number, text in enumerate(snippets)}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert (
        check_types(tmp_path, sorted(files), "--strict")
        == f"Success: no issues found in {len(files)} source file{'s' * (len(files) > 1)}\n"
    )


def test_a_type_checker_knows_right_calls_from_wrong_ones(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text("import ourcc\n" + "\n".join(WRONG) + "\n")
    printed = check_types(tmp_path, ["right.py", "wrong.py"])
    found = {line.split(":")[0] + ":" + line.split(":")[1]: line for line in printed.splitlines() if ": error: " in line}
    assert set(found) == {f"wrong.py:{number}" for number in range(2, len(WRONG) + 2)}, printed
    for number, expected in enumerate(WRONG.values(), 2):
        assert expected in found[f"wrong.py:{number}"]
