"""Whether an estimate can be believed: what a problem needs at least, whoever solves it.

How often loops run is read from a kernel's source; where lines of code stand for other lines than the reader thinks, work is
missed, and the estimate would be far too good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from estimate import FITTED
from machines import Machine
from ours import Problem

COUNTED = 0.9
"""The share of a problem's multiplications and additions that must have been counted."""

PLAIN = 512
"""Multiplications and additions of 16 bits per cycle of a processor without its matrix units: 128 lanes with two at a time."""

BITS = {"int8-weight": 8, "int4-weight": 4, "int4-weight-g128": 4, "fp8": 8, "nvfp4": 4}
"""Bits of a coded weight, scales left aside."""


def floor(problem: Problem, machine: Machine) -> float:
    """Microseconds that memory needs for inputs and coded weights; of a table whose rows are chosen nobody reads all."""
    shapes = problem.shapes[:1] if problem.group == "data movement" else problem.shapes
    coded = prod(problem.weight) * BITS[problem.quantize or ""] / 8 if problem.weight is not None else 0.0
    return (sum(prod(shape) for shape in shapes) * problem.dtype.itemsize + coded) / machine.memory * 1e6


def rate(problem: Problem, machine: Machine) -> int:
    """Multiplications and additions per cycle of a processor in the narrowest format that a problem's factors both have."""
    if problem.quantize in ("fp8", "nvfp4"):
        return machine.matrix.get("f4" if problem.quantize == "nvfp4" else "f8e4m3", machine.matrix["f8e4m3"])
    return machine.matrix["tf32" if problem.dtype.itemsize == 4 else "bf16"]


def gigaop(problem: Problem) -> float:
    """Billions of multiplications and additions of a problem; 0 where it is no product."""
    if problem.group.startswith("attention"):
        (batch, heads, queries, deep), (_, _, keys, _), _ = problem.shapes
        looked = queries * keys * (0.5 if "causal" in problem.name else 1.0)
        if problem.window is not None:
            looked = problem.window * (queries - problem.window / 2)
        return 4 * batch * heads * looked * deep / 1e9
    if problem.weight is not None:
        return 2 * problem.shapes[0][0] * prod(problem.weight) / 1e9
    if "products" in problem.group or "experts" in problem.group:
        (*rows, _), weights = problem.shapes
        return 2 * prod(rows) * prod(weights[-2:]) / 1e9
    return 0.0


def quickest(operations: float, rate: int, machine: Machine) -> float:
    """Microseconds that all matrix units of a machine need for so many multiplications and additions."""
    return operations / (rate * machine.processors * machine.clock) * 1e6


def doubt(problem: Problem, machine: Machine, us: float, kernels: Sequence[Mapping[str, Any]]) -> str | None:
    """Why the estimates of a problem's kernels are not believed; None if they are. Each begins with the time of a start."""
    begun = FITTED.started * 1e6
    least, needed = begun + floor(problem, machine), gigaop(problem)
    if us < least:
        return f"estimated at {us:.1f} us, below the {least:.1f} us that memory needs"
    multiplied = begun + quickest(needed * 1e9, rate(problem, machine), machine)
    if us < multiplied:
        return f"estimated at {us:.1f} us, below the {multiplied:.1f} us that matrix units need"
    counted = sum(kernel["gigaop"] for kernel in kernels)
    if 0 < counted < COUNTED * needed:
        return f"estimated with {counted:.3g} of {needed:.3g} billion operations"
    plain = begun + quickest(needed * 1e9, PLAIN, machine)
    if not counted and us < plain:
        return f"estimated at {us:.1f} us with no matrix instruction counted, below the {plain:.1f} us that it takes without"
    return None
