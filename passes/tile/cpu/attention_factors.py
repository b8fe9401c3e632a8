"""What attention multiplies on CPUs: factors in groups, heads that read the same keys, and the mask that leaves scores out."""

from __future__ import annotations

from dataclasses import dataclass

from ....ir import dims
from ....ir.expression import Apply, Constant, Index
from ....ir.layout import Factor
from ....ir.region import Load, Ref, Scalar, walk
from ....ir.target import CpuLevel
from ....ir.types import DType, i8
from ...regions.contraction import unwidened
from ..schedule import Problem
from ..softmax import Attention
from .codes import CodedScores, read_codes


@dataclass(frozen=True)
class Group:
    """A product in groups of `depth` neighbours along its sums, whose right factor is `dtype`; of codes if there are `codes`."""

    dtype: DType
    depth: int
    codes: CodedScores | None = None


def groups_of(problem: Problem, found: Attention, target: CpuLevel) -> tuple[Group | None, Group | None]:
    """How the target multiplies queries by keys, and weights by values; None where factors are wider, or computed one by one."""
    head, codes = dims.number(problem.region.axis(found.inner[0]).extent), read_codes(found)
    scores = _group(unwidened(found.query).dtype, unwidened(found.key).dtype, found.product.dtype, target)
    if codes is not None:
        instruction = target.dot("u8", "i8", "i32")
        scores = None if instruction is None else Group(i8, instruction.depth, codes)
    sums = _group(found.weights, unwidened(found.value).dtype, found.product.dtype, target)
    return scores if scores is not None and head % scores.depth == 0 else None, sums


def _group(left: DType, right: DType, total: DType, target: CpuLevel) -> Group | None:
    instruction = target.dot(left.name, right.name, total.name) if left == right else None
    return None if instruction is None else Group(right, instruction.depth)


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


def is_at_hand(query: Scalar) -> bool:
    """Whether a query is read as it lies, or widened at most, and not computed."""
    while isinstance(query, Apply) and query.primitive == "cast":
        (query,) = query.args
    return isinstance(query, Load)


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
    """The order of a tile whose neighbours along `inner` lie together; none of its own without a group."""
    return () if group is None else (Factor(inner, group.depth), Factor(lane), Factor(inner, 1, group.depth))
