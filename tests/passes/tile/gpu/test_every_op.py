"""Every op's region through every GPU strategy that takes it: the tile program computes what the region means."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.graph.reference import judge
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS, OpDef, Sample
from ourcc.ir.region.interpret import run_region
from ourcc.ir.target import gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.program import AxisDecl, For, TileProgram, statements
from ourcc.ir.tile.verify import verify
from ourcc.ir.types import type_of
from ourcc.passes.regions.simplify_region import simplify_region
from ourcc.passes.tile.gpu import STRATEGIES
from ourcc.passes.tile.gpu.shape import LAUNCH_SECONDS
from ourcc.passes.tile.schedule import Problem, matches

TARGET = gpu_target("sm_90a")


def cases() -> list[tuple[OpDef, Sample]]:
    return [(op, sample) for op in OPS.values() if op.has_region for sample in op.sample_list() if sample.error is None]


@pytest.mark.parametrize(("op", "sample"), cases(), ids=lambda value: value.name if isinstance(value, OpDef) else None)
def test_tile_program_computes_the_region(op: OpDef, sample: Sample) -> None:
    types = [None if a is None else type_of(a) for a in sample.operands]
    region = region_of(op, types, sample.attrs)
    assert region is not None
    arrays = {f"x{n}": a for n, a in enumerate(sample.operands) if a is not None}
    arrays = {operand.name: arrays[operand.name] for operand in region.inputs}
    with np.errstate(all="ignore"):
        expected = run_region(region, arrays)
    region = simplify_region(region, dims.NO_FACTS)
    problem = Problem(region, dims.NO_FACTS, {})
    given = {o.name: arrays[o.name].reshape(tuple(dims.evaluate(d, {}) for d in o.type.shape)) for o in region.inputs}
    ran = 0
    for match in matches(STRATEGIES, problem, TARGET):
        strategy = match.strategy
        for schedule in {str(s): s for s in (*strategy.space(match, TARGET),)[::5]}.values():
            program = strategy.tile(match, schedule, TARGET)
            verify(program, problem.symbols)
            assert_powers_of_two(program)
            assert strategy.cost(match, schedule, TARGET) > LAUNCH_SECONDS * len(program.launches)
            with np.errstate(all="ignore"):
                got = run(program, given, {})
            for name, array in expected.items():
                wide = array.astype(np.float64) if array.dtype.kind == "f" else array
                verdict = judge(got[name].reshape(array.shape), array, wide)
                assert verdict.passed, f"{schedule}: {name}: {verdict.reason}"
            ran += 1
    assert ran, "no strategy takes the region"


def assert_powers_of_two(program: TileProgram) -> None:
    for launch in program.launches:
        extents = [axis.step or 1 for axis in launch.grid]
        for statement in statements(launch.body):
            extents += [statement.extent] if isinstance(statement, AxisDecl) else []
            extents += [statement.step] if isinstance(statement, For) and statement.kind != "scalar" else []
        assert all(n & (n - 1) == 0 for n in extents), extents
