"""A convolution over images with channels innermost: steps of k stay within one window place, loads are wide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ourcc.codegen.triton import print_program
from ourcc.codegen.triton.compile import compile_kernels
from ourcc.ir.graph.reference import judge
from ourcc.ir.region import Load, Operand, Region, Scalar, Store, transform
from ourcc.ir.region.interpret import run_region
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.program import TileProgram
from ourcc.ir.types import TensorType
from ourcc.passes.regions.contraction import read_contraction
from ourcc.passes.tile.gpu.tensor import Tensor
from ourcc.passes.tile.schedule import Problem, matches

ORDER = (0, 2, 3, 1)
FACTS_SIZES = {"B": 2, "S": 37, "U": 70}


def channels_last(region: Region) -> Region:
    """The region with its image and its result in memory in the order of ORDER."""
    image = region.inputs[0]

    def reordered(operand: Operand) -> Operand:
        return Operand(operand.name, TensorType(operand.type.dtype, tuple(operand.type.shape[n] for n in ORDER)))

    def turned(value: Scalar) -> Scalar | None:
        if isinstance(value, Load) and value.operand == image.name:
            return replace(value, subscripts=tuple(value.subscripts[n] for n in ORDER))
        return None

    body = [replace(s, value=transform(s.value, turned)) for s in region.body]
    body = [replace(s, subscripts=tuple(s.subscripts[n] for n in ORDER)) if isinstance(s, Store) else s for s in body]
    outputs = tuple(reordered(output) for output in region.outputs)
    return replace(region, inputs=(reordered(image), *region.inputs[1:]), outputs=outputs, body=tuple(body))


@pytest.fixture
def problem(cases: dict[str, Any]) -> Problem:
    case = cases["convolution_channels"]
    return Problem(channels_last(case.region()), case.problem().symbols, {})


def program_of(problem: Problem, step: int | None = None) -> TileProgram:
    target = gpu_target("sm_90a")
    (match,) = matches([Tensor()], problem, target)
    schedule = min(Tensor().space(match, target), key=lambda s: Tensor().cost(match, s, target))
    if step is not None:
        schedule = replace(schedule, parameters=tuple((name, step if name == "k" else value) for name, value in schedule.parameters))
    return Tensor().tile(match, schedule, target)


@pytest.mark.parametrize("step", [32, 64, 128])
def test_the_program_is_right(step: int, problem: Problem, cases: dict[str, Any]) -> None:
    arrays = cases["convolution_channels"].arrays()
    given = {o.name: a for o, a in zip(problem.region.inputs, [np.ascontiguousarray(arrays[0].transpose(ORDER)), *arrays[1:]], strict=True)}
    (output,) = (o.name for o in problem.region.outputs)
    expected = run_region(problem.region, given)[output]
    got = run(program_of(problem, step), given, FACTS_SIZES, problem.symbols)[output]
    verdict = judge(got, expected, expected.astype(np.float64))
    assert verdict.passed, verdict.reason


def test_the_contracted_axes_end_with_the_channels(problem: Problem) -> None:
    found = read_contraction(problem.region)
    assert not isinstance(found, str) and found.over[-1] == "c"
    (kernel,) = print_program(program_of(problem), problem.symbols)
    (compiled,) = compile_kernels((kernel,), gpu_target("sm_90a"))
    used = compiled.resources
    assert used.instructions.get("wgmma", 0) > 0 and used.spill_stores == 0
    # Eight channels of f16 at once.
    assert used.instructions.get("cp.async 16", 0) > 0, used.instructions
