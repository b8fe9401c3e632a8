"""Groups with several results: what the first group that reads a value stores beside its own, and when it is another's instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from ourcc.ir import dims
from ourcc.ir.graph import Module, Value
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.reference import interpret, judge
from ourcc.ir.region.stores import together
from ourcc.ir.target import AVX2, gpu_target
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.verify import verify
from ourcc.passes.fusion.legality import RESULTS
from ourcc.passes.fusion.partition import Fusion
from ourcc.passes.lower.schedule import Scheduled, Scheduler, cheapest
from ourcc.passes.regions.compose import Group
from ourcc.passes.tile.cpu import STRATEGIES as CPU
from ourcc.passes.tile.gpu import STRATEGIES as GPU

Array = np.ndarray[Any, Any]

SIZES = {"N": 37}
HEAD = "module @m symbols { N in 1..512 } {\n  func @main(%x: f32[N, 48], %z: f32[N, 48]) -> "


def module(results: str, types: str, body: str) -> Module:
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    return parse_module(f"{HEAD}({types}) {{\n{lines}    return {results}\n  }}\n}}\n")


ROWS = "f32[N, 48]"
NORM = f"%h = add(%x, %z) : {ROWS}\n%y = layer_norm(%h, _, _) {{axes = [1], epsilon = 1e-05}} : {ROWS}"
CODES = f"""%a = abs(%x) : {ROWS}
%m = reduce_max(%a) {{axes = [1], keepdims = true}} : f32[N, 1]
%s = mul(%m, %m) : f32[N, 1]
%q = mul(%x, %s) : {ROWS}"""
MEANS = f"""%t = sum(%x) {{axes = [1], keepdims = true}} : f32[N, 1]
%d = sub(%x, %t) : {ROWS}"""
SOFTMAX = f"%s = softmax(%x) {{axis = 1}} : {ROWS}\n%y = mul(%s, %z) : {ROWS}"
GATES = f"%c = mul(%x, %z) : {ROWS}\n%g = tanh(%c) : {ROWS}\n%h = mul(%g, %x) : {ROWS}"
LATER = f"%c = mul(%x, %z) : {ROWS}\n%g = tanh(%c) : {ROWS}\n%t = sum(%c) {{axes = [0], keepdims = false}} : f32[48]"
EARLIER = f"""%m = reduce_max(%x) {{axes = [1], keepdims = true}} : f32[N, 1]
%q = div(%x, %m) : {ROWS}
%e = exp(%m) : f32[N, 1]
%t = mean(%q) {{axes = [0], keepdims = false}} : f32[48]"""

CASES: Mapping[str, tuple[str, str, str, list[int]]] = {
    "norm and residual": ("%h, %y", f"{ROWS}, {ROWS}", NORM, [2]),
    "codes and scales": ("%q, %s", f"{ROWS}, f32[N, 1]", CODES, [2]),
    "sums and differences": ("%t, %d", f"f32[N, 1], {ROWS}", MEANS, [2]),
    "softmax that is read again": ("%s, %y", f"{ROWS}, {ROWS}", SOFTMAX, [2]),
    "cell and hidden state": ("%c, %h", f"{ROWS}, {ROWS}", GATES, [2]),
    "rows for one, columns for another": ("%g, %t", f"{ROWS}, f32[48]", LATER, [2, 1]),
}


def units(found: Module) -> list[Group]:
    made = Fusion(found, found.main).units(lambda group: group)
    return [unit for unit in made if isinstance(unit, Group)]


@pytest.mark.parametrize("name", CASES)
def test_the_first_reader_stores_what_others_read(name: str) -> None:
    results, types, body, counts = CASES[name]
    assert [len(group.outputs) for group in units(module(results, types, body))] == counts


def test_what_gets_a_kernel_of_its_own_reads_nothing_that_a_later_one_stores() -> None:
    found = module("%q, %e, %m, %t", f"{ROWS}, f32[N, 1], f32[N, 1], f32[48]", EARLIER)
    written = set(found.main.inputs)
    for group in units(found):
        assert set(group.inputs) <= written
        written |= set(group.outputs)
    assert set(found.main.outputs) <= written


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("family", ["cpu", "gpu"])
def test_one_kernel_gives_all_results(name: str, family: str) -> None:
    results, types, body, counts = CASES[name]
    found = module(results, types, body)
    strategies, target = (CPU, AVX2) if family == "cpu" else (GPU, gpu_target("sm_90a"))
    scheduler = Scheduler(strategies, target, cheapest(target), lambda *_: {})
    made = Fusion(found, found.main).units(lambda group: scheduler.schedule(group, found.facts))
    assert [len(unit.program.launches) for unit in made if isinstance(unit, Scheduled)] == [1] * len(counts)
    random = np.random.default_rng(3)
    given = [random.standard_normal((SIZES["N"], 48)).astype(np.float32) for _ in found.main.inputs]
    values = dict(zip(found.main.inputs, given, strict=True))
    for unit in made:
        assert isinstance(unit, Scheduled)
        values |= computed(unit, values)
    wide = interpret(found, given, wide=True)
    for value, expected, exact in zip(found.main.outputs, interpret(found, given), wide, strict=True):
        verdict = judge(values[value].reshape(expected.shape), expected, exact)
        assert verdict.passed, verdict.reason


def computed(unit: Scheduled, values: Mapping[Value, Array]) -> dict[Value, Array]:
    """What the tile program of a group gives."""
    sizes = {name: dims.evaluate(size, SIZES) for name, size in unit.binding.items()}
    region = unit.problem.region
    given = {
        operand.name: values[value].reshape(tuple(dims.evaluate(size, sizes) for size in operand.type.shape))
        for operand, value in zip(region.inputs, unit.group.inputs, strict=True)
    }
    verify(unit.program, unit.problem.symbols)
    got = run(unit.program, given, sizes)
    return {value: got[operand.name] for operand, value in zip(region.outputs, unit.group.outputs, strict=True)}


def test_the_end_of_a_product_is_stored_by_the_product() -> None:
    body = "%p = matmul(%x, %z) {transpose_b = true} : f32[N, N]\n%b = add(%p, %p) : f32[N, N]\n%y = sin(%b) : f32[N, N]"
    assert [len(group.outputs) for group in units(module("%b, %y", "f32[N, N], f32[N, N]", body))] == [1, 1]


def test_a_group_has_so_many_results_and_no_more() -> None:
    count = RESULTS + 3
    lines = ["%v0 = sin(%x) : " + ROWS, *(f"%v{n} = mul(%v{n - 1}, %z) : {ROWS}" for n in range(1, count))]
    names = ", ".join(f"%v{n}" for n in range(count))
    found = units(module(names, ", ".join([ROWS] * count), "\n".join(lines)))
    assert [len(group.outputs) for group in found] == [2, RESULTS + 1]


def test_what_is_dear_is_not_computed_once_for_each_fold() -> None:
    body = f"%e = exp(%x) : {ROWS}\n%y = layer_norm(%e, _, _) {{axes = [1], epsilon = 1e-05}} : {ROWS}"
    assert [len(group.outputs) for group in units(module("%e, %y", f"{ROWS}, {ROWS}", body))] == [1, 1]


def test_one_kernel_writes_what_shares_its_parallel_axes() -> None:
    (group,) = units(module(*CASES["norm and residual"][:3]))
    ((residual, norm),) = together(group.region)
    assert (residual.output, norm.output) == ("y1", "y0")
    first, last = units(module(*CASES["rows for one, columns for another"][:3]))
    assert len(together(first.region)) == len(together(last.region)) == 1
