"""What was decided for each value of a graph, and why: the rows that reports show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...ir.graph import Op, Value
from .choices import Choices
from .profit import Profit

Verdict = Literal["inlined", "beside", "view", "kept"]
"""Computed where it is read; stored beside the results of the first group that reads it; stored by its kernel as another view; kept."""


@dataclass(frozen=True)
class Decision:
    """Where one value is computed, with a sentence.

    `bytes` is what memory moves for it where it is kept (one write and all reads), `operations` what its readers compute
    again where it is not; both at the workload's sizes. `is_choice` says that one kernel reads it, which did not take it in.
    """

    value: str
    op: str
    source: str
    verdict: Verdict
    where: tuple[str, ...]
    bytes: int
    operations: int
    why: str
    is_movement: bool
    is_choice: bool
    function: str = ""


def decisions(choices: Choices, kernels: Mapping[Op, Sequence[str]]) -> list[Decision]:
    """A row for each value that an op of the graph computes, in the graph's order; `kernels` are those that compute each op."""
    groups, profit = choices.groups(), Profit(choices)
    return [_decision(choices, op, value, groups, profit, kernels.get(op, ())) for op in choices.graph for value in op.results]


def _decision(choices: Choices, op: Op, value: Value, groups: Mapping[Op, frozenset[Op]], profit: Profit, where: Sequence[str]) -> Decision:
    facts, stakes, verdict = choices.facts[op], profit.stakes(value, groups), _verdict(choices, op, value)
    readers = frozenset(root for user in value.uses for root in groups[user])
    alone = len(readers) == 1 and all(choices.facts[root].region is not None for root in readers)
    is_choice = verdict == "kept" and alone and value not in choices.outputs and facts.region is not None
    source = "" if value.source is None else str(value.source)
    found = (stakes.bytes, stakes.operations, choices.why[value], facts.kind == "movement", is_choice)
    return Decision(value.name, op.name, source, verdict, tuple(where), *found, choices.graph.name)


def _verdict(choices: Choices, op: Op, value: Value) -> Verdict:
    if value in choices.inlined:
        return "inlined"
    if value in choices.beside:
        return "beside"
    stored = [views for root, views in choices.views.items() if root is op or op in views]
    return "view" if any(value is not views[-1].result for views in stored) else "kept"


__all__ = ["Decision", "Verdict", "decisions"]
