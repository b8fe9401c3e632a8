"""Rules of ONNX Runtime's own attention: Attention, its quantized form, MultiHeadAttention."""

from __future__ import annotations

from .....ir import dims
from .....ir.dims import Dim
from .....ir.errors import UnsupportedError
from .....ir.graph import Value
from .....ir.types import i64
from ..broadcasting import stretched
from ..context import Node, cast, rule
from .attention import head_size, joined, merged, score_scale, size_value, split_heads
from .movement import slice_axis
from .quantization import MICROSOFT
from .quantized_products import along, factor, integer_product, scaled
from .shape import unsqueeze

MASKED = -10000.0
"""What is added to the score of a key that a mask hides, unless the node says otherwise."""


# --- self-attention with its projection -------------------------------------------------------------------------------


@rule("Attention", domain=MICROSOFT)
def _attention(n: Node) -> list[Value]:
    _refuse_flags(n, "do_rotary", "past_present_share_buffer")
    projected = n.b.matmul(n.x(0), n.x(1))
    if n.given(2):
        projected = n.b.add(projected, n.x(2))
    return _self_attention(n, projected, n.optional(3), n.optional(4), n.optional(5))


@rule("QAttention", domain=MICROSOFT)
def _quantized_attention(n: Node) -> list[Value]:
    _refuse_flags(n, "do_rotary", "past_present_share_buffer")
    total = integer_product(n, (n.x(0), n.optional(6)), (n.x(1), n.optional(7)))
    projected = scaled(n, total, factor(n, along(n, n.x(3), 0), along(n, n.x(4), 0)), n.x(2), n.x(2).dtype)
    return _self_attention(n, projected, n.optional(5), n.optional(8), None)


def _refuse_flags(n: Node, *names: str) -> None:
    for name in names:
        if n.attr_flag(name):
            raise UnsupportedError(
                f"attribute '{name}' is {n.attr_int(name)}", hint="ONNX Runtime's CPU kernels need 0 as well: fuse without it"
            )


def _self_attention(n: Node, projected: Value, mask: Value | None, past: Value | None, bias: Value | None) -> list[Value]:
    """Attention of [batch, rows, q + k + v]; `past` holds keys and values [2, batch, heads, rows, size]."""
    heads, width = n.attr_int("num_heads"), projected.shape[-1]
    sizes = n.attr_ints("qkv_hidden_sizes") or (head_size(n, width) // 3,) * 3
    if projected.type.rank != 3 or heads < 1 or len(sizes) != 3 or sum(sizes) != width or any(size % heads for size in sizes):
        raise n.fail(f"got {projected.type} for {heads} heads of sizes {list(sizes)}, expected rank 3 and as many columns")
    starts = (0, sizes[0], sizes[0] + sizes[1])
    q, k, v = (split_heads(n, slice_axis(n, projected, 2, start, size), heads) for start, size in zip(starts, sizes, strict=True))
    before: Dim = 0
    if past is not None:
        before = past.shape[3]
        old = (n.b.reshape(slice_axis(n, past, 0, part, 1), shape=past.shape[1:]) for part in (0, 1))
        k, v = (n.b.concat(part, x, axis=2) for part, x in zip(old, (k, v), strict=True))
    y = _answer(n, q, k, v, before, _mask(n, mask, bias, q, k))
    if not n.wanted(1):
        return [y]
    if sizes[1] != sizes[2]:
        raise UnsupportedError("output 'present' holds keys and values of different sizes", hint="leave it out")
    return [y, n.b.concat(unsqueeze(n, k, (0,)), unsqueeze(n, v, (0,)), axis=0)]


# --- attention of what is projected already ---------------------------------------------------------------------------


@rule("MultiHeadAttention", domain=MICROSOFT)
def _multi_head(n: Node) -> list[Value]:
    for position, name in ((8, "past_sequence_length"), (9, "cache_indirection")):
        if n.given(position):
            raise UnsupportedError(f"input '{name}' is given", hint="export without a buffer that past and present share")
    if n.wanted(3):
        raise UnsupportedError("output 'qk' is read", hint="leave it out: scores are not kept")
    q, k, v = _operands(n)
    if n.attr_flag("unidirectional") and dims.equal(q.shape[2], k.shape[2], n.facts) is not True:
        raise UnsupportedError(
            f"attribute 'unidirectional' is 1 for {q.shape[2]} queries and {k.shape[2]} new keys", hint="give as many of both, or a mask"
        )
    before: Dim = 0
    if n.given(6):
        before = n.x(6).shape[2]
        k, v = n.b.concat(n.x(6), k, axis=2), n.b.concat(n.x(7), v, axis=2)
    return [_answer(n, q, k, v, before, _mask(n, n.optional(4), n.optional(5), q, k)), k, v]


def _operands(n: Node) -> tuple[Value, Value, Value]:
    """q, k and v as [batch, heads, rows, size], with their parts of the bias: apart, or packed as [batch, rows, heads, 2 or 3, size]."""
    heads, query, key = n.attr_int("num_heads"), n.x(0), n.optional(1)
    if heads < 1 or query.type.rank not in (3, 5) or (key is None and query.type.rank == 3):
        raise n.fail(f"got {query.type} for {heads} heads, expected rank 3 with keys and values, or rank 5")
    if key is None:
        q, k, v = _unpacked(n, query, ("q", "k", "v"))
        return q, k, v
    q = split_heads(n, _biased(n, query, "q"), heads)
    if key.type.rank == 5:
        k, v = _unpacked(n, key, ("k", "v"))
        return q, k, v
    value = n.x(2)
    if key.type.rank == 4:
        return q, key, value
    return q, split_heads(n, _biased(n, key, "k"), heads), split_heads(n, _biased(n, value, "v"), heads)


def _unpacked(n: Node, packed: Value, parts: tuple[str, ...]) -> tuple[Value, ...]:
    batch, rows, heads, count, size = packed.shape
    if count != len(parts):
        raise n.fail(f"got {packed.type}, expected {len(parts)} parts along axis 3")
    wide = (n.b.reshape(slice_axis(n, packed, 3, place, 1), shape=(batch, rows, heads * size)) for place in range(len(parts)))
    return tuple(split_heads(n, _biased(n, part, name), n.attr_int("num_heads")) for part, name in zip(wide, parts, strict=True))


def _biased(n: Node, x: Value, part: str) -> Value:
    """x plus its part of the bias, in which q and k are as wide as each other."""
    bias = n.optional(3)
    if bias is None:
        return x
    width, total = x.shape[2], bias.shape[0]
    start: Dim = 0 if part == "q" else width if part == "k" else total - width
    result: Value = n.b.add(x, slice_axis(n, bias, 0, start, width))
    return result


# --- what both share --------------------------------------------------------------------------------------------------


def _answer(n: Node, q: Value, k: Value, v: Value, before: Dim, mask: Value | None) -> Value:
    """The attention, with as many keys from `before` as that."""
    causal, scale = n.attr_flag("unidirectional"), score_scale(n, q, usual_at_zero=True)
    if causal and before != 0:
        row, column = (n.b.iota(shape=(q.shape[2], k.shape[2]), axis=axis, dtype=i64) for axis in (0, 1))
        mask = joined(n, mask, n.b.le(column, n.b.add(row, size_value(n, before))))
    return merged(n, n.b.attention(q, k, v, mask, scale=scale, causal=causal and before == 0))


def _mask(n: Node, mask: Value | None, bias: Value | None, q: Value, k: Value) -> Value | None:
    """What is added to the scores: a bias, and a number where the mask hides a key."""
    scores = (*q.shape[:3], k.shape[2])
    added = None if bias is None else fitted(n, bias, scores, "attention_bias")
    kept = None if mask is None else _kept(n, mask, scores)
    if kept is None:
        return added
    number = n.attr_float("mask_filter_value", MASKED)
    hidden = n.b.where(kept, n.b.scalar(0.0, q.dtype), n.b.scalar(number, q.dtype))
    return hidden if added is None else n.b.add(added, hidden)  # type: ignore[no-any-return]


def fitted(n: Node, value: Value, shape: tuple[Dim, ...], what: str) -> Value:
    """The value at this shape, where its sizes are those, or 1, or only a call tells; a call is refused where they differ."""
    result = stretched(n.b, value, shape)
    if result is None:
        raise n.fail(f"{what} is {value.type}, expected [{', '.join(str(size) for size in shape)}]")
    return result


def _kept(n: Node, mask: Value, scores: tuple[Dim, ...]) -> Value | None:
    """Which keys the mask keeps: by its elements, or by the lengths (and starts) of the sequences; None if it hides nothing."""
    batch, _, rows, columns = scores
    if mask.type.rank == 1:
        return _within(n, mask, batch, columns)
    if mask.type.rank == 2 and mask.shape[1] == 1 and columns != 1:
        # One element for all keys shifts their scores together.
        return None
    if mask.type.rank not in (2, 3):
        raise UnsupportedError(f"the mask is {mask.type}", hint="give a mask of rank 1, 2 or 3")
    shape = (batch, columns) if mask.type.rank == 2 else (batch, rows, columns)
    kept = n.b.gt(fitted(n, mask, shape, "the mask"), 0)
    return unsqueeze(n, kept, (1, 2) if mask.type.rank == 2 else (1,))


def _within(n: Node, bounds: Value, batch: Dim, columns: Dim) -> Value:
    """Keys before the end of their sequence, and from its start on where `bounds` holds both; what follows 3 * batch is not needed."""
    count = bounds.shape[0]
    is_length, has_start, is_packed = (dims.equal(count, size, n.facts) is True for size in (batch, 2 * batch, 3 * batch + 2))
    if not (is_length or has_start or is_packed):
        raise n.fail(f"the mask has {count} elements, expected {batch}, {2 * batch} or {3 * batch + 2}")

    def bound(start: Dim) -> Value:
        part = cast(n, slice_axis(n, bounds, 0, start, batch), i64)
        return n.b.reshape(part, shape=(batch, 1, 1, 1))  # type: ignore[no-any-return]

    column = n.b.iota(shape=(1, 1, 1, columns), axis=3, dtype=i64)
    kept: Value = n.b.lt(column, bound(0))
    return n.b.logical_and(kept, n.b.ge(column, bound(batch))) if has_start else kept
