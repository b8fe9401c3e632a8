"""Weights: safetensors bytes that others read too, views without copies, packed elements, hostile headers."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from ourcc.ir.errors import EngineError
from ourcc.ir.types import DTYPES, TensorType, string, type_of
from ourcc.runtime.weights import Constant, aligned, decode, encode


def read(data, name):
    """Split at the header as the engine file does, which knows its length."""
    length = 8 + int.from_bytes(data[:8].tobytes(), "little")
    return decode(data[:length].tobytes(), data[length:], name)


def bytes_of(constants):
    header, pieces = encode(constants)
    return np.frombuffer(header + b"".join(piece.tobytes() for piece in pieces), np.uint8)


def samples():
    generator = np.random.default_rng(0)
    for dtype in DTYPES.values():
        if dtype == string:
            yield np.array([["a", "", "ü\n"]], dtype=object)
        elif dtype.bits < 8 and dtype.is_integer:
            low = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
            yield generator.integers(low, low + (1 << dtype.bits), (3, 5)).astype(dtype.numpy)
        elif dtype.kind == "bool":
            yield generator.integers(0, 2, (2, 9)).astype(bool)
        else:
            yield generator.integers(1, 4, (3, 7)).astype(dtype.numpy)


@pytest.mark.parametrize("array", list(samples()), ids=lambda a: str(type_of(a).dtype))
def test_every_dtype_comes_back(array):
    constant = Constant.of(array)
    got = read(bytes_of({"x": constant, "after": Constant.of(np.arange(3))}), "w")
    assert got["x"] == constant and got["x"].array().dtype == array.dtype
    assert np.array_equal(got["x"].array(), array)
    assert np.array_equal(got["after"].array(), np.arange(3))


def test_shapes_order_and_alignment():
    arrays = {
        "b": np.zeros((0, 3), np.float32),
        "a": np.array(5, np.int8),
        "c": np.arange(10, dtype=np.float64)[::2].T,
        "d": np.ones((2, 1), np.float16),
    }
    data = bytes_of({name: Constant.of(array) for name, array in arrays.items()})
    got = read(data, "w")
    for name, array in arrays.items():
        assert got[name].array().shape == array.shape and np.array_equal(got[name].array(), array)
    base = data.__array_interface__["data"][0]
    assert all((c.data.__array_interface__["data"][0] - base) % 64 == 0 for c in got.values() if c.data.size)
    assert np.array_equal(data, bytes_of({name: Constant.of(arrays[name]) for name in reversed(arrays)}))
    assert np.shares_memory(got["c"].array(), data)


def test_nibbles_are_packed_low_first():
    constant = Constant.of(np.array([1, -1, 3], ml_dtypes.int4))
    assert constant.data.tolist() == [0xF1, 0x03] and str(constant.type) == "i4[3]"
    assert Constant.of(np.array([1, 2, 3, 0, 1], ml_dtypes.uint2)).data.tolist() == [0b00111001, 0b01]


def test_big_endian_arrays_are_turned():
    assert Constant.of(np.array([1, 2], ">i4")).data.tolist() == [1, 0, 0, 0, 2, 0, 0, 0]


def test_the_package_safetensors_reads_it(tmp_path):
    numpy_reader = pytest.importorskip("safetensors.numpy")
    arrays = {"x.weight": np.arange(5, dtype=np.float32), "y": np.arange(6, dtype=np.int64).reshape(2, 3), "z": np.ones(3, np.uint8)}
    got = numpy_reader.load(bytes_of({name: Constant.of(array) for name, array in arrays.items()}).tobytes())
    for name, array in arrays.items():
        assert np.array_equal(got[name], array)


def test_it_reads_the_package_safetensors():
    numpy_writer = pytest.importorskip("safetensors.numpy")
    data = np.frombuffer(numpy_writer.save({"x": np.arange(5, dtype=np.float32)}), np.uint8)
    assert np.array_equal(read(data, "w")["x"].array(), np.arange(5, dtype=np.float32))


def test_constants_at_odd_addresses_are_copied():
    memory = np.zeros(400, np.uint8)
    odd = memory[1 + (-memory.__array_interface__["data"][0]) % 64 :][:40]
    constant = Constant(TensorType(DTYPES["u8"], (40,)), odd)
    moved = aligned(constant)
    assert moved.data.__array_interface__["data"][0] % 64 == 0 and moved == constant and not moved.data.flags.writeable
    assert aligned(moved) is moved


def header(entries, body=b"\0" * 64, length=None) -> np.ndarray:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return np.frombuffer((len(text) if length is None else length).to_bytes(8, "little") + text + body, np.uint8)


def entry(first, last, dtype="F32", shape=(16,)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [first, last]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.zeros(3, np.uint8), "w: got a safetensors header of 3 bytes that says 8"),
        (header({}, length=2**63), "w: got a safetensors header of 74 bytes that says 9223372036854775816"),
        (header(b"{"), "w: safetensors header is damaged"),
        (header(b"[]"), "safetensors header is damaged"),
        (header(b"\xff"), "safetensors header is damaged"),
        (header(b"[" * 100_000), "safetensors header is damaged"),
        (header({"x": entry(0, 64, "Q7")}), "safetensors header is damaged"),
        (header({"x": entry(0, 64, shape=(-16,))}), "expected a list of sizes"),
        (header({"x": entry(0, 64, shape=(2**62,))}), "expected a list of sizes"),
        (header({"x": entry(0, 64, shape=(15,))}), r"tensor 'x' has 64 bytes, expected 60 for f32\[15\]"),
        (header({"x": entry(0, 60, shape=(15,))}), "w: 4 bytes follow the last tensor"),
        (header({"x": entry(4, 64, shape=(15,))}), "tensor 'x' lies at 4..64, expected to start at 0"),
        (header({"x": entry(0, 64), "y": entry(0, 64)}), "tensor 'y' lies at 0..64, expected to start at 64"),
        (header({"x": entry(0, 128, shape=(32,))}), "lies at 0..128, expected to start at 0 and end within 64"),
        (header({"x": entry(0, -4, shape=(0,))}), "lies at 0..-4"),
        (header({"x": entry(0, 64, "U8", (64,)), "__metadata__": {"ourcc.types": '{"x": "i4[999]"}'}}), "expected 500 for i4"),
        (header({"x": entry(0, 64, "U8", (64,)), "__metadata__": {"ourcc.types": '{"x": "i4"}'}}), "got type 'i4', expected dtype"),
    ],
)
def test_hostile_headers(data, message):
    with pytest.raises(EngineError, match=message):
        read(data, "w")


def test_reserved_names_and_damaged_strings():
    for name in ("~padding.1", "__metadata__"):
        with pytest.raises(EngineError, match=f"constant name '{name}' is reserved"):
            encode({name: Constant.of(np.zeros(1))})
    damaged = Constant(TensorType(string, (2,)), np.frombuffer(b'["a"]', np.uint8))
    with pytest.raises(EngineError, match="string constant holds other than 2 strings"):
        damaged.array()
