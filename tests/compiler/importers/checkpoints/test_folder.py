"""Folders of models: safetensors in several files, damaged headers, texts."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

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


def test_a_file_or_an_index_says_what_a_model_is_held_in(tmp_path: Path) -> None:
    """Beside these others hold the same tensors in another form, or adapters of them."""
    save_file({"a": np.zeros(2, np.float32)}, tmp_path / "part-1.safetensors")
    save_file({"b": np.ones(2, np.float32)}, tmp_path / "part-2.safetensors")
    save_file({"a": np.full(2, 7, np.float32)}, tmp_path / "consolidated.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "part-1.safetensors", "b": "part-2.safetensors"}}))
    assert {name: stored.read().tolist() for name, stored in read_folder(tmp_path).tensors.items()} == {"a": [0, 0], "b": [1, 1]}
    for wrong in ({}, {"weight_map": 3}, {"weight_map": {"a": "../part-1.safetensors"}}, {"weight_map": {"a": "part-1.bin"}}):
        index.write_text(json.dumps(wrong))
        with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json: weight_map is .*, expected files of this folder"):
            read_folder(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "part-1.safetensors", "b": "part-3.safetensors"}}))
    with pytest.raises(ModelError, match=r"there is no part-3\.safetensors, which model\.safetensors\.index\.json names"):
        read_folder(tmp_path)
    save_file({"c": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    assert list(read_folder(tmp_path).tensors) == ["c"]


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


def stored(tmp_path: Path, header: object, data: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return tmp_path / "m.safetensors"


WHOLE = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({**entry(), "__metadata__": {"a": 1}}, "__metadata__ is {'a': 1}, expected texts by name"),
        ({**entry(), "__metadata__": ["a"]}, r"__metadata__ is \['a'\], expected texts by name"),
        ({**entry(), "__metadata__": None}, "__metadata__ is None, expected texts by name"),
        (entry(shape=[1], data_offsets=[0, 4]), "bytes 4 to 8 belong to no tensor"),
        (entry(shape=[1], data_offsets=[4, 8]), "bytes 0 to 4 belong to no tensor"),
        ({**entry(), "y": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, "tensors 'x' and 'y' overlap"),
        ({**entry(), "y": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, "tensors 'x' and 'y' overlap"),
        ({**entry(), "y": {"dtype": "F32", "shape": [0], "data_offsets": [4, 4]}}, "tensors 'x' and 'y' overlap"),
        ({}, "bytes 0 to 8 belong to no tensor"),
        (WHOLE, "'a' is said twice"),
    ],
)
def test_bytes_belong_to_one_tensor_each(header: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        read_safetensors(stored(tmp_path, header, bytes(8)))


def test_a_layout_is_read_where_the_format_s_own_reader_takes_it(tmp_path: Path) -> None:
    """Drawn tensors at drawn places: what safetensors reads is read, with its numbers, and what it refuses is refused."""
    random = np.random.default_rng(5)
    taken = 0
    for _ in range(400):
        sizes = random.integers(0, 4, random.integers(1, 4)).tolist()
        places = np.cumsum([0, *sizes])
        header, order = {}, random.permutation(len(sizes)).tolist()
        for n in order:
            first = int(places[n]) + int(random.choice([0, 0, 0, 0, 0, 0, 1, -1]))
            header[f"t{n}"] = {"dtype": "U8", "shape": [sizes[n]], "data_offsets": [first, first + sizes[n]]}
        metadata = random.choice([None, None, None, 1, 2])
        if metadata:
            header["__metadata__"] = {"format": "pt" if metadata == 1 else 2}  # type: ignore[dict-item]
        data = bytes(range(sum(sizes) + int(random.choice([0, 0, 0, 0, 1]))))
        path = stored(tmp_path, header, data)
        try:
            theirs = load_file(path)
        except SafetensorError:
            with pytest.raises(ModelError):
                read_safetensors(path)
            continue
        taken += 1
        ours = read_safetensors(path)
        assert ours.keys() == theirs.keys()
        for name, array in theirs.items():
            np.testing.assert_array_equal(ours[name].read(), array)
    assert 100 < taken < 300


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
