"""Canonicalization: exact rewrites towards one spelling of each program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.graph.rewrite import Rule
from ..base import RulePass
from ..checks.place_index_checks import CheckOfKnown
from ..rules import arithmetic, casts, empty, indexing, movement


@dataclass(frozen=True)
class Canonicalize(RulePass):
    """Drop what changes nothing and shorten chains; every rule is exact bit for bit, signed zeros included.

    Before: %a = transpose(%x) {permutation = [1, 0]}   %b = transpose(%a) {permutation = [1, 0]}   %c = mul(%b, @one)
    After:  %x
    """

    def rules(self) -> Sequence[Rule]:
        """All families."""
        return (CheckOfKnown(), *empty.RULES, *movement.RULES, *indexing.RULES, *casts.RULES, *arithmetic.RULES)
