"""Printing and parsing modules: nothing is lost, whatever things are called; broken text is one clear error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ourcc.ir import ops as _ops  # noqa: F401  (declares every op)
from ourcc.ir.errors import ParseError, Source, VerifyError
from ourcc.ir.graph import Builder, ConstantData, Graph, Module
from ourcc.ir.graph.compare import difference
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.text import attribute_text, constant_text, module_text
from ourcc.ir.graph.verify import verify
from ourcc.ir.ops.table import OPS
from ourcc.ir.scan import parse_type
from ourcc.ir.types import DTYPES, TensorType, f32, type_of

MLP = """module @mlp symbols { B in 1..32, S in 1.. divisor 16 } {
  const @fc1.weight : f32[1536, 384]   # sha256:9f2c4a1b9f2c4a1b9f2c4a1b9f2c4a1b9f2c4a1b9f2c4a1b9f2c4a1b9f2c4a1b
  const @half : f32[] = 0.5   loc("act/half")
  const @"a name\\twith \\"quotes\\"" : i64[2] = [1, -2]
  func @main(%x: f32[B, 384], %"on::x": i64[4*B + S] loc("ids", "model.py", 3)) -> (f32[B, 1536], f32[B, 384]) {
    %h = matmul(%x, @fc1.weight) {transpose_b = true} : f32[B, 1536]   loc("fc1")
    %y = gelu(%h) {approximate = "tanh"} : f32[B, 1536]   loc("act", "model.py", 12)
    %low.1 = clip(%x, _, @half) : f32[B, 384]
    return %y as "hidden \\u00e9", %low.1
  }
}
"""


def build(definition, operands, attrs) -> Module:
    module = Module("sample")
    graph = Graph("main")
    module.functions["main"] = graph
    values = [None if array is None else graph.add_input(f"x{n}", type_of(array)) for n, array in enumerate(operands)]
    graph.set_outputs(list(Builder(module, graph).build(definition, values, attrs)))
    return module


def round_trip(module: Module, arrays=None) -> Module:
    text = module_text(module)
    again = parse_module(text, arrays)
    assert difference(module, again) is None
    assert module_text(again) == text
    return again


def test_text_is_read_back_letter_by_letter():
    module = parse_module(MLP)
    verify(module)
    assert module_text(module) == MLP
    assert module.main.outputs[1].op.operands[1] is None
    assert module.main.output_names == ["hidden \u00e9", "low.1"]
    assert module.main.inputs[1].source == Source("ids", "model.py", 3)
    assert module.facts.ranges["S"].high is None and module.facts.divisors == {"S": 16}


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_sample_of_every_op_survives(name):
    for sample in OPS[name].sample_list():
        if sample.error is None:
            round_trip(build(OPS[name], sample.operands, sample.attrs))


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=12), st.text(max_size=12), st.text(max_size=12), st.text(max_size=8), st.integers(0, 10**6))
def test_hostile_names(module_name, input_name, constant_name, output_name, line):
    module = Module(module_name)
    graph = Graph("main")
    module.functions["main"] = graph
    x = graph.add_input(input_name, TensorType(f32, (2,)), Source(constant_name, output_name, line))
    constant = module.add_constant(constant_name, np.array([1.0, 2.0], np.float32))
    graph.set_outputs([Builder(module, graph, source=Source(input_name)).add(x, constant)], [output_name])
    again = round_trip(module)
    assert again.name == module_name
    assert again.main.inputs[0].source == x.source
    assert list(again.constants) == [constant_name]


@pytest.mark.parametrize("dtype", sorted(set(DTYPES) - {"string", "c64", "c128"}))
def test_small_constants_of_every_dtype_stand_inline(dtype):
    signed = [1, 2, 4, 2] if dtype == "f8e8m0" else [0, 1, -1, -2]
    numbers = [0, 1, 0, 1] if dtype == "bool" else [0, 1, 2, 3] if dtype.startswith("u") else signed
    array = np.array(numbers, np.float32).astype(DTYPES[dtype].numpy).reshape(2, 2)
    module = Module("m")
    module.add_constant("c", array)
    line = constant_text(module.constants["c"])
    assert "sha256" not in line
    found = parse_module(f"module @m {{\n{line}\n}}").constants["c"].constant.array
    assert found.dtype == array.dtype and found.tobytes() == array.tobytes()


def test_special_numbers_survive():
    module = Module("m")
    arrays = [
        np.array([np.inf, -np.inf, np.nan, -0.0, 1e-45, 3.4028235e38], np.float32),
        np.array(0.1),
        np.array([1 + 2j, complex(-0.0, np.inf)], np.complex64),
        np.array(1j),
        np.array([2**64 - 1, 0], np.uint64),
        np.array([], np.int32),
        np.array(["", 'a "b"', "\n\u20ac"], object),
    ]
    for array in arrays:
        module.add_constant("c", array)
    again = parse_module(module_text(module))
    for array, value in zip(arrays, again.constants.values(), strict=True):
        found = value.constant.array
        assert found.dtype == array.dtype and found.shape == array.shape
        assert list(found) == list(array) if array.dtype == object else found.tobytes() == array.tobytes()


def test_a_nan_with_a_payload_travels_beside_the_text():
    array = np.array([0x7FC00001], np.uint32).view(np.float32)
    module = Module("m")
    value = module.add_constant("c", array)
    assert "sha256" in constant_text(value)
    again = parse_module(module_text(module), {value.constant.digest: array})
    assert again.constants["c"].constant.array.tobytes() == array.tobytes()


def test_large_constants_travel_beside_the_text():
    array = np.arange(20, dtype=np.float32)
    module = Module("m")
    digest = module.add_constant("c", array).constant.digest
    text = module_text(module)
    assert f"sha256:{digest}" in text and "19" not in text.split("#")[0]
    assert parse_module(text, {digest: array}).constants["c"].constant.array is array
    assert parse_module(text, lambda key, type: np.zeros(type.shape, np.float32)).constants["c"].constant.array.sum() == 0
    missing = parse_module(text)
    assert module_text(missing) == text
    with pytest.raises(ParseError, match=r"constant @c \(sha256:[0-9a-f]{12}\) has no values here"):
        _ = missing.constants["c"].constant.array


def test_a_constant_is_not_loaded_to_be_printed_when_its_digest_is_known():
    data = ConstantData(load=lambda: pytest.fail("loaded"), digest="ab" * 32)
    module = Module("m")
    module.add_constant("c", data, type=TensorType(f32, (100,)))
    assert f"sha256:{'ab' * 32}" in module_text(module)


def test_attributes():
    values = (None, True, 3, -1, 0.5, 1e-05, float("inf"), "a\n", f32, (1, (2, ())), 1 + 2j)
    texts = ["none", "true", "3", "-1", "0.5", "1e-05", "inf", '"a\\n"', "f32", "[1, [2, []]]", "complex(1.0, 2.0)"]
    assert [attribute_text(value) for value in values] == texts
    with pytest.raises(VerifyError, match="attribute of type list has no text"):
        attribute_text([1])


def test_a_type():
    assert parse_type("bf16[max(B, 2), 3*B + 1]") == TensorType(DTYPES["bf16"], parse_type("f32[max(B, 2), 1 + B*3]").shape)
    with pytest.raises(ParseError, match="cannot read type 'f33\\[2\\]'"):
        parse_type("f33[2]")


OPEN = "module @m { func @main(%x: f32[2]) -> f32[2] { "
BROKEN = [
    ("", "line 1, column 1: got the end, expected 'module'"),
    ("module @m {", "line 1, column 12: got the end, expected 'const', 'state', 'func' or '}'"),
    ("module @m {} x", "got 'x', expected the end"),
    ("module @m { const @c : f32[2] }", "constant @c has neither values"),
    ("module @m { const @c : f32[2] = [1.0] }", "@c: constant of type f32[2] has 1 numbers, expected 2"),
    ("module @m { const @c : i8[] = 300 }", "@c: got '300', expected a number of type i8"),
    ("module @m { const @c : i8[] = 1.5 }", "@c: got '1.5', expected a number of type i8"),
    ("module @m { const @c : f32[] = x }", "@c: got 'x', expected a number of type f32"),
    ("module @m { const @c : f32[] = true }", "@c: got 'true', expected a number of type f32"),
    ("module @m { const @c : f32[B] = [1.0] }", "@c: constant has the symbolic type f32[B], expected known sizes"),
    ("module @m { const @c : f32[] = 1.0 const @c : f32[] = 1.0 }", "constant @c is declared twice"),
    ("module @m symbols { B in 1..2, B in 1..2 } {}", "symbol B is declared twice"),
    ("module @m symbols { B in x } {}", "got 'x } {}', expected a range such as 1..32"),
    ("module @m symbols { B in 1.. } broadcasts { B } {}", "got 'B } {}', expected two sizes such as [A, B]"),
    ("module @m symbols { B in 1.. } broadcasts { [B] } {}", "got 1 sizes, expected two that broadcast"),
    ("module @m symbols { B in 1.. } broadcasts { [B, $] } {}", "cannot read dimension ' $'"),
    ("module @m { func @f() -> () { return } func @f() -> () { return } }", "function @f is defined twice"),
    (OPEN, "function @main ends without a return"),
    (OPEN + "return %z } }", "%z is not defined before it is read"),
    (OPEN + "%y = neg(@w) : f32[2] return %y } }", "@w is not defined before it is read"),
    (OPEN + "%y = nonsense(%x) : f32[2] return %y } }", "there is no op 'nonsense'"),
    (OPEN + "%x = neg(%x) : f32[2] return %x } }", "%x is defined twice"),
    (OPEN + "%y = neg(%x) {a = 1} : f32[2] return %y } }", "neg: unknown attribute 'a'"),
    (OPEN + "%y = softmax(%x) : f32[2] return %y } }", "softmax: attribute 'axis' is missing"),
    (OPEN + "%y = softmax(%x) {axis = 0, axis = 0} : f32[2] return %y } }", "attribute 'axis' is given twice"),
    (OPEN + "%y = softmax(%x) {axis = " + "[" * 40 + "} : f32[2] return %y } }", "attribute is nested more than 32 deep"),
    (OPEN + "%y = softmax(%x) {axis = $} : f32[2] return %y } }", "cannot read dimension '$'"),
    (OPEN + "%y = softmax(%x) {axis = complex(1)} : f32[2] return %y } }", "got 'complex(1)', expected a number"),
    (OPEN + "%y, %z = neg(%x) : f32[2] return %y } }", "neg has 2 results and 1 types"),
    (OPEN + "%y = neg(%x) : q7[2] return %y } }", "cannot read type 'q7[2]'"),
    (OPEN + "%y = neg(%x) : f32 return %y } }", "expected a type such as f32[B, 384]"),
    (OPEN + '%y = neg(%x) : f32[2] loc("a return %y } }', "expected a quoted string"),
    (OPEN + "return } }", "function @main returns (), expected (f32[2])"),
    (OPEN + "%y = neg(%x) : f32[" + "*".join(["(a + b + c + d + e)"] * 30) + "] return %y } }", "more than 4096 terms when multiplied out"),
    (OPEN + "%y = neg(%x) : f32[" + "9" * 30 + "] return %y } }", "is out of range"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN, ids=[row[1] for row in BROKEN])
def test_broken_text(text, message):
    with pytest.raises(ParseError) as caught:
        parse_module(text)
    assert message in caught.value.message
    assert caught.value.message.startswith("line 1, column ")


def test_an_error_shows_its_line():
    with pytest.raises(ParseError) as caught:
        parse_module(MLP.replace("gelu", "gelo"))
    assert caught.value.message == "line 7, column 5: there is no op 'gelo'"
    assert caught.value.note is not None and caught.value.note.startswith("%y = gelo(%h)")


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(MLP) - 1), st.text(max_size=3))
def test_damaged_text_is_read_or_refused_but_never_anything_else(position, replacement):
    text = MLP[:position] + replacement + MLP[position + 1 :]
    try:
        module = parse_module(text)
    except ParseError:
        return
    round_trip(module)


def test_sizes_that_broadcast_are_kept():
    text = MLP.replace("divisor 16 }", "divisor 16 } broadcasts { [B, S], [max(2, B), 2*S] }")
    module = parse_module(text)
    assert module_text(module) == text and len(module.facts.broadcasts) == 2
    round_trip(module)
    assert "symbols differ" in str(difference(parse_module(MLP), module))


def test_comments_mean_nothing():
    text = MLP.replace("  func", "  # a comment\n  func").replace("{\n    %h", "{ # another: %z\n    %h")
    assert module_text(parse_module("# first\n" + text + "# last")) == MLP


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("transpose_b = true", "transpose_b = false", "ops differ"),
        ("gelu(%h)", "relu(%h)", None),
        ("= 0.5", "= -0.5", "ops differ"),
        ("1..32", "1..31", "symbols differ"),
        ("clip(%x, _, @half)", "clip(%x, @half, _)", "ops differ"),
        ("%low.1\n", "%x\n", "outputs differ"),
        ("@main", "@other", "functions differ"),
        ("384]) ->", "384]) ->", None),
    ],
)
def test_structural_differences_are_found(old, new, message):
    text = MLP.replace(old, new).replace('relu(%h) {approximate = "tanh"}', "relu(%h)")
    other = parse_module(text)
    found = difference(parse_module(MLP), other)
    if text == MLP:
        assert found is None
    else:
        assert found is not None and (message or "ops differ") in found


def test_names_and_sources_make_no_difference():
    other = MLP.replace("%h", "%other").replace('loc("fc1")', 'loc("else")').replace("@half", "@c")
    assert difference(parse_module(MLP), parse_module(other)) is None


def test_more_ops_and_other_inputs_are_a_difference():
    longer = MLP.replace("    return", "    %z = neg(%x) : f32[B, 384]\n    return")
    assert "the other ends" in (difference(parse_module(longer), parse_module(MLP)) or "")
    inputs = MLP.replace("i64[4*B + S]", "i32[4*B + S]")
    assert "inputs differ" in (difference(parse_module(MLP), parse_module(inputs)) or "")
