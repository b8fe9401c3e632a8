"""Folders of models: safetensors in several files, damaged headers, texts."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from ourcc.compiler.importers.checkpoints import read_folder
from ourcc.compiler.importers.checkpoints.folder import read_safetensors
from ourcc.ir.errors import CompilerError, ModelError


def test_several_files_are_one_model(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(4, dtype=np.float16), "c": np.ones((2, 2), np.int8)}
    save_file({"a": arrays["a"]}, tmp_path / "model-1.safetensors")
    save_file({"b": arrays["b"], "c": arrays["c"]}, tmp_path / "model-2.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer_config.json").write_text("{}")
    read = read_folder(tmp_path)
    assert read.metadata == {"model_type": "llama"} and list(read.texts) == ["tokenizer_config.json"]
    for name, array in arrays.items():
        np.testing.assert_array_equal(read.tensors[name].read(), array)
    save_file({"a": arrays["a"]}, tmp_path / "model-3.safetensors")
    with pytest.raises(ModelError, match="two files hold a tensor 'a'"):
        read_folder(tmp_path)


def test_bfloat16_at_an_odd_place(tmp_path: Path) -> None:
    array = np.arange(3, dtype=np.float32).astype(ml_dtypes.bfloat16)
    header = json.dumps(
        {"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "y": {"dtype": "BF16", "shape": [3], "data_offsets": [1, 7]}}
    )
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"\7" + array.tobytes())
    np.testing.assert_array_equal(read_safetensors(tmp_path / "m.safetensors")["y"].read(), array)


def entry(**changed: object) -> dict[str, object]:
    return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changed}}


@pytest.mark.parametrize(
    "header",
    [
        [1],
        {"x": 3},
        {"x": {}},
        entry(dtype="F7"),
        entry(shape=[-2]),
        entry(shape=[1 << 62, 4]),
        entry(shape="ab"),
        entry(shape=[2.0]),
        entry(data_offsets=[0, 1 << 62]),
        entry(data_offsets=[8, 0]),
        entry(data_offsets=[0, 8, 9]),
        entry(data_offsets=[-8, 0]),
        entry(data_offsets=[4, 12]),
    ],
)
def test_damaged_headers(header: object, tmp_path: Path) -> None:
    text = json.dumps(header).encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(ModelError):
        read_safetensors(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    "data", [b"", b"\1", struct.pack("<Q", 1 << 63), struct.pack("<Q", 4) + b"nope", struct.pack("<Q", 200_000) + b"[" * 200_000]
)
def test_damaged_files(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(data)
    with pytest.raises(ModelError):
        read_safetensors(tmp_path / "m.safetensors")


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\0"])
def test_damaged_configs(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CompilerError):
        read_folder(tmp_path)
