"""Copies of modules: the same in all that can be compared, and apart from then on."""

from __future__ import annotations

import numpy as np

from ourcc.ir.graph import ConstantData, Module
from ourcc.ir.graph.compare import difference
from ourcc.ir.graph.copy import copied
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.rewrite import Rewriter
from ourcc.ir.graph.text import module_text
from ourcc.ir.graph.verify import verify
from ourcc.passes.base import PassContext
from ourcc.passes.tidy.rank_lines import RankLines

TEXT = """module @m symbols { N in 1..9 } {
  const @w : f32[4] = [1.0, 2.0, 3.0, 4.0]
  func @main(%x: f32[N, 4]) -> (f32[N, 2], i64[N, 2], f32[N, 4]) {
    %a = mul(%x, @w) : f32[N, 4]
    %v, %n = top_k(%a) {axis = 1, k = 2} : f32[N, 2], i64[N, 2]
    %y = add(%a, @w) : f32[N, 4]
    return %v, %n, %y
  }
  func @other(%x: f32[4]) -> f32[4] {
    %y = add(%x, @w) : f32[4]
    return %y
  }
}"""


def module() -> Module:
    found = parse_module(TEXT)
    found.add_state("s", found.constants["w"].type, found.constants["w"])
    found.workload, found.assets = ("N=3",), {"a": b"b"}
    found.functions["other"].add_state(found.states["s"])
    found.functions["other"].set_outputs(found.functions["other"].results)
    return found


def test_a_copy_is_the_same_module() -> None:
    one = module()
    other = copied(one)
    verify(other)
    assert difference(one, other) is None and module_text(one) == module_text(other)
    assert (other.workload, other.assets, other.facts, list(other.functions)) == (one.workload, one.assets, one.facts, list(one.functions))
    assert other.states["s"].initial is other.constants["w"] is not one.constants["w"]
    assert other.constants["w"].constant is one.constants["w"].constant
    assert other.constants["w"].uses.keys().isdisjoint(one.constants["w"].uses)


def test_what_is_done_to_a_copy_is_not_done_to_the_module() -> None:
    one = module()
    text, other = module_text(one), copied(one)
    assert RankLines().run(other, PassContext())
    other.add_constant("w", ConstantData(np.zeros(2, np.float32)))
    other.functions["other"].add_input("more", other.constants["w"].type)
    op = next(iter(other.functions["other"]))
    Rewriter(other, other.functions["other"], "test").replace(op, [other.functions["other"].inputs[0]])
    verify(one)
    assert module_text(one) == text != module_text(other)
    assert set(one.constants) == {"w"} and len(one.functions["other"].inputs) == 2


def test_names_stay_unique_in_a_copy() -> None:
    other = copied(module())
    names = [value.name for op in other.main for value in op.results]
    assert all(other.main.unique(name) != name for name in names)
