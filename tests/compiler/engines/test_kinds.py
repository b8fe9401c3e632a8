"""What a command is given is told by its suffix, or by its first bytes: an engine without a suffix serves every command."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ourcc.compiler.cli.main import run
from ourcc.compiler.engines.kinds import is_engine
from ourcc.runtime.kinds import SAVED, kind_of


def test_an_engine_without_a_suffix_serves_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OURCC_CACHE_DIR", str(tmp_path / "cache"))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), "m.onnx")
    np.save("x.npy", np.ones((2, 4), np.float32))
    assert run(["build", "m.onnx", "-o", "plain", "-q"]) == 0
    shutil.copy("plain", "odd.bin")
    for name in ("plain", "odd.bin"):
        assert is_engine(Path(name))
        for arguments in (
            ["inspect", name],
            ["inspect", name, "--precision"],
            ["bench", name, "--rounds", "1", "-q"],
            ["run", name, "--input", "x=x.npy"],
            ["opt", name, "--pipeline", "canonicalize"],
        ):
            assert run(arguments) == 0, (arguments, capsys.readouterr())
    assert run(["build", "plain", "-o", "other"]) == 2
    assert "an engine is built already" in capsys.readouterr().err


def test_what_is_no_engine(tmp_path: Path) -> None:
    np.savez(tmp_path / "arrays", x=np.ones(3))
    (tmp_path / "text").write_text("PK")
    for name in ("arrays.npz", "text", "absent", "m.onnx", "p.pt2"):
        assert not is_engine(tmp_path / name)
    assert is_engine(tmp_path / "absent.ourcc")


def test_a_pipe_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe.ourcc"
    os.mkfifo(pipe)
    for arguments in (["run", str(pipe)], ["inspect", str(pipe)], ["tune", str(pipe), "--budget", "1"], ["bench", str(pipe)]):
        assert run(arguments) in (1, 2), arguments
        assert "not a regular file" in capsys.readouterr().err
    assert not is_engine(tmp_path / "pipe") and kind_of(pipe) is None


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder and a GGUF file that look like a language model, and what is named as an engine."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lm").mkdir()
    (tmp_path / "lm" / "config.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "m.gguf").write_bytes(b"GGUF\x03\0\0\0")
    (tmp_path / "e.ourcc").write_bytes(b"PK\x03\x04" + b"\0" * 22 + b"\x0d\0\0\0manifest.json")
    (tmp_path / "t.txt").write_text("a text")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        *(
            (words, 2, "'lm' is a folder, expected a file; build it first: ourcc build lm -o lm.ourcc")
            for words in (
                ["run", "lm"],
                ["tune", "lm"],
                ["generate", "lm", "hi"],
                ["chat", "lm"],
                ["eval", "lm", "t.txt"],
                ["verify", "lm", "lm"],
            )
        ),
        (["run", "empty"], 2, "'empty' is a folder, expected a file\n"),
        *(
            (
                words,
                2,
                "'m.gguf' is a GGUF file of a language model, expected an engine\n help: build it first: ourcc build m.gguf -o m.ourcc",
            )
            for words in (["run", "m.gguf"], ["generate", "m.gguf", "hi"], ["eval", "m.gguf", "t.txt"], ["verify", "m.gguf", "lm"])
        ),
        (["cache", "why", "lm:kernel_0"], 2, "'lm' is the folder of a language model, expected an engine"),
        (
            ["verify", "e.ourcc", "lm"],
            2,
            "'lm' is a language model, which neither ONNX Runtime nor eager PyTorch runs\n help: ourcc eval e.ourcc",
        ),
        (["verify", "e.ourcc", "m.gguf"], 2, "'m.gguf' is a language model"),
        (["verify", "m.gguf", "e.ourcc"], 2, "the engine comes first: ourcc verify e.ourcc m.gguf"),
        (
            ["eval", "t.txt", "e.ourcc"],
            2,
            "'e.ourcc' is an engine, and stands where 't.txt' should\n help: the engine comes first: ourcc eval e.ourcc t.txt",
        ),
        (["generate", "t.txt", "e.ourcc"], 2, "'e.ourcc' is an engine, and stands where 't.txt' should\n help: the engine comes first:"),
        (
            ["generate", "hello there", "e.ourcc"],
            2,
            "stands where 'hello there' should\n help: the engine comes first: ourcc generate e.ourcc",
        ),
        (["generate", "nothing", "hello"], 2, "File 'nothing' does not exist"),
        (["inspect", "empty"], 1, "'empty' holds no config.json"),
        (["bench", "empty"], 1, "'empty' holds no config.json"),
        (["opt", "empty", "--pipeline", "canonicalize"], 1, "'empty' holds no config.json"),
    ],
)
def test_what_stands_in_the_wrong_place_is_told(
    arguments: list[str], status: int, message: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*arguments, "-q"]) == status
    assert " ".join(message.split()) in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", ["sd.pt", "module.pth", "pytorch_model.bin", "old.ckpt", "w.safetensors", "plain"])
def test_weights_are_no_program_and_say_how_to_make_one(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    tensors, path = {"w": torch.zeros(3, 4)}, tmp_path / name
    if name == "w.safetensors":
        save_file(tensors, path)
    else:
        given = torch.nn.Linear(3, 4) if name == "module.pth" else tensors
        torch.save(given, path, _use_new_zipfile_serialization=name != "old.ckpt")
        assert kind_of(path) == SAVED
    for command in (["build", str(path), "-o", str(tmp_path / "e.ourcc")], ["inspect", str(path)]):
        assert run([*command, "-q"]) == 2
        told = capsys.readouterr().err
        assert f"cannot tell what '{path}' is" in told and "torch.export.save(" in told and "torch.onnx.export" in told
    assert run(["run", str(path)]) == 2
    assert "name an engine, as ourcc build writes it" in capsys.readouterr().err


def test_a_file_of_a_language_model_points_to_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"x")
    for name in ("config.json", "model.safetensors"):
        assert run(["build", str(tmp_path / name), "-o", str(tmp_path / "e.ourcc"), "-q"]) == 2
        assert f"the folder of these files: '{tmp_path}'" in capsys.readouterr().err
