"""Sorting by ranks: what puts short lines in order without a step of the host, for targets that compare all with all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...ir import dims
from ...ir.graph import Builder, Module, Op
from ...ir.graph.rewrite import Rule
from ..base import RulePass
from ..match import Replacement, operand

SHORT = 1024
"""A line of so many elements is ranked by comparing each with each: a million comparisons, where a step of the host would wait for all
that runs."""


@dataclass(frozen=True)
class RankLines(RulePass):
    """Find the order of short lines by ranks, which kernels count: on GPUs, whatever else an engine is built for.

    Before: %v, %n = top_k(%x) {k = 8, axis = 1}
    After:  %r = rank_along_axis(%x)   %n = place_of_rank(%r) {count = 8}   %v = take_along_axis(%x, %n)
    """

    def rules(self) -> Sequence[Rule]:
        """One rule for all that sorts."""
        return (Ranked(),)


class Ranked(Rule):
    """top_k(x) -> take_along_axis(x, n), n with n = place_of_rank(rank_along_axis(x)); sort(x) likewise, all ranks of it."""

    ops: ClassVar[tuple[str, ...]] = ("top_k", "sort")

    def check(self, op: Op, module: Module) -> str | None:
        x = operand(op, 0)
        if not x.dtype.has_kernels:
            return "no kernel computes with its dtype"
        short = dims.at_most(x.shape[op.attrs["axis"]], SHORT, module.facts) is True
        return None if short else f"the lines are not known to have at most {SHORT} elements"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        x, axis = operand(op, 0), op.attrs["axis"]
        count, descending = (op.attrs["k"], op.attrs["largest"]) if op.name == "top_k" else (x.shape[axis], op.attrs["descending"])
        places = g.place_of_rank(g.rank_along_axis(x, axis=axis, descending=descending), axis=axis, count=count)
        return g.take_along_axis(x, places, axis=axis), places


__all__ = ["SHORT", "RankLines"]
