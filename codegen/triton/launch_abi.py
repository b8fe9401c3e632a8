"""How the plan launches a compiled kernel: buffers, sizes, grid and resources as a variant of a launch step."""

from __future__ import annotations

from ...ir import dims
from ...ir.errors import UnsupportedError
from ...ir.plan import Guard, Variant
from .compile import CompiledKernel

# Every cubin takes these after the arguments: global scratch and profile scratch, null for the kernels of a plan.
HIDDEN_POINTERS = 2


def variant(compiled: CompiledKernel, guard: Guard | None = None) -> Variant:
    """The kernel as a variant.

    The launch passes the `arguments` as pointers, the `scalars` as i32 (each below `SIZE_LIMIT`), and
    `HIDDEN_POINTERS` null pointers; blocks of 32 * warps threads on a grid of one dimension (none if it is 0), with
    `shared` bytes of dynamic shared memory.
    """
    kernel = compiled.kernel
    if compiled.resources.scratch:
        raise UnsupportedError(
            f"kernel {kernel.name} needs {compiled.resources.scratch} bytes of global scratch for each program, a plan gives none",
            hint="let the schedule load by pointers instead of descriptors",
        )
    return Variant(
        kernel.name,
        guard or Guard(),
        (kernel.grid,),
        kernel.operands,
        tuple(dims.symbol(name) for name in kernel.sizes),
        kernel.warps,
        compiled.resources.shared,
    )
