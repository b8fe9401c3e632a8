"""Long sums in parts: whether several programs for each tile are worth a second launch, and the workspaces between the two."""

from __future__ import annotations

from typing import Any

from ....ir.region import Operand
from ....ir.target import GpuTarget
from ....ir.tile.program import Param
from ....ir.workload import Point
from ...regions.simplify_region import unused
from ..schedule import Match, Problem, seconds

LARGEST = 16 * 2**20
"""Elements of the parts together, at the largest sizes: a workspace of 64 MiB."""
WORTH = 0.8
"""A second launch must gain a fifth: less is within what the prediction is wrong by."""


def why_whole(whole: Match[Any], split: Match[Any], target: GpuTarget, none: str, what: str) -> str | None:
    """Why each tile should be one program's; None where parts of `what` are faster. `none` says why there may be no parts at all."""
    problem = whole.problem
    one, parts = (fastest(match, target) for match in (whole, split))
    if parts == float("inf"):
        return f"{none}, or the parts take more than {LARGEST // 2**20} million elements"
    if parts > WORTH * one:
        return f"one program for each tile takes {one * 1e6:.1f} us, parts of {what} would take {parts * 1e6:.1f} us"
    if problem.symbols.ranges and not problem.points:
        # Sums in parts would be sums in parts for all sizes: results do not depend on how many there are.
        ends = tuple(
            (name, known.high or size) for (name, size), known in zip(problem.sizes.items(), problem.symbols.ranges.values(), strict=True)
        )
        one, parts = (fastest(match.with_points((Point(ends),)), target) for match in (whole, split))
        if parts > one:
            return f"at the largest sizes it takes {one * 1e6:.1f} us in one part and {parts * 1e6:.1f} us in several"
    return None


def fastest(match: Match[Any], target: GpuTarget) -> float:
    """The seconds of the schedule that is predicted to take least; infinity where there is none."""
    return min((seconds(match, schedule, target) for schedule in match.strategy.space(match, target)), default=float("inf"))


def free_name(problem: Problem, name: str) -> str:
    """A name that nothing of a problem has."""
    region = problem.region
    return unused(name, {o.name for o in (*region.inputs, *region.outputs)} | set(region.extents) | set(problem.symbols.ranges))


def space_param(space: Operand, role: str) -> Param:
    """A workspace as a parameter of a launch."""
    return Param(space.name, space.type.dtype, tuple((f"d{n}", size) for n, size in enumerate(space.type.shape)), role)
