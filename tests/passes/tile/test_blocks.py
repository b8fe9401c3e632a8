"""Sums of blocks: which products of coded weights are taken apart, what becomes of places, and that the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.formats import FORMATS
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.region import Index, Reduce, Region, accesses, scalars
from ourcc.ir.region_interpret import run_region
from ourcc.ir.region_verify import verify_region
from ourcc.ir.types import TensorType, f32
from ourcc.passes.fusion.partition import partition
from ourcc.passes.tile.blocks import in_blocks, split_axis
from ourcc.passes.tile.contraction import Contraction, read_contraction

BLOCKS = 3


def product(name: str, blocks: int = BLOCKS) -> tuple[Region, dict[str, np.ndarray], dims.Facts]:
    """x times a weight in a format, as one region, with operands that any bytes are codes of."""
    known, random = FORMATS[name], np.random.default_rng(0)
    module = Module("m")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    k = blocks * known.group
    x = graph.add_input("x", TensorType(f32, (module.declare("B", 1, 64), k)))
    held = []
    for field, kind in zip(known.fields, known.types((20, k), 1), strict=True):
        shape = tuple(int(str(size)) for size in kind.shape)
        numbers = random.uniform(0.01, 0.1, shape) if kind.dtype.is_float else random.integers(0, 120, shape)
        held.append(module.add_constant(field.name, numbers.astype(kind.dtype.numpy)))
    graph.set_outputs([b.matmul(x, b.decode(*held, format=name, axis=1), transpose_b=True)])
    (group,) = partition(module, graph)
    arrays = {"x": random.standard_normal((4, k)).astype(np.float32)}
    given = {v.name: v.constant.array for v in held if v.constant is not None} | arrays
    operands = {operand.name: given[value.name] for operand, value in zip(group.region.inputs, group.inputs, strict=True)}
    return group.region, operands, module.facts


IN_BLOCKS = [name for name, known in FORMATS.items() if known.group > 1 and known.offset is None]


@pytest.mark.parametrize("name", [name for name, known in FORMATS.items() if known.group > 1])
def test_blocks_are_summed_and_scaled(name: str) -> None:
    region, operands, facts = product(name)
    made = in_blocks(region, facts)
    found = read_contraction(made)
    assert isinstance(found, Contraction)
    assert (found.block is not None) == (name in IN_BLOCKS)
    verify_region(made)
    sizes = {"B": 4}
    before, after = (run_region(r, operands, sizes)[region.outputs[0].name] for r in (region, made))
    np.testing.assert_allclose(after, before, rtol=2e-5, atol=2e-5 * float(np.abs(before).max()))
    if found.block is None:
        return
    # No place is divided any more: what was a quotient is an axis.
    everywhere = [s for _, subscripts in accesses(made.body) for s in subscripts]
    everywhere += [part.value for part in scalars(made.body) if isinstance(part, Index)]
    assert not any(dims.has_division(dim) for dim in everywhere if not isinstance(dim, int))
    assert [type(s) for s in made.body].count(Reduce) == 2
    assert set(found.streamed) < set(found.over) and found.over[len(found.reduce.over) :] == found.streamed


@pytest.mark.parametrize("name", ["int8", "fp8.e4m3", "q4_1"])
def test_what_has_no_scales_in_blocks_stays(name: str) -> None:
    region, _, facts = product(name, blocks=64 if FORMATS[name].group == 1 else BLOCKS)
    assert in_blocks(region, facts) is region or read_contraction(in_blocks(region, facts)).block is None  # type: ignore[union-attr]


def test_an_axis_is_split_in_place() -> None:
    region, operands, facts = product("int4.g32")
    (name,) = read_contraction(region).over  # type: ignore[union-attr]
    made = split_axis(region, name, [32, 16], facts)
    verify_region(made)
    assert [axis.extent for axis in made.axes if axis.name.startswith(name)] == [3, 2, 16]
    before, after = (run_region(r, operands, {"B": 4})[region.outputs[0].name] for r in (region, made))
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)
