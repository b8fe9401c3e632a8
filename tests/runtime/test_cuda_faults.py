"""The CUDA executor where things go wrong, or are scarce: each error at each call, memory, captures, several GPUs, many streams."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import numpy as np
import pytest

from ourcc.compiler.importers.torch.tensors import tensor_of
from ourcc.ir.errors import EngineError, InputError, OutOfMemoryError
from ourcc.ir.plan import Buffer, Call, Copy, Plan, storage
from ourcc.ir.types import TensorType, bf16, f8e4m3, i64
from ourcc.runtime import Engine, captured, device_memory
from ourcc.runtime import cuda as cuda_module

from .driver_double import B, contents, plan

X = np.arange(24, dtype=np.float32).reshape(3, 8)


def longer(count=captured.FEWEST) -> Plan:
    """The plan with enough launches for a graph."""
    base = plan()
    zero, launch, copy = base.steps
    return replace(base, steps=(zero, *(replace(launch, name=f"l{n}") for n in range(count)), copy))


def called(double, engine, times=4):
    for _ in range(times):
        y, z = engine(X)
        assert np.array_equal(y, X * 3) and np.array_equal(z, X * 3)


@pytest.mark.parametrize("status", [2, 700, 999])
def test_each_error_at_each_call(gpu, status):
    """The nth call of each function fails once: one error or none, the next call is right, all memory comes back."""
    double = gpu()
    engine = Engine(contents(longer()))
    called(double, engine)
    del engine
    assert double.nothing_is_left()
    counts = {name: count for name, count in double.calls.items() if not name.startswith("cuGetError")}
    assert {"cuGraphLaunch", "cuStreamEndCapture", "cuModuleUnload", "cuLaunchKernel", "cuGraphExecDestroy"} <= counts.keys()
    ending = {
        "cuCtxPushCurrent_v2",
        "cuMemFree_v2",
        "cuModuleUnload",
        "cuGraphExecDestroy",
        "cuStreamDestroy_v2",
        "cuCtxPopCurrent_v2",
        "cuGraphDestroy",
    }
    for name, count in counts.items():
        for at in range(1, count + 1):
            other = gpu(status=status, once={name: at})
            engine = None
            try:
                engine = Engine(contents(longer()))
                called(other, engine)
            except (EngineError, OutOfMemoryError) as error:
                assert "CUDA_ERROR" in str(error), error
                other.once = {}
                if engine is not None:
                    called(other, engine)
            del engine
            # What the driver refused to take back is gone with the process, and nothing else.
            assert name in ending or other.nothing_is_left(), (name, at, other.memory.keys(), other.modules, other.streams, other.graphs)


def test_runs_that_come_again_are_captured(gpu, caplog):
    double = gpu()
    engine = Engine(contents(longer()))
    with caplog.at_level(logging.INFO, "ourcc.runtime.captured"):
        called(double, engine, 2)
    assert double.calls["cuStreamBeginCapture_v2"] == double.calls["cuGraphInstantiateWithFlags"] == double.calls["cuGraphLaunch"] == 1
    assert "captured 4 launches for B = 3, N = 8, steps 0 to 5" in caplog.text
    asked = double.calls["cuLaunchKernel"]
    called(double, engine, 5)
    assert double.calls["cuLaunchKernel"] == asked and double.calls["cuGraphLaunch"] == 6 and len(double.ready) == 1
    assert {where for *_, where in double.launches} == {0}, "a graph runs on the stream of the call"
    engine(np.ones((32, 512), np.float32))
    assert not double.ready and double.calls["cuGraphExecDestroy"] == 1, "the arena moved, and the graphs name its old place"
    called(double, engine, 3)
    for rows in range(1, 2 * captured.MOST):
        for _ in range(2):
            x = np.full((rows, 8), rows, np.float32)
            assert np.array_equal(engine(x)[0], 3 * x)
    assert len(double.ready) <= captured.MOST
    del engine
    assert double.nothing_is_left()


def test_short_runs_are_not_captured(gpu):
    double = gpu()
    called(double, Engine(contents()), 5)
    assert not double.calls["cuStreamBeginCapture_v2"]


def test_graphs_can_be_turned_off(gpu):
    double = gpu()
    engine = Engine(contents(longer()), graphs=False)
    called(double, engine, 5)
    assert not double.calls["cuStreamBeginCapture_v2"] and not double.calls["cuGraphLaunch"] and not double.streams
    assert len(double.launches) == 5 * captured.FEWEST


def test_torch_tensors_at_new_places_are_not_replayed(gpu, cuda_tensors):
    """As users are told: a graph names the places of inputs and outputs, and is launched where these come again."""
    torch = pytest.importorskip("torch")
    double = gpu()
    engine = Engine(contents(longer()))
    x = cuda_tensors(torch.from_numpy(X))
    held = [engine(x) for _ in range(4)]
    assert not double.calls["cuGraphLaunch"] and "when they come again" in captured.TOLD
    assert len({y.tensor.data_ptr() for y, _ in held}) == 4 and all(torch.equal(y.tensor, x.tensor * 3) for y, _ in held)


def test_a_capture_that_the_driver_refuses_is_told_and_done_without(gpu, caplog):
    double = gpu(fail={"cuGraphInstantiateWithFlags": 1}, status=900)
    called(double, Engine(contents(longer())), 5)
    assert "kernels are launched one by one: cuGraphInstantiateWithFlags failed: CUDA_ERROR_900" in caplog.text
    assert double.calls["cuStreamBeginCapture_v2"] == 1 and not double.graphs and not double.streams


def test_memory_that_torch_keeps_is_asked_for(gpu, monkeypatch):
    torch = pytest.importorskip("torch")
    double = gpu()
    engine = Engine(contents())
    asked = []

    def give_back():
        asked.append(1)
        double.fail = {}

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", give_back)
    double.fail = {"cuMemAlloc_v2": 1}
    called(double, engine, 1)
    assert asked == [1]
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.append(2))
    double.fail = {"cuMemAlloc_v2": 1}
    with pytest.raises(OutOfMemoryError, match="out of memory: Double GPU does not have"):
        engine(np.ones((32, 512), np.float32))
    assert asked == [1, 2]
    double.fail = {}
    called(double, engine, 1)
    assert device_memory.make_room()


def test_inputs_on_the_gpu_take_no_arena(gpu, cuda_tensors):
    torch = pytest.importorskip("torch")
    double = gpu()
    engine = Engine(contents())
    held = set(double.memory)
    engine(cuda_tensors(torch.zeros(32, 512)))
    (arena,) = set(double.memory) - held
    # A slot of 4 bytes and scratch of 32 for each row; x has 64 KiB.
    assert double.memory[arena].size <= 256 + 32 * 32 + 256


def test_scalars_travel_in_the_command(gpu, cuda_tensors):
    torch = pytest.importorskip("torch")
    double = gpu()
    base = plan()
    number = Buffer("n", TensorType(i64, ()), storage.Input())
    held = Buffer("m", TensorType(i64, ()), storage.Output())
    more = replace(
        base,
        inputs=(*base.inputs, ("n", "n")),
        outputs=(*base.outputs, ("m", "m")),
        buffers=(*base.buffers, number, held),
        steps=(*base.steps, Copy("n", "m")),
    )
    engine = Engine(contents(more))
    waits = double.calls["cuStreamSynchronize"]
    for n in (7, -3, 2**40 + 1):
        assert int(engine(cuda_tensors(torch.ones(2, 8)), torch.tensor(n))[2].tensor) == n
    assert double.calls["cuStreamSynchronize"] == waits and double.calls["cuMemcpyHtoDAsync_v2"] == 1


def test_streams_come_and_go(gpu, cuda_tensors, monkeypatch):
    torch = pytest.importorskip("torch")
    double = gpu()
    engine = Engine(contents())
    held = len(double.memory)
    for number in range(1, 5 * cuda_module.MOST_IDLE):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device, n=number: type("Stream", (), {"cuda_stream": n})())
        engine(cuda_tensors(torch.ones(2, 8)))
    assert len(double.memory) == held + cuda_module.MOST_IDLE
    del engine
    assert double.nothing_is_left() and double.calls["cuModuleUnload"] == 2


def test_a_call_in_the_callers_capture(gpu, cuda_tensors, monkeypatch):
    torch = pytest.importorskip("torch")
    double = gpu()
    engine = Engine(contents(longer()))
    for _ in range(2):
        engine(cuda_tensors(torch.ones(2, 8)))
    taken, waits = double.calls["cuMemAlloc_v2"], double.calls["cuStreamSynchronize"]
    graphs = double.calls["cuStreamBeginCapture_v2"]
    empty, borrowed = torch.empty, []

    def allocate(*sizes, device=None, **named):
        borrowed.append(device)
        return empty(*sizes, **named)

    monkeypatch.setattr(torch, "empty", allocate)
    double.caller_captures = True
    for _ in range(3):
        y, _ = engine(cuda_tensors(torch.ones(2, 8)))
        assert torch.equal(y.tensor, torch.full((2, 8), 3.0))
    assert (double.calls["cuMemAlloc_v2"], double.calls["cuStreamSynchronize"]) == (taken, waits)
    assert double.calls["cuStreamBeginCapture_v2"] == graphs and "cuda:0" in borrowed


def test_what_waits_cannot_be_captured(gpu, cuda_tensors):
    torch = pytest.importorskip("torch")
    double = gpu()
    base = plan()
    two = Plan(
        "sm_90a",
        base.symbols,
        (("x", "x"), ("h", "h")),
        (("y", "y"),),
        (
            Buffer("x", TensorType(i64, (B,)), storage.Input()),
            Buffer("h", TensorType(i64, (B,)), storage.Input()),
            Buffer("y", TensorType(i64, (B,)), storage.Output()),
        ),
        (),
        (Copy("x", "y"),),
    )
    engine = Engine(contents(two))
    double.caller_captures = True
    with pytest.raises(InputError, match="this call cannot be captured in a CUDA graph: input 'h' is not on the GPU"):
        engine(cuda_tensors(torch.ones(9, dtype=torch.int64)), torch.ones(9, dtype=torch.int64))
    steps = (Call("aten.relu", 0, ("x",), ("y",)),)
    engine = Engine(contents(replace(two, steps=steps)), call=lambda step, operands: operands)
    with pytest.raises(InputError, match="step 0 of its plan runs on the host"):
        engine(cuda_tensors(torch.ones(9, dtype=torch.int64)), torch.ones(9, dtype=torch.int64))


def test_each_gpu_has_the_engine_that_is_asked_for_there(gpu, cuda_tensors):
    torch = pytest.importorskip("torch")
    double = gpu(capability=[(8, 0), (9, 0), (9, 0)])
    engine = Engine(contents())
    assert double.calls["cuModuleLoadData"] == 2, "GPU 0 is of another kind, 1 is the first that fits"
    assert np.array_equal(engine(X)[0], X * 3)
    for index in (2, 1, 2):
        y, _ = engine(cuda_tensors(torch.from_numpy(X), index))
        assert y.device.index == index and torch.equal(y.tensor, torch.from_numpy(X * 3))
    assert double.calls["cuModuleLoadData"] == 4 and double.calls["cuDevicePrimaryCtxRetain"] == 2
    with pytest.raises(InputError, match="input 'x' is on cuda:0, expected cuda:1") as error:
        engine(cuda_tensors(torch.from_numpy(X), 0))
    assert "it needs a GPU of compute capability 9.0, Double GPU has 8.0" in str(error.value)
    with pytest.raises(InputError, match="input 'x' is on cuda:3, expected cuda:1") as error:
        engine(cuda_tensors(torch.from_numpy(X), 3))
    assert "this machine has 3 GPUs" in str(error.value)


def test_two_threads_capture_and_fail(gpu):
    double = gpu()
    engines = [Engine(contents(longer()))]
    wrong, failed = [], []

    def work(seed):
        for n in range(60):
            x = np.full((1 + n % 3, 8), seed * 100 + n, np.float32)
            if n == 30 and seed:
                double.fail = {"cuGraphLaunch": 1, "cuLaunchKernel": 1}
            try:
                if not np.array_equal(engines[0](x)[0], 3 * x):
                    wrong.append(n)
            except EngineError:
                failed.append(n)
                double.fail = {}

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed and not wrong
    engines.clear()
    assert double.nothing_is_left()


@pytest.mark.parametrize(("dtype", "name"), [(bf16, "bfloat16"), (f8e4m3, "float8_e4m3fn")])
def test_torch_is_given_the_type_that_a_buffer_has(monkeypatch, dtype, name):
    torch = pytest.importorskip("torch")
    carriers = {"<u2": torch.uint16, "<u1": torch.uint8}

    def as_tensor(array):
        interface = array.__cuda_array_interface__
        return torch.zeros(interface["shape"], dtype=carriers[interface["typestr"]])

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    found = tensor_of(device_memory.DeviceArray(256, TensorType(dtype, (2, 3)), 0))
    assert found.dtype == getattr(torch, name) and found.shape == (2, 3)


def test_without_a_driver_nothing_is_said_at_the_end(gpu, recwarn):
    gpu(fail={"cuDevicePrimaryCtxRetain": 1})
    with pytest.raises(EngineError, match="cuDevicePrimaryCtxRetain failed"):
        Engine(contents())
    assert not [each for each in recwarn if "Exception ignored" in str(each.message)]
