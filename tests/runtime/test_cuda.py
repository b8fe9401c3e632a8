"""The CUDA executor on a double of the driver: memory is host memory, kernels are Python functions, calls are recorded."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.errors import EngineError, InputError
from ourcc.ir.plan import Buffer, Call, Check, Copy, Guard, Launch, Plan, Slot, StateDeclaration, Variant, Zero, from_json, storage, to_json
from ourcc.ir.plan.digest import digest_of
from ourcc.ir.types import TensorType, bf16, f32, i4, i64
from ourcc.runtime import Engine, EngineContents, PartContents
from ourcc.runtime import cuda as cuda_module
from ourcc.runtime import driver as driver_module
from ourcc.runtime.contents import PLANS

B, N = dims.symbol("B"), dims.symbol("N")


class Double:
    """A stand-in for libcuda: one GPU whose memory is this process's."""

    def __init__(self, kernels=None, capability=(9, 0), fail=None):
        self.kernels = kernels or {}
        self.capability = capability
        self.fail = fail or {}
        self.calls = Counter()
        self.launches = []
        self.memory = {}
        self.names = []
        self.stack = []
        self.lock = threading.Lock()

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments):
            with self.lock:
                self.calls[name] += 1
            if name in self.fail and self.calls[name] >= self.fail[name]:
                return 2
            return getattr(self, f"do_{name}", lambda *_: 0)(*arguments) or 0

        return call

    def do_cuGetErrorName(self, status, out):
        out._obj.value = b"CUDA_ERROR_OUT_OF_MEMORY"

    def do_cuGetErrorString(self, status, out):
        out._obj.value = b"out of memory"

    def do_cuDeviceGetCount(self, out):
        out._obj.value = 1

    def do_cuDeviceGetName(self, buffer, size, handle):
        buffer.value = b"Double GPU"

    def do_cuDeviceGetAttribute(self, out, number, handle):
        out._obj.value = {75: self.capability[0], 76: self.capability[1], 97: 232448}[number]

    def do_cuCtxPushCurrent_v2(self, context):
        self.stack.append(threading.get_ident())

    def do_cuCtxPopCurrent_v2(self, out):
        self.stack.remove(threading.get_ident())

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

    def do_cuMemcpyHtoDAsync_v2(self, target, source, size, stream):
        ctypes.memmove(target, source, size)

    do_cuMemcpyDtoHAsync_v2 = do_cuMemcpyDtoDAsync_v2 = do_cuMemcpyHtoDAsync_v2

    def do_cuMemsetD8Async(self, target, value, size, stream):
        ctypes.memset(target, value, size)

    def do_cuLaunchKernel(self, function, x, y, z, threads, ty, tz, shared, stream, parameters, extra):
        name = self.names[function - 1]
        self.launches.append((name, (x, y, z), threads, shared, stream))
        self.kernels[name](parameters, (x, y, z))


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


def test_kernels_for_other_plans_are_never_loaded(gpu):
    gpu()
    for files in ({PLANS: digest_of({"main": replace(plan(), slots=(Slot("s0", (8,)),))}).encode()}, {PLANS: b""}):
        with pytest.raises(EngineError, match="the kernels of the engine's part sm_90a were made for other plans than it holds"):
            Engine(contents(**files))


@pytest.fixture
def gpu(monkeypatch):
    """Install a double; give it to the test."""

    def install(**options):
        double = Double(**{"kernels": KERNELS, **options})
        cuda_module._device.cache_clear()
        monkeypatch.setattr(driver_module, "open_driver", lambda: driver_module.Driver(double))
        return double

    yield install
    cuda_module._device.cache_clear()


def test_numpy_in_numpy_out(gpu):
    double = gpu()
    engine = Engine(contents())
    assert engine.target == "sm_90a"
    for shape in ((3, 8), (1, 8), (5, 3), (32, 512)):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        y, z = engine(x)
        assert np.array_equal(y, x * 3) and np.array_equal(z, x * 3) and not np.shares_memory(y, z)
    assert double.launches == [
        ("k_even", (3, 1, 1), 128, 100_000, 0),
        ("k_any", (1, 1, 1), 256, 1024, 0),
        ("k_any", (5, 1, 1), 256, 1024, 0),
        ("k_even", (32, 1, 1), 128, 100_000, 0),
    ]
    assert not double.stack, "the context was left current"
    assert double.calls["cuFuncSetAttribute"] == 1 and double.calls["cuModuleLoadData"] == 2


def test_an_empty_grid_is_not_launched(gpu):
    double = gpu()
    y, _ = Engine(contents())(np.zeros((0, 8), np.float32))
    assert y.shape == (0, 8) and not double.launches


def test_contexts_are_reused_and_their_memory_is_freed(gpu):
    double = gpu()
    engine = Engine(contents())
    engine(np.ones((8, 8), np.float32))
    taken = double.calls["cuMemAlloc_v2"]
    for _ in range(5):
        engine(np.ones((4, 8), np.float32))
    assert double.calls["cuMemAlloc_v2"] == taken
    engine(np.ones((32, 512), np.float32))
    assert double.calls["cuMemAlloc_v2"] == taken + 1 and double.calls["cuMemFree_v2"] == 1
    del engine
    assert not double.memory


def test_concurrent_calls_do_not_mix(gpu):
    gpu()
    engine = Engine(contents())
    failures = []

    def work(seed):
        generator = np.random.default_rng(seed)
        for _ in range(40):
            x = generator.standard_normal((int(generator.integers(1, 33)), 8)).astype(np.float32)
            if not np.array_equal(engine(x)[0], x * 3):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_torch_cpu_tensors_come_back_on_the_cpu(gpu):
    torch = pytest.importorskip("torch")
    gpu()
    x = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    y, z = Engine(contents())(x)
    assert torch.equal(y, x * 3) and torch.equal(z, x * 3)


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


@pytest.fixture
def cuda_tensors(monkeypatch):
    """Make CudaTensor pass for a torch tensor, and torch's allocations on the GPU come from the host."""
    torch = pytest.importorskip("torch")
    from ourcc.runtime import arrays

    def is_torch(value):
        return isinstance(value, (torch.Tensor, CudaTensor))

    for module in (arrays, cuda_module):
        monkeypatch.setattr(module, "is_torch", is_torch)

    def new_output(dtype, shape, as_torch, device="cpu"):
        assert as_torch and device == "cuda:0"
        return CudaTensor(torch.empty(shape, dtype=arrays.torch_dtype(dtype)))

    monkeypatch.setattr(cuda_module, "new_output", new_output)
    stream = type("Stream", (), {"cuda_stream": 77})()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return CudaTensor


def test_torch_cuda_tensors_are_used_where_they_lie(gpu, cuda_tensors):
    torch = pytest.importorskip("torch")
    double = gpu()
    engine = Engine(contents())
    uploads = double.calls["cuMemcpyHtoDAsync_v2"]
    waits = double.calls["cuStreamSynchronize"]
    memory = torch.arange(33, dtype=torch.float32)
    aligned = memory[(-memory.data_ptr() % 16) // 4 :]
    for first, kernel in ((0, "k_even"), (1, "k_any")):
        x = aligned[first : first + 16].reshape(2, 8)
        y, z = engine(cuda_tensors(x))
        assert torch.equal(y.tensor, x * 3) and torch.equal(z.tensor, x * 3)
        assert double.launches[-1][0] == kernel and double.launches[-1][4] == 77
    assert double.calls["cuMemcpyHtoDAsync_v2"] == uploads and double.calls["cuMemcpyDtoHAsync_v2"] == 0
    assert double.calls["cuStreamSynchronize"] == waits, "a call on the caller's stream must not wait"
    with pytest.raises(InputError, match="input 'x' is on cuda:1, expected cuda:0"):
        engine(cuda_tensors(aligned[:16].reshape(2, 8), 1))


def test_packed_integers_small_floats_and_copies(gpu):
    import ml_dtypes

    gpu()
    kinds = [TensorType(i4, (5,)), TensorType(bf16, (3,)), TensorType(i64, ())]
    buffers = tuple(Buffer(f"x{n}", kind, storage.Input()) for n, kind in enumerate(kinds))
    outputs = tuple(Buffer(f"y{n}", kind, storage.Output()) for n, kind in enumerate(kinds))
    pairs = tuple((b.name, b.name) for b in buffers)
    steps = tuple(Copy(f"x{n}", f"y{n}") for n in range(3))
    both = Plan("sm_90a", dims.NO_FACTS, pairs, (*((o.name, o.name) for o in outputs), ("again", "x0")), (*buffers, *outputs), (), steps)
    nibbles, small = np.array([-8, 7, 0, -1, 3], ml_dtypes.int4), np.array([1, -2, 3], ml_dtypes.bfloat16)
    got = Engine(contents(both))(nibbles, small, 7)
    for value, want in zip(got, (nibbles, small, np.int64(7), nibbles), strict=True):
        assert np.array_equal(value, want) and value.dtype == want.dtype


def test_calls_get_device_arrays_and_bind_symbols(gpu):
    double = gpu()
    k = dims.symbol("K")
    found = TensorType(i64, (k,))
    buffers = (
        Buffer("x", TensorType(f32, (B,)), storage.Input()),
        Buffer("d", found, storage.Dynamic()),
        Buffer("y", found, storage.Output()),
    )
    facts = dims.Facts({"B": dims.Range(0, 100), "K": dims.Range(0, 50)})
    steps = (Call("aten.nonzero", 0, ("x",), ("d",), (("K", 0, 0),)), Copy("d", "y"))
    engine = Engine(
        contents(Plan("sm_90a", facts, (("x", "x"),), (("y", "y"),), buffers, (), steps)),
        call=lambda step, operands: [np.flatnonzero(floats(operands[0].address, operands[0].shape[0]))],
    )
    for x in ([0, 2, 0, 3], [1], []):
        assert engine(np.array(x, np.float32)).tolist() == np.flatnonzero(x).tolist()
    kept = len(double.memory)
    engine(np.array([1, 1], np.float32))
    assert len(double.memory) == kept, "memory of a dynamic buffer was not freed"


def test_the_array_interface_names_the_bytes():
    interface = cuda_module.DeviceArray(256, TensorType(bf16, (2, 3)), 0).__cuda_array_interface__
    assert interface == {"shape": (2, 3), "typestr": "<u2", "data": (256, False), "version": 3, "strides": None, "stream": 1}
    assert cuda_module.DeviceArray(0, TensorType(f32, ()), 5).__cuda_array_interface__["typestr"] == "<f4"


def test_machines_that_do_not_fit(gpu, monkeypatch):
    gpu(capability=(8, 0))
    with pytest.raises(EngineError, match="engine holds no target for this machine, it holds sm_90a") as error:
        Engine(contents())
    assert "sm_90a: it needs a GPU of compute capability 9.0, Double GPU has 8.0" in str(error.value)
    cuda_module._device.cache_clear()
    monkeypatch.undo()
    monkeypatch.setattr(driver_module, "LIBRARY", "libcuda-that-is-not-there.so.1")
    with pytest.raises(EngineError) as error:
        Engine(contents())
    assert "sm_90a: this machine has no CUDA driver (libcuda-that-is-not-there.so.1)" in str(error.value)
    with pytest.raises(EngineError, match="target sm_90a of the engine does not run on this machine") as error:
        Engine(contents(), target="sm_90a")
    assert error.value.hint == "install NVIDIA's driver; ourcc doctor says what this machine can run"
    assert cuda_module.capability_of("sm_120a") == (12, 0) and cuda_module.capability_of("sm_90") == (9, 0)
    assert cuda_module.why_not("sm_x") == "unknown target 'sm_x', expected sm_ and a compute capability, such as sm_90a"


def test_an_old_driver(monkeypatch):
    class Old:
        cuInit = staticmethod(lambda _: 0)

    with pytest.raises(EngineError, match="the CUDA driver has no function cuGetErrorName"):
        driver_module.Driver(Old())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("cuMemAlloc_v2", r"cannot allocate \d+ bytes on Double GPU: cuMemAlloc_v2 failed: CUDA_ERROR_OUT_OF_MEMORY \(out of memory\)"),
        ("cuLaunchKernel", r"launch of kernel k_any failed: CUDA_ERROR_OUT_OF_MEMORY \(out of memory\)"),
        ("cuModuleLoadData", r"cuModuleLoadData failed: CUDA_ERROR_OUT_OF_MEMORY"),
    ],
)
def test_driver_errors(gpu, call, message):
    double = gpu(fail={call: 1})
    with pytest.raises(EngineError, match=message):
        Engine(contents())(np.zeros((1, 3), np.float32))
    assert not double.stack


def test_a_failed_call_does_not_harm_the_next(gpu):
    double = gpu(fail={"cuLaunchKernel": 1})
    engine = Engine(contents())
    x = np.ones((2, 3), np.float32)
    with pytest.raises(EngineError):
        engine(x)
    double.fail = {}
    assert np.array_equal(engine(x)[0], x * 3)


def launch(**change) -> Plan:
    base = plan()
    variants = base.steps[1].variants
    zero, plain, copy = base.steps
    return replace(base, steps=(zero, replace(plain, variants=(replace(variants[1], **change),)), copy))


def test_launches_that_cannot_run(gpu):
    gpu()
    x = np.zeros((3, 8), np.float32)
    with pytest.raises(EngineError, match=r"step 1 \(launch l0\) may have no variant for a call: the last one must be unguarded"):
        Engine(contents(launch(guard=Guard(zero=(N - 9,)))))
    with pytest.raises(EngineError, match="launch l0 has a grid of 4 axes, expected at most 3"):
        Engine(contents(launch(grid=(1, 1, 1, B))))(x)
    with pytest.raises(InputError, match="launch l0 needs 100000 blocks along one axis for B = 3, N = 8, expected at most 65535"):
        Engine(contents(launch(grid=(1, 100_000))))(x)
    with pytest.raises(InputError, match="launch l0 needs the size 8589934592 for B = 3, N = 8, which does not fit 32 bits"):
        Engine(contents(launch(scalars=(N * 2**30, N))))(x)
    with pytest.raises(EngineError, match=r"engine holds no kernel gone.cubin for sm_90a"):
        Engine(contents(launch(kernel="gone")))
    with pytest.raises(EngineError, match="kernel k_any needs 300000 bytes of shared memory, Double GPU has 232448"):
        Engine(contents(launch(shared=300_000)))
    with pytest.raises(EngineError, match=r"step 1 \(launch l0\) has no variant"):
        zero, plain, copy = plan().steps
        Engine(contents(replace(plan(), steps=(zero, replace(plain, variants=()), copy))))


def test_a_check_is_read_at_the_end_of_the_call(gpu):
    gpu()
    worst = Buffer("worst", TensorType(i64, ()), storage.Input())
    base = plan()
    checked = replace(
        base,
        inputs=(*base.inputs, ("worst", "worst")),
        buffers=(*base.buffers, worst),
        steps=(*base.steps, Check("worst", N, False, "input 'ids'", ("lookup",))),
    )
    engine = Engine(contents(checked))
    x = np.ones((3, 8), np.float32)
    y, _ = engine(x, np.asarray(-(2**63), np.int64))
    np.testing.assert_array_equal(y, 3 * x)
    with pytest.raises(IndexError, match=r"index 9 of input 'ids' is out of range, expected 0\.\.7\n  at lookup"):
        engine(x, np.asarray(9, np.int64))
    y, _ = engine(x, np.asarray(-(2**63), np.int64))
    np.testing.assert_array_equal(y, 3 * x)
    assert from_json(to_json(checked)) == checked


def test_plans_come_back_from_json():
    assert from_json(to_json(plan())) == plan()


def put_row(parameters, grid):
    """rows[at] = x; arguments x, at, rows."""
    x, at, rows = (pointer(parameters, n) for n in range(3))
    place = ctypes.c_int64.from_address(at).value
    floats(rows, 8)[2 * place : 2 * place + 2] = floats(x, 2)


def add_up(parameters, grid):
    """y = total + x; arguments total, x, y."""
    total, x, y = (pointer(parameters, n) for n in range(3))
    floats(y, 2)[:] = floats(total, 2) + floats(x, 2)


def keeping() -> EngineContents:
    """`append` puts a row in place and adds it up, `read` gives the rows; the sum begins as a constant."""
    row, rows = TensorType(f32, (2,)), TensorType(f32, (4, 2))
    states = (StateDeclaration("rows", rows), StateDeclaration("total", row, "ones"))
    append = Plan(
        "sm_90a",
        dims.NO_FACTS,
        (("x", "x"), ("at", "at")),
        (("sum", "y"),),
        (
            Buffer("x", row, storage.Input()),
            Buffer("at", TensorType(i64, ()), storage.Input()),
            Buffer("rows", rows, storage.State("rows")),
            Buffer("total", row, storage.State("total")),
            Buffer("here", rows, storage.Alias("rows", 0, (2, 1))),
            Buffer("there", row, storage.Alias("total", 0, (1,))),
            Buffer("y", row, storage.Output()),
        ),
        (),
        (
            Copy("rows", "here"),
            Launch("l0", (Variant("k_put", Guard(), (1,), ("x", "at", "here"), (), 1),), ("x", "at", "here"), ("here",)),
            Launch("l1", (Variant("k_add", Guard(), (1,), ("total", "x", "y"), (), 1),), ("total", "x"), ("y",)),
            Copy("y", "there"),
        ),
        (),
        states,
        (("rows", "here"), ("total", "there")),
    )
    read = Plan(
        "sm_90a",
        dims.NO_FACTS,
        (),
        (("all", "y"),),
        (Buffer("rows", rows, storage.State("rows")), Buffer("y", rows, storage.Output())),
        (),
        (Copy("rows", "y"),),
        (),
        states[:1],
        (("rows", "rows"),),
    )
    plans = {"append": append, "read": read}
    files = {"k_put.cubin": b"put", "k_add.cubin": b"add", PLANS: digest_of(plans).encode()}
    parts = PartContents(plans, files, "cuda", "")
    return EngineContents.of({"sm_90a": parts}, {"sm_90a": {"ones": np.ones(2, np.float32)}})


def test_sessions_keep_state_in_device_memory(gpu):
    double = gpu(kernels={"k_put": put_row, "k_add": add_up})
    engine = Engine(keeping())
    held = len(double.memory)
    sessions = [engine.session() for _ in range(2)]
    expected = [np.zeros((4, 2), np.float32) for _ in sessions]
    totals = [np.ones(2, np.float32) for _ in sessions]
    for step in range(6):
        for number, session in enumerate(sessions):
            x, at = np.array([step, number], np.float32), (step * (number + 1)) % 4
            expected[number][at] = x
            totals[number] += x
            assert np.array_equal(session(x, np.int64(at)), totals[number])
            assert np.array_equal(session.functions["read"](), expected[number])
            assert np.array_equal(session.state("rows"), expected[number]) and np.array_equal(session.state("total"), totals[number])
    session = sessions[0]
    session.set_state("rows", np.full((4, 2), 5, np.float32))
    assert np.array_equal(session.functions["read"](), np.full((4, 2), 5, np.float32))
    session.set_state("rows", np.zeros(2, np.float32), (1,))
    assert np.array_equal(session.state("rows", (slice(0, 2),)), np.array([[5, 5], [0, 0]], np.float32))
    other = session.fork()
    assert np.array_equal(other.state("rows"), session.state("rows"))
    other(np.ones(2, np.float32), np.int64(3))
    assert (other.state("rows")[3] == 1).all() and (session.state("rows")[3] == 5).all()
    del other
    session.reset()
    assert not session.state("rows").any() and np.array_equal(session.state("total"), np.ones(2, np.float32))
    with pytest.raises(EngineError, match=r"function 'append' keeps state \('rows', 'total'\)"):
        engine(x, np.int64(0))
    contexts = 2
    del session, sessions
    assert len(double.memory) == held + contexts, "memory of a session was not freed"


def test_a_launch_that_fails_poisons_the_session(gpu):
    double = gpu(kernels={"k_put": put_row, "k_add": add_up})
    engine = Engine(keeping())
    session = engine.session()
    x = np.ones(2, np.float32)
    session(x, np.int64(1))
    double.fail["cuLaunchKernel"] = 0
    with pytest.raises(EngineError):
        session(x, np.int64(2))
    del double.fail["cuLaunchKernel"]
    with pytest.raises(EngineError, match="states are of no use since a call failed"):
        session.functions["read"]()
    session.reset()
    session(x, np.int64(2))
    assert np.array_equal(session.state("rows"), np.array([[0, 0], [0, 0], [1, 1], [0, 0]], np.float32))
