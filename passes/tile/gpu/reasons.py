"""Why a kernel's products do not run on the target's matrix instruction: the sentence that `inspect` shows."""

from __future__ import annotations

from ....ir import dims
from ....ir.expression import Apply
from ....ir.region import Load, Reduce, Region, walk
from ....ir.target import GpuTarget
from ..schedule import Problem, Schedule
from .matrix import why_not_instruction
from .rates import multiplied
from .tensor import matrix_product


def why_no_matrix_instruction(problem: Problem, schedule: Schedule, target: GpuTarget) -> str | None:
    """The reason; None where the instruction is used or the region holds no product of two tensors."""
    operands = multiplied(problem, schedule, target)
    if operands is not None:
        reasons = (each if isinstance(each, str) else why_not_instruction(each, schedule, target) for each in operands)
        return next((reason for reason in reasons if reason is not None), None)
    if not _has_product(problem.region):
        return None
    product = matrix_product(problem)
    return product if isinstance(product, str) else f"strategy {schedule.strategy} was chosen instead of tensor"


def _has_product(region: Region) -> bool:
    """Whether a sum multiplies two loads that both vary over what is summed."""
    for statement in region.body:
        if not isinstance(statement, Reduce) or statement.kind != "sum":
            continue
        value = statement.value
        if isinstance(value, Apply) and value.primitive == "mul":
            over = set(statement.over)
            varying = [{n for p in walk(arg) if isinstance(p, Load) for s in p.subscripts for n in dims.symbols(s)} for arg in value.args]
            if all(over & names for names in varying) and varying[0] != varying[1]:
                return True
    return False
