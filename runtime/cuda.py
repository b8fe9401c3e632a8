"""The CUDA part of an engine: for each function kernels launched through the driver, on one device arena per concurrent call."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..ir.control import CallFunction
from ..ir.errors import EngineError, InputError
from ..ir.plan import Call, Check, CheckPlace, Copy, Host, Launch, Zero, storage
from ..ir.types import string
from . import driver as cuda_driver
from .again import again
from .arrays import admit, is_torch, pointer, torch_module
from .contents import PLANS, EngineContents, PartContents
from .cuda_call import Context, Steps
from .device_memory import DeviceStates, Memory, rounded
from .driver import Device
from .function import call_function
from .launches import HostProgram, Segment, host_program
from .program import Callback, Program, programs_of
from .states import StateMemory
from .steps import prepare
from .weights import Constant, nbytes

MOST_IDLE = 8
"""Contexts of a function that wait for calls: a program that makes a stream for each call must not keep an arena for each."""


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
    """Why a CUDA target runs on no GPU of this machine; None if it runs on one."""
    try:
        wanted = capability_of(target)
        return None if _first(wanted) is not None else _why_not_on(target, 0)
    except EngineError as error:
        return error.message


def _first(wanted: tuple[int, int]) -> int | None:
    """The first GPU of a compute capability."""
    return next((n for n in range(_device(0).driver.count()) if _device(n).capability == wanted), None)


def _why_not_on(target: str, ordinal: int) -> str | None:
    """Why a CUDA target does not run on one GPU."""
    wanted = capability_of(target)
    count = _device(0).driver.count()
    if ordinal >= count:
        return f"this machine has {count} GPU{'s' if count > 1 else ''}"
    device = _device(ordinal)
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


class CudaPart:
    """An engine on GPUs: on each that inputs come from, kernels and constants, which its functions share."""

    device = "cuda"

    def __init__(self, contents: EngineContents, name: str, callback: Callback | None = None, graphs: bool = True) -> None:
        self.contents = contents
        self.name = name
        part = contents.parts[name]
        if part.files.get(PLANS) != part.digest.encode():
            hint = f"build the engine again: {again()}"
            raise EngineError(f"the kernels of the engine's part {name} were made for other plans than it holds", hint=hint)
        programs = programs_of(part.plans)
        call = functools.partial(call_function, weakref.ref(self))
        home = _Home(contents, name, programs, graphs)
        home.on(home.ordinal)
        self.home = home
        self._executors = {function: CudaExecutor(home, program, callback, call) for function, program in programs.items()}

    def executor(self, function: str) -> CudaExecutor:
        """What runs a function."""
        return self._executors[function]

    def states(self) -> DeviceStates:
        """Memory for the states of one session, as they begin."""
        return DeviceStates(self.home.on(self.home.ordinal).gpu, self.contents, self.name)


class _Home:
    """The GPUs on which a part is loaded; the first that it runs on is that of calls with nothing on a GPU."""

    def __init__(self, contents: EngineContents, name: str, programs: Mapping[str, Program], graphs: bool) -> None:
        self.target = name
        self.graphs = graphs
        self.part = contents.parts[name]
        self.host = host_program(self.part)
        self.ordinal = _first(capability_of(name)) or 0
        self.host_constants = _constants(contents, name, programs.values())
        self._loaded: dict[int, _OnDevice] = {}
        self._lock = threading.Lock()

    def on(self, ordinal: int) -> _OnDevice:
        """The part on one GPU; loaded there once."""
        found = self._loaded.get(ordinal)
        if found is None:
            with self._lock:
                found = self._loaded.get(ordinal)
                if found is None:
                    found = self._loaded[ordinal] = _OnDevice(self, _device(ordinal))
        return found

    def choose(self, inputs: Sequence[Any], names: Iterable[str], held: int | None) -> int:
        """The GPU that the inputs are on; InputError where they are on several, or on one that the part is not for."""
        wanted = held
        for value, name in zip(inputs, names, strict=True):
            if not is_torch(value) or value.device.type != "cuda":
                continue
            if wanted is None:
                why = None if value.device.index in self._loaded else _why_not_on(self.target, value.device.index)
                if why is not None:
                    raise InputError(f"input {name!r} is on {value.device}, expected cuda:{self.ordinal}", note=why)
                wanted = int(value.device.index)
            elif value.device.index != wanted:
                raise InputError(f"input {name!r} is on {value.device}, expected cuda:{wanted}")
        return self.ordinal if wanted is None else wanted


class _OnDevice:
    """A part on one GPU: its kernels and constants, which go when nothing of the part is left."""

    def __init__(self, home: _Home, gpu: Device) -> None:
        self.gpu = gpu
        lying = {key: constant.on_gpu(gpu.ordinal) for key, constant in home.host_constants.items()}
        brought = {key: home.host_constants[key] for key, place in lying.items() if place is None}
        with gpu:
            self.modules = _Modules(gpu, home.part)
            self.memory = Memory(gpu, sum(rounded(constant.nbytes) for constant in brought.values()))
            ends = itertools.accumulate((rounded(constant.nbytes) for constant in brought.values()), initial=self.memory.address)
            self.constants: dict[str, int] = {key: place for key, place in lying.items() if place is not None}
            self.constants |= zip(brought, ends, strict=False)
            for key, constant in brought.items():
                gpu.upload(self.constants[key], pointer(constant.data), constant.nbytes, 0)
            gpu.synchronize(0)


class _Modules:
    """The kernels of a part, loaded; unloaded with the last that holds them."""

    def __init__(self, gpu: Device, part: PartContents) -> None:
        self.gpu = gpu
        self.functions: dict[str, int] = {}
        self._handles: list[int] = []
        for step in (step for plan in part.plans.values() for step in plan.steps):
            for variant in step.variants if isinstance(step, Launch) else ():
                if variant.kernel in self.functions:
                    continue
                file = f"{variant.kernel}.cubin"
                if file not in part.files:
                    raise EngineError(f"engine holds no kernel {file} for {part.plan.target}")
                self._handles.append(gpu.load(part.files[file]))
                self.functions[variant.kernel] = gpu.kernel(self._handles[-1], variant.kernel, variant.shared)

    def __del__(self) -> None:
        with contextlib.suppress(EngineError):
            if self._handles:
                with self.gpu:
                    # Kernels that were queued may still run.
                    with contextlib.suppress(EngineError):
                        self.gpu.wait()
                    for handle in self._handles:
                        self.gpu.driver.status("cuModuleUnload", handle)


class _Loaded:
    """A plan on one GPU: what all contexts of a function share."""

    def __init__(self, home: _Home, on: _OnDevice, program: Program, callback: Callback | None, call: CallFunction) -> None:
        self.program = program
        self.on = on
        self.gpu = on.gpu
        self.host: HostProgram = home.host
        self.graphs = home.graphs
        keys = {n: buffer.storage.key for n, buffer in enumerate(program.buffers) if isinstance(buffer.storage, storage.Constant)}
        self.host_constants: Mapping[int, Constant] = {number: home.host_constants[key] for number, key in keys.items()}
        self.constants: Mapping[int, int] = {number: on.constants[key] for number, key in keys.items()}
        self.steps: Sequence[Steps] = tuple(self._prepare(callback, call))

    def _prepare(self, callback: Callback | None, call: CallFunction) -> Iterator[Steps]:
        """Runs of steps that the host program carries out, and between them steps that Python does."""
        run: list[Launch | Copy | Zero] = []
        for number, step in enumerate(self.program.plan.steps):
            if isinstance(step, (Launch, Copy, Zero)):
                run.append(step)
                continue
            if run:
                yield Segment(self.program, number - len(run), run, self.on.modules.functions)
                run = []
            if isinstance(step, (Check, CheckPlace)):
                yield number, step
            elif isinstance(step, (Host, Call)):
                yield number, prepare(self.program, step, callback, call)
            else:
                raise EngineError(f"plan holds the step {type(step).__name__}, which a GPU cannot run")
        if run:
            yield Segment(self.program, len(self.program.plan.steps) - len(run), run, self.on.modules.functions)


class CudaExecutor:
    """A plan for GPUs, ready to run; immutable but for what it loads, and its pool of contexts."""

    def __init__(self, home: _Home, program: Program, callback: Callback | None, call: CallFunction) -> None:
        self.home = home
        self.program = program
        self.expected = tuple((port.name, port.type.dtype, port.type.rank) for port in self.program.signature.inputs)
        self._callback, self._call = callback, call
        self._loaded: dict[int, _Loaded] = {home.ordinal: self._on(home.ordinal)}
        self._idle: list[Context] = []
        self._lock = threading.Lock()

    def _on(self, ordinal: int) -> _Loaded:
        return _Loaded(self.home, self.home.on(ordinal), self.program, self._callback, self._call)

    def run(self, values: Sequence[Any], states: StateMemory | None = None) -> list[Any]:
        """The outputs, fresh memory of the inputs' kind and place; InputError if the inputs do not fit. `states` are what is kept."""
        pairs = zip(values, self.expected, strict=True)
        inputs = [admit(value, name, dtype, rank, "cuda") for value, (name, dtype, rank) in pairs]
        held = states.gpu.ordinal if isinstance(states, DeviceStates) else None
        kept = {} if states is None else states.tensors
        given = [*inputs, *kept.values()]
        ordinal = self.home.choose(given, (*(name for name, _, _ in self.expected), *kept), held)
        loaded = self._loaded.get(ordinal)
        if loaded is None:
            loaded = self._loaded.setdefault(ordinal, self._on(ordinal))
        binding = self.program.bind(tuple(tuple(value.shape) for value in inputs), inputs)
        with loaded.gpu as gpu:
            stream = _stream(given)
            if stream is not None and gpu.is_capturing(stream):
                # What is captured runs later, whoever calls meanwhile: it has memory of its own, in the hands of torch.
                return Context(loaded, stream, is_captured=True).run(inputs, binding, states)
            context = self._take(loaded, stream or 0)
            try:
                results = context.run(inputs, binding, states)
                context.forget()
            except BaseException as error:
                # After a call that the GPU failed its memory is given back; a caller's error leaves it to the next call.
                if isinstance(error, InputError) and context.forget_quietly():
                    self._give(context)
                else:
                    context.close()
                raise
            self._give(context)
            return results

    def _take(self, loaded: _Loaded, stream: int) -> Context:
        with self._lock:
            for number in reversed(range(len(self._idle))):
                if self._idle[number].stream == stream and self._idle[number].loaded is loaded:
                    return self._idle.pop(number)
        return Context(loaded, stream)

    def _give(self, context: Context) -> None:
        with self._lock:
            self._idle.append(context)
            oldest = self._idle.pop(0) if len(self._idle) > MOST_IDLE else None
        if oldest is not None:
            oldest.close()


def _stream(inputs: Sequence[Any]) -> int | None:
    """The stream that the caller's own work on its tensors is queued on; None where no input is on a GPU."""
    for value in inputs:
        if is_torch(value) and value.device.type == "cuda":
            return int(torch_module().cuda.current_stream(value.device).cuda_stream)
    return None


def _constants(contents: EngineContents, part: str, programs: Iterable[Program]) -> dict[str, Constant]:
    """The constants of a part by key."""
    found: dict[str, Constant] = {}
    for buffer in (buffer for program in programs for buffer in program.buffers):
        if not isinstance(buffer.storage, storage.Constant):
            continue
        key, expected = buffer.storage.key, nbytes(buffer.type)
        found.setdefault(key, contents.constant(part, key))
        if buffer.type.dtype != string and (expected is None or found[key].nbytes < expected):
            raise EngineError(f"constant {key!r} has {found[key].nbytes} bytes, expected {buffer.type}")
    return found
