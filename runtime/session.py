"""Sessions: what an engine keeps between calls for one caller, and the engine's functions on it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from ..ir import dims
from ..ir.errors import EngineError, InputError
from ..ir.types import TensorType
from .arrays import admit, on_host
from .contents import Ports
from .function import Executor, Function, Functions, Part
from .saved import Saved, read_saved, write_saved
from .states import KeptStates, Where
from .weights import Array


class Session:
    """The states of an engine, which its functions read and write; everything else sessions share.

    `session(x)` calls the entry, `session.functions["append"](x)` another function. Sessions run side by side in threads;
    one session serves one call at a time, and a second one at the same time is an error. A call that fails after it began
    to write leaves states that are of no use: the session refuses from then on, until `reset`.
    `fork` begins another session where this one stands; `save` writes what it holds to a file, and `load` takes it up again.
    """

    def __init__(self, part: Part, ports: Mapping[str, Ports], types: Mapping[str, TensorType], program: str) -> None:
        self._begin(_Kept(part, part.states()), ports, types, program)

    def _begin(self, kept: _Kept, ports: Mapping[str, Ports], types: Mapping[str, TensorType], program: str) -> None:
        self._kept, self._ports, self._types = kept, ports, types
        self.program = program
        """The digest of the program whose states these are, its weights included."""
        self._functions = Functions((name, _Bound(name, held, kept.part, kept)) for name, held in ports.items())

    def __call__(self, /, *inputs: Any, **named: Any) -> Any:
        """The entry's output, or a tuple of outputs."""
        return next(iter(self._functions.values()))(*inputs, **named)

    @property
    def functions(self) -> Mapping[str, Function]:
        """The engine's functions on these states, by name."""
        return self._functions

    @property
    def states(self) -> Mapping[str, TensorType]:
        """The types of the states, by name."""
        return self._types

    def state(self, name: str, where: Where = ()) -> Array:
        """A copy of what a state holds, or of the part at `where`: whole numbers and slices, one for each of its first axes."""
        self._part_of(name, where)
        with self._kept.turn(f"reading state {name!r}"):
            return self._kept.memory.read(name, where)

    def set_state(self, name: str, value: Any, where: Where = ()) -> None:
        """Let a state, or its part at `where`, hold a copy of `value`, an array or what an input may be.

        InputError unless it is of the state's dtype and of the part's sizes.
        """
        expected = self._part_of(name, where)
        try:
            array = on_host(admit(value, name, expected.dtype, expected.rank), expected.dtype)
        except InputError as error:
            raise InputError(f"state {name!r}: got {_shown(value)}, expected {expected}", hint=error.hint) from error
        if array.shape != expected.shape:
            raise InputError(f"state {name!r}: got {_shown(value)}, expected {expected}")
        with self._kept.turn(f"writing state {name!r}"):
            self._kept.memory.write(name, array, where)

    def reset(self) -> None:
        """Begin anew, with every state as a new session has it."""
        self._kept.reset()

    def fork(self) -> Session:
        """Another session that holds the same; on a CPU the states are copied by the first of the two that writes."""
        with self._kept.turn("fork"):
            kept = _Kept(self._kept.part, self._kept.memory.fork())
        other = Session.__new__(Session)
        other._begin(kept, self._ports, self._types, self.program)
        return other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what the states hold to a file, all or nothing."""
        write_saved(path, Saved(self.program, {}, {name: self.state(name) for name in self._types}))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Let the states hold what `save` wrote in a session of an engine with the same program; EngineError for any other file."""
        saved = read_saved(path, self.program, self._types)
        other = next(
            (name for name, type in self._types.items() if name not in saved.arrays or saved.arrays[name].shape != type.shape), None
        )
        if other is not None:
            raise EngineError(
                f"{os.fspath(path)}: it does not hold state {other!r} whole", hint="sequences and conversations have a load of their own"
            )
        self.reset()
        for name, array in saved.arrays.items():
            self.set_state(name, array)

    def _part_of(self, name: str, where: Where) -> TensorType:
        """The type of a part of a state; InputError if there is none."""
        if not isinstance(name, str) or name not in self._types:
            raise InputError(f"there is no state {name!r}, the engine has {', '.join(self._types) or 'none'}")
        type = self._types[name]
        sizes = [dims.number(size) for size in type.shape]
        is_known = isinstance(where, tuple) and len(where) <= len(sizes) and all(map(_selects, where, sizes))
        if not is_known:
            raise InputError(f"state {name!r}: got the part {where!r} of {type}, expected a tuple of whole numbers and slices inside of it")
        kept = [len(range(*each.indices(size))) for each, size in zip(where, sizes, strict=False) if isinstance(each, slice)]
        return type.with_shape((*kept, *sizes[len(where) :]))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a session is neither copied nor pickled: fork() makes another one, save and load carry it over")

    def __repr__(self) -> str:
        return f"Session({', '.join(f'{name}: {type}' for name, type in self._types.items())})"


def _selects(each: Any, size: int) -> bool:
    """Whether an index chooses places of an axis of this size: a number inside of it, or a slice of whole numbers."""
    if isinstance(each, slice):
        return all(part is None or type(part) is int for part in (each.start, each.stop, each.step)) and each.step != 0
    return type(each) is int and 0 <= each < size


def _shown(value: Any) -> str:
    """What a value is, for an error."""
    has_type = hasattr(value, "dtype") and hasattr(value, "shape")
    return f"{value.dtype}{list(value.shape)}" if has_type else f"a {type(value).__name__}"


class _Kept:
    """The memory of a session's states, whose turn it is, and why it is of no use any more."""

    def __init__(self, part: Part, memory: KeptStates) -> None:
        self.part = part
        self.memory = memory
        self.failure: str | None = None
        self.lock = threading.Lock()

    @contextmanager
    def turn(self, what: str, anew: bool = False) -> Iterator[None]:
        """The memory for one call; EngineError while another thread has it, and after a failure unless all begins `anew`."""
        if not self.lock.acquire(blocking=False):
            hint = "give each thread a session of its own: engine.session()"
            raise EngineError(f"{what}: a session serves one call at a time, and another thread is using it", hint=hint)
        try:
            if self.failure is not None and not anew:
                hint = "session.reset() begins anew, engine.session() makes another one"
                raise EngineError("the session's states are of no use since a call failed", note=self.failure, hint=hint)
            yield
        finally:
            self.lock.release()

    def reset(self) -> None:
        with self.turn("reset", anew=True):
            self.memory, self.failure = self.part.states(), None

    def run(self, executor: Executor, inputs: Sequence[Any], what: str) -> list[Any]:
        with self.turn(what):
            self.memory.own()
            self.memory.changed = False
            try:
                return executor.run(inputs, self.memory)
            except BaseException as failure:
                if self.memory.changed:
                    self.failure = f"{what} failed midway: {str(failure).partition(chr(10))[0] or type(failure).__name__}"
                raise


class _Bound(Function):
    """A function on the states of a session."""

    def __init__(self, name: str, ports: Ports, part: Part, kept: _Kept) -> None:
        super().__init__(name, ports, part)
        self._kept = kept

    def _run(self, executor: Executor, inputs: Sequence[Any]) -> list[Any]:
        return self._kept.run(executor, inputs, f"function {self.name!r}") if self._ports.states else executor.run(inputs)
