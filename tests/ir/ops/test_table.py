"""Every op against its own declaration: types, both modes, regions, refused operands, importer names."""

import numpy as np
import pytest

import ourcc.ir.ops
from ourcc.ir import dims
from ourcc.ir.errors import VerifyError
from ourcc.ir.graph import reference
from ourcc.ir.ops import table
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS, OpDef, Sample
from ourcc.ir.region.interpret import run_region
from ourcc.ir.types import type_of

CASES = [
    pytest.param(definition, sample, id=f"{name}-{n}")
    for name, definition in sorted(OPS.items())
    for n, sample in enumerate(definition.sample_list())
]
VALID = [case for case in CASES if case.values[1].error is None]
FAILING = [case for case in CASES if case.values[1].error is not None]


def types_of(sample: Sample):
    return tuple(None if operand is None else type_of(operand) for operand in sample.operands)


def bodies(definition: OpDef, sample: Sample):
    """The result types, and the results stepwise and wide."""
    types = definition.infer(types_of(sample), sample.attrs)
    wide_operands = tuple(None if a is None else reference._widen(a) for a in sample.operands)
    return (
        types,
        table.run(definition, sample.operands, sample.attrs, types, wide=False),
        table.run(definition, wide_operands, sample.attrs, types, wide=True),
    )


@pytest.mark.parametrize(("definition", "sample"), VALID)
def test_body_has_the_inferred_types_and_agrees_in_both_modes(definition, sample):
    types, stepwise, wide = bodies(definition, sample)
    for type_, array, exact in zip(types, stepwise, wide, strict=True):
        assert type_of(array).dtype == type_.dtype
        assert len(array.shape) == type_.rank
        assert all(not isinstance(size, int) or size == got for size, got in zip(type_.shape, array.shape, strict=True))
        assert exact.shape == array.shape
        assert reference.judge(array, array, exact).passed or not type_.dtype.is_float


@pytest.mark.parametrize(("definition", "sample"), [case for case in VALID if case.values[0].has_region])
def test_region_computes_what_the_body_computes(definition, sample):
    _, stepwise, wide = bodies(definition, sample)
    region = region_of(definition, types_of(sample), sample.attrs)
    arrays = {f"x{n}": operand for n, operand in enumerate(sample.operands) if operand is not None}
    results = run_region(region, arrays)
    for n, (step, exact) in enumerate(zip(stepwise, wide, strict=True)):
        verdict = reference.judge(results[f"y{n}"], step, exact)
        assert verdict.passed, verdict.reason


@pytest.mark.parametrize(("definition", "sample"), FAILING)
def test_refused_operands_say_why(definition, sample):
    with pytest.raises(VerifyError) as caught:
        definition.infer(types_of(sample), sample.attrs)
    assert sample.error in caught.value.message
    assert caught.value.message.startswith(definition.name)
    assert not caught.value.message.endswith(".")


@pytest.mark.parametrize("definition", OPS.values(), ids=list(OPS))
def test_declaration_is_complete(definition):
    assert definition.doc.endswith("."), "the docstring is the documentation"
    assert any(sample.error is None for sample in definition.sample_list())
    assert definition.kind == "opaque" or definition.has_region


@pytest.mark.parametrize("kind", ["onnx", "torch"])
def test_no_importer_name_is_claimed_twice(kind):
    names = [name for definition in OPS.values() for name in getattr(definition, kind)]
    assert len(names) == len(set(names))


def test_structured_and_pointwise_samples_hold_edges():
    for definition in OPS.values():
        shapes = [operand.shape for sample in definition.sample_list() for operand in sample.operands if operand is not None]
        if definition.kind == "pointwise" and any(shapes):
            dtypes = {operand.dtype for sample in definition.sample_list() for operand in sample.operands if operand is not None}
            assert np.dtype(np.float16) in dtypes or definition.name.startswith(("logical", "bit", "shift"))


def test_strings_are_refused_by_pointwise_ops():
    text = type_of(np.asarray(["a"], dtype=object))
    with pytest.raises(VerifyError, match="eq: got string\\[1\\], expected numbers; strings are computed by host steps"):
        OPS["eq"].infer((text, text), {})


def test_package_declares_every_family():
    assert {family.__name__.rsplit(".", 1)[-1] for family in ourcc.ir.ops.FAMILIES} >= {"pointwise", "movement", "contraction", "host"}


def test_a_body_refuses_a_size_that_nobody_bound():
    with pytest.raises(VerifyError, match="size N has no value when the op runs"):
        OPS["dim"].body(value=dims.symbol("N"))


def test_a_name_is_declared_once():
    with pytest.raises(ValueError, match="op relu is declared twice"):

        @table.pointwise()
        def relu(x, /):
            """Again."""
            return x


def test_unknown_attributes_are_refused():
    with pytest.raises(VerifyError, match="relu: unknown attribute 'slope', expected one of none"):
        OPS["relu"].infer((type_of(np.zeros(3, np.float32)),), {"slope": 1})
