"""Drawn outputs that are inputs, by any path or link: each is refused before any work, and every file stays as it was."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ourcc
from ourcc.compiler.cli.main import run
from ourcc.ir.errors import UsageError
from ourcc.runtime.sources import sources

SHARE = 8
"""One command line for so many modules that the other drawn tests compile."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights lie beside it, its engine, inputs and a lock."""
    folder = tmp_path_factory.mktemp("outputs")
    weight = numpy_helper.from_array(np.ones((16, 8), np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, size]) for name, size in (("x", 16), ("y", 8)))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    ourcc.build(model, tune="off").save(folder / "m.ourcc")
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    np.save(folder / "x.npy", np.ones((2, 16), np.float32))
    np.savez(folder / "x.npz", x=np.ones((2, 16), np.float32))
    (folder / "ourcc.lock").write_text("{}")
    measured = [
        "bench",
        folder / "m.ourcc",
        "--rounds",
        1,
        "--kernels",
        "--trace",
        folder / "trace.json",
        "--picture",
        folder / "picture.svg",
    ]
    for line in (measured, ["build", folder / "m.onnx", "-o", folder / "other.ourcc", "--report", folder / "page.html"]):
        assert run([*map(str, line), "-q"]) == 0
    return folder


def other_path(file: Path, choices: random.Random) -> Path:
    """The same file by another path or link."""
    kind = choices.choice(("same", "dots", "symbolic", "hard", "folder"))
    new = file.parent / f"other{choices.getrandbits(40)}"
    if kind == "dots":
        return file.parent / ".." / file.parent.name / file.name
    if kind == "symbolic":
        new.symlink_to(file)
    elif kind == "hard":
        os.link(file, new)
    elif kind == "folder":
        new.symlink_to(file.parent)
        return new / file.name
    return file if kind == "same" else new


LINES: tuple[tuple[str, Callable[[Path, Path], list[object]]], ...] = (
    ("m.onnx", lambda f, out: ["build", f / "m.onnx", "-o", out]),
    ("m.data", lambda f, out: ["build", f / "m.onnx", "-o", out]),
    ("m.onnx", lambda f, out: ["build", f / "m.onnx", "-o", f / "new.ourcc", "--report", out]),
    ("m.data", lambda f, out: ["build", f / "m.onnx", "-o", f / "new.ourcc", "--report", out]),
    ("ourcc.lock", lambda f, out: ["build", f / "m.onnx", "-o", out, "--locked", f / "ourcc.lock"]),
    ("m.ourcc", lambda f, out: ["build", "--rebuild", f / "m.ourcc", "--report", out]),
    ("x.npy", lambda f, out: ["run", f / "m.ourcc", "--input", f"x={f / 'x.npy'}", "-o", out]),
    ("x.npz", lambda f, out: ["run", f / "m.ourcc", "--input", f / "x.npz", "-o", out]),
    ("m.ourcc", lambda f, out: ["run", f / "m.ourcc", "--input", f / "x.npz", "-o", out]),
)


HELD: dict[str, bytes] = {
    "an engine": b"",
    "a page of HTML": b"",
    "a page of HTML of others": b"<!doctype html><p>",
    "a trace": b"",
    "an SVG picture": b"",
    "an SVG picture of others": b"<svg xmlns='http://www.w3.org/2000/svg'></svg>",
    "settings": b'{"name": "package", "version": 1}',
    "nothing": b"",
    "an .npz file of arrays": b"",
    "an ONNX model": b"",
    "a key or a certificate": b"-----BEGIN PRIVATE KEY-----\n",
    "a PDF file": b"%PDF-1.7\n",
    "notes": b"buy milk\n",
}
WRITTEN: tuple[tuple[str, str, Callable[[Path, Path], list[object]]], ...] = (
    ("an engine", ".ourcc", lambda f, out: ["build", f / "m.onnx", "-o", out]),
    ("a page of HTML", ".html", lambda f, out: ["build", f / "m.onnx", "-o", f / "new.ourcc", "--report", out]),
    ("an .npz file of arrays", ".npz", lambda f, out: ["run", f / "m.ourcc", "--input", f / "x.npz", "-o", out]),
    ("an engine", ".ourcc", lambda f, out: ["tune", f / "m.ourcc", "--budget", "1", "-o", out]),
    ("a page of HTML", ".html", lambda f, out: ["inspect", f / "m.ourcc", "--graph", out]),
    ("an SVG picture", ".svg", lambda f, out: ["bench", f / "m.ourcc", "--rounds", "1", "--kernels", "--picture", out]),
    ("a trace", ".json", lambda f, out: ["bench", f / "m.ourcc", "--rounds", "1", "--kernels", "--trace", out]),
)
SUFFIXES = ("", ".out", ".ourcc", ".html", ".svg", ".json", ".npz", ".onnx", ".pem", ".pdf", ".txt")


def test_an_output_replaces_its_own_kind_alone(files: Path, request: pytest.FixtureRequest) -> None:
    """What is there, and the suffix, must not speak against what would be written."""
    count, seed = max(len(WRITTEN), request.config.getoption("--cases") // SHARE), request.config.getoption("--seed", 0)
    names = {"an engine": "m.ourcc", "an .npz file of arrays": "x.npz", "an ONNX model": "m.onnx"}
    names |= {"a page of HTML": "page.html", "an SVG picture": "picture.svg", "a trace": "trace.json"}
    held = HELD | {kind: (files / name).read_bytes() for kind, name in names.items()}
    found = []
    for number in range(count):
        choices = random.Random(f"kinds {seed} {number}")
        written, own, line = WRITTEN[number % len(WRITTEN)]
        kind = choices.choice((written, *held, *held))
        suffix = choices.choice((own, *SUFFIXES, *SUFFIXES))
        target = files / f"other{choices.getrandbits(40)}{suffix}"
        target.write_bytes(held[kind])
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            status = run([str(word) for word in line(files, target)])
        # What a picture is drawn as, its suffix says.
        allowed = kind in (written, "nothing") and suffix in (own, *(("", ".out", ".txt") if line(files, target)[0] != "inspect" else ()))
        if (status == 0) != allowed or (status != 0 and (status != 2 or target.read_bytes() != held[kind])):
            found.append(f"{status}: {kind} in {target.name}: {line(files, target)[0]}: {errors.getvalue()[:200]}")
        target.unlink()
        (files / "new.ourcc").unlink(missing_ok=True)
    assert not found, f"{len(found)} of {count} are wrong, the first: {found[0]}"


def test_an_engine_is_saved_over_engines_alone(files: Path, tmp_path: Path) -> None:
    engine = ourcc.load(files / "m.ourcc")
    (tmp_path / "notes").write_bytes(b"buy milk")
    for name in ("notes", "new.onnx"):
        with pytest.raises(UsageError, match="an engine"):
            engine.save(tmp_path / name)
    assert (tmp_path / "notes").read_bytes() == b"buy milk" and not (tmp_path / "new.onnx").exists()
    engine.save(tmp_path / "engine.bin")
    engine.save(tmp_path / "engine.bin")


def test_sources_replace_sources_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every file of the C runtime, in whose place another stands: none is written."""
    for name in sources():
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text("int mine;\n")
        assert run(["runtime", "-o", str(folder)]) == 2
        assert f"'{folder / name}' holds something else, and is not replaced by a source" in " ".join(capsys.readouterr().err.split())
        assert [path.read_text() for path in folder.iterdir()] == ["int mine;\n"]


def digests(folder: Path) -> dict[str, str]:
    found = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("other"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def test_no_output_is_an_input(files: Path, request: pytest.FixtureRequest) -> None:
    count, seed = max(len(LINES), request.config.getoption("--cases") // SHARE), request.config.getoption("--seed", 0)
    before, found = digests(files), []
    kept = {path.name: path.read_bytes() for path in files.iterdir() if path.is_file()}
    for number in range(count):
        choices = random.Random(f"{seed} {number}")
        name, line = LINES[number % len(LINES)]
        arguments = [str(word) for word in line(files, other_path(files / name, choices))]
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            status = run(arguments)
        if status != 2 or digests(files) != before:
            found.append(f"{status}: {' '.join(arguments)}: {errors.getvalue()[:100]}")
        for path, data in kept.items():
            if not (files / path).is_file() or (files / path).read_bytes() != data:
                (files / path).write_bytes(data)
        (files / "new.ourcc").unlink(missing_ok=True)
    assert not found, f"{len(found)} of {count} command lines are not refused, the first: {found[0]}"
