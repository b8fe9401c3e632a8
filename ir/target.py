"""What machines are, as data: instruction-set levels, vector widths, registers, caches and instruction rows."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from .errors import UsageError


@dataclass(frozen=True)
class CpuInstruction:
    """A multiply-accumulate instruction: lanes of the accumulator, products per lane, element types, where it exists.

    `left` is broadcast (its `depth` elements of one lane lie together), `right` is a vector of `lanes` x `depth`
    elements, contiguous, depth fastest; `feature` is the compiler's name of the CPU feature it needs. One that multiplies
    matrices has accumulators of `rows` x `lanes` and takes `groups` such vectors, which follow one another, at once. A
    level whose instruction needs a feature that it has not runs a model of the instruction. `enter` and `leave` are
    statements of C that a thread runs before and after a kernel that uses the feature; `enter` may `return` a positive
    number where the thread cannot use it, and then neither the kernel nor `leave` is run.
    """

    name: str
    lanes: int
    depth: int
    left: str
    right: str
    accumulator: str
    feature: str
    enter: str = ""
    leave: str = ""
    rows: int = 1
    groups: int = 1

    @property
    def is_matrix(self) -> bool:
        """Whether it multiplies matrices."""
        return self.rows > 1


@dataclass(frozen=True)
class Cache:
    """A cache: its size, in how many places a line can lie, and the cycles that a line takes which comes from beyond it."""

    bytes: int
    ways: int
    line: float


@dataclass(frozen=True)
class CpuRates:
    """What a core does in a cycle, by which schedules are compared: vectors of the level's width, and single elements.

    `latency` is that of arithmetic. `fold` is what the lanes of a vector take to be folded, `point` what a point of a grid takes to
    begin, `step` a step of a loop; `masked` are the operations of a mask, `strided` the cycles of an element that is put into a
    vector by itself. `operations` are the cycles of a vector of those primitives that take more than one. `overlap` is the part of
    the shorter of computing and moving that is not hidden behind the longer.
    """

    clock: float
    multiply_adds: float
    arithmetic: float
    loads: float
    stores: float
    caches: tuple[Cache, ...]
    single_loads: float = 2.0
    single_stores: float = 1.0
    latency: float = 4.3
    fold: float = 6.0
    point: float = 6.0
    step: float = 1.0
    masked: float = 2.0
    strided: float = 1.0
    overlap: float = 0.4
    operations: Mapping[str, float] = field(default_factory=lambda: VECTOR_CYCLES, hash=False)

    def of(self, primitive: str) -> float:
        """The cycles of a primitive on a vector, where simple ones take 1."""
        return self.operations.get(primitive, 1.0)


VECTOR_CYCLES: dict[str, float] = {
    **{"div": 10, "div_narrow": 10, "floor_div": 12, "mod": 12, "fmod": 20, "sqrt": 12, "rsqrt": 22, "pow": 60, "round": 2},
    **{
        "exp": 14,
        "exp2": 14,
        "exp2_narrow": 8,
        "sigmoid_narrow": 12,
        "gelu_narrow": 40,
        "expm1": 25,
        "log": 20,
        "log2": 20,
        "log1p": 25,
        "erf": 34,
        "erfc": 40,
        "lgamma": 100,
    },
    **{"sin": 40, "cos": 40, "tan": 60, "tanh": 26, "sinh": 40, "cosh": 40},
    **{"asin": 40, "acos": 40, "atan": 40, "atan2": 50, "asinh": 40, "acosh": 40, "atanh": 40},
}
"""Cycles of a vector, as counted in what is printed for them, or measured."""
_IN_PIECES = {**VECTOR_CYCLES, "erf": 12.0, "gelu_narrow": 10.0}
"""The same where registers of 512 bits hold tables (codegen/c/pieces.py)."""


@functools.cache
def _rates_of(vector_bits: int, level1: int, level2: int, level3: int, moves: tuple[tuple[int, float], ...]) -> CpuRates:
    """512 bits go through units of 256 in two halves, on the processors that were measured first. Others take them whole, twice as
    many in a cycle, but no more single elements: per multiply-add so many as these measured, the fewer the better for both.
    """
    share = 256 / max(256, vector_bits)
    caches = tuple(Cache(held, *move) for held, move in zip((level1, level2, level3), moves, strict=True))
    operations = _IN_PIECES if vector_bits >= 512 else VECTOR_CYCLES
    return CpuRates(3.7e9, 2 * share, 3 * share, 2 * share, share, caches, single_loads=1.7 * share, operations=operations)


PAIRS = ("bf16",)
"""The dtypes whose constants lie in pairs for all levels."""


@dataclass(frozen=True)
class CpuLevel:
    """An instruction-set level that C is compiled for; `features` are the compiler's names, in /proc/cpuinfo spelling.

    Cache sizes are what a member of the level has at least; schedules that must be the same everywhere use them.
    """

    name: str
    march: str
    vector_bits: int
    registers: int
    features: tuple[str, ...]
    level1_bytes: int = 32 * 1024
    level2_bytes: int = 512 * 1024
    level3_bytes: int = 4 * 1024 * 1024
    instructions: tuple[CpuInstruction, ...] = ()
    moves: tuple[tuple[int, float], ...] = ((8, 2.0), (8, 0.5), (16, 4.0))
    """Of each cache in how many places a line can lie, and the cycles that a line takes which comes from beyond it."""

    @property
    def lanes(self) -> int:
        """f32 elements of one vector register."""
        return self.vector_bits // 32

    compares_strategies: ClassVar[bool] = True
    """Whether prices come from tile programs alone, so that those of several strategies compare."""

    def least_seconds(self, operations: Mapping[str, float], bits: int) -> float:
        """What operations take at least on one core, by their primitives, on elements of so few bits as the narrowest have."""
        rates, tiles = self.rates, max((each.rows for each in self.instructions), default=1)
        at_once = max((each.depth for each in self.instructions if each.depth * bits <= 32), default=1)
        simple = sum(count for name, count in operations.items() if rates.of(name) <= 1) / (2 * at_once * tiles * rates.multiply_adds)
        others = sum(count * rates.of(name) for name, count in operations.items() if rates.of(name) > 1) / rates.arithmetic
        return (simple + others) / self.lanes / rates.clock

    @property
    def pairs(self) -> tuple[str, ...]:
        """The dtypes of 16 bits whose constants lie in pairs: f16 where tiles take it so, as vectors would have to take it apart."""
        return PAIRS if self.matrix("f16", "f16", "f32") is None else (*PAIRS, "f16")

    @property
    def rates(self) -> CpuRates:
        """What a core of the level is reckoned with."""
        return _rates_of(self.vector_bits, self.level1_bytes, self.level2_bytes, self.level3_bytes, self.moves)

    def has(self, feature: str) -> bool:
        return feature in self.features

    def matrix(self, left: str, right: str, accumulator: str) -> CpuInstruction | None:
        """The instruction that multiplies matrices of these types."""
        return next((each for each in self._taking(left, right, accumulator) if each.is_matrix), None)

    def dot(self, left: str, right: str, accumulator: str) -> CpuInstruction | None:
        """The instruction on vectors that adds up products of several neighbours of these types."""
        return next((each for each in self._taking(left, right, accumulator) if each.depth > 1 and not each.is_matrix), None)

    def _taking(self, left: str, right: str, accumulator: str) -> Iterator[CpuInstruction]:
        return (each for each in self.instructions if (each.left, each.right, each.accumulator) == (left, right, accumulator))


_V3 = ("avx", "avx2", "fma", "f16c", "bmi1", "bmi2")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")

FMA_V3 = CpuInstruction("vfmadd", 8, 1, "f32", "f32", "f32", "fma")
FMA_V4 = CpuInstruction("vfmadd", 16, 1, "f32", "f32", "f32", "avx512f")
VNNI = CpuInstruction("vpdpbusd", 16, 4, "u8", "i8", "i32", "avx512_vnni")
VNNI_V3 = CpuInstruction("vpdpbusd", 8, 4, "u8", "i8", "i32", "avx_vnni")

TILES_REFUSED = 1
"""What a kernel gives where the system does not let the process use AMX's tiles."""
_TILES_ON = f"""extern long syscall(long, ...);
static int asked;  /* the answer is the process's, and is kept by its children */
if (!__atomic_load_n(&asked, __ATOMIC_RELAXED)) {{
    if (syscall(158, 0x1023, 18) != 0) return {TILES_REFUSED};  /* arch_prctl(ARCH_REQ_XCOMP_PERM, XTILE_DATA) */
    __atomic_store_n(&asked, 1, __ATOMIC_RELAXED);
}}
uint8_t tiles[64] __attribute__((aligned(64))) = {{1}};  /* eight tiles of 16 rows of 64 bytes */
for (int tile = 0; tile < 8; ++tile) tiles[16 + 2 * tile] = 64, tiles[48 + tile] = 16;
__asm__ volatile("ldtilecfg (%0)" :: "r"(tiles) : "memory");"""
_TILES_OFF = '__asm__ volatile("tilerelease" ::: "memory");'


def _matrix(name: str, depth: int, left: str, right: str, accumulator: str, feature: str) -> CpuInstruction:
    """An instruction of AMX: its tiles are 16 rows of 64 bytes."""
    return CpuInstruction(name, 16, depth, left, right, accumulator, feature, _TILES_ON, _TILES_OFF, rows=16, groups=16)


AMX_U8 = _matrix("tdpbusd", 4, "u8", "i8", "i32", "amx_int8")
AMX_I8 = _matrix("tdpbssd", 4, "i8", "i8", "i32", "amx_int8")
AMX_SU8 = _matrix("tdpbsud", 4, "i8", "u8", "i32", "amx_int8")
AMX_BF16 = _matrix("tdpbf16ps", 2, "bf16", "bf16", "f32", "amx_bf16")
AMX_F16 = _matrix("tdpfp16ps", 2, "f16", "f16", "f32", "amx_fp16")
DOT_BF16 = CpuInstruction("vdpbf16ps", 16, 2, "bf16", "bf16", "f32", "avx512_bf16")

BASELINE = CpuLevel("x86-64", "x86-64", 128, 16, ())
AVX2 = CpuLevel("x86-64-v3", "x86-64-v3", 256, 16, _V3, instructions=(FMA_V3,))
AVX2_VNNI = CpuLevel("x86-64-v3-vnni", "x86-64-v3", 256, 16, (*_V3, "avx_vnni"), instructions=(FMA_V3, VNNI_V3))
AVX512 = CpuLevel("x86-64-v4", "x86-64-v4", 512, 32, _V4, level2_bytes=1024 * 1024, instructions=(FMA_V4,))
AVX512_VNNI = CpuLevel(
    *("x86-64-v4-vnni", "x86-64-v4", 512, 32, (*_V4, "avx512_vnni")), level2_bytes=1024 * 1024, instructions=(FMA_V4, VNNI)
)
AVX512_BF16 = CpuLevel(
    *("x86-64-v4-bf16", "x86-64-v4", 512, 32, (*_V4, "avx512_vnni", "avx512_bf16")),
    level2_bytes=1024 * 1024,
    instructions=(FMA_V4, VNNI, DOT_BF16),
)
AVX512_AMX = CpuLevel(
    *("x86-64-v4-amx", "x86-64-v4", 512, 32, (*AVX512_BF16.features, "amx_tile", "amx_int8", "amx_bf16")),
    level1_bytes=48 * 1024,
    level2_bytes=2048 * 1024,
    instructions=(FMA_V4, VNNI, DOT_BF16, AMX_U8, AMX_I8, AMX_SU8, AMX_BF16),
    moves=((12, 2.0), (16, 6.0), (16, 6.0)),
)

AVX512_AMX_F16 = replace(
    AVX512_AMX,
    name="x86-64-v4-amx-fp16",
    features=(*AVX512_AMX.features, "amx_fp16"),
    instructions=(*AVX512_AMX.instructions, AMX_F16),
)

CPU_LEVELS: tuple[CpuLevel, ...] = (BASELINE, AVX2, AVX2_VNNI, AVX512, AVX512_VNNI, AVX512_BF16, AVX512_AMX, AVX512_AMX_F16)
"""Slowest first; an engine for `cpu` holds AVX2, AVX512 and what its products gain from, whatever machine it was built on."""


def cpu_level(name: str) -> CpuLevel:
    """The level of that name; UsageError lists those that exist."""
    for level in CPU_LEVELS:
        if level.name == name:
            return level
    raise UsageError(f"unknown cpu level {name!r}, expected one of {', '.join(level.name for level in CPU_LEVELS)}")


def level_for(features: frozenset[str]) -> CpuLevel:
    """The fastest level all of whose features a machine has."""
    return max((level for level in CPU_LEVELS if features.issuperset(level.features)), key=CPU_LEVELS.index)


EMULATED = "-emulated"


def emulated(level: CpuLevel, features: frozenset[str]) -> CpuLevel:
    """A level's programs for a machine of these features, whose instructions are run by their models where it lacks them.

    The models give the bits of the instructions; they are slow, and for tests.
    """
    here = level_for(features)
    matrices = {"amx_tile", *(each.feature for each in level.instructions if each.is_matrix)}
    # Tiles are registers or memory: what multiplies them is an instruction throughout, or a model.
    lacks = matrices if not features.issuperset(matrices) else set()
    had = tuple(feature for feature in level.features if feature in features and feature not in lacks)
    march = level.march if features.issuperset(cpu_level(level.march).features) else here.march
    return replace(level, name=level.name + EMULATED, march=march, features=had)


# --- GPUs -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GpuTarget:
    """A GPU architecture, with the memory and the rates of one board: bytes, bytes and (dense) operations per second.

    `cache_rate` is that of the second-level cache, `port_rate` what one processor takes from it, `latency` the seconds from asking
    memory to getting.
    `shared_memory` is what one program may have, `registers` are 32-bit ones of a processor, `matrix_rows` the least
    rows of a tile that the matrix instruction takes, `ptx_isa` the lowest ISA that the architecture allows. `in_tf32` is not the
    part's but the user's: products of float32 are one of tf32 each, not three. One that `scales_blocks` has instructions that multiply
    small floats by scales of 8 bits for each block, those of 4 bits at the rate `f4`.
    """

    name: str
    capability: int
    processors: int
    shared_memory: int
    registers: int
    tensor_memory: int
    memory_rate: float
    cache_bytes: int
    rates: Mapping[str, float] = field(hash=False)
    matrix_instruction: str
    matrix_rows: int
    ptx_isa: int
    memory_bytes: int
    cache_rate: float
    port_rate: float
    latency: float
    board: str
    source: str
    in_tf32: bool = False
    scales_blocks: bool = False
    compares_strategies: ClassVar[bool] = False

    @property
    def instructions(self) -> frozenset[str]:
        """The primitives that it has instructions for and others do not (passes.regions.spell_out)."""
        return frozenset({"e2m1x2"} if self.scales_blocks else ())


def _rates(f64: float, f32: float, tf32: float, half: float, fp8: float, i8: float, f4: float | None = None) -> dict[str, float]:
    known = {"f64": f64, "f32": f32, "tf32": tf32, "bf16": half, "f16": half, "f8e4m3": fp8, "f8e5m2": fp8, "i8": i8}
    return known if f4 is None else {**known, "f4": f4}


# Caches: 5,120 bytes a cycle as NVIDIA states for A100 (white paper) and H100 keeps, at 1.98 GHz; two dies of B200 twice that, which no
# public source states. A port takes 64 bytes a cycle (the same). Latency: Luo et al., arXiv:2501.12084, and arXiv:2512.02189. Of RTX 5090
# the cache is reckoned with four times the memory's rate: no public source.
_H200 = GpuTarget(
    *("sm_90a", 90, 132, 232_448, 65_536, 0, 4.8e12, 50 * 2**20),
    _rates(67e12, 67e12, 494e12, 989e12, 1979e12, 1979e12),
    *("wgmma", 64, 80),
    memory_bytes=141 * 10**9,
    cache_rate=5120 * 1.98e9,
    port_rate=64 * 1.98e9,
    latency=600e-9,
    board="H200",
    source="NVIDIA H200 Tensor Core GPU data sheet (SXM): 141 GB of HBM3e, 4.8 TB/s; with sparsity, which is twice, 989 (TF32), "
    "1,979 (BF16) and 3,958 (FP8, INT8) T",
)
_H100 = replace(
    _H200,
    memory_rate=3.35e12,
    memory_bytes=80 * 10**9,
    board="H100",
    source="NVIDIA H100 Tensor Core GPU data sheet (SXM): 80 GB, 3.35 TB/s; the rates of H200",
)
_B200 = GpuTarget(
    *("sm_100a", 100, 148, 232_448, 65_536, 262_144, 8e12, 126 * 2**20),
    _rates(37e12, 75e12, 1125e12, 2250e12, 4500e12, 4500e12, 9000e12),
    *("tcgen05", 64, 86),
    scales_blocks=True,
    memory_bytes=180 * 10**9,
    cache_rate=10240 * 1.965e9,
    port_rate=64 * 1.965e9,
    latency=700e-9,
    board="B200",
    source="NVIDIA DGX B200 data sheet and HGX platform: eight GPUs have 1,440 GB of HBM3e and 64 TB/s; with sparsity, which is twice, "
    "18 (TF32), 36 (BF16), 72 (FP8) and 72 (INT8) P; 600 (FP32) and 296 (FP64) T",
)
_B300 = replace(
    _B200,
    name="sm_103a",
    capability=103,
    rates=_rates(1.25e12, 75e12, 1125e12, 2250e12, 4500e12, 0.15e15, 13_100e12),
    ptx_isa=88,
    memory_bytes=288 * 10**9,
    board="B300",
    source="NVIDIA HGX platform, B300: eight GPUs have 2.3 TB of HBM3e and 64 TB/s; the rates of B200 but for FP64 (10 T of eight); INT8, "
    "0.15 P: NVIDIA Blackwell Architecture Technical Brief",
)
_RTX_5090 = GpuTarget(
    *("sm_120a", 120, 170, 101_376, 65_536, 0, 1.8e12, 96 * 2**20),
    _rates(1.6e12, 105e12, 105e12, 210e12, 419e12, 838e12),
    *("mma.sync", 16, 87),
    memory_bytes=32 * 2**30,
    cache_rate=4 * 1.8e12,
    port_rate=64 * 2.4e9,
    latency=600e-9,
    board="RTX 5090",
    source="NVIDIA RTX Blackwell GPU architecture, white paper, and GeForce RTX 5090 specifications: 32 GB of GDDR7, 1.79 TB/s",
)
GPU_TARGETS: dict[str, GpuTarget] = {target.name: target for target in (_H200, _B200, _B300, _RTX_5090)}
"""The architectures, each with the figures of its largest board."""
GPU_BOARDS: dict[str, GpuTarget] = {target.board.lower(): target for target in (_H100, _H200, _B200, _B300)}
"""Boards by the names under which engines are built for their figures."""


def gpu_target(name: str) -> GpuTarget:
    """The target of that name, an architecture's or a board's; UsageError lists what there is."""
    found = GPU_TARGETS.get(name) or GPU_BOARDS.get(name)
    if found is None:
        raise UsageError(f"gpu target {name!r} is not known, expected one of: {', '.join((*GPU_TARGETS, *GPU_BOARDS))}")
    return found
