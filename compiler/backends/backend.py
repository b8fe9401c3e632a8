"""The backends: what turns a module into parts of an engine, one for each family of targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ...ir.graph import Module
from ...ir.workload import Workload
from ...passes.lower.build_plan import Lowered
from ...passes.lower.schedule import Scheduled
from ...passes.tile.gpu.rates import Rate
from ..options import BuildOptions
from ..progress import Progress
from ..targets.target import Target
from .built import Built, PackedConstants
from .tuning import Tuning


class Backend(Protocol):
    """From modules to parts, for the targets of one family; a machine is a level of a CPU or a GPU architecture, of its own type."""

    def machines(self, target: Target, module: Module, precision: str | None = None) -> Sequence[Any]:
        """What a target has a part for where it is built for this module, best first, each as it is to compute what has `precision`."""

    def compile(
        self,
        module: Module,
        target: Target,
        machine: Any,
        options: BuildOptions,
        progress: Progress,
        tuning: Tuning,
        packed: PackedConstants,
    ) -> Built:
        """The part for one machine."""

    def lower(self, module: Module, machine: Any, workload: Workload | None = None) -> Lowered:
        """Kernels and a plan by the cost model's schedules; nothing is compiled."""

    def rate(self, unit: Scheduled, machine: Any) -> Rate | None:
        """At what rate the operations of a kernel can go, and by which instruction; None where all go at the machine's one rate."""

    def print(self, lowered: Lowered, machine: Any) -> Mapping[str, str]:
        """The sources of what was lowered, by file."""


def backend_of(target: Target) -> Backend:
    """The backend of a target; those that bring heavy libraries are imported when they are asked for."""
    if target.family == "cuda":
        from .cuda import CudaBackend

        return CudaBackend()
    from .cpu import CpuBackend

    return CpuBackend()


__all__ = ["Backend", "backend_of"]
