"""Bad input through the real command line: one clear error, the right exit status, no traceback, nothing half-written."""

from __future__ import annotations

import errno
import json
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ourcc
from ourcc.compiler.cli.main import run

Command = Callable[..., str]


def mlp(batch: str | int = "B") -> onnx.ModelProto:
    """relu(x @ w) + b."""
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name) for name, shape in (("w", (4, 6)), ("b", (6,)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="product"),
        helper.make_node("Relu", ["product"], ["h"], name="activation"),
        helper.make_node("Add", ["h", "b"], ["y"], name="bias"),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, size]) for name, size in (("x", 4), ("y", 6)))
    graph = helper.make_graph(nodes, "mlp", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_at: Callable[[Path], str]) -> None:
    monkeypatch.setenv("OURCC_CACHE_DIR", cache_at(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "mlp.onnx"
    path.write_bytes(mlp().SerializeToString())
    return path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("built")
    (folder / "mlp.onnx").write_bytes(mlp().SerializeToString())
    assert run(["build", str(folder / "mlp.onnx"), "-o", str(folder / "mlp.ourcc"), "--shape", "B=1..8", "--json"]) == 0
    return (folder / "mlp.ourcc").read_bytes()


@pytest.fixture
def engine(tmp_path: Path, built: bytes) -> Path:
    path = tmp_path / "mlp.ourcc"
    path.write_bytes(built)
    return path


@pytest.fixture
def refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run a command that must fail with `status`: its one error, after a check that it left no file behind."""

    def check(*arguments: str | Path, status: int = 1) -> str:
        before = listing(tmp_path)
        capfd.readouterr()
        assert run([str(argument) for argument in arguments]) == status
        printed = capfd.readouterr()
        assert printed.out == ""
        assert listing(tmp_path) == before
        return error_of(printed.err)

    return check


def error_of(printed: str) -> str:
    """The one error, which stands after what was printed of the progress."""
    assert "Traceback" not in printed, printed
    before, mark, text = printed.partition("error: ")
    assert mark and before[-1:] in ("", "\n") and "error: " not in text, printed
    return text


def listing(folder: Path) -> dict[str, bytes]:
    """Every file but the build cache's."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {name: path.read_bytes() for path in found if not (name := str(path.relative_to(folder))).startswith("cache/")}


def array(path: Path, values: Any, dtype: Any = np.float32) -> str:
    np.save(path, np.asarray(values, dtype))
    return f"x={path}"


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"", b"not a model", b"\x00" * 64, b"PK\x03\x04 an archive", b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "mlp[:40]", "mlp[:-20]"],
    ids=["empty", "text", "zeros", "zip", "varint", "head", "cut"],
)
def test_a_file_that_is_no_model(model: Path, refused: Command, content: bytes | str) -> None:
    whole = model.read_bytes()
    model.write_bytes(content if isinstance(content, bytes) else whole[:40] if content == "mlp[:40]" else whole[:-20])
    text = refused("build", model, "-o", "out.ourcc")
    assert "mlp.onnx" in text
    assert refused("inspect", model) == text


def test_every_unsupported_node_is_named_at_once(model: Path, refused: Command) -> None:
    proto = mlp()
    for name in ("Frobnicate", "Twiddle"):
        proto.graph.node.append(helper.make_node(name, ["x"], [name], name=f"my {name}", domain="odd"))
    proto.opset_import.append(helper.make_opsetid("odd", 1))
    model.write_bytes(proto.SerializeToString())
    text = refused("build", model, "-o", "out.ourcc")
    assert "Frobnicate" in text and "Twiddle" in text and "my Frobnicate" in text


def test_a_graph_that_reads_its_own_result(model: Path, refused: Command) -> None:
    proto = mlp()
    proto.graph.node[0].input[0] = "y"
    model.write_bytes(proto.SerializeToString())
    assert "'y'" in refused("build", model, "-o", "out.ourcc")


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "sub/../../secret.bin", "link.bin"])
def test_external_data_stays_in_the_folder_of_the_model(tmp_path: Path, refused: Command, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(4 * 24))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    proto = mlp()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.append(onnx.StringStringEntryProto(key="location", value=location))
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    text = refused("build", folder / "m.onnx", "-o", "out.ourcc")
    assert location in text and ("folder" in text or "links are not followed" in text)


@pytest.mark.parametrize(
    "dimension",
    ["__import__('os').system('touch hacked')", "B**9999999", "(" * 5000, "9" * 400, "B;rm -rf /", "B\n}\nfunc @evil", "2//0", "\x00"],
)
def test_a_hostile_dimension_is_a_name_or_an_error(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], dimension: str) -> None:
    # A model may call a dimension anything: it is never evaluated, and the engine's text is read back.
    model.write_bytes(mlp(dimension).SerializeToString())
    status = run(["build", str(model), "-o", "out.ourcc"])
    printed = capfd.readouterr().err
    assert status in (0, 1) and "Traceback" not in printed
    assert not (tmp_path / "hacked").exists()
    assert (status == 0) == (tmp_path / "out.ourcc").exists()
    if status == 0:
        assert ourcc.load(tmp_path / "out.ourcc")(np.zeros((3, 4), np.float32)).shape == (3, 6)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("B=__import__('os')", "cannot read dimension"),
        ("B=" + "(" * 2000, "B=((("),
        ("B=-1", "expected at least 0"),
        ("B=8..1", "expected its end to be at least"),
        ("B", "expected NAME=AXIS"),
        ("B=2**99", "got '*', expected a number or a name"),
    ],
)
def test_a_hostile_shape_option(model: Path, refused: Command, shape: str, message: str) -> None:
    assert message in refused("build", model, "-o", "out.ourcc", "--shape", shape, status=2)


def test_a_pt2_whose_member_would_run_code(tmp_path: Path, refused: Command) -> None:
    path = tmp_path / "evil.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("evil/data/weights/payload.pt", b"cos\nsystem\n(S'touch hacked'\ntR.")
        archive.writestr("evil/archive_format", "pt2")
    refused("build", path, "-o", "out.ourcc")
    assert not (tmp_path / "hacked").exists()


def test_a_suffix_that_says_nothing(tmp_path: Path, refused: Command) -> None:
    (tmp_path / "model.bin").write_bytes(b"?")
    assert "expected .onnx, .pt2, .gguf, or a folder" in refused("build", tmp_path / "model.bin", "-o", "out.ourcc", status=2)


@pytest.mark.parametrize(("flag", "value"), [("--cache", "int8"), ("--batch", "2"), ("--context", "8"), ("--trust-pickle", "")])
def test_an_option_for_models_of_another_kind(flag: str, value: str, tmp_path: Path, refused: Command) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    message = refused("build", tmp_path / "m.onnx", flag, *([value] if value else []), "-o", "out.ourcc", status=2)
    assert f"{flag[2:].replace('-', '_')} is for " in message


@pytest.mark.parametrize("command", ["build", "plan"])
def test_a_folder_that_holds_no_model(command: str, tmp_path: Path, refused: Command) -> None:
    (tmp_path / "empty").mkdir()
    last = ["-o", tmp_path / "out.ourcc"] if command == "build" else ["--target", "cpu"]
    assert "holds no config.json" in refused(command, tmp_path / "empty", *last)


def test_an_engine_under_the_name_of_a_model(tmp_path: Path, refused: Command) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    assert "has the suffix .pt2, and gets an engine" in refused("build", tmp_path / "m.onnx", "-o", tmp_path / "other.pt2", status=2)


# --- at run time ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "dtype", "message"),
    [
        (np.zeros((2, 4)), np.float64, "has dtype f64, expected f32"),
        (np.zeros((2, 4)), np.int64, "has dtype i64, expected f32"),
        (np.zeros(4), np.float32, "has rank 1 [4], expected 2: f32[B, 4]"),
        (np.zeros((2, 4, 1)), np.float32, "has rank 3 [2, 4, 1], expected 2: f32[B, 4]"),
        (np.zeros((2, 5)), np.float32, "has size 5 in dimension 1, expected 4"),
        (np.zeros((9, 4)), np.float32, "9"),
        (np.zeros((0, 4)), np.float32, "0"),
    ],
    ids=["dtype", "integers", "rank 1", "rank 3", "size", "above the range", "below the range"],
)
def test_an_input_that_does_not_fit(tmp_path: Path, engine: Path, refused: Command, values: Any, dtype: Any, message: str) -> None:
    text = refused("run", engine, "--input", array(tmp_path / "x.npy", values, dtype), "-o", "out.npz")
    assert message in text and "expected" in text and "'x'" in text


def test_names_of_inputs(tmp_path: Path, engine: Path, refused: Command) -> None:
    given = array(tmp_path / "x.npy", np.zeros((2, 4)))
    assert "x" in refused("run", engine)
    assert "'z'" in refused("run", engine, "--input", given, "--input", given.replace("x=", "z="))
    np.save(tmp_path / "objects.npy", np.asarray([{}], object), allow_pickle=True)
    assert "never read" in refused("run", engine, "--input", f"x={tmp_path / 'objects.npy'}")


def test_an_engine_for_another_target(tmp_path: Path, engine: Path, refused: Command) -> None:
    given = array(tmp_path / "x.npy", np.zeros((2, 4)))
    text = refused("run", engine, "--input", given, "--target", "sm_90a")
    assert "engine holds no target sm_90a, it holds x86-64" in text and "--rebuild" in text


def test_an_engine_of_another_machine(tmp_path: Path, engine: Path, refused: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ourcc.runtime.native.cpu_flags", lambda: frozenset({"sse2"}))
    text = refused("run", engine, "--input", array(tmp_path / "x.npy", np.zeros((2, 4))))
    assert "no target for this machine" in text and "cpu" in text


# --- engine files -----------------------------------------------------------------------------------------------------


def test_a_corrupted_engine(engine: Path, built: bytes, tmp_path: Path, refused: Command) -> None:
    given = array(tmp_path / "x.npy", np.zeros((2, 4)))
    with zipfile.ZipFile(engine) as archive:
        members = [info for info in archive.infolist() if not info.filename.startswith("weights/") and info.file_size]
    for member in members:
        name, extra = struct.unpack("<HH", built[member.header_offset + 26 : member.header_offset + 30])
        middle = member.header_offset + 30 + name + extra + member.file_size // 2
        engine.write_bytes(built[:middle] + bytes([built[middle] ^ 1]) + built[middle + 1 :])
        assert "mlp.ourcc" in refused("run", engine, "--input", given), member.filename
        refused("inspect", engine)


@pytest.mark.parametrize("kept", [0, 1, 100, 5000, -1])
def test_a_truncated_or_foreign_engine(engine: Path, built: bytes, refused: Command, kept: int) -> None:
    engine.write_bytes(built[:kept])
    assert "mlp.ourcc" in refused("run", engine)
    engine.write_bytes(b"#!/bin/sh\necho no engine\n")
    assert "mlp.ourcc" in refused("run", engine)


# --- writing ----------------------------------------------------------------------------------------------------------


def test_a_full_disk_while_saving(model: Path, engine: Path, built: bytes, refused: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_for(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(descriptor: int, *arguments: Any) -> Any:
            # Kernels are opened from memory, which is not what is full.
            if Path(os.readlink(f"/proc/self/fd/{descriptor}")).is_relative_to(engine.parent):
                raise OSError(errno.ENOSPC, "No space left on device")
            return function(descriptor, *arguments)

        return call

    for name in ("write", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full_for(getattr(os, name)))
            text = refused("build", model, "-o", engine)
            assert "no space left" in text.lower() and "mlp.ourcc" in text
        assert engine.read_bytes() == built


def test_a_folder_that_is_not_there(model: Path, tmp_path: Path, refused: Command) -> None:
    assert "missing" in refused("build", model, "-o", tmp_path / "missing" / "out.ourcc", status=2)
    refused("build", model, "-o", tmp_path, status=2)


def test_a_violated_contract_exits_with_3_and_writes_nothing(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = listing(tmp_path)
    assert run(["build", str(model), "-o", "out.ourcc", "--require", "target:sm_90a"]) == 3
    assert "target:sm_90a" in capfd.readouterr().err
    assert listing(tmp_path) == before


# --- as another process -----------------------------------------------------------------------------------------------


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from ourcc.compiler.cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, check=False)


def test_as_a_process(tmp_path: Path, engine: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    plain = process("build", "bad.onnx", "-o", "out.ourcc")
    assert plain.returncode == 1 and plain.stdout == ""
    text = error_of(plain.stderr)
    debug = process("build", "bad.onnx", "-o", "out.ourcc", "--debug")
    assert debug.returncode == 1 and "Traceback" in debug.stderr and text in debug.stderr
    machine = process("run", str(engine), "--json")
    assert machine.returncode == 1
    assert json.loads(machine.stdout)["error"]["kind"] == "InputError"
    assert process("build", "absent.onnx", "-o", "out.ourcc").returncode == 2
    assert not (tmp_path / "out.ourcc").exists()
