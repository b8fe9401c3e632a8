"""What this machine is: CPU, compilers, libraries and GPUs, found without importing any of the heavy ones."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from ...ir.errors import ToolchainError
from ...ir.target import level_for

if TYPE_CHECKING:
    from ...codegen.c.toolchain import Compiler

LIBRARIES = ("onnx", "numpy", "ml_dtypes", "sympy", "networkx", "fsspec", "cryptography", "platformdirs", "click", "rich")
EXTRAS = ("torch", "triton", "onnxruntime", "redis", "ziglang", "transformers", "openvino")
# Features beyond a level that decide which instructions may be used, in the kernel's spelling.
NOTABLE_FEATURES = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
)


@dataclass(frozen=True)
class Cpu:
    """The processor, and what of it this process may use."""

    model: str
    features: frozenset[str]
    threads: int
    level: str

    @property
    def notable(self) -> tuple[str, ...]:
        """The features that matter to kernels, in a fixed order."""
        return tuple(feature for feature in NOTABLE_FEATURES if feature in self.features)


@dataclass(frozen=True)
class Gpu:
    """A CUDA device as its driver describes it."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int

    @property
    def target(self) -> str:
        """The target that it runs."""
        return f"sm_{self.capability[0]}{self.capability[1]}a"


@dataclass(frozen=True)
class CudaDriver:
    """The CUDA driver and its devices; `problem` says why there are none."""

    version: str | None
    gpus: tuple[Gpu, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Rates:
    """What one thread was measured to do."""

    fma_gflops: float
    read_gbytes_per_second: float


@dataclass(frozen=True)
class DeviceFigures:
    """What a model may take of one device: bytes of memory, bytes a second from it, operations a second by dtype; and who says so."""

    name: str
    memory_bytes: int
    memory_rate: float
    rates: Mapping[str, float]
    source: str


def memory_bytes() -> int:
    """The bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read_cpu(description: Path = Path("/proc/cpuinfo")) -> Cpu:
    """The processor as the kernel describes it."""
    fields: dict[str, str] = {}
    if description.exists():
        first = description.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
        for line in first.splitlines():
            key, _, value = line.partition(":")
            fields[key.strip()] = value.strip()
    features = frozenset(fields.get("flags", "").split())
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    level = level_for(features).name if platform.machine() in ("x86_64", "AMD64") else platform.machine()
    return Cpu(fields.get("model name", platform.processor() or "unknown"), features, threads, level)


def library_version(name: str) -> str | None:
    """The installed version of a distribution, without importing it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


# Numbers of the CUDA driver API.
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76


def probe_cuda(library: str = "libcuda.so.1") -> CudaDriver:
    """Ask the CUDA driver library itself; a machine without one is no error."""
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return CudaDriver(None, problem=f"no CUDA driver ({library} is not on this machine)")
    number = ctypes.c_int()
    if (status := driver.cuInit(0)) != 0:
        return CudaDriver(None, problem=f"the CUDA driver does not start (status {status})")
    driver.cuDriverGetVersion(ctypes.byref(number))
    version = f"{number.value // 1000}.{number.value % 1000 // 10}"
    driver.cuDeviceGetCount(ctypes.byref(number))
    gpus = tuple(_probe_gpu(driver, position) for position in range(number.value))
    return CudaDriver(version, gpus, None if gpus else "the CUDA driver sees no device")


def _probe_gpu(driver: ctypes.CDLL, position: int) -> Gpu:
    device, number, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGet(ctypes.byref(device), position)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    capability = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
        driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        capability.append(number.value)
    return Gpu(name.value.decode(errors="replace"), (capability[0], capability[1]), size.value)


# Twelve independent chains hide the latency of a multiply-add; the sums are returned so that nothing is dropped.
_RATES_SOURCE = """
#include <stdlib.h>
#include <string.h>
#include <time.h>
typedef float lanes __attribute__((vector_size(BYTES)));
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
#define ALL(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
double fma_gflops(long rounds, volatile float *sink) {
    lanes scale, shift;
    for (int i = 0; i < BYTES / 4; i++) { scale[i] = 0.999f; shift[i] = *sink; }
#define START(n) lanes a##n = shift + n;
    ALL(START)
    double start = now();
    for (long r = 0; r < rounds; r++) {
#define STEP(n) a##n = a##n * scale + shift; __asm__ volatile("" : "+x"(a##n));
        ALL(STEP)
    }
    double seconds = now() - start;
#define SUM(n) *sink += a##n[0];
    ALL(SUM)
    return 12.0 * (BYTES / 4) * 2 * rounds / seconds * 1e-9;
}
double read_gbytes(long bytes, volatile float *sink) {
    lanes *data = aligned_alloc(64, bytes);
    if (!data) return 0;
    memset(data, 0, bytes);
    double best = 1e30;
    for (int repeat = 0; repeat < 4; repeat++) {
        lanes s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
        double start = now();
        for (long i = 0; i < bytes / BYTES; i += 4) {
            s0 += data[i]; s1 += data[i + 1]; s2 += data[i + 2]; s3 += data[i + 3];
        }
        double seconds = now() - start;
        *sink += (s0 + s1 + s2 + s3)[0];
        if (seconds < best) best = seconds;
    }
    free(data);
    return bytes / best * 1e-9;
}
"""
_READ_BYTES = 256 << 20


def measure_rates(compiler: Compiler, cpu: Cpu) -> Rates:
    """Measure f32 multiply-adds and reading from memory, on one thread, by a small compiled loop (about a second)."""
    with rate_samples(compiler, cpu) as sample:
        return sample()


@contextmanager
def rate_samples(compiler: Compiler, cpu: Cpu) -> Iterator[Callable[[], Rates]]:
    """What measures the rates once more, as often as it is called; other jobs on the core make single samples low."""
    width = 64 if "avx512f" in cpu.features else 32 if "avx2" in cpu.features else 16
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "rates.c").write_text(_RATES_SOURCE, encoding="utf-8")
        flags = ("-O2", "-march=native", "-ffp-contract=fast", f"-DBYTES={width}", "-shared", "-fPIC")
        command = (*compiler.command, *flags, "-o", "rates.so", "rates.c")
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise ToolchainError(f"{compiler.version} cannot compile the measuring loop", note=done.stderr.strip()[:2000])
        library = ctypes.CDLL(str(Path(folder, "rates.so")))
        for function in (library.fma_gflops, library.read_gbytes):
            function.restype, function.argtypes = ctypes.c_double, (ctypes.c_long, ctypes.POINTER(ctypes.c_float))
        sink = ctypes.c_float(0.5)

        def sample() -> Rates:
            library.fma_gflops(1_000_000, ctypes.byref(sink))  # wakes the clock
            gflops = max(library.fma_gflops(5_000_000, ctypes.byref(sink)) for _ in range(5))
            return Rates(gflops, library.read_gbytes(_READ_BYTES, ctypes.byref(sink)))

        yield sample
