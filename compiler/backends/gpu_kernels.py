"""Kernels as the toolchain of GPUs builds them: a schedule on which it fails is refused, and so is one whose registers spill in loops."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...codegen.sass.reading import read_kernel
from ...codegen.triton.compile import DEADLINE, WARP, CompiledKernel, Failure, disassemble, try_kernels
from ...codegen.triton.kernel import Argument, TritonKernel
from ...ir.errors import InternalError, ToolchainError
from ...ir.target import GpuTarget
from ...passes.lower.schedule import Scheduled
from ..progress import Progress

FAILED = "the toolchain fails on it: "
"""How the reason begins where a schedule was refused because its kernel could not be built."""
WORTH = 0.02
"""A schedule that spills outside of loops is taken if that costs so small a part of its predicted time."""
LOCAL_RATE = 64 * 1.7e9
"""Bytes a second that a processor moves to and from what threads spill: half a line of its first cache in each cycle."""
_SMALLEST = """import triton
import triton.language as tl


@triton.jit
def smallest(x_ptr):
    tl.store(x_ptr + tl.program_id(0), 1)
"""


@dataclass
class GpuKernels:
    """The kernels of one build for a device, each built once; `failures` are what could not be built, and why."""

    device: GpuTarget
    progress: Progress
    known: dict[Hashable, CompiledKernel | Failure] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    inner: dict[Hashable, int] = field(default_factory=dict)
    works: bool = False
    deadline: float = field(default_factory=lambda: DEADLINE)

    def build(self, kernels: Sequence[TritonKernel]) -> dict[str, CompiledKernel | Failure]:
        """All kernels by name; ToolchainError where the toolchain builds not even the smallest one."""
        fresh = list({_made_of(kernel): kernel for kernel in kernels if _made_of(kernel) not in self.known}.values())
        self.progress.note(f"{len(fresh)} kernel{'s' * (len(fresh) != 1)} for {self.device.name}")
        built = try_kernels(fresh, self.device, self.deadline)
        self.known.update(zip(map(_made_of, fresh), built, strict=True))
        failed = {kernel.name: each for kernel, each in zip(fresh, built, strict=True) if isinstance(each, Failure)}
        if not self.works and any(isinstance(each.error, ToolchainError) for each in failed.values()):
            self._expect_toolchain()
        self.failures |= {name: each.why for name, each in failed.items()}
        return {kernel.name: self.known[_made_of(kernel)] for kernel in kernels}

    def _expect_toolchain(self) -> None:
        """Otherwise schedule after schedule would be tried for what is no schedule's fault."""
        smallest = TritonKernel("smallest", _SMALLEST, (Argument("x", "operand", "*i32", True),), 1, 4, 1)
        (built,) = try_kernels([smallest], self.device, self.deadline)
        if isinstance(built, Failure):
            raise built.error
        self.works = True

    def verdict(self, unit: Scheduled, kernels: Sequence[CompiledKernel | Failure]) -> tuple[str, int | None] | None:
        """Why the schedule of these kernels should not be taken, and the bytes spilled by one that works; None if it should."""
        for each in kernels:
            if isinstance(each, Failure):
                return FAILED + each.why, None
        worst = max((each for each in kernels if isinstance(each, CompiledKernel)), key=lambda each: each.resources.spilled)
        spilled = worst.resources.spilled
        if not spilled:
            return None
        inside = self.spilled_in_loops(worst)
        if inside:
            return f"registers spill {spilled} bytes, in loops {inside} times", spilled
        price = self.spill_seconds(worst, unit)
        if price > WORTH * unit.cost:
            return f"registers spill {spilled} bytes, which takes {price * 1e6:.2f} of {unit.cost * 1e6:.2f} us", spilled
        return None

    def spilled_in_loops(self, kernel: CompiledKernel) -> int:
        """Instructions in loops that move what registers do not hold."""
        if not kernel.resources.spilled:
            return 0
        source = _made_of(kernel.kernel)
        if source not in self.inner:
            try:
                read = read_kernel(disassemble(kernel.cubin, kernel.kernel.name))
            except ToolchainError:
                # What cannot be read is not taken on trust.
                self.inner[source] = 1
                return 1
            counts = [read.loop_counts(number) for number in range(len(read.flow.loops))]
            self.inner[source] = sum(each.local_loads + each.local_stores for each in counts)
        return self.inner[source]

    def spill_seconds(self, kernel: CompiledKernel, unit: Scheduled) -> float:
        """What is spilled outside of loops costs: each thread moves it once, at the rate of the processors' own caches."""
        threads = unit.problem.typical(kernel.kernel.grid) * kernel.resources.warps * WARP
        return threads * kernel.resources.spilled / (LOCAL_RATE * self.device.processors)

    def notes(self, kernel: CompiledKernel, unit: Scheduled) -> list[str]:
        """What a reader of the report should know: spills that were accepted, and schedules that could not be built."""
        spilled, inside = kernel.resources.spilled, self.spilled_in_loops(kernel)
        found = []
        if spilled and inside:
            found.append(f"registers spill {spilled} bytes, in loops {inside} times: no schedule is better")
        elif spilled:
            found.append(f"registers spill {spilled} bytes outside of loops: about {self.spill_seconds(kernel, unit) * 1e6:.2f} us")
        refused = [(schedule, why.removeprefix(FAILED)) for schedule, why in unit.refusals if why.startswith(FAILED)]
        found += [f"{schedule} is refused, the toolchain fails on it: {why}" for schedule, why in refused[:2]]
        return [*found, *([f"and {len(refused) - 2} more schedules"] if len(refused) > 2 else [])]

    def none_left(self, error: InternalError) -> Exception:
        """What to raise where an op has no schedule left: the toolchain's fault is told as such."""
        if not self.failures:
            return error
        why = next(iter(self.failures.values()))
        hint = "another version of triton may build it: ourcc doctor tells which is installed"
        return ToolchainError(f"no schedule is left that can be built for {self.device.name}: {why}", note=str(error), hint=hint)


def _made_of(kernel: TritonKernel) -> Hashable:
    """What decides the machine code: one source may be compiled for several numbers of warps and stages."""
    return kernel.source, kernel.warps, kernel.stages, kernel.clusters, kernel.divisible


def of_other_instructions(
    launched: Sequence[Sequence[str]], built: Mapping[str, Sequence[CompiledKernel | Failure]], device: GpuTarget
) -> Iterator[str]:
    """Kernels for classes of sizes that multiply by another instruction than the kernel for all sizes, the last of a launch."""

    def used(name: str) -> set[bool]:
        return {device.matrix_instruction in each.resources.instructions for each in built[name] if isinstance(each, CompiledKernel)}

    for *others, usual in launched:
        yield from (name for name in others if used(name) != used(usual))


__all__ = ["FAILED", "GpuKernels", "of_other_instructions"]
