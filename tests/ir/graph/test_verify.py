"""The verifier finds every broken rule and shows it among its neighbours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ourcc.ir import dims
from ourcc.ir.dims_text import parse_dim
from ourcc.ir.errors import VerifyError
from ourcc.ir.graph import Graph, Module, Op, Value
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.verify import Verifier, verify
from ourcc.ir.ops.table import OPS
from ourcc.ir.scan import parse_type

TEXT = """module @m symbols { B in 1..32 } {
  const @w : f32[2] = [1.0, 2.0]
  func @main(%x: f32[B, 2]) -> f32[B, 2] {
    %a = neg(%x) : f32[B, 2]   loc("first")
    %b = add(%a, @w) : f32[B, 2]   loc("second")
    %c = exp(%b) : f32[B, 2]
    %d = softmax(%c) {axis = 1} : f32[B, 2]
    %e = abs(%d) : f32[B, 2]
    return %e
  }
}
"""


@pytest.fixture
def module() -> Module:
    return parse_module(TEXT)


def op_named(module: Module, name: str) -> Op:
    return next(op for op in module.main if op.name == name)


def refused(module: Module) -> VerifyError:
    with pytest.raises(VerifyError) as caught:
        verify(module)
    return caught.value


def test_a_sound_module(module):
    verify(module)
    checker = Verifier()
    checker.verify(module)
    checker.verify(module)


def test_a_wrong_type_is_shown_among_three_neighbours_on_each_side(module):
    op_named(module, "softmax").result.type = parse_type("f32[2, B]")
    error = refused(module)
    assert error.message == "softmax: %d has type f32[2, B], expected f32[B, 2]"
    assert error.note == "\n".join(
        (
            "  %a = neg(%x) : f32[B, 2]",
            "  %b = add(%a, @w) : f32[B, 2]",
            "  %c = exp(%b) : f32[B, 2]",
            "> %d = softmax(%c) {axis = 1} : f32[2, B]",
            "  %e = abs(%d) : f32[B, 2]",
        )
    )


def test_operands_that_do_not_fit(module):
    module.main.inputs[0].type = parse_type("i32[B, 2]")
    op_named(module, "neg").result.type = parse_type("i32[B, 2]")
    error = refused(module)
    assert error.message.startswith("add:") and "i32" in error.message
    assert error.source is not None and error.source.name == "second"


def test_order(module):
    op = op_named(module, "neg")
    graph = module.main
    graph.set_operand(op, 0, op_named(module, "exp").result)
    assert refused(module).message == "neg reads %c before it is defined"


def test_operand_count(module):
    op = op_named(module, "add")
    del op.operands[1].uses[op]
    op.operands = op.operands[:1]
    assert refused(module).message == "add: got 1 operands, expected 2"


def test_results(module):
    op = op_named(module, "abs")
    op.results = (*op.results, Value("extra", op.result.type, op=op))
    assert refused(module).message == "abs has 2 results, expected 1"


def test_a_result_of_another_op(module):
    op_named(module, "abs").result.op = op_named(module, "neg")
    assert refused(module).message == "%e does not know that abs defines it"


def test_symbols_are_declared(module):
    module.main.inputs[0].type = parse_type("f32[Q, 2]")
    assert refused(module).message == "input %x: symbol Q is not declared"


def test_symbols_in_attributes_are_declared(module):
    op = op_named(module, "softmax")
    op.attrs["axis"] = dims.symbol("Q")
    assert refused(module).message == "softmax: attribute axis: symbol Q is not declared"


@pytest.mark.parametrize(
    ("name", "low", "high", "divisor", "message"),
    [
        ("a b", 0, None, 1, "symbol 'a b' is not a name"),
        ("f32", 0, None, 1, "symbol 'f32' is not a name"),
        ("Q", 3, 2, 1, "symbol Q has the empty range 3..2"),
        ("Q", 0, None, 0, "symbol Q has divisor 0, expected at least 1"),
    ],
)
def test_symbols_are_sound(module, name, low, high, divisor, message):
    module.declare(name, low, high, divisor)
    assert refused(module).message.startswith(message)


def test_sizes_that_broadcast_are_of_known_symbols(module):
    module.facts = replace(module.facts, broadcasts=((dims.symbol("Q"), 3),))
    assert refused(module).message == "broadcasting size Q names Q, which is no symbol of the module"


def test_attributes(module):
    op = op_named(module, "softmax")
    op.attrs["axis"] = [1]
    assert "softmax: axis: attribute of type list has no text" in refused(module).message
    op.attrs = {}
    assert refused(module).message == "softmax: attribute 'axis' is missing"
    op.attrs = {"axis": 1, "other": 2}
    assert refused(module).message == "softmax: unknown attribute 'other'"


def test_constants(module):
    value = module.constants["w"]
    module.constants = {"v": value}
    assert refused(module).message == "constant @w stands under the name @v"
    module.constants = {}
    assert refused(module).message == "add reads constant @w, which the module does not hold"
    module.constants = {"w": value}
    value.type = parse_type("f32[B]")
    assert refused(module).message == "constant @w has the symbolic type f32[B], expected known sizes"
    value.type = parse_type("f32[3]")
    assert refused(module).message == "constant @w holds f32[2], expected f32[3]"
    module.constants["x"] = module.main.inputs[0]
    value.type = parse_type("f32[2]")
    assert refused(module).message == "%x: f32[B, 2] stands among the constants and is none"


def test_names_and_definitions_are_unique(module):
    op_named(module, "exp").result.name = "a"
    assert refused(module).message == "two values have the name %a"
    op_named(module, "exp").result.name = "c"
    module.main.inputs.append(module.main.inputs[0])
    assert refused(module).message == "%x is defined twice"
    module.main.inputs = [module.constants["w"]]
    assert refused(module).message == "@w is a constant, expected a value"


def test_uses(module):
    value = op_named(module, "exp").result
    op = op_named(module, "softmax")
    value.uses[op] = 2
    assert refused(module).message == "%c is recorded as read 2 times by softmax, which reads it 1 times"
    value.uses.clear()
    assert refused(module).message == "%c does not know that softmax reads it"


def test_outputs(module):
    foreign = Value("foreign", parse_type("f32[2]"))
    module.main.set_outputs([foreign])
    assert refused(module).message == "function @main returns %foreign, which is not defined"
    module.main.set_outputs([module.main.inputs[0]], ["x", "y"])
    assert refused(module).message == "function @main has 1 outputs and 2 names of outputs"


def test_the_list_of_ops(module):
    op = op_named(module, "exp")
    op.previous = None
    assert refused(module).message == "exp: the list of ops is broken in front of it"
    op.previous = op_named(module, "add")
    module.main.last = op
    assert refused(module).message == "function @main: the list of ops does not end at its last op"


def test_functions(module):
    graph = module.functions.pop("main")
    assert refused(module).message == "module @m has no function"
    module.functions["main"] = Graph("other")
    assert refused(module).message == "function @other stands under the name @main"
    module.functions["main"] = graph
    op_named(module, "exp").definition = OPS["exp"].__class__(lambda x, /: x, "pointwise", (), (), ())
    assert "there is no op" in refused(module).message


def test_a_size_that_is_equal_but_written_otherwise_is_accepted(module):
    op_named(module, "abs").result.type = parse_type("f32[B, 2]").with_shape((parse_dim("(2*B) // 2"), 2))
    verify(module)


def test_symbols_have_values_before_they_are_needed():
    text = """
module @m symbols { N in 1.., u in 0.. } {
  func @main(%x: f32[N]) -> i64[] {
    %n = nonzero(%x) {count = u} : i64[1, u]
    %y = dim() {value = u + N} : i64[]
    return %y
  }
}"""
    module = parse_module(text)
    verify(module)
    module.main.remove(op_named(module, "nonzero"))
    assert refused(module).message == "dim needs the symbol u, which has no value before it"
