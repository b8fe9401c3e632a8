"""What attention multiplies on CPUs: factors in groups, heads that read the same keys, and the mask that leaves scores out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ....ir import dims
from ....ir.expression import Apply, Constant, Index
from ....ir.layout import Factor
from ....ir.region import Load, Ref, Scalar, walk
from ....ir.target import CpuInstruction, CpuLevel
from ....ir.types import DType, i8, u8
from ...regions.contraction import stride_of, unwidened
from ..lower import upper_bound
from ..schedule import Problem
from ..softmax import Attention
from .codes import CodedScores, read_codes
from .matrix import SIDE


@dataclass(frozen=True)
class Group:
    """A product in groups of `depth` neighbours along its sums, whose right factor is `dtype`; of codes if there are `codes`.

    `step` neighbours are multiplied at once, more than `depth` where an instruction multiplies matrices.
    """

    dtype: DType
    depth: int
    step: int
    codes: CodedScores | None = None

    @property
    def is_matrix(self) -> bool:
        """Whether matrices are multiplied."""
        return self.step > self.depth


Groups: TypeAlias = tuple[Group | None, Group | None]


def groups_of(problem: Problem, found: Attention, target: CpuLevel) -> Groups:
    """How the target multiplies queries by keys, and weights by values; None where factors are wider, or computed one by one.

    Both in matrices, if there are rows to fill them, or none.
    """
    tiles = (None, None) if rows_of(problem, found) == 1 else _groups(problem, found, target.matrix)
    return tiles if all(tiles) else _groups(problem, found, target.dot)


def rows_of(problem: Problem, found: Attention) -> int | None:
    """How many queries there are at most; None where that is not known."""
    return 1 if found.row is None else upper_bound(problem.region.axis(found.row).extent, problem.symbols)


def _groups(problem: Problem, found: Attention, among: Callable[[str, str, str], CpuInstruction | None]) -> Groups:
    head, codes, total = dims.number(problem.region.axis(found.inner[0]).extent), read_codes(found), found.product.dtype.name

    def group(left: DType, right: DType, total: str, codes: CodedScores | None = None) -> Group | None:
        instruction = among(left.name, right.name, total)
        return None if instruction is None else Group(right, instruction.depth, instruction.groups * instruction.depth, codes)

    query, key, value = (unwidened(factor).dtype for factor in (found.query, found.key, found.value))
    scores = group(u8, i8, "i32", codes) if codes is not None else group(query, key, total) if query == key else None
    sums = group(found.weights, value, total) if found.weights == value else None
    return scores if scores is not None and head % scores.depth == 0 else None, sums


def sharing(problem: Problem, found: Attention) -> tuple[str, int] | None:
    """The axis of heads of which so many neighbours read the same keys and values, which are read as they lie."""
    parts = [part for side in (found.key, found.value) for part in walk(side)]
    loads = [part for part in parts if isinstance(part, Load)]
    if any(isinstance(part, Ref) for part in parts):
        return None
    # What a gather reads is among the parts: it must be the same for all of them as well.
    subscripts = [subscript for load in loads for subscript in load.subscripts]
    subscripts += [part.value for part in parts if isinstance(part, Index)]
    for name in found.batch:
        extent, head = problem.region.axis(name).extent, dims.symbol(name)
        counts = {atom.right for each in subscripts for atom in dims.functions(each) if atom.kind == "div" and atom.left == head}
        count = counts.pop() if len(counts) == 1 else None
        if not isinstance(extent, int) or not isinstance(count, int) or extent % count:
            continue
        member, facts = dims.symbol("member"), problem.symbols.with_range("member", 0, count - 1)
        seen = (dims.simplify(dims.substitute(each, {name: head * count + member}), facts) for each in subscripts)
        if all("member" not in dims.symbols(each) for each in seen):
            return name, count
    return None


def in_type(dtype: DType, value: Scalar) -> Scalar:
    return value if value.dtype == dtype else Apply("cast", (value,), dtype)


def is_at_hand(problem: Problem, found: Attention, scored: Group | None) -> bool:
    """Whether a query is read as it lies, or widened at most, and not computed. Matrices want its elements side by side."""
    query = found.query
    while isinstance(query, Apply) and query.primitive == "cast":
        (query,) = query.args
    if not isinstance(query, Load) or scored is None or not scored.is_matrix:
        return isinstance(query, Load)
    return query.other is None and not query.gathers and stride_of(query, problem.region, found.inner[0]) == 1


def kept_by(found: Attention) -> Scalar | None:
    """The mask outside of which scores are -inf, where that is what is done to them last."""
    score, lets = found.score, {let.name: let.value for let in found.before}
    while isinstance(score, Ref) and score.name in lets:
        score = lets[score.name]
    if not isinstance(score, Apply) or score.primitive != "where":
        return None
    mask, _, other = score.args
    depends = any(isinstance(part, Ref) for part in walk(mask))
    return None if depends or not isinstance(other, Constant) or other.value != float("-inf") else mask


def grouped(group: Group | None, inner: str, lane: str) -> tuple[Factor, ...]:
    """The order of a tile whose neighbours along `inner` lie together; none of its own without a group. Where matrices are multiplied,
    what is loaded at once is one stretch of memory.
    """
    if group is None:
        return ()
    vectors = (Factor(inner, group.depth), Factor(lane, 1, SIDE if group.is_matrix else None), Factor(inner, 1, group.depth))
    return (Factor(lane, SIDE), *vectors) if group.is_matrix else vectors
