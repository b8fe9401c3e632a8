"""What sessions keep between calls: one piece of memory for each state, which begins as a constant or as zeros."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from ..ir.errors import EngineError
from ..ir.plan import Buffer, State, StateDeclaration
from .arrays import pointer, store, view
from .contents import EngineContents
from .weights import Array, aligned_bytes, nbytes

Where: TypeAlias = tuple[int | slice, ...]
"""A part of a state, as numpy indexes it; () is all of it."""


class StateMemory(Protocol):
    """The memory of states during a call, and whether the call has begun to write it."""

    changed: bool

    @property
    def addresses(self) -> Mapping[str, int]:
        """Where each state lies; another mapping once one lies elsewhere."""

    @property
    def tensors(self) -> Mapping[str, Any]:
        """States that are the caller's own tensors, which a call is made for as for its inputs."""


class KeptStates(StateMemory, Protocol):
    """The memory of a session's states."""

    def read(self, name: str, where: Where = ()) -> Array:
        """A copy of what a state holds in a part."""

    def write(self, name: str, value: Array, where: Where = ()) -> None:
        """Let a part of a state hold an array of its dtype and sizes."""

    def own(self) -> None:
        """Before anything is written: take leave of those that hold the same memory."""

    def fork(self) -> KeptStates:
        """States that hold the same from now on, each for itself."""


def initial(contents: EngineContents, part: str, state: StateDeclaration) -> Array | None:
    """The bytes that a state begins with; None for zeros. EngineError where what it names is of another type."""
    if not state.initial:
        return None
    constant, size = contents.constant(part, state.initial), nbytes(state.type) or 0
    if constant.type != state.type or constant.data.size < size:
        got = f"the constant {state.initial!r}, which is {constant.type} in {constant.data.size} bytes"
        raise EngineError(f"state {state.name!r} begins as {got}, expected {state.type} in {size} bytes")
    return constant.data[:size]


class HostStates:
    """States in the memory of the CPU. A fork shares it until one of the two writes: that one takes a copy."""

    tensors: Mapping[str, Any] = {}

    def __init__(self, contents: EngineContents, part: str) -> None:
        self.changed = False
        self._types = {name: state.type for name, state in contents.parts[part].states.items()}
        self._memory: dict[str, Array] = {}
        self._holders = _Holders(self)
        for name, state in contents.parts[part].states.items():
            given = initial(contents, part, state)
            memory = self._memory[name] = aligned_bytes(nbytes(state.type) or 0, zeros=given is None)
            if given is not None:
                memory[:] = given
        self._addresses = {name: pointer(memory) for name, memory in self._memory.items()}

    @property
    def addresses(self) -> Mapping[str, int]:
        """Where each state lies; another mapping once one lies elsewhere."""
        return self._addresses

    def read(self, name: str, where: Where = ()) -> Array:
        """A copy of what a state holds in a part."""
        return view(self._memory[name], self._types[name])[where].copy()

    def write(self, name: str, value: Array, where: Where = ()) -> None:
        """Let a part of a state hold an array of its dtype and sizes."""
        self.own()
        type = self._types[name]
        if type.dtype.bits >= 8:
            view(self._memory[name], type)[where] = value
            return
        whole = view(self._memory[name], type)  # elements that share a byte are unpacked, and packed again
        whole[where] = value
        store(self._memory[name], whole, type.dtype)

    def own(self) -> None:
        """Before anything is written: copy what a fork holds as well."""
        with self._holders.lock:
            if len(self._holders.members) == 1:
                return
            copies = {name: aligned_bytes(memory.size) for name, memory in self._memory.items()}
            for name, memory in self._memory.items():
                copies[name][:] = memory
            self._holders.members.discard(self)
        self._memory, self._holders = copies, _Holders(self)
        self._addresses = {name: pointer(memory) for name, memory in copies.items()}

    def fork(self) -> HostStates:
        """States that hold the same from now on; the memory is copied by the first that writes."""
        other = copy.copy(self)
        with self._holders.lock:
            self._holders.members.add(other)
        return other


class _Holders:
    """Who holds the same memory; whoever is gone holds nothing."""

    def __init__(self, first: HostStates) -> None:
        self.lock = threading.Lock()
        self.members = weakref.WeakSet([first])


def states_of(buffers: Sequence[Buffer]) -> tuple[tuple[int, str], ...]:
    """The buffers that are states, with the states' names."""
    return tuple((number, buffer.storage.name) for number, buffer in enumerate(buffers) if isinstance(buffer.storage, State))
