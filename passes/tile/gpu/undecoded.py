"""Undecoded products: a product of a coded weight beside the same one of a weight that lies as it is multiplied."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....ir import dims
from ....ir.expression import Apply
from ....ir.region import Load, Operand, Scalar, walk
from ....ir.types import DType, TensorType
from ...regions.contraction import read_contraction, unwidened
from ..schedule import Problem
from .decoded import of_store, with_factors
from .parts import free_name


@dataclass(frozen=True)
class Undecoded:
    """A product whose coded weight lies in the dtype of the other factor, one number for each that is multiplied."""

    problem: Problem
    dtype: DType


def undecoded(problem: Problem) -> Undecoded | None:
    """The product without its codes; None where no factor is computed from constants, or the other one is computed as well.

    Before: sum k: mul(cast(x[i, k] : bf16), mul(cast(codes[j, k / 2] ..), scale[j, k / 32]))
    After:  sum k: mul(cast(x[i, k] : bf16), cast(plain[j, k] : bf16))
    """
    found = read_contraction(problem.region)
    if isinstance(found, str) or found.block is not None:
        return None
    for value, other, axes in ((found.right, found.left, found.columns), (found.left, found.right, found.rows)):
        beside = unwidened(other)
        if not isinstance(beside, Load) or not _is_coded(problem, value, beside.dtype):
            continue
        places = (*found.batch, *axes, *found.over)
        kind = TensorType(beside.dtype, tuple(problem.region.axis(axis).extent for axis in places))
        plain = Operand(free_name(problem, "plain"), kind)
        load = Load(plain.name, tuple(map(dims.symbol, places)), kind.dtype)
        stands: Scalar = load if kind.dtype == value.dtype else Apply("cast", (load,), value.dtype)
        left, right = (found.left, stands) if value is found.right else (stands, found.right)
        region = with_factors(problem.region, found, left, right, [plain])
        made = replace(problem, constants=problem.constants | {plain.name})
        return Undecoded(of_store(made, region, found.store), kind.dtype)
    return None


def _is_coded(problem: Problem, value: Scalar, dtype: DType) -> bool:
    """Whether a factor is made of constants, and is no number of this dtype that lies as it is."""
    loads = [part for part in walk(value) if isinstance(part, Load)]
    inner = unwidened(value)
    is_plain = isinstance(inner, Load) and inner.dtype == dtype
    return bool(loads) and not is_plain and all(load.operand in problem.constants for load in loads)
