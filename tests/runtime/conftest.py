"""A real engine in miniature: y = x * w + B, z = column sums of x, with two symbols, a constant and an arena slot."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.plan import Buffer, Guard, Launch, Plan, Slot, Variant, storage
from ourcc.ir.plan.digest import digest_of
from ourcc.ir.types import TensorType, f32
from ourcc.runtime import Engine, EngineContents, PartContents, cuda_call
from ourcc.runtime import cuda as cuda_module
from ourcc.runtime import driver as driver_module
from ourcc.runtime.contents import LIBRARY

from .driver_double import KERNELS, CudaTensor, Double

PREAMBLE = r"""
#include <stdint.h>
#include <string.h>
#include <pthread.h>
typedef void (*body_t)(void *, int64_t, int64_t);
typedef void (*parallel_t)(int, int64_t, body_t, void *);
int32_t ourcc_abi(void) { return 2; }
static int64_t runs;
int64_t ourcc_runs(void) { return runs; }
void ourcc_parallel(int threads, int64_t points, body_t body, void *context) {
    __atomic_add_fetch(&runs, 1, __ATOMIC_RELAXED);
    body(context, 0, points);
}
static parallel_t parallel = ourcc_parallel;
void ourcc_use_parallel(void *function) { parallel = (parallel_t)function; }
"""

SOURCE = (
    PREAMBLE
    + r"""
int64_t ourcc_arena_0(const int64_t *s) { return (s[0] * s[1] * 4 + 63) / 64 * 64; }
struct job { void *const *b; const int64_t *s; float *t; };
static void rows(void *context, int64_t first, int64_t last) {
    struct job *j = context;
    const float *x = j->b[0], *w = j->b[1];
    float *y = j->b[2];
    int64_t n = j->s[1];
    for (int64_t i = first; i < last; i++)
        for (int64_t k = 0; k < n; k++) {
            j->t[i * n + k] = x[i * n + k] * w[0];
            y[i * n + k] = j->t[i * n + k] + (float)j->s[0];
        }
}
int32_t ourcc_segment_0_0(void *const *b, const int64_t *s, char *arena, int32_t threads) {
    if (threads == 77) return 5;
    struct job j = {b, s, (float *)arena};
    parallel(threads, s[0], rows, &j);
    float *z = b[3];
    const float *x = b[0];
    for (int64_t k = 0; k < s[1]; k++) {
        z[k] = 0;
        for (int64_t i = 0; i < s[0]; i++) z[k] += x[i * s[1] + k];
    }
    return 0;
}
"""
)


def compile_c(folder: Path, source: str) -> bytes:
    name = hashlib.sha256(source.encode()).hexdigest()[:12]
    code = folder / f"{name}.c"
    code.write_text(source)
    out = folder / f"{name}.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-pthread", "-s", "-o", str(out), str(code)], check=True)
    return out.read_bytes()


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., bytes]:
    """C text -> shared object bytes, which say for which plans; the preamble with the pool is put before it."""
    folder = tmp_path_factory.mktemp("native")
    made: dict[str, bytes] = {}

    def compile_once(source: str, plans: Mapping[str, Plan] | None = None) -> bytes:
        text = source if "ourcc_abi" in source else PREAMBLE + source
        text += f'const char ourcc_plans[] = "{digest_of(plans)}";\n' if plans else ""
        if text not in made:
            made[text] = compile_c(folder, text)
        return made[text]

    return compile_once


def tiny_plan() -> Plan:
    b, n = dims.symbol("B"), dims.symbol("N")
    matrix = TensorType(f32, (b, n))
    launch = Launch("k0", (Variant("k0", Guard(), (b,), ("x", "w", "y", "z")),), ("x", "w"), ("y", "z"), ("fc1",))
    return Plan(
        "cpu",
        dims.Facts({"B": dims.Range(1, 32), "N": dims.Range(0, 512)}, {"N": 2}),
        (("x", "x"),),
        (("y", "y"), ("z", "z")),
        (
            Buffer("x", matrix, storage.Input()),
            Buffer("w", TensorType(f32, (1,)), storage.Constant("fc1.weight")),
            Buffer("y", matrix, storage.Output()),
            Buffer("z", TensorType(f32, (n,)), storage.Output()),
            Buffer("t", matrix, storage.Arena("s0")),
        ),
        (Slot("s0", (b * n * 4,)),),
        (launch,),
    )


@pytest.fixture(scope="session")
def tiny(compiled: Callable[..., bytes]) -> EngineContents:
    """The contents of the miniature engine."""
    plans = {"main": tiny_plan()}
    never = PartContents(plans, {LIBRARY: b"\x7fELF nonsense"}, requires=("no-such-flag",))
    baseline = PartContents(plans, {LIBRARY: compiled(SOURCE, plans), "kernel_0.c": b"/* text */\n"})
    row = {"source": "fc1 (m.onnx)", "op": "mul", "requested": "f32", "realised": "f32", "why": ""}
    return EngineContents.of(
        {"baseline": baseline, "never": never},
        {"shared": {"fc1.weight": np.array([3.0], np.float32), "other": np.arange(7, dtype=np.int64)}},
        graph="module @tiny {}\n",
        lock='{"gcc": "12"}',
        report={"contract": [row]},
        provenance={"source": "m.onnx", "ids": {"k0": "fc1"}},
    )


@pytest.fixture(scope="session")
def planned(tiny: EngineContents, compiled: Callable[..., bytes]) -> Callable[..., EngineContents]:
    """The miniature engine with other plans, for which its code says it was made."""

    def change(plans: Mapping[str, Plan]) -> EngineContents:
        part = replace(tiny.parts["baseline"], plans=plans, files={LIBRARY: compiled(SOURCE, plans)})
        return replace(tiny, parts={"baseline": part})

    return change


@pytest.fixture
def engine(tiny: EngineContents) -> Engine:
    return Engine(tiny, threads=2)


@pytest.fixture(scope="session")
def expected() -> Callable[[Any], tuple[Any, Any]]:
    """The meaning of the miniature engine in numpy."""

    def compute(x: Any) -> tuple[Any, Any]:
        sums = np.zeros(x.shape[1], np.float32)
        for row in x:
            sums += row
        return x * np.float32(3.0) + np.float32(x.shape[0]), sums

    return compute


@pytest.fixture(scope="session")
def host_program(tmp_path_factory):
    """The C that launches."""
    source = package_files("ourcc.codegen.host").joinpath("launches.c").read_text()
    header = "#include <stdint.h>\n#include <stddef.h>\n#define OURCC_EXPORT"
    return compile_c(
        tmp_path_factory.mktemp("host"),
        source.replace('#include "ourcc.h"', header),
    )


@pytest.fixture(params=["c", "python"])
def gpu(monkeypatch, request, host_program):
    """Install a double; give it to the test, which runs with the host program and with what stands in for it."""
    made = []
    held = PartContents.__init__

    def with_program(self, plans, files=(), family="cpu", *rest, **named):
        held(self, plans, {**dict(files), LIBRARY: host_program} if family == "cuda" else files, family, platform.machine())

    if request.param == "c":
        monkeypatch.setattr(PartContents, "__init__", with_program)

    def install(**options):
        double = Double(**{"kernels": KERNELS, **options})
        made.append(double)
        cuda_module._device.cache_clear()
        monkeypatch.setattr(driver_module, "open_driver", lambda: driver_module.Driver(double))
        return double

    yield install
    cuda_module._device.cache_clear()
    assert not [failure for double in made for failure in double.failures]


@pytest.fixture
def cuda_tensors(monkeypatch):
    """Make CudaTensor pass for a torch tensor, and torch's allocations on the GPU come from the host."""
    torch = pytest.importorskip("torch")
    from ourcc.runtime import arrays

    def is_torch(value):
        return isinstance(value, (torch.Tensor, CudaTensor))

    for module in (arrays, cuda_module, cuda_call):
        monkeypatch.setattr(module, "is_torch", is_torch)

    def new_output(dtype, shape, as_torch, device="cpu"):
        if not device.startswith("cuda"):
            return arrays.new_output(dtype, shape, as_torch, device)
        return CudaTensor(torch.empty(shape, dtype=arrays.torch_dtype(dtype)), int(device.removeprefix("cuda:")))

    monkeypatch.setattr(cuda_call, "new_output", new_output)
    stream = type("Stream", (), {"cuda_stream": 77})()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return CudaTensor
