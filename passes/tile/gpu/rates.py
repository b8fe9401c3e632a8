"""At what rate the operations of a kernel can go at best: by the format in which its schedule multiplies, else by plain arithmetic."""

from __future__ import annotations

from ....ir.region import Load, walk
from ....ir.target import GpuTarget
from ...regions.contraction import read_contraction
from ..schedule import Problem, Schedule
from .attention import attention_operands, read_heads
from .blocked import block_product
from .grouped import grouped_product
from .matrix import Operands, operands_of, products_on
from .scaled import block_scaled, operands_of_blocks


def operations_rate(problem: Problem, schedule: Schedule, target: GpuTarget) -> float:
    """Operations per second at most, a multiply-add being two; three products of tf32 make one of float32."""
    operands = [each for each in _operands(problem, schedule, target) if isinstance(each, Operands)]
    if not operands:
        dtypes = [part.dtype.name for statement in problem.region.body for part in walk(statement.value) if isinstance(part, Load)]
        return target.rates["f64" if "f64" in dtypes else "f32"]
    # Each product has an equal share of the operations.
    return len(operands) / sum(products_on(each, target) / target.rates[each.rate] for each in operands)


def _operands(problem: Problem, schedule: Schedule, target: GpuTarget) -> tuple[Operands | str, ...]:
    """The forms of the factors of a schedule for matrix instructions; none for others."""
    if schedule.strategy in ("tensor", "split_k", "stream_k"):
        found = read_contraction(problem.region)
        return () if isinstance(found, str) else (operands_of(found),)
    if schedule.strategy == "blocked":
        blocks = block_product(problem)
        return () if isinstance(blocks, str) else (blocks.matched.operands,)
    if schedule.strategy == "grouped":
        groups = grouped_product(problem)
        return () if isinstance(groups, str) else (groups.matched.operands,)
    if schedule.strategy == "scaled":
        scaled = block_scaled(problem, target)
        return () if isinstance(scaled, str) else (operands_of_blocks(scaled),)
    if schedule.strategy in ("attention", "split_attention"):
        heads = read_heads(problem)
        # A single row is multiplied by plain arithmetic.
        return () if isinstance(heads, str) or heads.attention.row is None else attention_operands(heads.attention)
    return ()
