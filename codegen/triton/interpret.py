"""Printed kernels run by Triton's interpreter in a child process, on numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...ir import dims
from ...ir.errors import InputError, ToolchainError
from ...ir.plan import SCALAR_LIMIT
from .children import INTERPRETERS
from .kernel import TritonKernel


def interpret(
    kernel: TritonKernel, arrays: Mapping[str, np.ndarray[Any, Any]], sizes: Mapping[str, int], deadline: float = 60.0
) -> dict[str, np.ndarray[Any, Any]]:
    """Every operand after the kernel ran on copies of `arrays` (physical, contiguous; zeroed counters among them)."""
    operands = [argument for argument in kernel.arguments if argument.kind != "size"]
    given: list[np.ndarray[Any, Any]] = []
    for argument in operands:
        if argument.name not in arrays:
            raise InputError(f"kernel {kernel.name}: operand {argument.name} is missing, expected {', '.join(kernel.operands)}")
        given.append(np.ascontiguousarray(arrays[argument.name]))
    header = {
        "kind": "interpret",
        "name": kernel.name,
        "source": kernel.source,
        "dtypes": [argument.type for argument in operands],
        "sizes": [_size(kernel, name, sizes) for name in kernel.sizes],
        "programs": dims.evaluate(kernel.grid, sizes),
    }
    if header["programs"] == 0:
        return {argument.name: array.copy() for argument, array in zip(operands, given, strict=True)}
    answer, blobs = INTERPRETERS.ask(header, [array.tobytes() for array in given], deadline)
    if "error" in answer:
        raise ToolchainError(f"triton's interpreter failed on kernel {kernel.name}: {answer['error']}", note=kernel.source)
    return {
        argument.name: np.frombuffer(blob, dtype=array.dtype).reshape(array.shape).copy()
        for argument, array, blob in zip(operands, given, blobs, strict=True)
    }


def _size(kernel: TritonKernel, name: str, sizes: Mapping[str, int]) -> int:
    if name not in sizes:
        raise InputError(f"kernel {kernel.name}: size {name} is missing, expected {', '.join(kernel.sizes)}")
    if abs(sizes[name]) >= SCALAR_LIMIT:
        raise InputError(f"kernel {kernel.name}: size {name} is {sizes[name]}, expected {1 - SCALAR_LIMIT} to {SCALAR_LIMIT - 1}")
    return sizes[name]
