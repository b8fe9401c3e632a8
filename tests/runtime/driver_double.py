"""A stand-in for libcuda: GPUs whose memory is this process's, kernels that are Python functions, and a record of all calls."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter

import numpy as np

from ourcc.ir import dims
from ourcc.ir.plan import Buffer, Copy, Guard, Launch, Plan, Slot, Variant, Zero, storage
from ourcc.ir.plan.digest import digest_of
from ourcc.ir.types import TensorType, f32
from ourcc.runtime import EngineContents, PartContents
from ourcc.runtime.contents import PLANS

B, N = dims.symbol("B"), dims.symbol("N")


class Double:
    """The driver's functions; `fail`: from which call on a function gives the error `status`; `once`: at which call alone."""

    def __init__(self, kernels=None, capability=(9, 0), fail=None, gpus=1, status=2, once=None):
        self.kernels = kernels or {}
        self.capability = capability if isinstance(capability, list) else [capability] * gpus
        self.fail = fail or {}
        self.once = once or {}
        self.status = status
        self.calls = Counter()
        self.launches = []
        self.memory = {}
        self.names = []
        self.modules = set()
        self.streams = {}
        self.graphs = {}
        self.ready = {}
        self.caller_captures = False
        self.failures = []
        self.stack = []
        self.number = 1000
        self.lock = threading.Lock()

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments):
            with self.lock:
                self.calls[name] += 1
                count = self.calls[name]
            if (name in self.fail and count >= self.fail[name]) or self.once.get(name) == count:
                return self.status
            try:
                return getattr(self, f"do_{name}", lambda *_: 0)(*(0 if each is None else each for each in arguments)) or 0
            except Exception as error:  # noqa: BLE001 (an exception does not pass through C)
                self.failures.append(error)
                return 999

        return call

    def handle(self):
        """A number that nothing else has."""
        with self.lock:
            self.number += 1
            return self.number

    def nothing_is_left(self):
        """Whether all that was taken was given back."""
        return not (self.memory or self.modules or self.streams or self.graphs or self.ready or self.stack)

    def do_cuGetErrorName(self, status, out):
        out._obj.value = b"CUDA_ERROR_OUT_OF_MEMORY" if status == 2 else b"CUDA_ERROR_%d" % status

    def do_cuGetErrorString(self, status, out):
        out._obj.value = b"out of memory" if status == 2 else b"no sentence"

    def do_cuDeviceGetCount(self, out):
        out._obj.value = len(self.capability)

    def do_cuDeviceGet(self, out, ordinal):
        out._obj.value = ordinal

    def do_cuDeviceGetName(self, buffer, size, handle):
        buffer.value = b"Double GPU"

    def do_cuDeviceGetAttribute(self, out, number, handle):
        out._obj.value = {75: self.capability[handle][0], 76: self.capability[handle][1], 97: 232448}[number]

    def do_cuDevicePrimaryCtxRetain(self, out, handle):
        out._obj.value = 7000 + handle

    def do_cuCtxPushCurrent_v2(self, context):
        self.stack.append((threading.get_ident(), context.value))

    def do_cuCtxPopCurrent_v2(self, out):
        last = next(n for n in reversed(range(len(self.stack))) if self.stack[n][0] == threading.get_ident())
        del self.stack[last]

    def do_cuModuleLoadData(self, out, data):
        out._obj.value = self.handle()
        self.modules.add(out._obj.value)

    def do_cuModuleUnload(self, module):
        self.modules.remove(module)

    def do_cuModuleGetFunction(self, out, module, entry):
        self.names.append(entry.decode())
        out._obj.value = len(self.names)

    def do_cuMemAlloc_v2(self, out, size):
        memory = np.full(size + 256, 0xAB, np.uint8)
        address = memory.ctypes.data + (-memory.ctypes.data) % 256
        with self.lock:
            self.memory[address] = memory
        out._obj.value = address

    def do_cuMemFree_v2(self, address):
        with self.lock:
            del self.memory[address]

    def queue(self, stream, work):
        """Do what is asked of a stream; while that captures it is kept."""
        if self.streams.get(stream) is None:
            work(stream)
        else:
            self.streams[stream].append(work)

    def do_cuMemcpyHtoDAsync_v2(self, target, source, size, stream):
        self.queue(stream, lambda _: ctypes.memmove(target, source, size))

    do_cuMemcpyDtoHAsync_v2 = do_cuMemcpyDtoDAsync_v2 = do_cuMemcpyHtoDAsync_v2

    def do_cuMemsetD8Async(self, target, value, size, stream):
        self.queue(stream, lambda _: ctypes.memset(target, value, size))

    def do_cuMemsetD16Async(self, target, value, count, stream):
        self.queue(stream, lambda _: ctypes.memmove(target, value.to_bytes(2, "little") * count, 2 * count))

    def do_cuMemsetD32Async(self, target, value, count, stream):
        self.queue(stream, lambda _: ctypes.memmove(target, value.to_bytes(4, "little") * count, 4 * count))

    def do_cuLaunchKernel(self, function, x, y, z, threads, ty, tz, shared, stream, parameters, extra):
        name = self.names[function - 1]
        # The driver copies what the parameters lead to: 8 bytes for each of at most 16 here.
        given = (ctypes.c_void_p * 16).from_address(parameters)
        values, places = (ctypes.c_uint64 * 16)(), (ctypes.c_void_p * 16)()
        for n in range(getattr(self.kernels[name], "takes", 8)):
            values[n] = ctypes.c_uint64.from_address(given[n]).value
            places[n] = ctypes.addressof(values) + 8 * n

        def work(where):
            self.launches.append((name, (x, y, z), threads, shared, where))
            self.kernels[name](places, (x, y, z))
            return values

        self.queue(stream, work)

    def do_cuStreamCreate(self, out, flags):
        out._obj.value = self.handle()
        self.streams[out._obj.value] = None

    def do_cuStreamDestroy_v2(self, stream):
        del self.streams[stream]

    def do_cuStreamIsCapturing(self, stream, out):
        out._obj.value = int(self.caller_captures)

    def do_cuStreamBeginCapture_v2(self, stream, mode):
        self.streams[stream] = []

    def do_cuStreamEndCapture(self, stream, out):
        out._obj.value = self.handle()
        self.graphs[out._obj.value], self.streams[stream] = self.streams[stream], None

    def do_cuGraphInstantiateWithFlags(self, out, graph, flags):
        out._obj.value = self.handle()
        self.ready[out._obj.value] = self.graphs[graph.value]

    def do_cuGraphDestroy(self, graph):
        del self.graphs[graph.value]

    def do_cuGraphLaunch(self, graph, stream):
        for work in self.ready[graph]:
            work(stream)

    def do_cuGraphExecDestroy(self, graph):
        del self.ready[graph]


def pointer(parameters, number):
    return ctypes.c_void_p.from_address(parameters[number]).value


def scalar(parameters, number):
    return ctypes.c_int32.from_address(parameters[number]).value


def floats(address, count):
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address)) if count else np.zeros(0, np.float32)


def scale(parameters, grid):
    """y = x * w + t, t counts the launches before it; arguments x, w, t, y, sizes B, N."""
    x, w, t, y = (pointer(parameters, n) for n in range(4))
    count = scalar(parameters, 4) * scalar(parameters, 5)
    assert grid == (scalar(parameters, 4), 1, 1)
    assert pointer(parameters, 7) is None
    if pointer(parameters, 6):
        floats(pointer(parameters, 6), 8 * grid[0])[:] = 1
    floats(y, count)[:] = floats(x, count) * floats(w, 1) + floats(t, 1)


KERNELS = {"k_even": scale, "k_any": scale}


def plan() -> Plan:
    matrix = TensorType(f32, (B, N))
    names = ("x", "w", "t", "y")
    variants = (
        Variant("k_even", Guard(zero=(N % 4,), positive=(B - 2,), aligned=("x",)), (B,), names, (B, N), 4, 100_000, 32),
        Variant("k_any", Guard(), (B,), names, (B, N), 8, 1024),
    )
    return Plan(
        "sm_90a",
        dims.Facts({"B": dims.Range(0, 32), "N": dims.Range(0, 512)}),
        (("x", "x"),),
        (("y", "y"), ("z", "z")),
        (
            Buffer("x", matrix, storage.Input()),
            Buffer("w", TensorType(f32, (1,)), storage.Constant("w")),
            Buffer("t", TensorType(f32, (1,)), storage.Arena("s0")),
            Buffer("y", matrix, storage.Output()),
            Buffer("z", matrix, storage.Output()),
        ),
        (Slot("s0", (4,)),),
        (Zero("t"), Launch("l0", variants, ("x", "w", "t"), ("y",)), Copy("y", "z")),
    )


def contents(the_plan=None, **files) -> EngineContents:
    plans = {"main": the_plan or plan()}
    files = {"k_even.cubin": b"even", "k_any.cubin": b"any", PLANS: digest_of(plans).encode(), **files}
    return EngineContents.of({"sm_90a": PartContents(plans, files, "cuda", "")}, {"sm_90a": {"w": np.array([3.0], np.float32)}})


class CudaTensor:
    """A host tensor that says it is on a GPU."""

    def __init__(self, tensor, index=0):
        import torch

        self.tensor = tensor
        self.device = torch.device("cuda", index)
        self.dtype, self.layout, self.shape, self.nbytes = tensor.dtype, tensor.layout, tensor.shape, tensor.nbytes

    def __getattr__(self, name):
        if name in ("detach", "resolve_conj", "resolve_neg", "contiguous"):
            return lambda: self
        return getattr(self.tensor, name)
