"""Compiled kernels as variants of a plan's launch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ourcc.codegen.triton import print_program
from ourcc.codegen.triton.compile import CompiledKernel, compile_kernel
from ourcc.codegen.triton.launch_abi import HIDDEN_POINTERS, variant
from ourcc.ir import dims
from ourcc.ir.errors import UnsupportedError
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


def test_descriptors_ask_for_scratch() -> None:
    kernel = compiled("persistent")
    assert variant(kernel).scratch == kernel.resources.scratch > 0


def test_clusters_are_refused() -> None:
    kernel = compiled("softmax_rows")
    clustered = dataclasses.replace(kernel, kernel=dataclasses.replace(kernel.kernel, clusters=2))
    with pytest.raises(UnsupportedError, match=r"kernel softmax_rows runs in clusters of 2, a plan launches single blocks"):
        variant(clustered)
