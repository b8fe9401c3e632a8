"""What a target is: what passes are told of it, what it takes to build for it and to run it here. All else is its backend's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from ...ir.extras import fault_of, install_hint
from ...ir.target import CPU_LEVELS, cpu_level, gpu_target, level_for
from ...passes.quantize import CODES, SCALES
from .machine import Cpu, CudaDriver, DeviceFigures, measure_rates, memory_bytes, probe_cuda, read_cpu


@dataclass(frozen=True)
class Here:
    """This machine, as far as targets ask for it."""

    cpu: Cpu
    cuda: CudaDriver

    @staticmethod
    def look() -> Here:
        """What is here now."""
        return Here(read_cpu(), probe_cuda())


@dataclass(frozen=True)
class Target(ABC):
    """One thing to build for; `machines` names the levels or the GPU that the engine then holds a part for, best last."""

    name: str
    machines: tuple[str, ...]
    description: str

    family: ClassVar[str]
    """What its parts are called in engines, by which the runtime finds their executor."""
    codes: ClassVar[str]
    """The codes that its integer products have on the left."""
    has_tf32: ClassVar[bool]
    """Whether its instructions multiply in tf32."""
    multiplies_in_groups: ClassVar[bool]
    """Whether factors of few bits are multiplied in whole groups along the sum alone."""
    looks_up_codes: ClassVar[bool]
    """Whether a look into a table takes less time than long arithmetic of one element."""
    language: ClassVar[str]
    """What its kernels are printed in: the last stage of `ourcc inspect --ir`."""
    needs_compiler: ClassVar[bool]
    """Whether building for it takes a C compiler."""
    most_joined: ClassVar[int | None]
    """Products that are joined into one have so many bytes of weights at most; None where that never takes longer."""

    place: ClassVar[str]
    """Torch's word for where its tensors lie."""
    replays: ClassVar[bool]
    """Whether runs of its launches may be replayed as graphs."""

    @property
    @abstractmethod
    def stored(self) -> str:
        """What of activations is stored as of weights (passes.quantize.STORED)."""

    @property
    @abstractmethod
    def loaded_as(self) -> str:
        """The name by which `load` asks for what was built for it."""

    @abstractmethod
    def lacks(self) -> str | None:
        """Which library must be installed to build for it; None if none."""

    @abstractmethod
    def device(self) -> DeviceFigures:
        """What one of its devices holds and does: of a GPU as its maker says, of a CPU as this machine is."""

    @abstractmethod
    def why_not_here(self, here: Here) -> str | None:
        """Why no engine for it runs on this machine; None if one does."""


@dataclass(frozen=True)
class CpuTarget(Target):
    """Levels of x86-64; of a machine that runs the programs of a level which it lacks, `emulates` is that level."""

    emulates: str = ""

    family = "cpu"
    place = "cpu"
    replays = False
    # The CPU's instructions want unsigned codes on the left.
    codes = "u8"
    has_tf32 = False
    multiplies_in_groups = True
    looks_up_codes = True
    language = "c"
    needs_compiler = True
    # Small kernels are as fast joined as apart, and fewer; wide products were measured to take up to 6 % longer than their parts.
    most_joined = 1 << 21

    @property
    def stored(self) -> str:
        # Codes are multiplied as integers, and sums of them by both scales.
        return ""

    @property
    def loaded_as(self) -> str:
        return self.name if self.name in (level.name for level in CPU_LEVELS) else "cpu"

    def lacks(self) -> None:
        return None

    def device(self) -> DeviceFigures:
        from ...codegen.c.toolchain import find_compiler

        cpu = read_cpu()
        rates = measure_rates(find_compiler(), cpu)
        per_second = rates.read_gbytes_per_second * 1e9, {"f32": rates.fma_gflops * 1e9}
        return DeviceFigures(cpu.model, memory_bytes(), *per_second, "measured here on one thread")

    def why_not_here(self, here: Here) -> str | None:
        least = level_for(here.cpu.features) if self.machines == (NATIVE,) else cpu_level(self.machines[0])
        return None if here.cpu.features.issuperset(least.features) else f"this CPU is {here.cpu.level}, expected {least.name}"


NATIVE = "native"
"""The machine that stands for the best level of this one."""


@dataclass(frozen=True)
class CudaTarget(Target):
    """A GPU architecture of NVIDIA's, or one of its boards: the same code, chosen by that board's figures."""

    family = "cuda"
    place = "cuda"
    replays = True
    codes = "i8"
    has_tf32 = True
    multiplies_in_groups = False
    # Threads compute while others wait for memory, which is what kernels of codes do most.
    looks_up_codes = False
    language = "triton"
    needs_compiler = False
    # A launch costs microseconds.
    most_joined = None

    @property
    def stored(self) -> str:
        # Instructions that scale blocks take both factors as weights are stored; others what scales of powers of two lose nothing to.
        return CODES if gpu_target(self.machines[0]).scales_blocks else SCALES

    @property
    def loaded_as(self) -> str:
        return gpu_target(self.machines[0]).name

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability that its code runs on."""
        return divmod(gpu_target(self.machines[0]).capability, 10)

    def lacks(self) -> str | None:
        fault = fault_of("triton")
        return None if fault is None else f"triton {fault}: {install_hint('triton')}"

    def device(self) -> DeviceFigures:
        gpu = gpu_target(self.machines[0])
        return DeviceFigures(self.description, gpu.memory_bytes, gpu.memory_rate, gpu.rates, f"the maker's figures for {gpu.board}")

    def why_not_here(self, here: Here) -> str | None:
        found = [gpu.target for gpu in here.cuda.gpus]
        if self.loaded_as in found:
            return None
        return f"the GPUs here are {', '.join(found)}" if found else here.cuda.problem or "no GPU"


LANGUAGES = tuple(kind.language for kind in (CpuTarget, CudaTarget))
"""All that kernels are printed in."""

__all__ = ["LANGUAGES", "NATIVE", "CpuTarget", "CudaTarget", "Here", "Target"]
