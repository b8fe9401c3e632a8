"""Every op on an axis without elements, its other sizes known or not: an engine is built and answers as the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from generator import Array, Case
from harness import failing, report

from ourcc.ir import dims
from ourcc.ir.dims import Dim
from ourcc.ir.errors import CompilerError
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.graph.reference import interpret
from ourcc.ir.ops.table import OPS, OpDef, Sample
from ourcc.ir.types import TensorType, type_of

BATCH = 100


def emptied(op: OpDef, sample: Sample) -> Iterator[Case]:
    """The sample with each of its sizes in turn nothing, wherever it stands."""
    given = [array for array in sample.operands if array is not None]
    for size in dict.fromkeys(n for array in given for n in array.shape if n):
        arrays = [array[(*(slice(0 if n == size else n) for n in array.shape), ...)] for array in given]
        for has_symbols in (False, True):
            case = _case(op, sample, arrays, has_symbols)
            if case is not None:
                yield case


def _case(op: OpDef, sample: Sample, arrays: list[Array], has_symbols: bool) -> Case | None:
    """A module of the one op; None where it takes no such operands."""
    module, graph = Module("case"), Graph("main")
    module.functions["main"] = graph
    sizes: dict[int, Dim] = {0: 0, 1: 1}
    left = iter(arrays)
    try:
        values = []
        for place, array in enumerate(sample.operands):
            if array is None:
                values.append(None)
                continue
            type = _typed(module, next(left), sizes) if has_symbols else type_of(next(left))
            values.append(graph.add_input(f"x{place}", type))
        results = Builder(module, graph).build(op, tuple(values), dict(sample.attrs))
        if any(dims.symbols(size) - module.facts.ranges.keys() for result in results for size in result.shape):
            return None  # a size that the op itself finds out
        graph.set_outputs(list(results), [f"y{n}" for n in range(len(results))])
        with np.errstate(all="ignore"):
            interpret(module, arrays)
            interpret(module, arrays, wide=True)
    except (CompilerError, ValueError, IndexError):
        return None
    return Case(module, (tuple(arrays), tuple(arrays)))


def _typed(module: Module, array: Array, sizes: dict[int, Dim]) -> TensorType:
    """The type of an array, every size of at least 2 a symbol."""
    for size in array.shape:
        if size not in sizes:
            sizes[size] = module.declare(f"n{size}", 1)
    return type_of(array).with_shape(tuple(sizes[n] for n in array.shape))


def cases() -> Mapping[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for name, op in OPS.items():
        if op.is_pure:
            made = [case for sample in op.sample_list() if sample.error is None for case in emptied(op, sample)]
            if made:
                found[name] = made[:4]
    return found


def test_enough_ops_are_tried() -> None:
    assert len(cases()) > 100


def test_nothing_is_built_and_answered() -> None:
    drawn = [case for made in cases().values() for case in made]
    for start in range(0, len(drawn), BATCH):
        for case, why in failing(drawn[start : start + BATCH]):
            pytest.fail(report(case, why))
