"""Sums of blocks: which products of coded weights are taken apart, what becomes of places, and that the numbers stay."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.expression import Index
from ourcc.ir.formats import FORMATS
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.region import Reduce, Region, accesses, scalars
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.verify import verify_region
from ourcc.ir.types import TensorType, f32, i8, i32
from ourcc.passes.fusion.partition import partition
from ourcc.passes.regions.blocks import in_blocks, split_axis
from ourcc.passes.regions.contraction import Contraction, in_fours, read_contraction

BLOCKS = 3


def product(name: str, blocks: int = BLOCKS, codes: int = 0) -> tuple[Region, dict[str, np.ndarray], dims.Facts]:
    """x times a weight in a format, as one region, with operands that any bytes are codes of.

    With `codes` x is int8 with a scale for each block of so many numbers.
    """
    known, random = FORMATS[name], np.random.default_rng(0)
    module = Module("m")
    graph = module.functions["main"] = Graph("main")
    b = Builder(module, graph)
    k = blocks * known.group
    batch = module.declare("B", 1, 64)
    x = graph.add_input("x", TensorType(i8 if codes else f32, (batch, k)))
    left = x if not codes else b.dequantize(x, graph.add_input("s", TensorType(f32, (batch, k // codes))), axis=1, block=codes, dtype=f32)
    held = []
    for field, kind in zip(known.fields, known.types((20, k), 1), strict=True):
        shape = tuple(int(str(size)) for size in kind.shape)
        numbers = random.uniform(0.01, 0.1, shape) if kind.dtype.is_float else random.integers(0, 120, shape)
        held.append(module.add_constant(field.name, numbers.astype(kind.dtype.numpy)))
    graph.set_outputs([b.matmul(left, b.decode(*held, format=name, axis=1), transpose_b=True)])
    (group,) = partition(module, graph)
    arrays = {"x": random.standard_normal((4, k)).astype(np.float32)}
    if codes:
        arrays = {"x": random.integers(-128, 128, (4, k), np.int8), "s": random.uniform(0.01, 0.1, (4, k // codes)).astype(np.float32)}
    given = {v.name: v.constant.array for v in held if v.constant is not None} | arrays
    operands = {operand.name: given[value.name] for operand, value in zip(group.region.inputs, group.inputs, strict=True)}
    return group.region, operands, module.facts


IN_GROUPS = [name for name, known in FORMATS.items() if known.group > 1]
IN_BLOCKS = [name for name in IN_GROUPS if FORMATS[name].offset is None]
IN_BYTES = [name for name, known in FORMATS.items() if known.has_bytes]


@pytest.mark.parametrize("name", IN_GROUPS)
def test_blocks_are_summed_and_scaled(name: str) -> None:
    region, operands, facts = product(name)
    made = in_blocks(region, facts)
    found = read_contraction(made)
    assert isinstance(found, Contraction)
    # What is added to floats stays with them: their sum alone may be infinite where the whole is not.
    assert (found.block is not None, found.alone) == (name in IN_BLOCKS, None)
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


@pytest.mark.parametrize("name", IN_BYTES)
def test_products_of_bytes_are_summed_as_integers(name: str) -> None:
    block = FORMATS[name].group if FORMATS[name].group in (16, 32) else 32
    region, operands, facts = product(name, blocks=max(1, 96 // FORMATS[name].group), codes=block)
    made = in_blocks(region, facts)
    found = read_contraction(made)
    assert isinstance(found, Contraction) and found.block is not None and found.block.dtype == i32 and in_fours(made, found, facts)
    verify_region(made)
    # What is added to all numbers of a block leaves it with the sum of the left factor alone, which no column has a part in.
    assert found.alone is None or not set(found.alone.axes) & set(found.columns)
    before, after = (run_region(r, operands, {"B": 4})[region.outputs[0].name] for r in (region, made))
    np.testing.assert_allclose(after, before, rtol=2e-6, atol=2e-6 * float(np.abs(before).max()))


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in IN_BYTES])
def test_what_is_no_byte_is_multiplied_in_floats(name: str) -> None:
    region, _, facts = product(name, blocks=max(1, 96 // FORMATS[name].group), codes=32)
    found = read_contraction(in_blocks(region, facts))
    assert isinstance(found, Contraction) and (found.block or found.reduce).dtype == f32


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
