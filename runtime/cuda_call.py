"""One call on a GPU at a time: the arena and the pointers, what goes there, the steps, what comes back."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from ..ir.dims import evaluate
from ..ir.errors import EngineError, InputError
from ..ir.plan import Check, CheckPlace, storage
from ..ir.types import DType, TensorType, string
from .arrays import is_torch, memory_at, new_output, packed, pointer, store, view
from .captured import CapturedRuns
from .device_memory import BorrowedMemory, DeviceArray, DeviceStates, Memory, rounded, shape_of
from .driver import Device, DriverError
from .launches import HostProgram, Segment
from .program import Binding, Bound, Program
from .states import StateMemory
from .steps import PythonStep, misplaced, refusal
from .weights import Array, Constant, nbytes

Steps: TypeAlias = Segment | tuple[int, Check | CheckPlace | PythonStep]
"""What the host program carries out, or the number of a step and what Python does for it."""
UNTOLD = (-(2**63)).to_bytes(8, "little", signed=True)
"""A verdict when a call begins: that no index is out of range (`IN_RANGE` of `ir/ops/check.py`)."""
CARRIED = 16
"""Bytes of an input that the command itself carries, such as sizes and scalars: nothing waits for these to be read."""


class Loaded(Protocol):
    """A plan on one GPU."""

    program: Program
    gpu: Device
    host: HostProgram
    graphs: bool
    host_constants: Mapping[int, Constant]
    constants: Mapping[int, int]
    steps: Sequence[Steps]


class Context(Bound):
    """The device arena and the pointers of one call at a time, on one stream; `is_captured` while the caller captures that."""

    def __init__(self, loaded: Loaded, stream: int, is_captured: bool = False) -> None:
        self.loaded = loaded
        self.program = loaded.program
        self.gpu = loaded.gpu
        self.stream = stream
        self.is_captured = is_captured
        self.cells = (ctypes.c_void_p * max(1, len(self.program.buffers)))()
        for number, address in loaded.constants.items():
            self.cells[number] = address
        self.arena: Memory | BorrowedMemory | None = None
        self.runs = CapturedRuns(self.gpu, loaded.host, loaded.graphs)
        self.binding: Binding | None = None
        self.outputs: dict[int, Any] = {}
        self.objects: dict[int, Array] = {}
        self.own: list[Memory] = []
        self.told = tuple(n for n, buffer in enumerate(self.program.buffers) if isinstance(buffer.storage, storage.Verdict))
        self.verdicts: Memory | None = None
        self.place: str | None = None
        self.scratch = self.scratch_size = 0
        self.is_settled = True

    def run(self, inputs: Sequence[Any], binding: Binding, states: StateMemory | None) -> list[Any]:
        program = self.program
        self.binding = binding
        if self.is_captured:
            self._expect_capturable(inputs)
        torch_inputs = [value for value in (*inputs, *(states.tensors.values() if states is not None else ())) if is_torch(value)]
        self.place = None if not torch_inputs else "cuda" if any(v.device.type == "cuda" for v in torch_inputs) else "cpu"
        self.is_settled = True
        place = self._reserve(inputs, binding)
        held = []
        for number, value in zip(program.inputs, inputs, strict=True):
            host = self._enter(number, value, place)
            place += self._staged(number, value)
            held.append(host)
        self._allocate(binding)
        for number, name in program.states:
            self.cells[number] = None if states is None else states.addresses[name]
        for number, root, offset in program.aliases:
            self.cells[number] = self._address(root) + evaluate(offset, binding.values)
        for part in self.loaded.steps:
            self._part(part, states)
        results = [self._result(result) for result in program.results]
        is_kept = isinstance(states, DeviceStates)
        if not self.is_captured and (self.place != "cuda" or is_kept or any(value is not None for value in held)):
            # Host memory that was being read, and memory of ours, may be reused only when the device is done; and a session
            # may be called from another stream.
            self.gpu.synchronize(self.stream)
        return results

    def _expect_capturable(self, inputs: Sequence[Any]) -> None:
        """InputError where a call would wait for the GPU, which it may not while the caller captures a graph."""
        hint = "call it outside of the capture"
        for step in self.loaded.steps:
            if isinstance(step, tuple) and not isinstance(step[1], CheckPlace):
                what = "checks an index" if isinstance(step[1], Check) else "runs on the host"
                raise InputError(f"this call cannot be captured in a CUDA graph: step {step[0]} of its plan {what}", hint=hint)
        for number, value in zip(self.program.inputs, inputs, strict=True):
            if self._staged(number, value) and int(value.nbytes) > CARRIED:
                name = self.program.buffers[number].name
                raise InputError(f"this call cannot be captured in a CUDA graph: input {name!r} is not on the GPU", hint=hint)

    def _part(self, part: Steps, states: StateMemory | None) -> None:
        first_write = self.program.plan.first_write
        end = part.end if isinstance(part, Segment) else part[0] + 1
        if states is not None and end > first_write:
            states.changed = True
        if isinstance(part, tuple):
            step = part[1]
            if isinstance(step, Check):
                worst = self.program.index[step.worst]
                failure = refusal(step, self, worst, worst in self.told)
                if failure is not None:
                    raise failure
            elif isinstance(step, CheckPlace):
                failure = misplaced(step, self.values())
                if failure is not None:
                    raise failure
            else:
                step(self)
            return
        if self.binding is None:
            return
        need = part.scratch(self.binding) if part.uses_scratch else 0
        if need > self.scratch_size:
            # Its sizes came with the data of the call.
            self.own.append(Memory(self.gpu, need))
            self.scratch, self.scratch_size = self.own[-1].address, need
        may_capture = self.is_settled and not self.is_captured
        try:
            self.runs.run(part, self.binding, self.cells, self.scratch, self.stream, may_capture)
        except DriverError as error:
            if states is not None and 0 <= error.step < first_write:
                states.changed = False
            raise

    def forget(self) -> None:
        """Drop what belongs to the call that ended."""
        self.binding = None
        self.outputs, self.objects = {}, {}
        if self.own:
            self.gpu.synchronize(self.stream)
            self.own = []

    def forget_quietly(self) -> bool:
        """The same after an error, and what kernels told; False where the GPU fails too."""
        try:
            if self.verdicts is not None:
                self._begin_verdicts(self.verdicts)
            self.forget()
        except EngineError:
            return False
        return True

    def close(self) -> None:
        """Give everything back; the GPU may be failing."""
        with contextlib.suppress(EngineError):
            # Not the stream: its owner may have ended it.
            self.gpu.wait()
        self.runs.close()
        self.binding, self.arena, self.verdicts = None, None, None
        self.outputs, self.objects, self.own = {}, {}, []

    def __del__(self) -> None:
        # At exit the driver may be gone already.
        with contextlib.suppress(EngineError, AttributeError):
            with self.gpu:
                self.runs.close()

    def _reserve(self, inputs: Sequence[Any], binding: Binding) -> int:
        """Grow the arena for slots, scratch and staged inputs; where staged inputs begin."""
        offsets, slots = binding.layout
        segments = [step for step in self.loaded.steps if isinstance(step, Segment) and step.uses_scratch]
        known = binding.values.keys() >= set(self.program.symbol_names)
        self.scratch_size = rounded(max((step.scratch(binding) for step in segments), default=0)) if known else 0
        staged = sum(self._staged(number, value) for number, value in zip(self.program.inputs, inputs, strict=True))
        fresh = [(n, rounded(nbytes(type) or 0)) for n, type in binding.allocations if not self._is_torch_output(n, type)]
        total = rounded(slots) + self.scratch_size + staged + sum(size for _, size in fresh)
        if self.arena is None or total > self.arena.size:
            if self.arena is not None:
                self.gpu.synchronize(self.stream)
                self.runs.clear()
                self.arena = None
            self.arena = (BorrowedMemory if self.is_captured else Memory)(self.gpu, max(total, 1))
        if self.told and self.verdicts is None:
            self.verdicts = Memory(self.gpu, rounded(1) * len(self.told))
            self._begin_verdicts(self.verdicts)
        first = self.arena.address
        for number, buffer in enumerate(self.program.buffers):
            if isinstance(buffer.storage, storage.Arena):
                self.cells[number] = first + offsets[buffer.storage.slot]
        self.scratch = first + rounded(slots)
        first = self.scratch + self.scratch_size
        for number, size in fresh:
            self.cells[number] = first
            self.outputs[number] = None
            first += size
        return first

    def _begin_verdicts(self, verdicts: Memory) -> None:
        """No kernel has told of anything: so it stays until one does, from call to call."""
        for place, number in enumerate(self.told):
            self.cells[number] = address = verdicts.address + place * rounded(1)
            self.gpu.put(address, UNTOLD, self.stream)

    def _staged(self, number: int, value: Any) -> int:
        """Bytes of the arena that an input takes: none if it is on the GPU, or stays on the host."""
        dtype = self.program.buffers[number].type.dtype
        if dtype == string or (is_torch(value) and value.device.type == "cuda"):
            return 0
        return rounded(max(int(value.nbytes), 1))

    def _is_torch_output(self, number: int, type: TensorType) -> bool:
        """Whether a buffer is the caller's own memory on the device from the start."""
        return self.place == "cuda" and isinstance(self.program.buffers[number].storage, storage.Output) and type.dtype.bits >= 8

    def _enter(self, number: int, value: Any, place: int) -> Any:
        """Give an input its device address; what must stay alive until the copy is done."""
        dtype: DType = self.program.buffers[number].type.dtype
        if dtype == string:
            self.objects[number] = value
            return None
        if is_torch(value) and value.device.type == "cuda":
            self.cells[number] = value.data_ptr()
            return None
        self.cells[number] = place
        host = packed(value, dtype) if dtype.bits < 8 else value
        size = int(host.nbytes)
        if size <= CARRIED:
            self.gpu.put(place, ctypes.string_at(pointer(host), size) if size else b"", self.stream)
            return None
        self.gpu.upload(place, pointer(host), size, self.stream)
        return host

    def _allocate(self, binding: Binding) -> None:
        for number, type in binding.allocations:
            if number in self.outputs or type.dtype == string:
                continue
            if self._is_torch_output(number, type):
                output = new_output(type.dtype, shape_of(type), True, f"cuda:{self.gpu.ordinal}")
                self.cells[number] = output.data_ptr()
                self.outputs[number] = output
            else:
                self.outputs[number] = None
                self.own.append(Memory(self.gpu, nbytes(type) or 0))
                self.cells[number] = self.own[-1].address

    def _address(self, number: int) -> int:
        return self.cells[number] or 0

    def _size(self, number: int) -> int:
        type = self.type(number)
        return 0 if type is None else nbytes(type) or 0

    def _result(self, result: Any) -> Any:
        if not result.copied and self.outputs.get(result.buffer) is not None:
            return self.outputs[result.buffer]
        type = self.type(result.buffer)
        if type is None:
            raise EngineError(f"output {result.port.name!r} of the engine never got a size")
        output = new_output(
            type.dtype, shape_of(type), self.place is not None, f"cuda:{self.gpu.ordinal}" if self.place == "cuda" else "cpu"
        )
        if isinstance(output, np.ndarray):
            output[...] = self.read(result.buffer)
        elif self.place == "cuda":
            self.gpu.copy(pointer(output), self._address(result.buffer), self._size(result.buffer), self.stream)
        else:
            self.gpu.download(pointer(output), self._address(result.buffer), self._size(result.buffer), self.stream)
        return output

    # --- the frame of Python steps

    def rebind(self, values: dict[str, int]) -> None:
        self.binding = Binding(self.program.shapes, values)
        # Sizes that the data give are new in each call.
        self.is_settled = False
        self._allocate(self.binding)

    def read(self, number: int) -> Array:
        """A buffer as a numpy array on the host."""
        if number in self.objects:
            return self.objects[number]
        if number in self.loaded.host_constants:
            return self.loaded.host_constants[number].array()
        type = self.type(number)
        if type is None:
            raise EngineError(f"buffer {self.program.buffers[number].name} of the plan is read before its size is known")
        memory = np.empty(nbytes(type) or 0, np.uint8)
        self.gpu.download(pointer(memory), self._address(number), memory.size, self.stream)
        return view(memory, type)

    def share(self, number: int) -> Any:
        """A buffer where it lies, for a callback."""
        type = self.type(number)
        if number in self.objects or type is None:
            return self.read(number)
        return DeviceArray(self._address(number), type, self.stream)

    def write(self, number: int, value: Any) -> None:
        type = self.type(number)
        if type is None or type.dtype == string:
            self.objects[number] = value
            return
        size = nbytes(type) or 0
        if is_torch(value) and value.device.type == "cuda":
            dense = value.detach().resolve_conj().resolve_neg().contiguous()
            self.gpu.copy(self._address(number), dense.data_ptr(), size, self.stream)
            # Its memory may be given to somebody else as soon as it goes out of scope.
            self.gpu.synchronize(self.stream)
            return
        memory = np.empty(size, np.uint8)
        if is_torch(value):
            dense = value.detach().resolve_conj().resolve_neg().contiguous()
            memory[:] = memory_at(pointer(dense), size)
        else:
            store(memory, value, type.dtype)
        self.gpu.upload(self._address(number), pointer(memory), size, self.stream)
        self.gpu.synchronize(self.stream)
