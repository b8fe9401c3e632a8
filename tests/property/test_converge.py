"""Rules converge: on drawn graphs every list of rules comes to rest soon, stays there, and never makes a graph that it has had."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import chain, takewhile

import pytest
from harness import drawn
from weave import woven

from ourcc.compiler.pipeline import GRAPH_PIPELINE
from ourcc.ir.graph import Builder, Graph, Module, Op, Value
from ourcc.ir.graph.parse import parse_module
from ourcc.ir.graph.rewrite import Event, Rule, apply_rules
from ourcc.ir.graph.text import attribute_text, module_text
from ourcc.ir.ops.table import OPS
from ourcc.passes import PASSES, load_pass
from ourcc.passes.base import PassContext, RulePass
from ourcc.passes.manager import PassManager
from ourcc.passes.pipeline import parse_pipeline

WOVEN = 100
"""Graphs of what rules rewrite; beside them stand those that are drawn for whole engines."""
SOUGHT = 900
"""Further ones, drawn for a list of rules that found nothing in all these until it finds something."""
MOST = 3
"""Firings that a list of rules may take for each op of a graph, and ten more."""
SETTLED = 3
"""Runs of the whole pipeline after which nothing changes."""
QUIET = frozenset(
    {
        *("drop_index_checks", "fold_code_scales", "integer_products", "merge_windows", "pack_codes", "pad_terms", "recognize_causal"),
        "recognize_coded_weights",
        "unflatten_norms",
    }
)
"""Lists of rules that may find nothing in these graphs: they are about checks of indices, coded weights, sums of codes and masks."""
RULE_PASSES = [name for name in PASSES if issubclass(load_pass(name), RulePass)]

Make = Callable[[], Module]


@pytest.fixture(scope="module")
def graphs(request: pytest.FixtureRequest) -> list[Make]:
    """What makes each graph anew."""
    count, seed = request.config.getoption("--cases"), _seed(request)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found = [reader(case.module) for case in drawn(count // 8, seed)]
    return [*found, *_woven(request, range(WOVEN))]


def _seed(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--seed", 0))


def _woven(request: pytest.FixtureRequest, numbers: range) -> list[Make]:
    return [partial(woven, 1000 * _seed(request) + number) for number in numbers]


def reader(module: Module) -> Make:
    text = module_text(module)
    arrays = {value.constant.digest: value.constant.array for value in module.constants.values() if value.constant is not None}
    return lambda: parse_module(text, arrays)


def tidied(make: Make) -> Module:
    """A graph without what nobody reads, where a rule could fire and change nothing."""
    module = make()
    PassManager(parse_pipeline("eliminate_dead_code")).run(module)
    return module


def meaning(graph: Graph) -> str:
    """A digest of what a graph computes, op by op, whatever its values are called; pure ops that nothing needs do not count."""

    @cache
    def digest(value: Value | None) -> str:
        if value is None or value.op is None:
            return (
                "-" if value is None else value.constant.digest if value.constant is not None else f"input {graph.arguments.index(value)}"
            )
        return f"{made[value.op]} {value.op.results.index(value)}"

    made = {}
    effects: list[str] = []
    for op in graph:
        attributes = ", ".join(f"{name} = {attribute_text(each)}" for name, each in sorted(op.attrs.items()))
        words = f"{op.name}({', '.join(map(digest, op.operands))}) {{{attributes}}} : {', '.join(str(value.type) for value in op.results)}"
        made[op] = hashlib.sha256(words.encode()).hexdigest()
        effects += [] if op.definition.is_pure else [made[op]]
    return hashlib.sha256("\n".join([*map(digest, graph.outputs), *effects]).encode()).hexdigest()


def firings(module: Module, graph: Graph, rules: Sequence[Rule]) -> Iterator[str]:
    """Apply rules, one firing at a time; the name of each."""
    while True:
        events: list[Event] = []
        if not apply_rules(module, graph, rules, [events.append], limit=1):
            return
        yield events[0].rule


def circle(module: Module, rules: Sequence[Rule], fired: Counter[str]) -> str | None:
    """What is wrong with rules on a module: that they take too long, or come back to a graph that they have had."""
    for graph in module.functions.values():
        bound, seen = MOST * sum(1 for _ in graph) + 10, {meaning(graph): "the beginning"}
        for number, name in enumerate(firings(module, graph, rules), 1):
            fired[name] += 1
            now = meaning(graph)
            if now in seen:
                return f"{name} gives the graph that was there after {seen[now]}"
            if number > bound:
                return f"{number} firings, {name} the last"
            seen[now] = f"{name}, firing {number}"
    return None


class There(Rule):
    """exp(x) -> expm1(x)"""

    ops = ("exp",)

    def check(self, op: Op, module: Module) -> str | None:
        return None

    def rewrite(self, op: Op, g: Builder) -> Value:
        result: Value = g.build(OPS[{"exp": "expm1", "expm1": "exp"}[op.name]], op.operands, {})[0]
        return result


class Back(There):
    """expm1(x) -> exp(x)"""

    ops = ("expm1",)


def test_rules_that_undo_each_other_are_found() -> None:
    text = "module @m {\n  func @main(%x: f32[3]) -> f32[3] {\n    %y = exp(%x) : f32[3]\n    return %y\n  }\n}\n"
    assert circle(parse_module(text), [There(), Back()], Counter()) == "Back gives the graph that was there after the beginning"
    assert circle(parse_module(text), [There()], Counter()) is None


@pytest.mark.parametrize("name", RULE_PASSES)
def test_rules_come_to_rest(graphs: list[Make], name: str, request: pytest.FixtureRequest) -> None:
    (step,) = parse_pipeline(name)
    assert isinstance(step, RulePass)
    fired = Counter[str]()
    more = _woven(request, range(WOVEN, WOVEN + SOUGHT))
    for make in chain(graphs, takewhile(lambda _: not fired and name not in QUIET, more)):
        module = tidied(make)
        before = module_text(module)
        wrong = circle(module, step.rules(), fired)
        assert wrong is None, f"{wrong}\n{before}"
        settled = tidied(make)
        step.run(settled, PassContext())
        assert not step.run(settled, PassContext()), f"a second run of {name} changes\n{module_text(settled)}"
    assert fired or name in QUIET, f"{name} found nothing in {len(graphs) + SOUGHT} graphs"


def test_the_pipeline_comes_to_rest(graphs: list[Make]) -> None:
    """Passes do not undo each other: nothing that a run has left comes back in a later one."""
    steps = parse_pipeline(GRAPH_PIPELINE)
    for make in graphs:
        module = make()
        seen: list[str] = []
        for _ in range(SETTLED + 1):
            PassManager(steps, verify=False).run(module)
            seen.append("\n".join(meaning(graph) for graph in module.functions.values()))
        assert seen[-1] == seen[-2], f"the pipeline does not settle\n{module_text(make())}"
        distinct = list(dict.fromkeys(seen))
        assert seen[: len(distinct)] == distinct, f"the pipeline comes back to a graph\n{module_text(make())}"
