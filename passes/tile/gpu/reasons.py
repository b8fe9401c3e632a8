"""Why a kernel's products do not run on the target's matrix instruction: the sentence that `inspect` shows."""

from __future__ import annotations

from ....ir import dims
from ....ir.expression import Apply
from ....ir.region import Load, Reduce, Region, walk
from ....ir.target import GpuTarget
from ...regions.contraction import read_contraction
from ..schedule import Problem, Schedule
from .attention import attention_operands, read_heads
from .blocked import block_product
from .grouped import grouped_product
from .matrix import Operands, operands_of, why_not_instruction
from .tensor import matrix_product


def why_no_matrix_instruction(problem: Problem, schedule: Schedule, target: GpuTarget) -> str | None:
    """The reason; None where the instruction is used or the region holds no product of two tensors."""
    if schedule.strategy in ("tensor", "split_k", "stream_k"):
        found = read_contraction(problem.region)
        operands = found if isinstance(found, str) else operands_of(found)
        return operands if isinstance(operands, str) else why_not_instruction(operands, schedule, target)
    if schedule.strategy == "blocked":
        blocks = block_product(problem)
        return blocks if isinstance(blocks, str) else why_not_instruction(blocks.matched.operands, schedule, target)
    if schedule.strategy == "grouped":
        groups = grouped_product(problem)
        return groups if isinstance(groups, str) else why_not_instruction(groups.matched.operands, schedule, target)
    if schedule.strategy == "scaled":
        return None
    if schedule.strategy in ("attention", "split_attention"):
        return _of_attention(problem, schedule, target)
    if not _has_product(problem.region):
        return None
    product = matrix_product(problem)
    return product if isinstance(product, str) else f"strategy {schedule.strategy} was chosen instead of tensor"


def _of_attention(problem: Problem, schedule: Schedule, target: GpuTarget) -> str | None:
    heads = read_heads(problem)
    if isinstance(heads, str):
        return heads
    found = heads.attention
    if found.row is None:
        return "each head has one row (a vector-matrix product)"
    reasons = (why_not_instruction(o, schedule, target) if isinstance(o, Operands) else o for o in attention_operands(found))
    return next((reason for reason in reasons if reason is not None), None)


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
