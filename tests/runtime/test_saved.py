"""Files of sessions: what was written comes back, and every other file is one clear error."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ourcc.ir.errors import EngineError
from ourcc.ir.types import DTYPES, TensorType
from ourcc.runtime.saved import ABOUT, DIGEST, MAGIC, Saved, read_saved, write_saved
from ourcc.runtime.weights import Constant, encode

TYPES = {"a.codes": TensorType(DTYPES["i8"], (2, 5, 3)), "b": TensorType(DTYPES["bf16"], (4,)), "c": TensorType(DTYPES["u4"], (5,))}
ARRAYS = {
    "a.codes": np.arange(30, dtype=np.int8).reshape(2, 5, 3),
    "b": np.arange(4).astype(ml_dtypes.bfloat16),
    "c": np.arange(5).astype(ml_dtypes.uint4),
}


def written(path: Path, **changed: object) -> Path:
    write_saved(path, Saved("p" * 64, {"tokens": [1, 2]}, {**ARRAYS, **changed}))  # type: ignore[arg-type]
    return path


def forged(path: Path, arrays: dict[str, np.ndarray], about: bytes) -> Path:
    """A file whose digest is right."""
    head, pieces = encode(
        {**{name: Constant.of(each) for name, each in arrays.items()}, ABOUT: Constant.of(np.frombuffer(about, np.uint8))}
    )
    body = head + b"".join(pieces)
    path.write_bytes(MAGIC + hashlib.sha256(body).digest() + body)
    return path


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    found = read_saved(written(tmp_path / "s"), "p" * 64, TYPES)
    assert found.about == {"tokens": [1, 2]} and found.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found.arrays[name], array)
    part = read_saved(written(tmp_path / "s", **{"a.codes": ARRAYS["a.codes"][:1, :2]}), "p" * 64, TYPES)
    np.testing.assert_array_equal(part.arrays["a.codes"], ARRAYS["a.codes"][:1, :2])


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    path = written(tmp_path / "s")
    whole = path.read_bytes()
    for place in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(EngineError, match=r"not a session|does not match its digest"):
            read_saved(path, "p" * 64, TYPES)
    for length in (0, 3, len(MAGIC), len(MAGIC) + DIGEST, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(EngineError, match=r"not a session|does not match its digest"):
            read_saved(path, "p" * 64, TYPES)


def test_what_does_not_fit_the_engine(tmp_path: Path) -> None:
    for changed, message in (
        ({"d": np.zeros(3)}, "state 'd', which the engine has not"),
        ({"b": np.zeros(4, np.float32)}, r"holds f32\[4\] for state 'b', which is bf16\[4\]"),
        ({"b": np.zeros(5, ml_dtypes.bfloat16)}, r"holds bf16\[5\] for state 'b'"),
        ({"b": np.zeros((4, 1), ml_dtypes.bfloat16)}, r"holds bf16\[4, 1\] for state 'b'"),
    ):
        with pytest.raises(EngineError, match=message):
            read_saved(written(tmp_path / "s", **changed), "p" * 64, TYPES)
    with pytest.raises(EngineError, match="is one of another engine"):
        read_saved(written(tmp_path / "s"), "q" * 64, TYPES)


def test_files_that_were_made_to_deceive(tmp_path: Path) -> None:
    for about in (b"", b"[]", b"{", b"[" * 100_000, b'{"program": 1, "about": {}}', b'{"program": "p", "about": []}', b"\xff"):
        with pytest.raises(EngineError, match=r"says? of itself is damaged|does not say of which engine"):
            read_saved(forged(tmp_path / "s", ARRAYS, about), "p" * 64, TYPES)
    body = (1 << 62).to_bytes(8, "little") + b"{}"
    (tmp_path / "s").write_bytes(MAGIC + hashlib.sha256(body).digest() + body)
    with pytest.raises(EngineError, match="list of states has"):
        read_saved(tmp_path / "s", "p" * 64, TYPES)
    for text in (
        '{"a": {"dtype": "I8", "shape": [99], "data_offsets": [0, 1]}}',
        '{"a": 5}',
        "[]",
        '{"a": {"dtype": "XX", "shape": [], "data_offsets": [0, 1]}}',
    ):
        body = len(text).to_bytes(8, "little") + text.encode() + b"\0"
        (tmp_path / "s").write_bytes(MAGIC + hashlib.sha256(body).digest() + body)
        with pytest.raises(EngineError):
            read_saved(tmp_path / "s", "p" * 64, TYPES)


def test_drawn_files_are_one_error_each(tmp_path: Path) -> None:
    random_ = random.Random(5)
    path = written(tmp_path / "s")
    body = bytearray(path.read_bytes()[len(MAGIC) + DIGEST :])
    for _ in range(300):
        changed = bytearray(body)
        for _ in range(random_.randint(1, 4)):
            changed[random_.randrange(len(changed))] = random_.randrange(256)
        changed = changed[: random_.choice((len(changed), random_.randrange(9, len(changed))))]
        path.write_bytes(MAGIC + hashlib.sha256(changed).digest() + changed)
        try:
            read_saved(path, "p" * 64, TYPES)
        except EngineError:
            pass


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path / "none", "cannot read session"),
        (tmp_path, "not a regular file"),
        (tmp_path / "pipe", "not a regular"),
    ):
        with pytest.raises(EngineError, match=message):
            read_saved(path, "p", TYPES)
    with pytest.raises(EngineError, match="cannot write session"):
        written(tmp_path / "none" / "s")
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(EngineError, match="expected at most"):
        read_saved(large, "p", TYPES)
