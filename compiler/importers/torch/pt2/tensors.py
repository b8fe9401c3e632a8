"""Tensors of a `.pt2`: raw bytes with sizes and strides; a pickled one is refused unless the user trusts the file."""

from __future__ import annotations

import io
import math
from typing import Any

from .....ir.errors import ModelError, UnsupportedError
from .archive import Archive
from .entries import Entry

RANK = 32
LARGEST = 1 << 40
GROWTH = 1 << 30
SCALAR_TYPES = {
    **{1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64"},
    **{10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16", 34: "uint32", 35: "uint64"},
    **{29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz", 33: "float8_e8m0fnu"},
}
_STRIDED = 7


def dtype_of_number(entry: Entry) -> Any:
    """The torch dtype of a number in the file."""
    import torch

    if entry.integer() not in SCALAR_TYPES:
        raise entry.fail(f"dtype {entry.integer()} is not known")
    return getattr(torch, SCALAR_TYPES[entry.integer()])


def check_layout(entry: Entry) -> None:
    """Refuse sparse tensors."""
    if entry.integer() != _STRIDED:
        raise UnsupportedError(
            f"{entry.place}: got a tensor of layout {entry.integer()}, expected a dense one", source=entry.source, hint="use .to_dense()"
        )


def stored_tensor(archive: Archive, folder: str, name: str, entry: Entry, trust_pickle: bool) -> Any:
    """One tensor of the archive; tensors that share memory in the file share it here."""
    path = entry.at("path_name").text()
    if entry.at("use_pickle").boolean():
        return _unpickled(archive, f"{folder}/{path}", name, trust_pickle)
    import torch

    meta = entry.at("tensor_meta")
    check_layout(meta.at("layout"))
    dtype = dtype_of_number(meta.at("dtype"))
    sizes, strides = _integers(meta.at("sizes")), _integers(meta.at("strides"))
    (offset,) = _integers(Entry([meta.at("storage_offset").value], meta.at("storage_offset").place, meta.source))
    if len(sizes) != len(strides):
        raise meta.fail(f"got {len(sizes)} sizes and {len(strides)} strides, expected as many")
    data = archive.bytes(f"{folder}/{path}")
    span = 0 if 0 in sizes else offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + 1
    # Strides of 0 let a tensor have more elements than its file, and it grows when it is packed.
    if span * dtype.itemsize > len(data) or math.prod(sizes) * dtype.itemsize > max(len(data), GROWTH):
        raise meta.fail(f"the tensor {name!r} has {len(data)} bytes, which do not hold sizes {list(sizes)} with strides {list(strides)}")
    if not math.prod(sizes):
        return torch.empty(sizes, dtype=dtype)
    whole = torch.frombuffer(data, dtype=dtype, count=len(data) // dtype.itemsize)
    return whole.as_strided(sizes, strides, offset)


def _unpickled(archive: Archive, path: str, name: str, trusted: bool) -> Any:
    """A tensor by torch's own loader, which runs what the file says: only where the user vouches for it."""
    import torch

    if not trusted:
        raise ModelError(
            f"the tensor {name!r} is pickled, and reading it may run code",
            source=archive.source,
            hint="in Python ourcc.build(program) takes what torch.export gives, torchao's tensors too; --trust-pickle reads your own files",
        )
    try:
        found = torch.load(io.BytesIO(archive.bytes(path)), map_location="cpu", weights_only=False)  # noqa: TID251
    except (RuntimeError, ValueError, EOFError, ImportError, AttributeError, torch.serialization.pickle.UnpicklingError) as error:
        raise archive.fail(f"the tensor {name!r} cannot be unpickled: {str(error).splitlines()[0][:200]}") from error
    if type(found) not in (torch.Tensor, torch.nn.Parameter):
        raise UnsupportedError(
            f"the tensor {name!r} is a {type(found).__name__}, expected a plain tensor",
            source=archive.source,
            hint="convert the parameter before the export",
        )
    return found.detach()


def _integers(entries: Entry) -> tuple[int, ...]:
    values = tuple(part.at("as_int").integer() for part in entries.parts())
    if len(values) > RANK or any(not 0 <= value <= LARGEST for value in values):
        raise entries.fail(f"got {str(list(values))[:80]}, expected at most {RANK} numbers in 0..{LARGEST}")
    return values
