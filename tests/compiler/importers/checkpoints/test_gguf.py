"""GGUF files: what `gguf` writes is read, and no damaged or hostile byte ends in anything but one clear error."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ourcc.compiler.importers.checkpoints import read_gguf
from ourcc.ir.errors import CompilerError, ModelError
from ourcc.ir.formats import format_of
from ourcc.ir.formats.ggml import joined, split


def written(path: Path, tensors: dict[str, tuple[Any, Any]], **metadata: Any) -> Path:
    """A file by the `gguf` package: tensors with their type, strings and numbers."""
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in metadata.items():
        {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}[type(value)](name, value)
    for name, (array, kind) in tensors.items():
        if kind is None:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def small(path: Path) -> Path:
    random = np.random.default_rng(0)
    tensors: dict[str, tuple[Any, Any]] = {
        "a": (random.standard_normal((3, 64), dtype=np.float32), None),
        "b": (random.standard_normal((2, 64), dtype=np.float32), gguf.GGMLQuantizationType.Q4_1),
        "c": (random.standard_normal(5).astype(np.float16), None),
    }
    return written(path, tensors, word="x", number=7, list=["p", "q"])


KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16", "F32", "F64", "I8", "I16", "I32", "I64")


@pytest.mark.parametrize("name", KINDS)
def test_what_is_written_is_read(name: str, tmp_path: Path) -> None:
    kind, random = gguf.GGMLQuantizationType[name], np.random.default_rng(1)
    array = random.standard_normal((4, 256), dtype=np.float32)
    numbers = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64}
    held = (array * 50).astype(numbers[name]) if name in numbers else array
    path = written(tmp_path / "m.gguf", {"x": (held, None if name in numbers else kind), "y": (array[:1], None)}, word="wörd", number=3)
    read = read_gguf(path)
    assert read.metadata["word"] == "wörd" and read.metadata["number"] == 3
    stored = read.tensors["x"]
    assert stored.shape == (4, 256)
    expected = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == "x").data
    assert stored.read().tobytes() == expected.tobytes()
    if stored.format is not None:
        fields = split(format_of(stored.format), stored.read())
        assert joined(format_of(stored.format), fields).tobytes() == expected.tobytes()
    np.testing.assert_array_equal(read.tensors["y"].read(), array[:1])


def test_lists_of_words_and_of_numbers(tmp_path: Path) -> None:
    read = read_gguf(written(tmp_path / "m.gguf", {"y": (np.zeros(4, np.float32), None)}, words=["", "a b"], numbers=[1, 2, 3]))
    assert read.metadata["words"] == ["", "a b"]
    assert list(read.metadata["numbers"]) == [1, 2, 3]


def test_every_byte_may_be_wrong(tmp_path: Path) -> None:
    path = small(tmp_path / "m.gguf")
    whole, random = path.read_bytes(), np.random.default_rng(4)
    refused = 0
    for trial in range(1500):
        data = bytearray(whole)
        for _ in range(1 + trial % 3):
            data[random.integers(0, 420)] = random.choice([0, 1, 0x7F, 0x80, 0xFF, random.integers(0, 256)])
        path.write_bytes(data)
        refused += not is_read(path)
    assert refused > 300


def test_every_length_may_be_wrong(tmp_path: Path) -> None:
    path = small(tmp_path / "m.gguf")
    whole = path.read_bytes()
    # Behind the last byte of the last tensor lie zeros that nothing reads.
    for length in range(len(whole) - 32):
        path.write_bytes(whole[:length])
        assert not is_read(path), length


def is_read(path: Path) -> bool:
    """Whether a file is read, all tensors included; another exception than a ModelError fails the test."""
    try:
        for stored in read_gguf(path).tensors.values():
            stored.read()
    except CompilerError:
        return False
    return True


def word(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def tensor(name: str, sizes: tuple[int, ...], kind: int, offset: int) -> bytes:
    return word(name) + struct.pack("<I", len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes) + struct.pack("<IQ", kind, offset)


def file(tensors: list[bytes], pairs: list[bytes], data: int = 256, counts: tuple[int, int] | None = None, version: int = 3) -> bytes:
    first, second = counts or (len(tensors), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, first, second) + b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(data)


NUMBER = word("n") + struct.pack("<II", 4, 1)
HOSTILE = {
    "an empty file": (b"", "begins with b''"),
    "another file": (b"PK\3\4" + bytes(64), "expected b'GGUF'"),
    "version 1": (file([], [], version=1), "GGUF version 1"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + bytes(64), "big-endian"),
    "2^63 tensors": (file([], [], counts=(1 << 63, 0)), "more than fit"),
    "2^63 pairs": (file([], [], counts=(0, 1 << 63)), "more than fit"),
    "a long name": (file([], [struct.pack("<Q", 1 << 62) + b"n"]), "more than fit"),
    "a long word": (file([], [word("n") + struct.pack("<IQ", 8, 1 << 62)]), "more than fit"),
    "a long list": (file([], [word("n") + struct.pack("<IIQ", 9, 4, 1 << 61)]), "more than fit"),
    "a list of lists": (file([], [word("n") + struct.pack("<IIQIQ", 9, 9, 1, 4, 0)]), "inside an array"),
    "an unknown type": (file([], [word("n") + struct.pack("<II", 77, 1)]), "type 77"),
    "a name twice": (file([], [NUMBER, NUMBER]), "says 'n' twice"),
    "no UTF-8": (file([], [struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<II", 4, 1)]), "no UTF-8"),
    "5 dimensions": (file([tensor("t", (1, 1, 1, 1, 1), 0, 0)], []), "5 dimensions"),
    "0 dimensions": (file([tensor("t", (), 0, 0)], []), "0 dimensions"),
    "sizes of 2^63": (file([tensor("t", (1 << 63, 1 << 63), 0, 0)], []), "does not fit"),
    "a tensor behind the end": (file([tensor("t", (64,), 0, 32)], []), "does not lie in"),
    "an offset of 2^63": (file([tensor("t", (4,), 0, 1 << 63)], []), "does not lie in"),
    "an odd offset": (file([tensor("t", (4,), 0, 3)], []), "does not lie in"),
    "tensors that overlap": (file([tensor("s", (16,), 0, 0), tensor("t", (4,), 0, 32)], []), "'s' and 't' overlap"),
    "a tensor twice": (file([tensor("t", (4,), 0, 0), tensor("t", (4,), 0, 32)], []), "tensor 't' twice"),
    "half a block": (file([tensor("t", (48,), 2, 0)], []), "blocks of 32"),
    "a type that nobody declared": (file([tensor("t", (256,), 16, 0)], []), "IQ2_XXS, which is not supported"),
    "an unknown tensor type": (file([tensor("t", (256,), 99, 0)], []), "number 99, which is not supported"),
    "an alignment of 0": (file([], [word("general.alignment") + struct.pack("<II", 4, 0)]), "general.alignment is 0"),
    "an alignment of 24": (file([], [word("general.alignment") + struct.pack("<II", 4, 24)]), "general.alignment is 24"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files(what: str, tmp_path: Path) -> None:
    data, message = HOSTILE[what]
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(ModelError) as refused:
        read_gguf(tmp_path / "m.gguf")
    assert message in str(refused.value)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no regular file"):
        read_gguf(tmp_path)
    with pytest.raises(ModelError, match=r"cannot read none\.gguf"):
        read_gguf(tmp_path / "none.gguf")
