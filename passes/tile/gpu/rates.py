"""At what rate the operations of a kernel can go at best, and by which instruction: by the format in which its schedule multiplies."""

from __future__ import annotations

from dataclasses import dataclass

from ....ir.region import Load, walk
from ....ir.target import GpuTarget
from ...regions.contraction import read_contraction
from ..schedule import Problem, Schedule
from .attention import attention_operands
from .blocked import block_product
from .grouped import grouped_product
from .heads import read_heads
from .matrix import Operands, operands_of, products_on, why_not_instruction
from .scaled import block_scaled, operands_of_blocks


@dataclass(frozen=True)
class Rate:
    """Operations per second at most, a multiply-add being two; in what they multiply, and the instruction, if one of matrices does it."""

    per_second: float
    products_in: str
    instruction: str | None = None


def operations_rate(problem: Problem, schedule: Schedule, target: GpuTarget) -> float:
    """Operations per second at most; three products of tf32 make one of float32."""
    return rate_of(problem, schedule, target).per_second


def rate_of(problem: Problem, schedule: Schedule, target: GpuTarget) -> Rate:
    """The rate of a problem's operations as a schedule does them: of matrix instructions, or of plain arithmetic."""
    operands = [each for each in multiplied(problem, schedule, target) or () if isinstance(each, Operands)]
    if not operands:
        dtypes = [part.dtype.name for statement in problem.region.body for part in walk(statement.value) if isinstance(part, Load)]
        plain = "f64" if "f64" in dtypes else "f32"
        return Rate(target.rates[plain], plain)
    # Each product has an equal share of the operations.
    per_second = len(operands) / sum(products_on(each, target) / target.rates[each.rate] for each in operands)
    names = dict.fromkeys(_name(each, target) for each in operands)
    is_narrower = any(why_not_instruction(each, schedule, target) is not None for each in operands)
    instruction = "mma.sync" if is_narrower else target.matrix_instruction
    return Rate(per_second, ", ".join(names), f"{instruction} with scales of blocks" if schedule.strategy == "scaled" else instruction)


def _name(operands: Operands, target: GpuTarget) -> str:
    """In what factors are multiplied: their own dtype, or how many products of a narrower one make one of theirs."""
    if operands.precision == "exact":
        return operands.dtype.name
    return f"{operands.rate}x{count}" if (count := products_on(operands, target)) > 1 else operands.rate


def multiplied(problem: Problem, schedule: Schedule, target: GpuTarget) -> tuple[Operands | str, ...] | None:
    """The forms of the factors of each product that a schedule gives to matrix instructions, or why not; None for other strategies."""
    if schedule.strategy in ("tensor", "split_k", "stream_k"):
        found = read_contraction(problem.region)
        return (found if isinstance(found, str) else operands_of(found),)
    if schedule.strategy == "blocked":
        blocks = block_product(problem)
        return (blocks if isinstance(blocks, str) else blocks.matched.operands,)
    if schedule.strategy == "grouped":
        groups = grouped_product(problem)
        return (groups if isinstance(groups, str) else groups.matched.operands,)
    if schedule.strategy == "scaled":
        scaled = block_scaled(problem, target)
        return (scaled if isinstance(scaled, str) else operands_of_blocks(scaled),)
    if schedule.strategy in ("attention", "split_attention"):
        heads = read_heads(problem)
        if isinstance(heads, str):
            return (heads,)
        is_one_row = heads.attention.row is None
        return ("each head has one row (a vector-matrix product)",) if is_one_row else attention_operands(heads.attention)
    return None
