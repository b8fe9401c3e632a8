"""Recognition of attention: two products with a softmax between them become one op."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...ir import dims
from ...ir.dims import Dim
from ...ir.errors import VerifyError
from ...ir.graph import Builder, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rule
from ...ir.ops.rounding import holds
from ...ir.ops.table import OPS
from ...ir.types import TensorType
from ..base import RulePass
from ..match import Replacement, operand, producer, split_number, uniform

# Below this a number added to a score, or put in its place, leaves nothing of it in any float that is wide enough.
ABSORBING = -1e30
MAXIMUM_STEPS = 32
ON_THE_WAY = ("mul", "div", "add", "sub", "where", "reshape", "cast", "transpose", "tanh", "clip", "minimum", "maximum")
"""What models write between a product, a softmax and the next product: scales, masks, caps, moves."""
LINEAR = ("mul", "div", "add", "sub", "neg", "where", "reshape", "cast", "transpose", "broadcast_to")
"""Ops that make no weights of scores by themselves."""


LARGEST_HEAD = 512
"""A kernel keeps a row of a head at once; what is larger, or a symbol, stays as it is written."""


@dataclass(frozen=True)
class RecognizeAttention(RulePass):
    """Write softmax(q k^T * scale + mask) v as one attention.

    Before: %t = transpose(%k)  %s = matmul(%q, %t)  %c = mul(%s, @scale)  %m = add(%c, %mask)  %p = softmax(%m)
            %y = matmul(%p, %v)
    After:  %y = attention(%q, %k, %v, %mask) {scale = 0.125}

    The scale may stand on q, k or the scores; the mask may be added or chosen by where; a softmax whose NaNs are
    replaced by 0 gives safe = true; key heads repeated by a broadcast give grouped attention.
    """

    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def rules(self) -> Sequence[Rule]:
        """Attention as it is written out, and the mask of one that is given."""
        return (Attention(), ChosenMask())


@dataclass(frozen=True)
class Mask:
    """A mask as found: added if it is a float; a bool keeps where it holds (where it does not, if `negated`).

    `fill` is the number that where put in place of the scores, None for -inf.
    """

    value: Value
    negated: bool = False
    fill: float | None = None


@dataclass
class Scores:
    """What was found between the softmax and the operands of the first product."""

    value: Value
    scale: float = 1.0
    mask: Mask | None = None
    why_not: str | None = None


@dataclass(frozen=True)
class Found:
    """The parts of an attention; `lead` is the shape of everything but the last two dimensions."""

    q: Side
    k: Side
    v: Side
    lead: tuple[Dim, ...]
    scores: Scores
    safe: bool
    product: Op


@dataclass(frozen=True)
class Side:
    """An operand of a product, to be read with its last two dimensions swapped if `swapped`."""

    value: Value
    swapped: bool

    def type(self, lead: tuple[Dim, ...]) -> TensorType:
        """The type with `lead` in front, swapped as asked."""
        rows, columns = self.value.shape[-2:]
        return self.value.type.with_shape((*lead, columns, rows) if self.swapped else (*lead, rows, columns))


class Attention(Rule):
    """matmul(softmax(matmul(q, k^T) * scale + mask), v) -> attention(q, k, v, mask)"""

    ops = ("matmul",)
    numerics: ClassVar[Numerics] = "REASSOCIATES"
    pattern = "attention"

    def is_near(self, op: Op, module: Module) -> bool:
        softmax = _behind(operand(op, 0), "softmax")
        if softmax is not None:
            return _behind(operand(softmax, 0), "matmul") is not None
        return _other_weights(op) is not None

    def check(self, op: Op, module: Module) -> str | None:
        found = match_attention(op)
        if isinstance(found, str):
            return found
        heads = [side.type(_lead(side, found.lead)).shape[-1] for side in (found.q, found.v)]
        if not all(isinstance(size, int) and size <= LARGEST_HEAD for size in heads):
            return (
                f"heads have {heads[0]} and {heads[1]} elements, expected numbers up to {LARGEST_HEAD}: products and a softmax serve them"
            )
        mask = found.scores.mask
        types = (*(side.type(_lead(side, found.lead)) for side in (found.q, found.k, found.v)), None if mask is None else mask.value.type)
        try:
            OPS["attention"].infer(types, {"scale": found.scores.scale})
        except VerifyError as error:
            return error.message
        return _needed_elsewhere(found.product, module)

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        found = match_attention(op)
        if isinstance(found, str):
            return op.result
        q, k, v = (_built(side, _lead(side, found.lead), g) for side in (found.q, found.k, found.v))
        k, v = _ungrouped(k, v, g)
        mask = None if found.scores.mask is None else _built_mask(found.scores.mask, q, g)
        result = g.attention(q, k, v, mask, scale=found.scores.scale, safe=found.safe)
        return result if result.shape == op.result.shape else g.reshape(result, shape=op.result.shape)


def match_attention(op: Op) -> Found | str:
    """The attention that ends in this product, or why there is none."""
    if op.attrs["transpose_a"]:
        return "the weights are transposed"
    weights, safe = _softmax(operand(op, 0))
    if isinstance(weights, str):
        return _other_weights(op) or weights
    scores = _scores(operand(weights, 0))
    if scores.why_not is not None:
        return scores.why_not
    product = producer(scores.value, "matmul")
    if product is None:
        between = _between(scores.value)
        if between is not None:
            return f"between the product and the softmax stands {between}"
        return "the scores are no product" if scores.value.op is None else f"the scores are no product: {scores.value.op.name} makes them"
    if operand(op, 1).dtype != operand(product, 0).dtype:
        return "the products have different dtypes"
    q, on_q = _unscaled(Side(operand(product, 0), product.attrs["transpose_a"]))
    k, on_k = _unscaled(Side(operand(product, 1), not product.attrs["transpose_b"]))
    scores.scale *= on_q * on_k
    if not math.isfinite(scores.scale):
        return "the scale is not finite"
    lead = weights.result.shape[:-2]
    if weights.result.type.rank < 3:
        return "there is no dimension of heads"
    return Found(q, k, Side(operand(op, 1), op.attrs["transpose_b"]), lead, scores, safe, product)


def _between(value: Value) -> str | None:
    """The op that keeps scores from being a product with scales and masks, on the shortest way from them to a product."""
    pending: list[tuple[Value, str | None]] = [(value, None)]
    for found, odd in itertools.islice(pending, MAXIMUM_STEPS):
        op = found.op
        if op is None:
            continue
        if op.name == "matmul":
            return odd
        if op.name in ON_THE_WAY:
            odd = odd or (op.name if op.name not in LINEAR else None)
            pending += [(part, odd) for part in op.operands if part is not None and part.constant is None]
    return None


def _softmax(value: Value) -> tuple[Op | str, bool]:
    """The softmax behind the weights, or why it is none; and whether its NaNs are replaced by 0."""
    safe = False
    for _ in range(MAXIMUM_STEPS):
        softmax = producer(value, "softmax")
        if softmax is not None:
            axis, last = softmax.attrs["axis"] % softmax.result.type.rank, softmax.result.type.rank - 1
            return (softmax if axis == last else f"the softmax is over dimension {axis}, expected the last, {last}"), safe
        chosen = producer(value, "where")
        moved = producer(value, "reshape", "cast")
        inner = None if chosen is None else _without_nan(chosen)
        if inner is not None:
            value, safe = inner, True
        elif moved is not None and (_is_harmless(moved) or _narrows_weights(moved)):
            value = operand(moved, 0)
        else:
            break
    if _behind(value, "softmax") is not None and value.op is not None:
        return f"between the softmax and the product stands {value.op.name}", False
    return "the weights are made by no softmax", False


def _other_weights(op: Op) -> str | None:
    """What makes the weights of attention with another function than a softmax; None for products that are no attention.

    They are where both are of computed values with a dimension of heads, and the scores of the first, in their shape, become the
    weights of the second.
    """
    weights, functions = operand(op, 0), list[str]()
    pending, seen = [weights], {weights}
    while pending and len(seen) <= MAXIMUM_STEPS:
        value = pending.pop()
        made = value.op
        if made is None or made.name == "softmax" or value.shape[-2:] != weights.shape[-2:]:
            continue
        if made.name == "matmul":
            sides = (operand(made, 1), operand(op, 1))
            heads = all(side.type.rank >= 3 and side.constant is None for side in sides)
            return f"the weights are made by {functions[0]}, expected a softmax" if heads and functions else None
        if made.definition.kind == "pointwise" or made.name in ON_THE_WAY:
            functions += [made.name] if made.name not in LINEAR else []
            new = [part for part in made.operands if part is not None and part not in seen]
            pending += new
            seen.update(new)
    return None


def _without_nan(op: Op) -> Value | None:
    """x if the op is where(is_nan(x), 0, x), or the same with the condition negated."""
    condition, negated = op.operands[0], False
    inverted = producer(condition, "logical_not")
    if inverted is not None:
        condition, negated = inverted.operands[0], True
    test = producer(condition, "is_nan")
    replaced, kept = (op.operands[2], op.operands[1]) if negated else (op.operands[1], op.operands[2])
    return kept if test is not None and test.operands[0] is kept and uniform(replaced) == 0 else None


def _is_harmless(moved: Op) -> bool:
    """A cast that widens floats, or a reshape that keeps the last two dimensions."""
    before = operand(moved, 0)
    if moved.name == "cast":
        return before.dtype.is_float and moved.result.dtype.is_float and holds(moved.result.dtype, before.dtype)
    return before.type.rank >= 2 and moved.result.type.rank >= 2 and before.shape[-2:] == moved.result.shape[-2:]


def _narrows_weights(moved: Op) -> bool:
    """A cast of the weights to a type of 16 bits: the op's own weights are as they were computed, which is nearer."""
    return moved.name == "cast" and operand(moved, 0).dtype.is_float and moved.result.dtype.name in ("f16", "bf16")


def _scores(value: Value) -> Scores:
    """Take scale, mask, casts and reshapes off the scores until the product is reached."""
    found = Scores(value)
    shape = value.shape
    for _ in range(MAXIMUM_STEPS):
        op = producer(found.value, "mul", "div", "add", "sub", "where", "reshape", "cast")
        if op is None:
            break
        if op.name in ("reshape", "cast"):
            if not _is_harmless(op):
                break
            found.value = operand(op, 0)
        elif op.name in ("mul", "div"):
            if not _take_scale(op, found):
                break
        elif not _take_mask(op, found, shape):
            break
    return found


def _take_scale(op: Op, found: Scores) -> bool:
    split = split_number(op)
    if split is None or split[1] == 0 or split[0].shape != op.result.shape:
        return False
    found.value = split[0]
    found.scale *= 1.0 / split[1] if op.name == "div" else split[1]
    return True


def _take_mask(op: Op, found: Scores, shape: tuple[Dim, ...]) -> bool:
    """Take an added mask, or one that where puts in; a second mask, or one under a scale, is refused."""
    scores, mask = _split_where(op) if op.name == "where" else _split_add(op)
    if scores is None or mask is None or scores.shape != op.result.shape:
        return False
    finite = mask.value.dtype.is_float or mask.fill is not None
    if found.mask is not None or op.result.type.rank != len(shape):
        found.why_not = "there are two masks, or the mask has another rank"
    elif found.scale <= 0 or (finite and found.scale != 1.0):
        found.why_not = "the mask is scaled"
    found.value, found.mask = scores, mask
    return True


def _split_add(op: Op) -> tuple[Value | None, Mask | None]:
    """(scores, mask) of an addition; a float mask of 0 and -inf becomes the bool that chose it."""
    if op.name != "add":
        return None, None
    left, right = operand(op, 0), operand(op, 1)
    if not _leads_to_product(left):
        left, right = right, left
    if not _leads_to_product(left):
        return None, None
    mask = _unbroadcast(right)
    return left, _chosen(mask) or Mask(mask)


def _chosen(mask: Value) -> Mask | None:
    """The bool that chose between 0 and -inf in a float mask; None if the mask holds other numbers."""
    chosen = producer(_unbroadcast(mask), "where")
    for numbers, negated in (((0.0, -math.inf), False), ((-math.inf, 0.0), True)):
        if chosen is not None and _numbers(chosen) == numbers:
            return Mask(_unbroadcast(operand(chosen, 0)), negated)
    return None


class ChosenMask(Rule):
    """attention(q, k, v, where(kept, 0, -inf)) -> attention(q, k, v, kept), which differs where a score that does not count is no number"""

    ops: ClassVar[tuple[str, ...]] = ("attention",)
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def check(self, op: Op, module: Module) -> str | None:
        mask = op.operands[3] if len(op.operands) > 3 else None
        if mask is None or not mask.dtype.is_float:
            return "there is no float mask"
        return None if _chosen(mask) is not None else "the mask is not known to hold 0 and -inf alone"

    def rewrite(self, op: Op, g: Builder) -> Replacement:
        chosen = _chosen(operand(op, 3))
        if chosen is None:
            return op.result
        return g.build(op.definition, (*op.operands[:3], _built_mask(chosen, operand(op, 0), g)), op.attrs)


def _numbers(chosen: Op) -> tuple[float | None, float | None]:
    left, right = uniform(chosen.operands[1]), uniform(chosen.operands[2])
    return (None if left is None else float(left), None if right is None else float(right))


def _split_where(op: Op) -> tuple[Value | None, Mask | None]:
    """(scores, mask) of where(mask, scores, number) or where(mask, number, scores), for -inf and numbers near it."""
    condition = _unbroadcast(operand(op, 0))
    for scores, other, negated in ((operand(op, 1), operand(op, 2), False), (operand(op, 2), operand(op, 1), True)):
        number = uniform(other)
        if number is not None and number <= ABSORBING and _leads_to_product(scores):
            return scores, Mask(condition, negated, None if number == -math.inf else float(number))
    return None, None


def _built_mask(mask: Mask, q: Value, g: Builder) -> Value:
    """The mask operand: a number that was put in place of scores is added to them, which leaves nothing of them."""
    result = mask.value
    if mask.fill is not None:
        kept, replaced = (np.asarray(number).astype(q.dtype.numpy) for number in (0.0, mask.fill))
        result = g.where(result, *((replaced, kept) if mask.negated else (kept, replaced)))
    elif mask.negated:
        result = g.logical_not(result)
    return result


def _leads_to_product(value: Value) -> bool:
    """Whether a product stands behind a value, through scales, masks, casts and reshapes."""
    return _behind(value, "matmul", ("mul", "div", "add", "reshape", "cast", "where")) is not None


def _behind(value: Value, name: str, through: Sequence[str] = ON_THE_WAY) -> Op | None:
    """The op of this name behind a value, through ops of these names."""
    pending = [value]
    for _ in range(MAXIMUM_STEPS):
        if not pending:
            return None
        op = pending.pop().op
        if op is None:
            continue
        if op.name == name:
            return op
        if op.name in through:
            pending += [part for part in op.operands if part is not None and part.constant is None]
    return None


def _needed_elsewhere(product: Op, module: Module) -> str | None:
    """What else reads scores or weights: they are in memory then, and attention would compute them once more."""
    outputs = {value for graph in module.functions.values() for value in graph.outputs}
    pending, names = [product.result], {product.result: "scores"}
    for value in pending:
        if value in outputs:
            return f"{names[value]} are also an output"
        for user in value.uses:
            if user.name == "matmul" and value is user.operands[0] is not user.operands[1]:
                continue
            if user.name not in (*ON_THE_WAY, "softmax", "is_nan", "logical_not"):
                return f"{names[value]} are also read by {user.name}"
            name = "weights" if user.name == "softmax" else names[value]
            new = [result for result in user.results if result not in names]
            pending += new
            names.update(dict.fromkeys(new, name))
    return None


def _unbroadcast(mask: Value) -> Value:
    """The mask before it was repeated: attention broadcasts it itself."""
    while (op := producer(mask, "broadcast_to")) is not None:
        mask = operand(op, 0)
    return mask


def _unscaled(side: Side) -> tuple[Side, float]:
    """The operand without a uniform factor, which moves into the scale."""
    value, factor = side.value, 1.0
    for _ in range(MAXIMUM_STEPS):
        op = producer(value, "mul", "div")
        split = split_number(op)
        if op is None or split is None or split[1] == 0 or split[0].shape != value.shape:
            break
        value = split[0]
        factor *= 1.0 / split[1] if op.name == "div" else split[1]
    return Side(value, side.swapped), factor


def _lead(side: Side, lead: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The leading shape of an operand: its own if it has the rank, else that of the scores if the sizes agree."""
    own = side.value.shape[:-2]
    if len(own) == len(lead):
        return own
    return lead if dims.equal(dims.product(own), dims.product(lead)) is True else own


def _built(side: Side, lead: tuple[Dim, ...], g: Builder) -> Value:
    value = _swapped(side.value, g) if side.swapped else side.value
    if value.shape[:-2] != lead:
        value = g.reshape(value, shape=(*lead, *value.shape[-2:]))
    return value


def _swapped(value: Value, g: Builder) -> Value:
    """The value with its last two dimensions swapped; a transpose that did it before is undone."""
    rank = value.type.rank
    op = producer(value, "transpose")
    permutation = list(op.attrs["permutation"]) if op is not None else list(range(rank))
    source = operand(op, 0) if op is not None else value
    permutation[-2:] = permutation[:-3:-1]
    if permutation == sorted(permutation):
        return source
    result: Value = g.transpose(source, permutation=tuple(permutation))
    return result


def _ungrouped(k: Value, v: Value, g: Builder) -> tuple[Value, Value]:
    """Keys and values before their heads were repeated; as they are if only one of them was."""
    key, value = _before_repeat(k), _before_repeat(v)
    if key is None or value is None or key[1] != value[1]:
        return k, v
    keys, values = (g.reshape(part, shape=(*part.shape[:-3], *part.shape[-2:])) for part, _ in (key, value))
    return keys, values


def _before_repeat(value: Value) -> tuple[Value, Dim] | None:
    """([.., G, 1, T, D], G) if `value` is [.., G * n, T, D] made of it by repeating each head n times."""
    joined = producer(value, "reshape")
    repeated = producer(joined.operands[0], "broadcast_to") if joined is not None else None
    if repeated is None:
        return None
    source, shape = operand(repeated, 0), repeated.result.shape
    if source.type.rank != value.type.rank + 1 or source.type.rank != len(shape) or source.shape[-3] != 1:
        return None
    groups = shape[-4]
    same = (*source.shape[:-3], *source.shape[-2:]) == (*shape[:-3], *shape[-2:])
    joins = value.shape == (*shape[:-4], groups * shape[-3], *shape[-2:])
    return (source, groups) if same and joins and isinstance(groups, int) else None
