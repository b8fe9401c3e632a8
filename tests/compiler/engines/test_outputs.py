"""Outputs are checked before the work: two of one name, places that cannot be written, signed engines."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import ourcc
from ourcc.compiler.cli.main import run
from ourcc.compiler.options import build_options
from ourcc.ir.errors import UsageError
from ourcc.runtime.replace import replace_file
from ourcc.runtime.sign import ENGINE, sign

KEY = bytes(range(32))
PUBLIC = sign(ENGINE, b"", KEY).public.hex()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_at: Callable[[Path], str]) -> None:
    monkeypatch.setenv("OURCC_CACHE_DIR", cache_at(tmp_path / "cache"))
    monkeypatch.delenv("OURCC_CACHE", raising=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture
def signed(model: Path, tmp_path: Path) -> Path:
    ourcc.build(str(model), tune="off").save(tmp_path / "s.ourcc", signing_key=KEY)
    (tmp_path / "key").write_bytes(KEY)
    return tmp_path / "s.ourcc"


@pytest.mark.parametrize(
    "line", [["tune", "s.ourcc", "--budget", "1"], ["build", "s.ourcc", "--rebuild"], ["build", "m.onnx", "-o", "s.ourcc", "--tune", "off"]]
)
def test_no_command_drops_a_signature(
    line: list[str], signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = signed.read_bytes()
    assert run(line) == 1
    err = capsys.readouterr().err
    assert f"engine 's.ourcc' is signed by {PUBLIC}" in err and "--signing-key" in err and "-o" in err
    assert "..." not in err  # no stage began
    assert signed.read_bytes() == before
    assert run([*line, "--signing-key", "key"]) == 0, capsys.readouterr().err


def test_a_signed_engine_may_be_rewritten_elsewhere(signed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", str(signed), "--rebuild", "-o", str(tmp_path / "new.ourcc")]) == 0, capsys.readouterr().err


def test_inspect_says_who_signed(signed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(signed), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signed_by"] == PUBLIC
    data = bytearray(signed.read_bytes())
    data[-1] = ord("0") if data[-1] != ord("0") else ord("1")
    signed.write_bytes(data)
    assert run(["inspect", str(signed), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signed_by"] == f"{PUBLIC}, and the signature does not fit"
    ourcc.load(signed).save(tmp_path / "plain.ourcc")
    assert run(["inspect", str(tmp_path / "plain.ourcc"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signed_by"] is None


def test_two_outputs_are_two_files(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", str(model), "-o", str(tmp_path / "z"), "--report", str(tmp_path / "z")]) == 2
    assert "--report: output" in (err := capsys.readouterr().err) and "is the same file as -o" in err
    with pytest.raises(UsageError, match=r"has the suffix \.onnx, and gets a page of HTML"):
        ourcc.build(str(model), report=str(model))


@pytest.mark.parametrize(("flag", "line"), [("-o", ["-o", "/proc/z"]), ("--report", ["-o", "z", "--report", "/proc/z"])])
def test_a_place_that_takes_no_file_is_refused_before_the_work(
    flag: str, line: list[str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["build", str(model), *line]) == 2
    err = capsys.readouterr().err
    assert f"{flag}: output '/proc/z' cannot be written" in err and ".tmp" not in err and "import" not in err
    with pytest.raises(UsageError, match=r"^report: output '/proc/z' cannot be written"):
        build_options({"report": "/proc/z"})


def test_a_write_that_fails_names_the_file_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        replace_file(tmp_path / "none" / "z", [b""])
    assert caught.value.filename == str(tmp_path / "none" / "z")


def test_an_export_of_records_is_an_output_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "export", str(tmp_path / "none" / "z")]) == 2
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.timeout(120)
def test_an_engine_goes_through_a_pipe_and_a_link_stays(model: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.symlink("real.ourcc", tmp_path / "link.ourcc")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()), daemon=True)
    reader.start()
    for name in ("pipe", "link.ourcc"):
        assert run(["build", str(model), "-o", str(tmp_path / name), "-q"]) == 0
    reader.join(30)
    assert read == [(tmp_path / "real.ourcc").read_bytes()]
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link.ourcc").is_symlink()


def test_a_model_is_parsed_once_a_build(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its inputs, its nodes and the files of its weights are asked of one parsed model, in the place of an engine too."""
    parsed: list[int] = []
    parse = onnx.ModelProto.FromString
    monkeypatch.setattr(onnx.ModelProto, "FromString", lambda data: parsed.append(len(data)) or parse(data))
    for _ in range(2):
        parsed.clear()
        assert run(["build", str(model), "-o", str(tmp_path / "m.ourcc"), "-q", "--shape", "x=2,4"]) == 0
        assert len(parsed) == 1
