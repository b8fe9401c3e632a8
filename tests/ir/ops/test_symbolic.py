"""Every op with a region accepts symbolic sizes: the region built once over a symbol runs right at the sample's size."""

import numpy as np
import pytest

import ourcc.ir.ops  # noqa: F401 - declares the ops
from ourcc.ir import dims
from ourcc.ir.errors import VerifyError
from ourcc.ir.graph import reference
from ourcc.ir.ops import table
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS
from ourcc.ir.region.interpret import run_region
from ourcc.ir.region.verify import verify_region
from ourcc.ir.types import TensorType, type_of

SYMBOL = dims.symbol("i")  # the name an axis would have: axes and symbols must not meet
SIZES = ("shape", "sizes", "value")


def symbolic(type_, size):
    return None if type_ is None else TensorType(type_.dtype, tuple(SYMBOL if d == size else d for d in type_.shape))


def symbolic_attrs(attrs, size):
    def change(value):
        return tuple(SYMBOL if d == size and not isinstance(d, bool) else d for d in value) if isinstance(value, tuple) else value

    return {name: change(value) if name in SIZES else value for name, value in attrs.items()}


def variants(definition):
    """Valid samples with one of their sizes made a symbol, where type inference accepts that."""
    for sample in definition.sample_list():
        if sample.error is not None:
            continue
        arrays = [a for a in sample.operands if a is not None]
        own = [d for name in SIZES for d in np.ravel(sample.attrs.get(name, ())) if not arrays]
        for size in sorted({int(d) for d in (*(d for a in arrays for d in a.shape), *own) if d > 1}):
            types = tuple(None if a is None else symbolic(type_of(a), size) for a in sample.operands)
            attrs = symbolic_attrs(sample.attrs, size)
            if definition.name == "dim":
                attrs = {"value": SYMBOL}
            if attrs == sample.attrs and all(t is None or t.is_static for t in types):
                continue
            try:
                definition.infer(types, attrs)
            except VerifyError:
                continue
            yield sample, types, attrs, size


@pytest.mark.parametrize("name", sorted(name for name, definition in OPS.items() if definition.has_region))
def test_region_over_a_symbol(name):
    definition = OPS[name]
    tried = 0
    for sample, types, attrs, size in variants(definition):
        region = region_of(definition, types, attrs)
        verify_region(region)
        results = run_region(region, {f"x{n}": a for n, a in enumerate(sample.operands) if a is not None}, {"i": size})
        fixed = definition.infer(tuple(None if a is None else type_of(a) for a in sample.operands), sample.attrs)
        stepwise = table.run(definition, sample.operands, sample.attrs, fixed, wide=False)
        wide_operands = tuple(None if a is None else reference._widen(a) for a in sample.operands)
        wide = table.run(definition, wide_operands, sample.attrs, fixed, wide=True)
        for n, (step, exact) in enumerate(zip(stepwise, wide, strict=True)):
            verdict = reference.judge(results[f"y{n}"], step, exact)
            assert verdict.passed, (verdict.reason, sample.attrs, size)
        tried += 1
    assert tried, "no sample accepts a symbolic size"
