"""Cubins that say how they are launched, and files that do not."""

from __future__ import annotations

import struct

import pytest

from ourcc.codegen.triton import Argument, TritonKernel
from ourcc.codegen.triton.compile import compile_kernel
from ourcc.codegen.triton.cubin import LaunchNeeds, launch_needs
from ourcc.ir.errors import ToolchainError
from ourcc.ir.target import GPU_TARGETS, gpu_target

SOURCE = """import triton
import triton.language as tl


@triton.jit
def copy(x_ptr, size_B):
    tl.store(x_ptr + tl.program_id(0), size_B)
"""


def cubin(target: str, warps: int = 2) -> bytes:
    arguments = (Argument("x", "operand", "*i32", True), Argument("B", "size", "i32", False))
    return compile_kernel(TritonKernel("copy", SOURCE, arguments, 4, warps, 1), gpu_target(target), is_read=False).cubin


@pytest.mark.parametrize("target", GPU_TARGETS)
@pytest.mark.parametrize("warps", [1, 8])
def test_threads_and_parameters_are_read(target: str, warps: int) -> None:
    """A pointer, a size of 4 bytes, and the two pointers of every kernel."""
    assert launch_needs(cubin(target, warps), "copy") == LaunchNeeds(32 * warps, (8, 4, 8, 8))


def test_what_says_nothing_is_one_clear_error() -> None:
    good = cubin("sm_90a")
    (table,) = struct.unpack_from("<Q", good, 0x28)
    for bad in (b"", b"x" * 200, good[:100], good[:table], good.replace(b".nv.info.copy", b".nv.info.cope"), good[: table + 30]):
        with pytest.raises(ToolchainError, match="the cubin of kernel copy does not say how it is launched"):
            launch_needs(bad, "copy")
    with pytest.raises(ToolchainError, match=r"it has no section \.nv\.info\.other"):
        launch_needs(good, "other")
