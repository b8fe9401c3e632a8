"""Compiled kernels as variants of a plan's launch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ourcc.codegen.triton import Argument, TritonKernel, print_program
from ourcc.codegen.triton.compile import CompiledKernel, compile_kernel
from ourcc.codegen.triton.cubin import launch_needs
from ourcc.codegen.triton.launch_abi import HIDDEN_POINTERS, expect_agreement, variant
from ourcc.ir import dims
from ourcc.ir.errors import InternalError, UnsupportedError
from ourcc.ir.plan import Guard
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.parse import parse


def compiled(name: str) -> CompiledKernel:
    path = Path(__file__).parent / "programs" / f"{name}.tile"
    (kernel,) = print_program(parse(path.read_text()))
    return compile_kernel(kernel, gpu_target("sm_90a"))


def test_a_variant_says_all_that_a_launch_needs() -> None:
    kernel = compiled("softmax_rows")
    found = variant(kernel, Guard(aligned=("x",)))
    assert found.kernel == "softmax_rows"
    assert found.guard.aligned == ("x",)
    assert found.arguments == ("x", "y")
    assert [dims.evaluate(size, {"B": 5, "S": 7}) for size in found.scalars] == [5, 7]
    assert dims.evaluate(found.grid[0], {"B": 5, "S": 7}) == 2
    assert (found.warps, found.shared) == (1, kernel.resources.shared)


def test_parameters_of_the_cubin_are_the_arguments_and_two_pointers() -> None:
    kernel = compiled("softmax_rows")
    entry = kernel.ptx[kernel.ptx.index(".visible .entry") :]
    parameters = entry[: entry.index(")")].count(".param")
    assert parameters == len(kernel.kernel.arguments) + HIDDEN_POINTERS


SPECIALISED = """import triton
import triton.language as tl


@triton.jit
def product(x_ptr, y_ptr, z_ptr, size_K):
    x = tl.make_tensor_descriptor(x_ptr, [128, size_K], [size_K, 1], [128, 64])
    y = tl.make_tensor_descriptor(y_ptr, [128, size_K], [size_K, 1], [128, 64])
    acc = tl.zeros((128, 128), tl.float32)
    for k in tl.range(0, size_K, 64, warp_specialize=True):
        acc = tl.dot(x.load([0, k]), y.load([0, k]).T, acc)
    i = tl.arange(0, 128)
    tl.store(z_ptr + i[:, None] * 128 + i[None, :], acc)
"""


def specialised() -> CompiledKernel:
    arguments = [Argument(name, "operand", type, True) for name, type in (("x", "*bf16"), ("y", "*bf16"), ("z", "*fp32"))]
    arguments.append(Argument("K", "size", "i32", True))
    return compile_kernel(TritonKernel("product", SPECIALISED, tuple(arguments), 1, 4, 3, descriptors=True, isa=86), gpu_target("sm_100a"))


def test_a_specialised_kernel_is_launched_with_the_warps_that_it_was_compiled_for() -> None:
    """Four warps are asked for; the cubin has more, for what loads and what multiplies."""
    kernel = specialised()
    threads = launch_needs(kernel.cubin, "product").threads
    assert f".reqntid {threads}" in kernel.ptx and threads > 32 * kernel.kernel.warps
    assert variant(kernel).warps == threads // 32


def test_a_plan_that_disagrees_with_its_cubin_is_refused() -> None:
    kernel = compiled("softmax_rows")
    made = variant(kernel)
    expect_agreement(made, kernel)
    for changed in (dataclasses.replace(made, warps=2), dataclasses.replace(made, arguments=("x",)), dataclasses.replace(made, scalars=())):
        with pytest.raises(
            InternalError, match=r"the plan launches kernel softmax_rows with \d+ threads and \d parameters, its cubin is for"
        ):
            expect_agreement(changed, kernel)


def test_descriptors_ask_for_scratch() -> None:
    kernel = compiled("persistent")
    assert variant(kernel).scratch == kernel.resources.scratch > 0


def test_clusters_are_refused() -> None:
    kernel = compiled("softmax_rows")
    clustered = dataclasses.replace(kernel, kernel=dataclasses.replace(kernel.kernel, clusters=2))
    with pytest.raises(UnsupportedError, match=r"kernel softmax_rows runs in clusters of 2, a plan launches single blocks"):
        variant(clustered)
