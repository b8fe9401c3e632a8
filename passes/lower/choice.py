"""The choice without measuring: the least price among all that strategies offer, found with as few tile programs as can be.

What can no longer win is not looked into: a strategy whose first schedule is far off, and anything once a price is as low as the
operations of the region allow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ...ir.region import Reduce, Scan
from ...ir.region.cost import operations_of
from ..tile.schedule import Candidate, Problem, seconds

CLOSE = 1.02
"""Prices that are closer say nothing: what is offered first is taken."""
FAR = 2.0
"""The first schedule of a strategy that costs so many times as much as another candidate speaks for all of them."""
NEAR = 1.08
"""A price that is so close to the least possible one is low enough."""


def least(families: Iterable[Sequence[Candidate]], target: Any) -> Candidate:
    """The first of the candidates that cost least; of the first strategy's alone where prices of several do not compare."""
    priced: list[tuple[float, Candidate]] = []
    for family in families:
        lowest = floor(family[0][0].problem, target) * float(family[0][0].operations)
        for place, candidate in enumerate(family):
            cost = seconds(candidate[0], candidate[1], target)
            priced.append((cost, candidate))
            best = min(priced, key=lambda each: each[0])[0]
            if best <= NEAR * lowest:
                return _first(priced, CLOSE)
            if place == 0 and cost > FAR * best:
                break
        if not target.compares_strategies:
            break
    return _first(priced, CLOSE if target.compares_strategies else 1.0)


def _first(priced: Sequence[tuple[float, Candidate]], close: float) -> Candidate:
    best = min(cost for cost, _ in priced)
    return next(candidate for cost, candidate in priced if cost <= close * best)


def floor(problem: Problem, target: Any) -> float:
    """Seconds below which no schedule comes, by the operations of the region: the mean over the problem's points by their weights.

    Folds of folds need not look at all points, as attention below the diagonal: of these nothing is known.
    """
    if not target.compares_strategies or sum(isinstance(statement, (Reduce, Scan)) for statement in problem.region.body) > 1:
        return 0.0
    bits = min((max(8, operand.type.dtype.bits) for operand in problem.region.inputs), default=32)
    points = [(dict(point.sizes), point.weight) for point in problem.points] or [({}, 1.0)]
    costs = [(target.least_seconds(operations_of(problem.region, problem.sizes | sizes), bits), weight) for sizes, weight in points]
    return math.fsum(cost * weight for cost, weight in costs) / math.fsum(weight for _, weight in costs)
