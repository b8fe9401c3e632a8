"""The CPU part of an engine: for each function native segments on pointers, one context with its arena per concurrent call."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir.control import CallFunction
from ..ir.dims import evaluate
from ..ir.errors import CompilerError, EngineError, OutOfMemoryError
from ..ir.plan import Alias, Check, CheckPlace, Host, Launch, is_native, segments, storage
from ..ir.types import TensorType, string
from . import native
from .arrays import admit, memory_at, new_bytes, new_output, packed, pointer, store, view
from .contents import EngineContents
from .function import call_function
from .memory import HINT
from .program import Binding, Bound, Callback, Program, programs_of
from .states import HostStates, StateMemory
from .steps import PythonStep, misplaced, prepare, refusal
from .weights import Array, Constant, aligned, aligned_bytes, nbytes


class CpuPart:
    """An engine on the CPU, whose functions share native code and constants."""

    device = "cpu"

    def __init__(self, contents: EngineContents, name: str, threads: int = 0, callback: Callback | None = None) -> None:
        self.contents = contents
        self.name = name
        self.threads = threads or len(os.sched_getaffinity(0))
        self.callback = callback
        part = contents.parts[name]
        self.plans = part.plans
        self.order = {function: number for number, function in enumerate(part.plans)}
        self.library = native.load(name, part) if part.has_native_steps else None
        self.constants: dict[str, Constant] = {}
        self._executors = {function: CpuExecutor(_Loaded(self, function, program)) for function, program in programs_of(part.plans).items()}

    def executor(self, function: str) -> CpuExecutor:
        """What runs a function."""
        return self._executors[function]

    def states(self) -> HostStates:
        """Memory for the states of one session, as they begin."""
        return HostStates(self.contents, self.name)

    def constant(self, key: str) -> Constant:
        """A constant where kernels can read it."""
        if key not in self.constants:
            self.constants[key] = aligned(self.contents.constant(self.name, key))
        return self.constants[key]


class _Loaded:
    """A plan with its native code and constants: what all contexts of a function share."""

    def __init__(self, part: CpuPart, function: str, program: Program) -> None:
        self.program = program
        self.threads = part.threads
        self.constants = _constants(part, self.program)
        self.library = part.library
        runs = list(segments(program.plan.steps))
        call = functools.partial(call_function, weakref.ref(part))
        self.steps: tuple[_Part, ...] = tuple(self._prepare(runs, part.order[function], part.callback, call))
        has_code = any(step.segment is not None for step in self.steps)
        self.arena = part.library.arena(part.order[function]) if part.library is not None and has_code else None
        self.plain = all(port.type.dtype.bits >= 8 for port in self.program.signature.inputs)

    def _prepare(
        self, runs: Sequence[tuple[bool, tuple[Any, ...]]], function: int, callback: Callback | None, call: CallFunction
    ) -> Iterator[_Part]:
        count = first = 0
        for in_c, steps in runs:
            if in_c and self.library is not None:
                yield _Part(first, first + len(steps), segment=self.library.segment(function, count))
                count += 1
            else:
                yield _Part(first, first + len(steps), step=prepare(self.program, steps[0], callback, call))
            first += len(steps)


@dataclass(frozen=True)
class _Part:
    """The steps first..end of a plan: native code, or one step in Python."""

    first: int
    end: int
    segment: native.Segment | None = None
    step: PythonStep | None = None


class CpuExecutor:
    """A plan for the CPU, ready to run; immutable but for its pool of contexts."""

    def __init__(self, loaded: _Loaded) -> None:
        self.loaded = loaded
        self.program = self.loaded.program
        self.expected = tuple((port.name, port.type.dtype.numpy, port.type.dtype, port.type.rank) for port in self.program.signature.inputs)
        self._contexts: list[_Context] = []

    def run(self, values: Sequence[Any], states: StateMemory | None = None) -> list[Any]:
        """The outputs, fresh memory of the inputs' kind; InputError if the inputs do not fit. `states` are what is kept."""
        inputs = []
        shapes = []
        as_torch = False
        for value, (name, numpy_dtype, dtype, rank) in zip(values, self.expected, strict=True):
            if type(value) is not np.ndarray or value.dtype != numpy_dtype or dtype == string or not value.flags.c_contiguous:
                value = admit(value, name, dtype, rank)
                as_torch = as_torch or not isinstance(value, np.ndarray)
            inputs.append(value)
            shapes.append(value.shape)
        binding = self.program.bind(tuple(shapes), inputs)
        try:
            context = self._contexts.pop()
        except IndexError:
            context = _Context(self.loaded)
        try:
            return context.run(inputs, binding, as_torch, states)
        finally:
            context.forget()
            self._contexts.append(context)

    def times(self, values: Sequence[Any], states: StateMemory | None = None) -> tuple[tuple[int, ...], int]:
        """Nanoseconds that each launch and each routine of native code takes in one call, in the order of the steps, and the whole call."""
        count = sum(isinstance(step, Launch | Host) and is_native(step) for step in self.program.plan.steps)
        if self.loaded.library is None or not count:
            return (), self._timed(values, states)
        with self.loaded.library.timing(count) as found:
            call = self._timed(values, states)
        return tuple(found), call

    def _timed(self, values: Sequence[Any], states: StateMemory | None) -> int:
        start = time.perf_counter_ns()
        self.run(values, states)
        return time.perf_counter_ns() - start


def _constants(part: CpuPart, program: Program) -> dict[int, Constant]:
    found = {}
    for number, buffer in enumerate(program.buffers):
        if not isinstance(buffer.storage, storage.Constant):
            continue
        constant = part.constant(buffer.storage.key)
        expected = nbytes(buffer.type)
        if (expected is None and buffer.type.dtype != string) or (expected is not None and constant.data.size < expected):
            raise EngineError(f"constant {buffer.storage.key!r} has {constant.data.size} bytes, expected {buffer.type}")
        found[number] = constant
    return found


class _Context(Bound):
    """The arena and the pointers of one call at a time; reused by later calls."""

    def __init__(self, loaded: _Loaded) -> None:
        self.loaded = loaded
        self.program = loaded.program
        self.pointers = (ctypes.c_void_p * max(1, len(self.program.buffers)))()
        for number, constant in loaded.constants.items():
            self.pointers[number] = pointer(constant.data)
        self.arena: Array = aligned_bytes(0)
        self.address = 0
        self.placed: Mapping[str, int] = {}
        """Where the states lie that the pointers lead to."""
        self.binding: Binding | None = None
        # What the call allocated, by buffer: outputs as the caller gets them, other memory as flat u8 arrays.
        self.outputs: dict[int, Any] = {}
        self.memory: dict[int, Array] = {}
        self.objects: dict[int, Array] = {}
        self.as_torch = False

    def run(self, inputs: Sequence[Any], binding: Binding, as_torch: bool, states: StateMemory | None) -> list[Any]:
        program, loaded, pointers = self.program, self.loaded, self.pointers
        self.binding = binding
        self.as_torch = as_torch
        for number, value in zip(program.inputs, inputs, strict=True):
            pointers[number] = pointer(value)
        if not loaded.plain:
            self._special(inputs)
        if states is not None and states.addresses is not self.placed:
            self.placed = states.addresses
            for number, name in program.states:
                pointers[number] = self.placed[name]
        self._reserve(binding)
        self._allocate(binding)
        for number, part in enumerate(loaded.steps):
            if states is not None and part.end > program.plan.first_write:
                states.changed = True
            if part.segment is not None:
                status = part.segment(pointers, self.binding.symbols, self.address, loaded.threads)
                if status:
                    if states is not None and status > 0:
                        # The check that failed is the last step that ran; which kernel failed nobody knows.
                        states.changed = status > program.plan.first_write
                    raise self._failure(status, number)
            elif part.step is not None:
                part.step(self)
        return [self._result(result) for result in program.results]

    def _failure(self, status: int, part: int) -> CompilerError:
        """What a status means: 1 + the number of the check that failed, or minus what a kernel that failed gave."""
        steps = self.program.plan.steps
        if -status == errno.ENOMEM:
            return OutOfMemoryError("out of memory: a kernel found none for its arrays", hint=HINT)
        if status < 0:
            first, end = self.loaded.steps[part].first, self.loaded.steps[part].end
            hint = "ourcc.load(ENGINE, target=...) runs another part of the engine"
            return EngineError(f"a kernel of the engine failed with status {-status}, in steps {first} to {end - 1} of its plan", hint=hint)
        step = steps[status - 1] if 0 < status <= len(steps) else None
        found = None
        if isinstance(step, Check):
            found = refusal(step, self, self.program.index[step.worst])
        elif isinstance(step, CheckPlace):
            found = misplaced(step, self.values())
        return found or EngineError(f"native code of the engine failed with status {status} in part {part}")

    def forget(self) -> None:
        """Drop what belongs to the call that ended."""
        self.binding = None
        self.outputs = {}
        if self.memory or self.objects:
            self.memory, self.objects = {}, {}

    def _special(self, inputs: Sequence[Any]) -> None:
        for number, value in zip(self.program.inputs, inputs, strict=True):
            dtype = self.program.buffers[number].type.dtype
            if dtype == string:
                self.objects[number] = value
                self.pointers[number] = None
            elif dtype.bits < 8:
                self.memory[number] = packed(value, dtype)
                self.pointers[number] = pointer(self.memory[number])

    def _reserve(self, binding: Binding) -> None:
        if binding.arena is None:
            arena = self.loaded.arena
            binding.arena = binding.layout[1] if arena is None else arena(binding.symbols)
        size = binding.arena
        if size > self.arena.size or not self.address:
            self.arena = aligned_bytes(max(size, 1))
            self.address = pointer(self.arena)

    def _allocate(self, binding: Binding) -> None:
        """Memory for outputs and dynamic buffers whose sizes are known and that have none yet."""
        for number, dtype, shape in binding.outputs:
            if number not in self.outputs:
                output = new_output(dtype, shape, self.as_torch)
                self.outputs[number] = output
                self.pointers[number] = pointer(output)
        for number, type in binding.dynamic:
            if number not in self.memory:
                self.memory[number] = new_bytes(type)
                self.pointers[number] = pointer(self.memory[number])

    def _result(self, result: Any) -> Any:
        if not result.copied and result.buffer in self.outputs:
            return self.outputs[result.buffer]
        type = self.type(result.buffer)
        if type is None:
            raise EngineError(f"output {result.port.name!r} of the engine never got a size")
        output = new_output(type.dtype, _shape(type), self.as_torch)
        if isinstance(output, np.ndarray):
            output[...] = self.read(result.buffer)
        else:
            size = nbytes(type) or 0
            memory_at(pointer(output), size)[:] = self._bytes(result.buffer, type)
        return output

    # --- the frame of Python steps

    def rebind(self, values: dict[str, int]) -> None:
        self.binding = Binding(self.program.shapes, values)
        self._allocate(self.binding)

    def _bytes(self, number: int, type: TensorType) -> Array:
        buffer = self.program.buffers[number]
        if isinstance(buffer.storage, Alias) and self.binding is not None:
            root = self.program.index[buffer.storage.root]
            whole, first = self.type(root), evaluate(buffer.storage.offset, self.binding.values)
            return self._bytes(root, whole)[first : first + (nbytes(type) or 0)] if whole is not None else memory_at(0, 0)
        if number in self.memory:
            return self.memory[number]
        if isinstance(buffer.storage, storage.Arena) and self.binding is not None:
            first = self.binding.layout[0][buffer.storage.slot]
            return self.arena[first : first + (nbytes(type) or 0)]
        return memory_at(self.pointers[number] or 0, nbytes(type) or 0)

    def read(self, number: int) -> Array:
        """A buffer as a numpy array."""
        if number in self.loaded.constants:
            return self.loaded.constants[number].array()
        if number in self.objects:
            return self.objects[number]
        type = self.type(number)
        if type is None:
            raise EngineError(f"buffer {self.program.buffers[number].name} of the plan is read before its size is known")
        return view(self._bytes(number, type), type)

    share = read

    def write(self, number: int, value: Any) -> None:
        type = self.type(number)
        if type is None or type.dtype == string:
            self.objects[number] = value
            return
        if not isinstance(value, np.ndarray):
            value = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
            size = nbytes(type) or 0
            self._bytes(number, type)[:size] = memory_at(pointer(value), size)
            return
        store(self._bytes(number, type), value, type.dtype)


def _shape(type: TensorType) -> tuple[int, ...]:
    return tuple(size for size in type.shape if isinstance(size, int))
