"""Every op's region through every strategy that takes it: the tile program computes what the region means."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.graph.reference import judge
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS, OpDef, Sample
from ourcc.ir.region.interpret import run_region
from ourcc.ir.target import AVX2, AVX512, AVX512_AMX
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.program import TileProgram
from ourcc.ir.tile.verify import verify
from ourcc.ir.types import type_of
from ourcc.passes.lower.layout import constant_layouts
from ourcc.passes.regions.simplify_region import simplify_region
from ourcc.passes.tile.cpu import STRATEGIES
from ourcc.passes.tile.schedule import Problem, matches


def cases() -> list[tuple[OpDef, int, Sample]]:
    return [(op, n, sample) for op in OPS.values() if op.has_region for n, sample in enumerate(op.sample_list()) if sample.error is None]


@pytest.mark.parametrize(("op", "number", "sample"), cases(), ids=lambda value: value.name if isinstance(value, OpDef) else None)
def test_tile_program_computes_the_region(op: OpDef, number: int, sample: Sample) -> None:
    """At each level, with operands that are unknown and that are constants; what comes out the same is looked at once."""
    types = [None if a is None else type_of(a) for a in sample.operands]
    region = region_of(op, types, sample.attrs)
    assert region is not None
    arrays = {f"x{n}": a for n, a in enumerate(sample.operands) if a is not None}
    arrays = {operand.name: arrays[operand.name] for operand in region.inputs}
    with np.errstate(all="ignore"):
        expected = run_region(region, arrays)
    region = simplify_region(region, dims.NO_FACTS)
    seen: set[TileProgram] = set()
    for level, constants in itertools.product((AVX2, AVX512, AVX512_AMX), (frozenset[str](), frozenset(arrays))):
        problem = Problem(region, dims.NO_FACTS, constant_layouts(region, constants), constants)
        found = [
            (match.strategy.name, match.strategy.tile(match, next(iter(match.strategy.space(match, level))), level))
            for match in matches(STRATEGIES, problem, level)
        ]
        assert found, f"no strategy takes the region for {level.name}"
        for strategy, program in found:
            # A program names the layouts of its operands: where it is the same, so is what it is given.
            if program in seen:
                continue
            seen.add(program)
            verify(program, problem.symbols)
            packed = {}
            for operand in region.inputs:
                array = arrays[operand.name].reshape(tuple(dims.evaluate(d, {}) for d in operand.type.shape))
                layout = problem.layouts.get(operand.name)
                packed[operand.name] = layout.pack(array) if layout is not None else array
            with np.errstate(all="ignore"):
                got = run(program, packed, {})
            for name, array in expected.items():
                verdict = judge(got[name].reshape(array.shape), array, array.astype(np.float64) if array.dtype.kind == "f" else array)
                assert verdict.passed, f"{strategy} for {level.name}: {name}: {verdict.reason}"
