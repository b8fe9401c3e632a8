"""What is known of three GPUs in public, a source with each number: rates, sizes and latencies that estimates are made from."""

from __future__ import annotations

from dataclasses import dataclass

HOPPER_PAPER = "Luo et al., Dissecting the NVIDIA Hopper Architecture through Microbenchmarking, arXiv:2501.12084"
BLACKWELL_PAPER = "Jarmusch and Chandrasekaran, Microbenchmarking NVIDIA's Blackwell Architecture, arXiv:2512.02189"
WHITE_PAPER = "NVIDIA H100 Tensor Core GPU Architecture, white paper"
GUIDE = "CUDA C++ Programming Guide, throughput of native arithmetic instructions and technical specifications"


@dataclass(frozen=True, eq=False)
class Machine:
    """A GPU. Rates are per second, `matrix` in multiplications and additions per cycle of a processor by number format; `columns` are
    those of a processor's tensor memory, where it has one."""

    name: str
    architecture: str
    processors: int
    clock: float
    memory: float
    cache_bytes_per_cycle: float
    cache: int
    latency: float
    matrix: dict[str, int]
    shared: int = 228 * 1024
    registers: int = 65_536
    warps: int = 64
    programs: int = 32
    columns: int = 512


_HOPPER_RATES = {"bf16": 4096, "tf32": 2048, "f8e4m3": 8192, "i8": 8192, "f64": 256, "b1": 32768}
_BLACKWELL_RATES = {"bf16": 8192, "tf32": 4096, "f8e4m3": 16384, "i8": 16384, "f4": 32768, "f64": 128, "b1": 32768}

# Processors, boost clock and rates: the white papers. 989.4 Tflop/s in bf16 are 132 processors x 4,096 x 1.83 GHz.
# Memory: data sheets, 3.35, 4.8 and 8 TB/s. Latency: about 480 ns for what the cache does not hold, HOPPER_PAPER;
# about 420 cycles more on the second die is not told apart, BLACKWELL_PAPER reports less than 600 ns.
# Cache: 5,120 bytes a cycle, as NVIDIA states for A100 (A100 white paper) and H100 keeps; the two dies of B200 twice
# that, which no public source states: uncertain.
H100 = Machine("H100", "sm_90a", 132, 1.98e9, 3.35e12, 5120.0, 50 * 2**20, 600e-9, _HOPPER_RATES)
H200 = Machine("H200", "sm_90a", 132, 1.98e9, 4.8e12, 5120.0, 50 * 2**20, 600e-9, _HOPPER_RATES)
B200 = Machine("B200", "sm_100a", 148, 1.965e9, 8.0e12, 10240.0, 126 * 2**20, 700e-9, _BLACKWELL_RATES)

MACHINES = {machine.name: machine for machine in (H100, H200, B200)}
"""The three by name."""

LANES: dict[str, int] = {
    "float": 128,
    "packed float": 128,
    "half": 128,
    "integer": 64,
    "special": 16,
    "conversion": 64,
    "double": 64,
    "shuffle": 32,
}
"""Threads that a processor serves in a cycle, by class of instruction: GUIDE, compute capability 9.0 and 10.0."""

SHARED_BYTES = 128
"""Bytes of shared memory that a processor reads or writes in a cycle: HOPPER_PAPER, 32 banks of 4 bytes."""

ISSUED = 4
"""Instructions that a processor issues in a cycle, one for each of its four parts: WHITE_PAPER."""

WARP_MATRIX_SHARE = 0.62
"""What `mma.sync` reaches of the rate of `wgmma` on Hopper: Luo et al., arXiv:2402.13499, 62.9 % on average."""

BLACKWELL_ROWS = 128
"""Rows of an instruction that fill the matrix unit of Blackwell: with 64, half of the lanes of tensor memory work (PTX ISA,
layouts of tcgen05); that the rate halves too is not stated there: uncertain."""

STARTED = 4.5e-6
"""Seconds that a kernel takes which does nothing, by events before and after it, as published times are taken: tritonbench on
H100, nop_triton_kernel, 4.544 us (meta-pytorch/tritonbench, pull request 38). The driver's tracer sees less of it."""

BARRIER = 20
"""Cycles of a barrier of a program's warps, from the last one's arrival to going on; uncertain."""

DELAYS: dict[str, int] = {
    "float": 4,
    "packed float": 4,
    "integer": 5,
    "half": 5,
    "double": 8,
    "constant": 8,
    "uniform": 8,
    "conversion": 12,
    "special": 20,
    "shuffle": 24,
    "shared load": 30,
    "local": 30,
    "tensor memory": 30,
    "matrix": 34,
    "atomic": 700,
}
"""Cycles from an instruction to one that reads what it gives: Luo et al., arXiv:2402.13499 (arithmetic, shared memory, `mma`); conversions
and uniform registers are uncertain."""

USUAL_DELAY = 5
"""Cycles of classes that are not listed."""

MATRIX_WAIT = 60
"""Cycles from the end of a warp group's products to the instruction that waits for them; uncertain."""

QUEUED = 200
"""Cycles of accesses to shared memory that are taken before they are done; uncertain."""

PORT_BYTES = 64
"""Bytes a cycle from the second-level cache into a processor: A100 white paper, kept by H100."""

NEAR = 273
"""Cycles of a load that the second-level cache holds: Luo et al., arXiv:2402.13499, 263 to 273."""

ELEMENT_BYTES = {"bf16": 2.0, "tf32": 4.0, "f8e4m3": 1.0, "i8": 1.0, "f4": 0.5, "f64": 8.0, "b1": 0.125}
"""Bytes of an element in shared memory, by number format."""
