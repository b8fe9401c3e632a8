"""The CUDA executor on a double of the driver: memory is host memory, kernels are Python functions, calls are recorded."""

from __future__ import annotations

import ctypes
import gc
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.errors import EngineError, InputError, OutOfMemoryError
from ourcc.ir.plan import (
    Buffer,
    Call,
    Check,
    CheckPlace,
    Copy,
    Guard,
    Launch,
    Plan,
    Slot,
    StateDeclaration,
    Variant,
    from_json,
    storage,
    to_json,
)
from ourcc.ir.plan.digest import digest_of
from ourcc.ir.types import TensorType, bf16, f32, i4, i64
from ourcc.runtime import Engine, EngineContents, PartContents, captured, device_memory
from ourcc.runtime import cuda as cuda_module
from ourcc.runtime import driver as driver_module
from ourcc.runtime.contents import PLANS
from ourcc.runtime.weights import Constant

from .driver_double import B, N, contents, floats, plan, pointer


def test_kernels_for_other_plans_are_never_loaded(gpu):
    gpu()
    for files in ({PLANS: digest_of({"main": replace(plan(), slots=(Slot("s0", (8,)),))}).encode()}, {PLANS: b""}):
        with pytest.raises(EngineError, match="the kernels of the engine's part sm_90a were made for other plans than it holds"):
            Engine(contents(**files))


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


def test_constants_that_lie_on_the_gpu_are_read_there(gpu):
    """A constant lies on GPU 0 already: nothing is brought there, and to another GPU it is."""
    double = gpu(gpus=2)
    place = np.array([3.0], np.float32)

    class Lying(Constant):
        def on_gpu(self, ordinal):
            return place.ctypes.data if ordinal == 0 else None

    made = contents()
    given = Constant.of(np.array([3.0], np.float32))
    held = replace(made, weights={"sm_90a": {"w": Lying(given.type, given.data)}})
    engine = Engine(held)
    assert not double.calls["cuMemcpyHtoDAsync_v2"] and not double.memory
    place[0] = 5.0
    assert np.array_equal(engine(np.ones((3, 8), np.float32))[0], np.full((3, 8), 5.0))
    before = double.calls["cuMemcpyHtoDAsync_v2"]
    engine._part.home.on(1)
    assert double.calls["cuMemcpyHtoDAsync_v2"] == before + 1


def test_torch_cpu_tensors_come_back_on_the_cpu(gpu):
    torch = pytest.importorskip("torch")
    gpu()
    x = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    y, z = Engine(contents())(x)
    assert torch.equal(y, x * 3) and torch.equal(z, x * 3)


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
    interface = device_memory.DeviceArray(256, TensorType(bf16, (2, 3)), 0).__cuda_array_interface__
    assert interface == {"shape": (2, 3), "typestr": "<u2", "data": (256, False), "version": 3, "strides": None, "stream": 1}
    assert device_memory.DeviceArray(0, TensorType(f32, ()), 5).__cuda_array_interface__["typestr"] == "<f4"


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
        ("cuMemAlloc_v2", r"out of memory: Double GPU does not have 256 bytes: CUDA_ERROR_OUT_OF_MEMORY \(out of memory\)"),
        ("cuLaunchKernel", r"launch of kernel k_any failed: CUDA_ERROR_OUT_OF_MEMORY \(out of memory\)"),
        ("cuModuleLoadData", r"cuModuleLoadData failed: CUDA_ERROR_OUT_OF_MEMORY"),
    ],
)
def test_driver_errors(gpu, call, message):
    double = gpu(fail={call: 1})
    with pytest.raises(OutOfMemoryError if call == "cuMemAlloc_v2" else EngineError, match=message):
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
    with pytest.raises(InputError, match=r"launch l0 takes the number 8589934592 for B = 3, N = 8, expected -2146435071 to 2146435071"):
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


def test_a_place_is_checked_before_a_kernel_is_launched(gpu):
    """The host knows the numbers: nothing is queued, and no call waits for the GPU."""
    double = gpu()
    base = plan()
    checks = (CheckPlace(B - 4, 3, True, "axis 0 of input 'x'", ("select",)), CheckPlace(N, 9, False, "axis 1", ()))
    checked = replace(base, steps=(*checks, *base.steps))
    engine = Engine(contents(checked))
    for rows in (1, 3, 4, 6):
        x = np.ones((rows, 8), np.float32)
        np.testing.assert_array_equal(engine(x)[0], 3 * x)
    queued = double.calls["cuLaunchKernel"]
    for rows in (7, 8):
        with pytest.raises(IndexError, match=rf"index {rows - 4} of axis 0 of input 'x' is out of range, expected -3\.\.2\n  at select$"):
            engine(np.ones((rows, 8), np.float32))
    with pytest.raises(IndexError, match=r"index 9 of axis 1 is out of range, expected 0\.\.8"):
        engine(np.ones((1, 9), np.float32))
    assert double.calls["cuLaunchKernel"] == queued
    assert from_json(to_json(checked)) == checked


def test_what_kernels_tell_is_kept_until_one_tells_of_a_wrong_index(gpu):
    """One number for each context, set once: a call that fails sets it anew, whether or not the failure is what kernels told."""

    def tell(parameters, grid):
        """y = 3 x; an index that is x[0] above 100 is too large, one that is below -100 too small; arguments x, y, told, sizes B, N."""
        x, y, raised = (pointer(parameters, n) for n in range(3))
        count = ctypes.c_int32.from_address(parameters[3]).value * ctypes.c_int32.from_address(parameters[4]).value
        floats(y, count)[:] = 3 * floats(x, count)
        index, held = int(floats(x, 1)[0]), ctypes.c_int64.from_address(raised)
        if abs(index) > 100:
            held.value = max(held.value, index if index > 0 else -(2**63) - index)

    tell.takes = 7
    names, base = ("x", "y", "told"), plan()
    variant = Variant("k_any", Guard(), (B,), names, (B, N), 8, 1024)
    launches = tuple(Launch(f"l{n}", (variant,), ("x", "told"), ("y", "told")) for n in range(captured.FEWEST))
    kept = tuple(buffer for buffer in base.buffers if buffer.name in ("x", "y"))
    told = Buffer("told", TensorType(i64, ()), storage.Verdict())
    check = Check("told", 100, True, "input 'ids'", ("lookup",))
    telling = replace(base, buffers=(*kept, told), slots=(), outputs=(("y", "y"),), steps=(*launches, check))
    double = gpu(kernels={"k_any": tell})
    made = contents(telling)
    engine = Engine(replace(made, weights={"sm_90a": {}}))

    def given(index):
        return np.full((3, 8), index, np.float32)

    begun = None
    for index in (1, 1, 1, 101, 2, 2, -300, 100, -101, 1):
        if abs(index) > 100:
            with pytest.raises(IndexError, match=rf"index {index} of input 'ids' is out of range, expected -100\.\.99\n  at lookup"):
                engine(given(index))
        else:
            np.testing.assert_array_equal(engine(given(index)), 3 * given(index))
        begun = begun or double.calls["cuMemsetD32Async"]
    assert begun == 2 and double.calls["cuMemsetD32Async"] == 2 + 3 * 2, "a verdict is two words, set when it is made and after a failure"
    assert double.calls["cuGraphLaunch"], "the same places come again"
    assert from_json(to_json(telling)) == telling
    del engine
    # Errors lead to the frames of their calls.
    gc.collect()
    assert double.nothing_is_left()


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


put_row.takes = add_up.takes = 5


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


def test_tensors_that_a_call_writes_say_where_it_runs(gpu, cuda_tensors):
    """Torch's own tensors as states, and no input: the call runs on their GPU, on torch's stream there, and answers there."""
    torch = pytest.importorskip("torch")
    double = gpu(kernels={"k_put": put_row, "k_add": add_up}, gpus=2)
    engine = Engine(keeping())
    rows = cuda_tensors(torch.arange(8, dtype=torch.float32).reshape(4, 2), 1)
    written = SimpleNamespace(changed=False, tensors={"rows": rows}, addresses={"rows": rows.data_ptr()})
    waits = double.calls["cuStreamSynchronize"]
    (answer,) = engine.functions["read"].call([], written)
    assert answer.device == torch.device("cuda", 1) and torch.equal(answer.tensor, rows.tensor)
    # The part is loaded there, which waits once for its constants; the call itself does not.
    assert double.calls["cuStreamSynchronize"] == waits + 1
    (again,) = engine.functions["read"].call([], written)
    assert double.calls["cuStreamSynchronize"] == waits + 1 and again.device == answer.device


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
