"""Drawn damage: whatever happens to the bytes of an engine or a record, it is refused or answers as before."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ourcc
from ourcc.autotune.record import Record, Sample, Trial, decode, encode
from ourcc.ir.errors import CompilerError
from ourcc.passes.tile.schedule import Schedule
from ourcc.runtime import write_engine

KEY = bytes(range(32))
X = np.linspace(-1, 1, 2 * 96, dtype=np.float32).reshape(2, 96)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A compiled model with 2 MB of weights, plain and signed."""
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(0).standard_normal((96, 5000)).astype(np.float32)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", size]) for name, size in (("x", 96), ("y", 5000)))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    contents = ourcc.build(model, tune="off", targets=["native"]).contents
    folder = tmp_path_factory.mktemp("engines")
    for name, key in (("plain", None), ("signed", KEY)):
        write_engine(folder / name, contents, signing_key=key)
    return {name: (folder / name).read_bytes() for name in ("plain", "signed")}


def public() -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(KEY).public_key().public_bytes_raw()


# --- ways to damage bytes ---------------------------------------------------------------------------------------------

Damage = Callable[[bytes, np.random.Generator], bytes]


def flip(data: bytes, random: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for position in random.integers(0, len(data), random.integers(1, 4)):
        changed[position] ^= 1 << int(random.integers(8))
    return bytes(changed)


def cut(data: bytes, random: np.random.Generator) -> bytes:
    return data[: random.integers(0, len(data))]


def append(data: bytes, random: np.random.Generator) -> bytes:
    return data + random.bytes(int(random.integers(1, 5000)))


def swap(data: bytes, random: np.random.Generator) -> bytes:
    """Two ranges of one length change places."""
    size = int(random.integers(1, max(2, min(8192, len(data) // 3))))
    one, other = sorted(int(n) for n in random.integers(0, len(data) - size, 2))
    if other - one < size:
        return flip(data, random)
    return data[:one] + data[other : other + size] + data[one + size : other] + data[one : one + size] + data[other + size :]


def clear(data: bytes, random: np.random.Generator) -> bytes:
    """A range of zeros, as a file system leaves after a crash."""
    first, size = int(random.integers(0, len(data))), int(random.integers(1, 8192))
    return data[:first] + bytes(min(size, len(data) - first)) + data[first + size :]


def drop(data: bytes, random: np.random.Generator) -> bytes:
    """Some bytes in the middle are missing."""
    first, size = int(random.integers(0, len(data))), int(random.integers(1, 5000))
    return data[:first] + data[first + size :]


def repeat_tail(data: bytes, random: np.random.Generator) -> bytes:
    """The end is there twice, as if another file followed."""
    return data + data[-int(random.integers(1, len(data))) :]


ANY: tuple[Damage, ...] = (flip, flip, flip, flip, cut, append, swap, clear, drop, repeat_tail)


def duplicate_member(data: bytes, random: np.random.Generator, path: Path) -> bytes:
    """An archiver adds a member whose name is there already, with other bytes."""
    path.write_bytes(data)
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        names = archive.namelist()
        name = names[int(random.integers(len(names)))]
        archive.writestr(name, flip(archive.read(name) or b"x", random))
    return path.read_bytes()


def drawn(data: bytes, pytestconfig: pytest.Config, path: Path | None = None) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of every damaged copy; one in ten changes the archive as an archiver would."""
    for number in range(pytestconfig.getoption("cases")):
        random = np.random.default_rng((pytestconfig.getoption("seed"), number))
        if path is not None and number % 10 == 9:
            changed = duplicate_member(data, random, path)
        else:
            changed = ANY[int(random.integers(len(ANY)))](data, random)
        if changed != data:
            yield number, changed


# --- engines ----------------------------------------------------------------------------------------------------------


def outcome(path: Path, data: bytes, **options: Any) -> Any:
    """What a load gives: an answer, or the error's name."""
    path.write_bytes(data)
    try:
        return ourcc.load(path, **options)(X)
    except CompilerError as error:
        assert str(error).strip()
        return None


def test_damaged_engines_are_refused_or_answer_as_before(engines: dict[str, bytes], tmp_path: Path, pytestconfig: pytest.Config) -> None:
    path = tmp_path / "m.ourcc"
    right = outcome(path, engines["plain"])
    wrong = []
    for number, data in drawn(engines["plain"], pytestconfig, path):
        answer = outcome(path, data)
        if answer is not None and not np.array_equal(answer, right):
            wrong.append(number)
    assert not wrong, f"{len(wrong)} damaged engines answered wrong: cases {wrong}"


def test_any_change_of_a_signed_engine_is_refused(engines: dict[str, bytes], tmp_path: Path, pytestconfig: pytest.Config) -> None:
    path = tmp_path / "m.ourcc"
    assert outcome(path, engines["signed"], trusted_keys=[public()]) is not None
    taken = [
        number for number, data in drawn(engines["signed"], pytestconfig, path) if outcome(path, data, trusted_keys=[public()]) is not None
    ]
    assert not taken, f"{len(taken)} changed engines were taken: cases {taken}"


# --- records ----------------------------------------------------------------------------------------------------------


def record() -> Record:
    problem = {"region": "region @region() -> %y0: f32[4] {\n}\n", "symbols": {}, "layouts": {}, "constants": [], "bucket": {"N0": 128}}
    environment = {
        **{"architecture": "x86-64-v4", "device": "cpu", "features": ["fma"], "compiler": "cc 1", "producer": "ourcc 0"},
        "policy": {"rounds": 9},
    }
    samples = tuple(Sample(f"{n:016x}", (1000 + n, 1100)) for n in range(3))
    return Record(problem, environment, (Trial(Schedule("nest", (("vectors", 4),)), samples),))


def test_damaged_records_are_refused(pytestconfig: pytest.Config) -> None:
    taken = []
    for number, data in drawn(encode(record()), pytestconfig):
        try:
            if decode(data) != record():
                taken.append(number)
        except CompilerError:
            pass
    assert not taken, f"damaged records were taken: cases {taken}"


def test_any_change_of_a_signed_record_is_refused(pytestconfig: pytest.Config) -> None:
    from ourcc.autotune.signed import seal, unseal

    keys = frozenset([public()])
    assert unseal(seal(record(), KEY), None, keys)[0] == record()
    taken = []
    for number, data in drawn(seal(record(), KEY), pytestconfig):
        try:
            unseal(data, None, keys)
            taken.append(number)
        except CompilerError:
            pass
    assert not taken, f"changed records were taken: cases {taken}"
