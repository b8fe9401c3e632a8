"""Dead code, common subexpressions and constant folding."""

from __future__ import annotations

import numpy as np
import pytest

from ourcc.ir.graph import Builder, ConstantData, Graph, Module
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import interpret
from ourcc.ir.graph.text import module_text
from ourcc.ir.scan import parse_type
from ourcc.passes.base import PassContext
from ourcc.passes.tidy.eliminate_common_subexpressions import EliminateCommonSubexpressions
from ourcc.passes.tidy.eliminate_dead_code import EliminateDeadCode
from ourcc.passes.tidy.fold_constants import FoldConstants, FoldOp


def program(body: str, constants: str = "", inputs: str = "%x: f32[B, 3], %z: f32[B, 3]", result: str = "f32[B, 3]") -> str:
    lines = "".join(f"    {line.strip()}\n" for line in body.strip().splitlines())
    declared = "".join(f"  const {line.strip()}\n" for line in constants.strip().splitlines())
    return f"module @m symbols {{ B in 1..8 }} {{\n{declared}  func @main({inputs}) -> {result} {{\n{lines}  }}\n}}\n"


def test_dead_ops_and_constants(check_pass):
    before = program("%a = exp(%x) : f32[B, 3]\n%b = mul(%a, @c) : f32[B, 3]\n%y = neg(%x) : f32[B, 3]\nreturn %y", "@c : f32[] = 2.0")
    module = check_pass(EliminateDeadCode(), before, program("%y = neg(%x) : f32[B, 3]\nreturn %y"))
    assert not module.constants


def test_a_constant_that_is_returned_stays(check_pass):
    check_pass(EliminateDeadCode(), program("return @c", "@c : f32[] = 2.0", result="f32[]"), None)


def test_equal_ops_are_one(check_pass):
    before = program(
        "%a = mul(%x, %z) : f32[B, 3]\n%b = mul(%z, %x) : f32[B, 3]\n%c = sub(%x, %z) : f32[B, 3]\n%d = sub(%z, %x) : f32[B, 3]\n"
        "%e = add(%a, %b) : f32[B, 3]\n%f = add(%c, %d) : f32[B, 3]\n%y = add(%e, %f) : f32[B, 3]\nreturn %y"
    )
    after = program(
        "%a = mul(%x, %z) : f32[B, 3]\n%c = sub(%x, %z) : f32[B, 3]\n%d = sub(%z, %x) : f32[B, 3]\n"
        "%e = add(%a, %a) : f32[B, 3]\n%f = add(%c, %d) : f32[B, 3]\n%y = add(%e, %f) : f32[B, 3]\nreturn %y"
    )
    check_pass(EliminateCommonSubexpressions(), before, after)


def test_equal_small_constants_are_one_and_zeros_of_two_signs_are_not(check_pass):
    constants = "@p : f32[] = 0.0\n@q : f32[] = 0.0\n@m : f32[] = -0.0"
    body = "%a = div(%x, @p) : f32[B, 3]\n%b = div(%x, {}) : f32[B, 3]\n%y = maximum(%a, %b) : f32[B, 3]\nreturn %y"
    after = program("%a = div(%x, @p) : f32[B, 3]\n%y = maximum(%a, %a) : f32[B, 3]\nreturn %y", constants)
    check_pass(EliminateCommonSubexpressions(), program(body.format("@q"), constants), after)
    check_pass(EliminateCommonSubexpressions(), program(body.format("@m"), constants), None)


def test_attributes_of_two_types_differ(check_pass):
    body = "%a = full() {value = 1, shape = [3], dtype = f32} : f32[3]\n%b = full() {value = 2, shape = [3], dtype = f32} : f32[3]\n"
    body += "%c = add(%x, %a) : f32[B, 3]\n%y = add(%c, %b) : f32[B, 3]\nreturn %y"
    check_pass(EliminateCommonSubexpressions(), program(body), None)


def test_folds_what_is_constant_and_keeps_names_and_sources(check_pass):
    before = program(
        '%t = transpose(@w) {permutation = [1, 0]} : f32[3, 2]   loc("t")\n%e = neg(%t) : f32[3, 2]   loc("e")\n'
        "%y = matmul(%x, %e) : f32[B, 2]\nreturn %y",
        "@w : f32[2, 3] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]",
        result="f32[B, 2]",
    )
    after = program(
        "%y = matmul(%x, @e) : f32[B, 2]\nreturn %y", "@e : f32[3, 2] = [-1.0, -4.0, -2.0, -5.0, -3.0, -6.0]", result="f32[B, 2]"
    )
    module = check_pass(FoldConstants(), before, after)
    assert module.constants["e"].source.name == "e"


def test_ops_without_operands_fold_when_small(check_pass):
    body = "%i = iota() {shape = [3], axis = 0, dtype = f32} : f32[3]\n%y = add(%x, %i) : f32[B, 3]\nreturn %y"
    check_pass(FoldConstants(), program(body), program("%y = add(%x, @i) : f32[B, 3]\nreturn %y", "@i : f32[3] = [0.0, 1.0, 2.0]"))


@pytest.mark.parametrize(
    ("body", "step", "reason"),
    [
        ("%y = neg(%x) : f32[B, 3]", FoldConstants(), "an operand is not constant"),
        ("%y = broadcast_to(@w) {shape = [B, 3]} : f32[B, 3]", FoldConstants(), "a size is symbolic"),
        ("%y = broadcast_to(@w) {shape = [9, 3]} : f32[9, 3]", FoldConstants(growth=64), "the result has 108 bytes, its operands have 12"),
        ("%y = neg(@w) : f32[3]", FoldConstants(limit=2), "the result has 3 elements, more than 2"),
        ("%y = dequantize(@q, @s, _) {dtype = f32} : f32[2]", FoldConstants(), "dequantize says how a constant is stored"),
    ],
)
def test_says_why_it_does_not_fold(check_pass, body, step, reason):
    constants = "@w : f32[3] = [1.0, 2.0, 3.0]\n@q : i8[2] = [1, 2]\n@s : f32[] = 0.5"
    result = body.rsplit(": ", 1)[1]
    module = check_pass(step, program(f"{body}\nreturn %y", constants, result=result), None)
    assert FoldOp(step.limit, step.growth, step.work).check(module.main.last, module) == reason


def test_values_that_are_not_given_are_not_asked_for():
    text = program("%y = neg(@w) : f32[3]\nreturn %y", f"@w : f32[3]   # sha256:{'ab' * 32}", result="f32[3]")
    module = parse_module(text)
    assert not FoldConstants().run(module, PassContext())
    assert FoldOp(9, 9, 9).check(module.main.last, module) == "the values of an operand are not given"


def test_large_results_are_computed_when_asked_for():
    asked = []

    def load() -> np.ndarray:
        asked.append(1)
        return np.arange(8192, dtype=np.float32).reshape(64, 128)

    module = Module("m")
    weight = module.add_constant("w", ConstantData(load=load), type=parse_type("f32[64, 128]"))
    module.functions["main"] = graph = Graph("main")
    x = graph.add_input("x", parse_type("f32[2, 64]"))
    g = Builder(module, graph)
    graph.set_outputs([g.matmul(x, g.transpose(g.transpose(g.neg(weight), permutation=(1, 0)), permutation=(1, 0)))])
    assert FoldConstants().run(module, PassContext())
    assert len(graph) == 1
    asked_early = len(asked)
    result = interpret(module, [np.ones((2, 64), np.float32)])[0]
    assert result[0, 0] == -np.arange(0, 8192, 128, dtype=np.float32).sum()
    assert asked_early <= 1 and len(asked) == 1
    assert "sha256:" in module_text(module)


def test_what_is_gathered_by_constants_is_gathered_once(check_pass):
    """Though it is larger than the table and the indices; what is only repeated stays a view."""
    body = (
        "%t = take(@b, @i) {{axis = 1}} : f32[4, 9604]\n%e = broadcast_to(@b) {{shape = [500, 4, 196]}} : f32[500, 4, 196]\nreturn %t, %e"
    )
    text = f"""module @m {{
  const @b : f32[4, 196] = {[1.0] * 784}
  const @i : u8[9604] = {[7] * 9604}
  func @main() -> (f32[4, 9604], f32[500, 4, 196]) {{
    {body.format()}
  }}
}}
"""
    module = parse_module(text)
    FoldConstants().run(module, PassContext())
    assert [op.name for op in module.main] == ["broadcast_to"]
