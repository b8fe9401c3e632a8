"""Memory on a GPU: pieces that go back with their last holder, the states of a session, tensors as other libraries take them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..ir.errors import EngineError
from ..ir.types import TensorType
from .arrays import pointer, store, torch_module, view
from .contents import EngineContents
from .driver import Device
from .states import Where, initial
from .weights import Array, nbytes

ALIGNMENT = 256


def rounded(size: int) -> int:
    """Bytes of a piece, so that the next one is aligned."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def make_room() -> bool:
    """Ask torch for the memory that its allocator keeps for later; False where it has none."""
    torch = torch_module()
    if torch is None or not torch.cuda.is_initialized():
        return False
    torch.cuda.empty_cache()
    return True


class Memory:
    """A piece of device memory, which is given back with the last that holds it."""

    def __init__(self, gpu: Device, size: int) -> None:
        self.address = 0
        self.size = size
        self.gpu = gpu
        self.address = gpu.allocate(size, make_room) if size else 0

    def __del__(self) -> None:
        # At exit the driver may be gone already; then its memory is too.
        with contextlib.suppress(EngineError):
            if self.address:
                with self.gpu:
                    self.gpu.free(self.address)


class BorrowedMemory:
    """Memory from torch's allocator: while torch captures a graph it belongs to that graph, and nothing else may be allocated."""

    def __init__(self, gpu: Device, size: int) -> None:
        self.size = size
        self.held = torch_module().empty(rounded(size) + ALIGNMENT, dtype=torch_module().uint8, device=f"cuda:{gpu.ordinal}")
        self.address = rounded(int(self.held.data_ptr()))


class DeviceStates:
    """States in the memory of a GPU."""

    tensors: Mapping[str, Any] = {}

    def __init__(self, gpu: Device, contents: EngineContents, part: str) -> None:
        self.changed = False
        self.gpu = gpu
        self._contents, self._part = contents, part
        self._types = {name: state.type for name, state in contents.parts[part].states.items()}
        sizes = {name: nbytes(type) or 0 for name, type in self._types.items()}
        with gpu:
            self._memory = Memory(gpu, sum(map(rounded, sizes.values())))
            places = itertools.accumulate(map(rounded, sizes.values()), initial=self._memory.address)
            self._addresses = dict(zip(sizes, places, strict=False))
            for name, state in contents.parts[part].states.items():
                given = initial(contents, part, state)
                if given is None:
                    gpu.zero(self._addresses[name], sizes[name], 0)
                else:
                    gpu.upload(self._addresses[name], pointer(given), sizes[name], 0)
            gpu.synchronize(0)

    @property
    def addresses(self) -> Mapping[str, int]:
        """Where each state lies."""
        return self._addresses

    def read(self, name: str, where: Where = ()) -> Array:
        """A copy of what a state holds in a part; all of it comes to the host."""
        memory = np.empty(nbytes(self._types[name]) or 0, np.uint8)
        with self.gpu:
            self.gpu.download(pointer(memory), self._addresses[name], memory.size, 0)
        return view(memory, self._types[name])[where].copy()

    def write(self, name: str, value: Array, where: Where = ()) -> None:
        """Let a part of a state hold an array of its dtype and sizes; all of it goes by way of the host."""
        whole = value
        if where:
            whole = self.read(name)
            whole[where] = value
        memory = np.empty(nbytes(self._types[name]) or 0, np.uint8)
        store(memory, whole, self._types[name].dtype)
        with self.gpu:
            self.gpu.upload(self._addresses[name], pointer(memory), memory.size, 0)
            self.gpu.synchronize(0)

    def own(self) -> None:
        """A fork has its own memory from the beginning."""

    def fork(self) -> DeviceStates:
        """States that hold the same from now on, copied on the device."""
        other = DeviceStates(self.gpu, self._contents, self._part)
        with self.gpu:
            for name, type in self._types.items():
                self.gpu.copy(other.addresses[name], self._addresses[name], nbytes(type) or 0, 0)
            self.gpu.synchronize(0)
        return other


class DeviceArray:
    """A tensor in device memory as other libraries take it without a copy."""

    def __init__(self, address: int, type: TensorType, stream: int) -> None:
        self.address = address
        self.type = type
        self.shape = shape_of(type)
        kind = type.dtype.numpy.str
        # Types that this protocol cannot name travel as raw bytes; `type` says what they are.
        typestr = kind if kind[1] in "biufc" else f"<u{type.dtype.itemsize}"
        # Stream 1 is the protocol's name of the default stream; 0 is forbidden.
        self.__cuda_array_interface__ = {
            "shape": self.shape,
            "typestr": typestr,
            "data": (address, False),
            "version": 3,
            "strides": None,
            "stream": stream or 1,
        }


def shape_of(type: TensorType) -> tuple[int, ...]:
    """The sizes that are known."""
    return tuple(size for size in type.shape if isinstance(size, int))
