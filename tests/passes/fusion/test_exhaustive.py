"""The choices of fusion against the best that is legal, by predicted time, on small random graphs."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator

from ourcc.ir.graph import Builder, Graph, Module, Op, Value
from ourcc.ir.types import TensorType, f32
from ourcc.passes.fusion import legality
from ourcc.passes.fusion.choices import Choices
from ourcc.passes.fusion.legality import Question, refusal
from ourcc.passes.fusion.partition import choose
from ourcc.passes.fusion.profit import Profit

GRAPHS, VALUES = 100, 12


def drawn(number: int) -> Module:
    """Pointwise ops, cheap and dear, movements, folds of rows and products of each other; one to three of them are returned."""
    choices, module, graph = random.Random(number), Module("m"), Graph("main")
    module.functions["main"] = graph
    size = choices.choice((16, 64, 256, 1024))
    b, values = Builder(module, graph), [graph.add_input(f"x{n}", TensorType(f32, (size, size))) for n in range(2)]
    for _ in range(choices.randint(4, VALUES)):
        values.append(_step(b, choices, values))
    unread = [value for value in values[2:] if not value.uses]
    others = [value for value in values[2:] if value.uses and choices.random() < 0.1]
    graph.set_outputs([*unread, *others])
    return module


def _step(b: Builder, choices: random.Random, values: list[Value]) -> Value:
    kind = choices.choice(("relu", "neg", "exp", "add", "mul", "add", "mul", "transpose", "mean", "softmax", "matmul"))
    value, other = choices.choice(values[-4:]), choices.choice(values)
    if kind in ("add", "mul"):
        return getattr(b, kind)(value, other)  # type: ignore[no-any-return]
    whole = value if value.shape[-1] != 1 else b.add(value, values[0])
    if kind == "matmul":
        return b.matmul(whole, values[1])
    if kind == "transpose":
        return b.transpose(whole, permutation=(1, 0))
    if kind == "mean":
        return b.mean(whole, axes=(1,), keepdims=True)
    return b.softmax(whole, axis=1) if kind == "softmax" else getattr(b, kind)(value)  # type: ignore[no-any-return]


def branches(choices: Choices, op: Op) -> Iterator[Choices]:
    """Every legal choice for an op, the choices for all that read it being made."""
    value = op.result
    question = Question(choices, op, value, choices.readers(op))
    readers = question.readers
    kept = _copied(choices)
    kept.keep(op, "")
    if value not in choices.outputs and choices.facts[op].sums:
        kept.view(op)
    yield kept
    if refusal(question, legality.OF_THE_OP) is not None:
        return
    if refusal(question, legality.WHERE_READ) is None:
        inlined = _copied(choices)
        inlined.inline(value, op, readers, "")
        yield inlined
    if (value in choices.outputs or len(readers) > 1) and refusal(question.of_first, legality.BESIDE) is None:
        beside = _copied(choices)
        beside.store_beside(value, op, question.first, "")
        yield beside


def _copied(choices: Choices) -> Choices:
    made = copy.copy(choices)
    for name in ("inlined", "beside", "views", "sinks", "group_kinds", "group_rows", "why"):
        setattr(made, name, copy.copy(getattr(choices, name)))
    made.reads = {root: set(found) for root, found in choices.reads.items()}
    return made


def best(module: Module) -> float:
    """The least predicted time of all legal choices."""
    found = [Choices(module, module.main, {})]
    for op in module.main.reversed():
        found = [each for choices in found for each in branches(choices, op)]
    return min(Profit(choices).total() for choices in found)


def test_choices_are_near_the_best_that_is_legal() -> None:
    costs = []
    for number in range(GRAPHS):
        module = drawn(number)
        ours, least = Profit(choose(module, module.main, {}, {})).total(), best(module)
        assert ours >= least * 0.999, number
        costs.append(ours / least)
    far = {number: round(cost, 3) for number, cost in enumerate(costs) if cost > 1.05}
    assert len(far) <= GRAPHS // 20, far
