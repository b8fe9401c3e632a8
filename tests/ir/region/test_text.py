"""Region text: round trips of every op's regions, the form that people read, and what is refused."""

import pytest

import ourcc.ir.ops  # noqa: F401 - declares the ops
from ourcc.ir import dims
from ourcc.ir.errors import ParseError
from ourcc.ir.expression import Apply, Constant
from ourcc.ir.ops.structure import region_of
from ourcc.ir.ops.table import OPS
from ourcc.ir.region import Axis, Let, Load, Operand, Ref, Region, Store
from ourcc.ir.region.text import parse_region, print_region
from ourcc.ir.region.verify import verify_region
from ourcc.ir.types import TensorType, c64, f16, f32, type_of

LINEAR = """\
region @linear(%x0: f32[i B, k 384], %x1: f32[j 1536, k 384]) -> %y0: f32[i B, j 1536] {
  axes i: B, j: 1536, k: 384
  %t0 = sum k: mul(%x0[i, k], %x1[j, k]) : f32[i, j]
  %y0[i, j] = max(%t0, f32(0.0))
}
"""


@pytest.mark.parametrize("name", sorted(name for name, definition in OPS.items() if definition.has_region))
def test_every_region_verifies_and_reads_back_equal(name):
    for sample in OPS[name].sample_list():
        if sample.error is not None:
            continue
        region = region_of(OPS[name], tuple(None if a is None else type_of(a) for a in sample.operands), sample.attrs)
        verify_region(region)
        text = print_region(region)
        assert parse_region(text) == region
        assert print_region(parse_region(text)) == text


def test_the_form_that_people_read():
    x, w = TensorType(f32, (dims.symbol("B"), 384)), TensorType(f32, (1536, 384))
    region = region_of(OPS["matmul"], (x, w), {"transpose_b": True}, "linear")
    store = region.body[-1]
    relu = Apply("max", (store.value, Constant(0.0, f32)), f32)
    region = Region(
        region.name, region.inputs, region.outputs, region.axes, (region.body[0], Store("y0", store.axes, store.subscripts, relu))
    )
    assert print_region(region) == LINEAR
    assert parse_region(LINEAR) == region


def test_labels_and_spacing_are_not_read():
    loose = LINEAR.replace("i B", "B").replace("j 1536", "1536").replace("  ", "\n ")
    assert print_region(parse_region(loose)) == LINEAR


def test_names_and_literals_of_every_kind_survive():
    axis = dims.symbol("i")
    x = Load("in put", (axis,), c64, Constant(complex(1, -2), c64))
    body = (
        Let('a "b"', ("i",), Apply("cast", (x,), f16)),
        Let("c", (), Constant(float("-inf"), f32)),
        Let("r", (), Apply("round", (Ref("c", f32),), f16)),
        Let("d", (), Constant(float("nan"), f32)),
        Let("e", (), Constant(-0.0, f32)),
        Store("y.0", ("i",), (axis,), Ref('a "b"', f16)),
    )
    region = Region(
        "model/layer 1",
        (Operand("in put", TensorType(c64, (4,))),),
        (Operand("y.0", TensorType(f16, (dims.symbol("B") * 2 + 1,))),),
        (Axis("i", 4),),
        body,
    )
    assert parse_region(print_region(region)) == region


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("mul(", "multiply(", "line 3, column 16: got 'multiply', expected a scalar primitive"),
        ("%x1[j, k])", "%x9[j, k])", "got 'x9', expected an operand"),
        ("max(%t0", "max(%t9", "got 't9', expected a value named before"),
        ("%t0 = sum", "%x0 = sum", "got 'x0', expected a name that is not taken"),
        (": f32[i, j]\n", ": f31[i, j]\n", "got 'f31', expected one of the dtypes f64, f32"),
        ("%y0[i, j] =", "%y0[i + 1, j] =", "expected 'over (axes)' where subscripts are not plain axes"),
        ("f32(0.0)", "f32(zero)", "got 'zero', expected a number"),
        ("-> %y0", "-> @y0", "got '@', expected '%'"),
        ("{\n", "\n", "got 'axes', expected '{'"),
        ("}\n", "} }", "got '}', expected the end"),
        ("axes i: B", "axes i: B ^ 2", "cannot read dimension 'B ^ 2'"),
        ("}\n", "", "got 'the end of the line', expected '%'"),
        ("@linear", '@"lin', "expected a name"),
        ("max(%t0, f32(0.0))", "%t0, f32(0.0))", "got ',', expected '%'"),
    ],
)
def test_what_is_refused(before, after, message):
    with pytest.raises(ParseError) as caught:
        parse_region(LINEAR.replace(before, after))
    assert message in caught.value.message


def test_a_let_states_the_dtype_of_its_value():
    with pytest.raises(ParseError, match="got 'f16', expected the dtype of the value, f32"):
        parse_region("region @r(%x: f32[4]) -> %y: f32[4] {\n  axes i: 4\n  %t = %x[i] : f16[i]\n  %y[i] = %t\n}\n")


def test_deep_nesting_is_an_error_not_a_crash():
    value = "neg(" * 5000 + "%t0" + ")" * 5000
    with pytest.raises(ParseError, match="expected values nested at most 200 deep"):
        parse_region(LINEAR.replace("max(%t0, f32(0.0))", value))
