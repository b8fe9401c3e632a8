"""How the plan launches a compiled kernel: buffers, sizes, grid and resources as a variant of a launch step."""

from __future__ import annotations

from ...ir import dims
from ...ir.errors import InternalError, UnsupportedError
from ...ir.plan import Guard, Variant
from .compile import WARP, CompiledKernel
from .cubin import launch_needs

# Every cubin takes these after the arguments: global scratch (null unless the variant has some) and profile scratch.
HIDDEN_POINTERS = 2


def variant(compiled: CompiledKernel, guard: Guard | None = None) -> Variant:
    """The kernel as a variant.

    The launch passes the `arguments` as pointers, the `scalars` as i32 (each within `SCALAR_LIMIT`), and
    `HIDDEN_POINTERS` pointers, the first to `scratch` bytes for every program; blocks of 32 * warps threads, as the cubin is for, on
    a grid of one dimension (none if it is 0), with `shared` bytes of dynamic shared memory.
    """
    kernel = compiled.kernel
    if kernel.clusters != 1:
        raise UnsupportedError(
            f"kernel {kernel.name} runs in clusters of {kernel.clusters}, a plan launches single blocks", hint="leave the cluster hint out"
        )
    return Variant(
        kernel.name,
        guard or Guard(),
        (kernel.grid,),
        kernel.operands,
        tuple(dims.symbol(name) for name in kernel.sizes),
        compiled.resources.warps,
        compiled.resources.shared,
        compiled.resources.scratch,
    )


def expect_agreement(planned: Variant, compiled: CompiledKernel) -> None:
    """InternalError where a plan would launch a kernel otherwise than its cubin says: with other threads, or other parameters."""
    needs = launch_needs(compiled.cubin, compiled.kernel.name)
    threads, given = WARP * planned.warps, len(planned.arguments) + len(planned.scalars) + HIDDEN_POINTERS
    if (threads, given) != (needs.threads, len(needs.parameters)):
        raise InternalError(
            f"the plan launches kernel {planned.kernel} with {threads} threads and {given} parameters, "
            f"its cubin is for {needs.threads} and {len(needs.parameters)}"
        )
