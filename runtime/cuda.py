"""The CUDA part of an engine: for each function kernels launched through the driver, on one device arena per concurrent call."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..ir.control import CallFunction
from ..ir.dims import evaluate
from ..ir.errors import EngineError, InputError
from ..ir.plan import Call, Check, Copy, Host, Launch, Zero, storage
from ..ir.types import TensorType, string
from . import driver as cuda_driver
from .arrays import admit, is_torch, memory_at, new_output, packed, pointer, store, torch_module, view
from .contents import PLANS, EngineContents, PartContents
from .driver import Device
from .function import call_function
from .launches import PreparedLaunch
from .program import Binding, Callback, Program
from .states import StateMemory, Where, initial
from .steps import PythonStep, prepare, refusal
from .weights import Array, Constant, nbytes

ALIGNMENT = 256


@functools.cache
def _device(ordinal: int) -> Device:
    return cuda_driver.open_driver().device(ordinal)


def capability_of(target: str) -> tuple[int, int]:
    """The compute capability that code for a target needs: sm_90a runs on 9.0 and nothing else."""
    match = re.fullmatch(r"sm_([0-9]+)([0-9])[af]?", target)
    if match is None:
        raise EngineError(f"unknown target {target!r}, expected sm_ and a compute capability, such as sm_90a")
    return int(match[1]), int(match[2])


def why_not(target: str) -> str | None:
    """Why a CUDA target does not run on this machine; None if it does."""
    try:
        wanted = capability_of(target)
        device = _device(0)
    except EngineError as error:
        return error.message
    if device.capability != wanted:
        major, minor = device.capability
        return f"it needs a GPU of compute capability {wanted[0]}.{wanted[1]}, {device.name} has {major}.{minor}"
    return None


def remedy() -> str | None:
    """What a machine without a CUDA device that answers needs; None where there is one, or nothing is known to help."""
    try:
        _device(0)
    except EngineError as error:
        return error.hint
    return None


class _Memory:
    """A piece of device memory, which is given back with the last that holds it."""

    def __init__(self, gpu: Device, size: int) -> None:
        self.address = 0
        self.gpu = gpu
        self.address = gpu.allocate(size) if size else 0

    def __del__(self) -> None:
        _release(self.gpu, self.address)


class CudaPart:
    """An engine on a GPU: kernels loaded, and constants in device memory, which its functions share."""

    device = "cuda"

    def __init__(self, contents: EngineContents, name: str, callback: Callback | None = None) -> None:
        self.contents = contents
        self.name = name
        part = contents.parts[name]
        if part.files.get(PLANS) != part.digest.encode():
            hint = "build the engine again: ourcc build --rebuild ENGINE"
            raise EngineError(f"the kernels of the engine's part {name} were made for other plans than it holds", hint=hint)
        programs = {function: Program(plan) for function, plan in part.plans.items()}
        self.gpu = _device(0)
        with self.gpu:
            self.functions = _kernels(self.gpu, part)
            self.host_constants, self.places, size = _constants(contents, name, programs.values())
            self.constants = _Memory(self.gpu, size)
            for key, constant in self.host_constants.items():
                self.gpu.upload(self.constants.address + self.places[key], pointer(constant.data), constant.data.size, 0)
            self.gpu.synchronize(0)
        call = functools.partial(call_function, weakref.ref(self))
        self._executors = {function: CudaExecutor(_Loaded(self, program, callback, call)) for function, program in programs.items()}

    def executor(self, function: str) -> CudaExecutor:
        """What runs a function."""
        return self._executors[function]

    def states(self) -> DeviceStates:
        """Memory for the states of one session, as they begin."""
        return DeviceStates(self.gpu, self.contents, self.name)


class DeviceStates:
    """States in the memory of a GPU."""

    def __init__(self, gpu: Device, contents: EngineContents, part: str) -> None:
        self.changed = False
        self.gpu = gpu
        self._contents, self._part = contents, part
        self._types = {name: state.type for name, state in contents.parts[part].states.items()}
        sizes = {name: nbytes(type) or 0 for name, type in self._types.items()}
        with gpu:
            self._memory = _Memory(gpu, sum(map(_rounded, sizes.values())))
            places = itertools.accumulate(map(_rounded, sizes.values()), initial=self._memory.address)
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


class _Loaded:
    """A plan on a GPU: what all contexts of a function share."""

    def __init__(self, part: CudaPart, program: Program, callback: Callback | None, call: CallFunction) -> None:
        self.program = program
        self.gpu = part.gpu
        self.functions = part.functions
        keys = {n: buffer.storage.key for n, buffer in enumerate(program.buffers) if isinstance(buffer.storage, storage.Constant)}
        self.host_constants = {number: part.host_constants[key] for number, key in keys.items()}
        self.constants = {number: part.constants.address + part.places[key] for number, key in keys.items()}
        self.memory = part.constants
        self.steps = tuple(self._prepare(step, callback, call) for step in program.plan.steps)

    def _prepare(
        self, step: Any, callback: Callback | None, call: CallFunction
    ) -> PreparedLaunch | Copy | Zero | Check | PythonStep | None:
        if isinstance(step, Copy) and not self.program.plan.moves(step):
            return None
        if isinstance(step, Launch):
            return PreparedLaunch(self.program, step, self.functions)
        if isinstance(step, (Host, Call)):
            return prepare(self.program, step, callback, call)
        if isinstance(step, (Copy, Zero, Check)):
            return step
        raise EngineError(f"plan holds the step {type(step).__name__}, which a GPU cannot run")


def _release(gpu: Device, address: int) -> None:
    # At exit the driver may be gone already; then its memory is too.
    with contextlib.suppress(EngineError):
        if address:
            with gpu:
                gpu.free(address)


class CudaExecutor:
    """A plan for a GPU, ready to run; immutable but for its pool of contexts per stream."""

    def __init__(self, loaded: _Loaded) -> None:
        self.loaded = loaded
        self.program = loaded.program
        self.expected = tuple((port.name, port.type.dtype, port.type.rank) for port in self.program.signature.inputs)
        self._contexts: dict[int, list[_Context]] = {}

    def run(self, values: Sequence[Any], states: StateMemory | None = None) -> list[Any]:
        """The outputs, fresh memory of the inputs' kind and place; InputError if the inputs do not fit. `states` are what is kept."""
        pairs = zip(values, self.expected, strict=True)
        inputs = [admit(value, name, dtype, rank, "cuda") for value, (name, dtype, rank) in pairs]
        gpu = self.loaded.gpu
        for value, (name, _, _) in zip(inputs, self.expected, strict=True):
            if is_torch(value) and value.device.type == "cuda" and value.device.index != gpu.ordinal:
                raise InputError(f"input {name!r} is on {value.device}, expected cuda:{gpu.ordinal}")
        binding = self.program.bind(tuple(tuple(value.shape) for value in inputs), inputs)
        with gpu:
            stream = _stream(inputs)
            pool = self._contexts.setdefault(stream, [])
            try:
                context = pool.pop()
            except IndexError:
                context = _Context(self.loaded, stream)
            try:
                return context.run(inputs, binding, states)
            finally:
                context.forget()
                pool.append(context)


def _stream(inputs: Sequence[Any]) -> int:
    """The stream that the caller's own work on its tensors is queued on."""
    for value in inputs:
        if is_torch(value) and value.device.type == "cuda":
            return int(torch_module().cuda.current_stream(value.device).cuda_stream)
    return 0


def _kernels(gpu: Device, part: PartContents) -> Mapping[str, int]:
    functions: dict[str, int] = {}
    for step in (step for plan in part.plans.values() for step in plan.steps):
        for variant in step.variants if isinstance(step, Launch) else ():
            if variant.kernel in functions:
                continue
            file = f"{variant.kernel}.cubin"
            if file not in part.files:
                raise EngineError(f"engine holds no kernel {file} for {part.plan.target}")
            functions[variant.kernel] = gpu.load(part.files[file], variant.kernel, variant.shared)
    return functions


def _constants(contents: EngineContents, part: str, programs: Iterable[Program]) -> tuple[dict[str, Constant], dict[str, int], int]:
    """Constants on the host by key, their places in one piece of device memory, and its size."""
    found: dict[str, Constant] = {}
    offsets: dict[str, int] = {}
    total = 0
    for buffer in (buffer for program in programs for buffer in program.buffers):
        if not isinstance(buffer.storage, storage.Constant):
            continue
        key, expected = buffer.storage.key, nbytes(buffer.type)
        if key not in found:
            found[key], offsets[key] = contents.constant(part, key), total
            total += _rounded(found[key].data.size)
        if buffer.type.dtype != string and (expected is None or found[key].data.size < expected):
            raise EngineError(f"constant {key!r} has {found[key].data.size} bytes, expected {buffer.type}")
    return found, offsets, total


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class DeviceArray:
    """A tensor in device memory as other libraries take it without a copy."""

    def __init__(self, address: int, type: TensorType, stream: int) -> None:
        self.address = address
        self.type = type
        self.shape = _shape(type)
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


class _Context:
    """The device arena and the pointers of one call at a time, on one stream."""

    def __init__(self, loaded: _Loaded, stream: int) -> None:
        self.loaded = loaded
        self.program = loaded.program
        self.gpu = loaded.gpu
        self.stream = stream
        # Kernels read their pointers from these cells, so a launch's list of parameters is made once.
        self.cells = tuple(ctypes.c_void_p() for _ in self.program.buffers)
        for number, address in loaded.constants.items():
            self.cells[number].value = address
        self.arena = 0
        self.size = 0
        self.binding: Binding | None = None
        self.outputs: dict[int, Any] = {}
        self.objects: dict[int, Array] = {}
        self.own: list[int] = []
        self.place: str | None = None

    def run(self, inputs: Sequence[Any], binding: Binding, states: StateMemory | None) -> list[Any]:
        program = self.program
        self.binding = binding
        torch_inputs = [value for value in inputs if is_torch(value)]
        self.place = None if not torch_inputs else "cuda" if any(v.device.type == "cuda" for v in torch_inputs) else "cpu"
        staged = self._reserve(inputs, binding)
        held = [self._enter(number, value, staged) for number, value in zip(program.inputs, inputs, strict=True)]
        self._allocate(binding)
        for number, name in program.states:
            self.cells[number].value = None if states is None else states.addresses[name]
        for number, root, offset in program.aliases:
            self.cells[number].value = self._address(root) + evaluate(offset, binding.values)
        for number, step in enumerate(self.loaded.steps):
            if states is not None and number >= program.plan.first_write:
                states.changed = True
            if step is not None:
                self._step(step)
        results = [self._result(result) for result in program.results]
        if self.place != "cuda" or states is not None or any(value is not None for value in held):
            # Host memory that was being read, and memory of ours, may be reused only when the device is done; and a session
            # may be called from another stream.
            self.gpu.synchronize(self.stream)
        return results

    def forget(self) -> None:
        """Drop what belongs to the call that ended."""
        self.binding = None
        self.outputs, self.objects = {}, {}
        if self.own:
            self.gpu.synchronize(self.stream)
            for address in self.own:
                self.gpu.free(address)
            self.own = []

    def _reserve(self, inputs: Sequence[Any], binding: Binding) -> Iterator[int]:
        """Grow the arena for slots, scratch and staged inputs; give the places of staged inputs."""
        offsets, arena = binding.layout
        launches = [step for step in self.loaded.steps if isinstance(step, PreparedLaunch)]
        scratch = max((launch.scratch(binding) for launch in launches if launch.uses_scratch), default=0)
        sizes = [_rounded(int(value.nbytes)) for value in inputs]
        fresh = [(n, _rounded(nbytes(type) or 0)) for n, type in binding.allocations if not self._is_torch_output(n, type)]
        total = _rounded(arena) + _rounded(scratch) + sum(sizes) + sum(size for _, size in fresh)
        if total > self.size or not self.arena:
            if self.arena:
                self.gpu.synchronize(self.stream)
                self.gpu.free(self.arena)
                self.arena = 0
            self.arena, self.size = self.gpu.allocate(total), total
        for number, buffer in enumerate(self.program.buffers):
            if isinstance(buffer.storage, storage.Arena):
                self.cells[number].value = self.arena + offsets[buffer.storage.slot]
        self.scratch = self.arena + _rounded(arena)
        first = self.scratch + _rounded(scratch)
        for number, size in fresh:
            self.cells[number].value = first
            self.outputs[number] = None
            first += size
        return iter([first + sum(sizes[:n]) for n in range(len(sizes))])

    def _is_torch_output(self, number: int, type: TensorType) -> bool:
        """Whether a buffer is the caller's own memory on the device from the start."""
        return self.place == "cuda" and isinstance(self.program.buffers[number].storage, storage.Output) and type.dtype.bits >= 8

    def _enter(self, number: int, value: Any, staged: Iterator[int]) -> Any:
        """Give an input its device address; what must stay alive until the copy is done."""
        place = next(staged)
        dtype = self.program.buffers[number].type.dtype
        if dtype == string:
            self.objects[number] = value
            return value
        if is_torch(value) and value.device.type == "cuda":
            self.cells[number].value = value.data_ptr()
            return None
        host = packed(value, dtype) if dtype.bits < 8 else value
        self.gpu.upload(place, pointer(host), int(host.nbytes), self.stream)
        self.cells[number].value = place
        return host

    def _allocate(self, binding: Binding) -> None:
        for number, type in binding.allocations:
            if number in self.outputs or type.dtype == string:
                continue
            if self._is_torch_output(number, type):
                output = new_output(type.dtype, _shape(type), True, f"cuda:{self.gpu.ordinal}")
                self.cells[number].value = output.data_ptr()
                self.outputs[number] = output
            else:
                self.outputs[number] = None
                self.cells[number].value = self.gpu.allocate(nbytes(type) or 0)
                self.own.append(self.cells[number].value or 0)

    def _step(self, step: PreparedLaunch | Copy | Zero | Check | PythonStep) -> None:
        if isinstance(step, PreparedLaunch):
            if self.binding is not None:
                step.run(self.gpu, self.binding, self.cells, self.scratch, self.stream)
        elif isinstance(step, Copy):
            source, target = self.program.index[step.source], self.program.index[step.target]
            self.gpu.copy(self._address(target), self._address(source), self._size(target), self.stream)
        elif isinstance(step, Zero):
            number = self.program.index[step.target]
            self.gpu.zero(self._address(number), self._size(number), self.stream)
        elif isinstance(step, Check):
            failure = refusal(step, self, self.program.index[step.worst])
            if failure is not None:
                raise failure
        else:
            step(self)

    def _address(self, number: int) -> int:
        return self.cells[number].value or 0

    def _size(self, number: int) -> int:
        type = self.type(number)
        return 0 if type is None else nbytes(type) or 0

    def _result(self, result: Any) -> Any:
        if not result.copied and self.outputs.get(result.buffer) is not None:
            return self.outputs[result.buffer]
        type = self.type(result.buffer)
        if type is None:
            raise EngineError(f"output {result.port.name!r} of the engine never got a size")
        output = new_output(type.dtype, _shape(type), self.place is not None, f"cuda:{self.gpu.ordinal}" if self.place == "cuda" else "cpu")
        if isinstance(output, np.ndarray):
            output[...] = self.read(result.buffer)
        elif self.place == "cuda":
            self.gpu.copy(pointer(output), self._address(result.buffer), self._size(result.buffer), self.stream)
        else:
            self.gpu.download(pointer(output), self._address(result.buffer), self._size(result.buffer), self.stream)
        return output

    # --- the frame of Python steps

    def type(self, number: int) -> TensorType | None:
        return None if self.binding is None else self.binding.type(number)

    def values(self) -> dict[str, int]:
        return {} if self.binding is None else dict(self.binding.values)

    def rebind(self, values: dict[str, int]) -> None:
        self.binding = Binding(self.program.shapes, values)
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

    def __del__(self) -> None:
        _release(self.gpu, self.arena)


def _shape(type: TensorType) -> tuple[int, ...]:
    return tuple(size for size in type.shape if isinstance(size, int))
