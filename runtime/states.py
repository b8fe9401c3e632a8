"""What sessions keep between calls: one piece of memory for each state, which begins as a constant or as zeros."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..ir.errors import EngineError
from ..ir.plan import Buffer, State, StateDeclaration
from .arrays import pointer, store, view
from .contents import EngineContents
from .weights import Array, aligned_bytes, nbytes


class StateMemory(Protocol):
    """The memory of states during a call, and whether the call has begun to write it."""

    changed: bool

    def address(self, name: str) -> int:
        """Where a state lies."""


class KeptStates(StateMemory, Protocol):
    """The memory of a session's states."""

    def read(self, name: str) -> Array:
        """A copy of what a state holds."""

    def write(self, name: str, value: Array) -> None:
        """Let a state hold an array of its type."""


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
    """States in the memory of the CPU."""

    def __init__(self, contents: EngineContents, part: str) -> None:
        self.changed = False
        self._types = {name: state.type for name, state in contents.parts[part].states.items()}
        self._memory: dict[str, Array] = {}
        for name, state in contents.parts[part].states.items():
            given = initial(contents, part, state)
            memory = self._memory[name] = aligned_bytes(nbytes(state.type) or 0)
            memory[:] = 0 if given is None else given
        self._addresses = {name: pointer(memory) for name, memory in self._memory.items()}

    def address(self, name: str) -> int:
        """Where a state lies."""
        return self._addresses[name]

    def read(self, name: str) -> Array:
        """A copy of what a state holds."""
        return view(self._memory[name], self._types[name]).copy()

    def write(self, name: str, value: Array) -> None:
        """Let a state hold an array of its type."""
        store(self._memory[name], value, self._types[name].dtype)


def states_of(buffers: Sequence[Buffer]) -> tuple[tuple[int, str], ...]:
    """The buffers that are states, with the states' names."""
    return tuple((number, buffer.storage.name) for number, buffer in enumerate(buffers) if isinstance(buffer.storage, State))
