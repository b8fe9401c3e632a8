"""`ourcc run`: inputs from files, refused files, and outputs that are written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from ourcc.compiler.cli.main import run
from ourcc.compiler.cli.run import read_inputs, write_outputs
from ourcc.ir.errors import InputError, UsageError


@pytest.fixture
def doubles(commands: Any) -> None:
    """An engine that doubles x."""
    functions = {"main": SimpleNamespace(run=lambda inputs: {"file": inputs["x"] * 2})}
    session = SimpleNamespace(functions=functions)
    commands.load = lambda path, target, trusted_keys, progress: SimpleNamespace(session=lambda: session)


def test_an_engine_runs_on_files(doubles: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numpy.save(tmp_path / "x.npy", numpy.array([1.0, 2.0, numpy.inf], dtype=numpy.float32))
    (tmp_path / "m.ourcc").write_bytes(b"")
    output = tmp_path / "out.npz"
    assert run(["run", str(tmp_path / "m.ourcc"), "--input", f"x={tmp_path / 'x.npy'}", "-o", str(output), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["outputs"][0]
    assert row == {"name": "file", "dtype": "float32", "shape": "3", "minimum": 2.0, "mean": 3.0, "maximum": 4.0, "not_finite": 1}
    numpy.testing.assert_array_equal(numpy.load(output)["file"], [2.0, 4.0, numpy.inf])


def test_inputs_come_from_both_kinds_of_file(tmp_path: Path) -> None:
    numpy.save(tmp_path / "a.npy", numpy.arange(3))
    numpy.savez(tmp_path / "rest.npz", b=numpy.ones(2), c=numpy.zeros(1))
    found = read_inputs((f"a={tmp_path / 'a.npy'}", str(tmp_path / "rest.npz")))
    assert list(found) == ["a", "b", "c"]
    with pytest.raises(UsageError, match="input 'b' is given twice"):
        read_inputs((str(tmp_path / "rest.npz"), str(tmp_path / "rest.npz")))


def test_the_wrong_kind_of_file_is_said(tmp_path: Path) -> None:
    numpy.save(tmp_path / "a.npy", numpy.arange(3))
    numpy.savez(tmp_path / "b.npz", b=numpy.ones(2))
    with pytest.raises(UsageError, match=r"got an \.npy file, expected several named arrays"):
        read_inputs((str(tmp_path / "a.npy"),))
    with pytest.raises(UsageError, match=r"got an \.npz file, expected one array"):
        read_inputs((f"b={tmp_path / 'b.npz'}",))


@pytest.mark.parametrize("content", [b"", b"not an array", b"PK\x03\x04 broken", b"\x93NUMPY\x01\x00"])
def test_damaged_files_are_one_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    for given in (f"x={tmp_path / 'x'}", str(tmp_path / "x")):
        with pytest.raises(InputError, match=r"is not a \.np. file of numbers, or is damaged"):
            read_inputs((given,))


def test_a_pickled_array_is_never_read(tmp_path: Path) -> None:
    numpy.save(tmp_path / "x.npy", numpy.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="files that hold pickled objects are never read"):
        read_inputs((f"x={tmp_path / 'x.npy'}",))


def test_small_floats_are_written_as_float32(tmp_path: Path) -> None:
    import ml_dtypes

    write_outputs(tmp_path / "o.npz", {"y": numpy.array([1.5, -2.0], dtype=ml_dtypes.bfloat16)})
    found = numpy.load(tmp_path / "o.npz")["y"]
    assert found.dtype == numpy.float32
    numpy.testing.assert_array_equal(found, [1.5, -2.0])


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "o.npz"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        write_outputs(path, {"good": numpy.ones(3), "bad": numpy.array([{}], dtype=object)})
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_written_as_float32_is_said(commands: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import ml_dtypes

    outputs = {"y": numpy.ones(2, ml_dtypes.bfloat16), "z": numpy.ones(2, numpy.float32)}
    session = SimpleNamespace(functions={"main": SimpleNamespace(run=lambda inputs: outputs)})
    commands.load = lambda path, target, trusted_keys, progress: SimpleNamespace(session=lambda: session)
    (tmp_path / "m.ourcc").write_bytes(b"")
    assert run(["run", str(tmp_path / "m.ourcc"), "-o", str(tmp_path / "out.npz")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "written as float32, which holds them exactly, since .npz files lack their dtype: y" in text
    assert run(["run", str(tmp_path / "m.ourcc")]) == 0
    assert "written as float32" not in capsys.readouterr().out
