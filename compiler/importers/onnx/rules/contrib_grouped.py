"""ONNX Runtime's GroupQueryAttention: heads that share keys, over a cache that each sequence fills to a length of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .....ir import dims
from .....ir.dims import Dim
from .....ir.errors import UnsupportedError
from .....ir.graph import Value
from .....ir.types import boolean, f32, i64
from ..context import Node, cast, rule
from .attention import joined, merged, rotated, score_cap, score_scale, size_value, spelled, split_heads
from .contrib_attention import fitted
from .indexing import checked
from .movement import slice_axis
from .quantization import MICROSOFT

REFUSED_INPUTS = ((12, "k_scale"), (13, "v_scale"), (14, "q_norm_weight"), (15, "k_norm_weight"))


@dataclass(frozen=True)
class _Lengths:
    """How long everything is: new rows, places in the cache (before and after), the longest sequence, and each sequence.

    `total` and `before` count the keys of each sequence, with the new ones and without them, as [batch, 1, 1, 1]; `before` is
    None where there is no cache. In a prompt every sequence starts at 0, though its new rows may be more than its keys.
    """

    rows: Dim
    past: Dim
    present: Dim
    longest: Dim
    total: Value
    before: Value | None
    prompt: Value


@rule("GroupQueryAttention", domain=MICROSOFT)
def _grouped(n: Node) -> list[Value]:
    _refuse(n)
    q, k, v = _operands(n)
    lengths = _lengths(n, q)
    if n.attr_flag("do_rotary"):
        q, k = _rotated(n, q, k, lengths)
    if n.given(3):
        k, v = _present(n, n.x(3), k, lengths), _present(n, n.x(4), v, lengths)
    return [merged(n, _answer(n, q, k, v, lengths)), k, v]


def _refuse(n: Node) -> None:
    """What ONNX Runtime's CPU kernel does not do either, and caches that are not of the operands' type."""
    for position, name in REFUSED_INPUTS:
        if n.given(position):
            raise UnsupportedError(f"input '{name}' is given", hint="export without it: keys are cached as they are computed")
    if n.attr_flag("sliding_window_cache"):
        raise UnsupportedError("attribute 'sliding_window_cache' is 1", hint="export with a cache of the whole sequence")
    if n.wanted(3) or n.attr_int("qk_output"):
        raise UnsupportedError("output 'output_qk' is read", hint="leave it out: scores are not kept")
    if n.attr_int("local_window_size", -1) == 0:
        raise n.fail("local_window_size is 0, expected -1 for none or a number of places")
    if not n.attr_flag("causal", True) and n.attr_int("local_window_size", -1) != -1:
        raise n.fail(f"local_window_size is {n.attr_int('local_window_size')} without causality, expected -1")
    if n.given(3) != n.given(4) or n.given(1) != n.given(2):
        raise n.fail("keys are given without values, or values without keys")


def _operands(n: Node) -> tuple[Value, Value, Value]:
    """q, k and v as [batch, heads, rows, size], given apart or side by side."""
    heads, groups, query = n.attr_int("num_heads"), n.attr_int("kv_num_heads"), n.x(0)
    if query.type.rank != 3 or heads < 1 or groups < 1 or heads % groups:
        raise n.fail(f"got {query.type} for {heads} heads and {groups} key heads, expected rank 3 and a multiple")
    if n.given(1):
        return split_heads(n, query, heads), split_heads(n, n.x(1), groups), split_heads(n, n.x(2), groups)
    packed = split_heads(n, query, heads + 2 * groups)
    return slice_axis(n, packed, 1, 0, heads), slice_axis(n, packed, 1, heads, groups), slice_axis(n, packed, 1, heads + groups, groups)


# --- lengths ----------------------------------------------------------------------------------------------------------


def _lengths(n: Node, q: Value) -> _Lengths:
    batch, rows = q.shape[0], q.shape[2]
    past: Dim = n.x(3).shape[2] if n.given(3) else 0
    longest, given = _longest(n, past, rows)
    counts = checked(n, cast(n, n.x(5), i64), longest, negative=False)
    if dims.equal(counts.type.elements, batch, n.facts) is not True:
        raise n.fail(f"seqlens_k is {counts.type}, expected one number for each of {batch} sequences")
    if given is not None:
        # Nothing is added, but what is wrong with the longest length is an error.
        counts = n.b.add(counts, n.b.sub(given, size_value(n, longest)))
    total = n.b.reshape(n.b.add(counts, 1), shape=(batch, 1, 1, 1))
    prompt = n.b.eq(size_value(n, longest), size_value(n, rows))
    if not n.given(3):
        return _Lengths(rows, 0, rows, longest, total, None, prompt)
    before = n.b.where(prompt, n.b.scalar(0, i64), n.b.sub(total, size_value(n, rows)))
    whole = dims.equal(longest, past + rows, n.facts) is True
    present = past + rows if whole else dims.simplify(dims.maximum(longest, past), n.facts)
    return _Lengths(rows, past, present, longest, total, before, prompt)


def _longest(n: Node, past: Dim, rows: Dim) -> tuple[Dim, Value | None]:
    """The length of the longest sequence, a size that is known or found when the model runs; and its number, if that is to be checked."""
    if n.x(6).type.elements != 1:
        raise n.fail(f"total_sequence_length is {n.x(6).type}, expected one number")
    known, most = n.b.dims_of(n.x(6)), past + rows
    size = None if known is None else known.reshape(-1)[0]
    if size is not None and dims.equal(size, most, n.facts) is True:
        return most, None
    # Without a cache the new rows are all there is; with one all of it may lie before them.
    least = rows if n.given(3) else most
    number = n.b.reshape(cast(n, n.x(6), i64), shape=())
    excess = checked(n, n.b.sub(number, size_value(n, least)), most - least + 1, negative=False)
    number = n.b.add(excess, size_value(n, least))
    if not n.given(3):
        return rows, number
    if size is None and n.given(10) and n.x(10).type.rank == 4:
        # A bias has a column for each key of the longest sequence.
        size = n.x(10).shape[3]
        number = n.b.add(checked(n, n.b.sub(number, size_value(n, size)), 1, negative=False), size_value(n, size))
    if size is not None:
        return size, number
    count = n.fresh("total")
    n.b.nonzero(n.b.lt(n.b.iota(shape=(most,), axis=0, dtype=i64), number), count=count)
    return count, None


# --- the cache --------------------------------------------------------------------------------------------------------


def _present(n: Node, past: Value, new: Value, lengths: _Lengths) -> Value:
    """The cache with the new rows behind those of each sequence, and zeros behind them."""
    if past.type.rank != 4 or past.dtype != new.dtype:
        raise UnsupportedError(f"the cache is {past.type} for rows {new.type}", hint="export with a cache of the operands' type")
    batch, groups, _, size = new.shape
    behind = n.b.sub(n.b.iota(shape=(1, 1, lengths.present, 1), axis=2, dtype=i64), lengths.before)
    last = size_value(n, lengths.rows - 1)
    source = n.b.broadcast_to(n.b.clip(behind, n.b.scalar(0, i64), last), shape=(batch, groups, lengths.present, size))
    added = n.b.where(n.b.le(behind, last), n.b.take_along_axis(new, source, axis=2), n.b.scalar(0.0, new.dtype))
    after = (0, 0, lengths.present - lengths.past, 0)
    kept = n.b.pad(past, before=(0,) * 4, after=after, mode="constant", value=0.0)
    result: Value = n.b.where(n.b.lt(behind, 0), kept, added)
    return result


def _rotated(n: Node, q: Value, k: Value, lengths: _Lengths) -> tuple[Value, Value]:
    """q and k, turned by the angles of their positions."""
    cosine, sine = n.x(7), n.x(8)
    step = n.b.iota(shape=(1, lengths.rows), axis=1, dtype=i64)
    first: Value = n.b.scalar(0, i64)
    if n.given(9):
        # A prompt reads the first of all positions only; a batch may be empty.
        ids = n.b.pad(cast(n, n.x(9), i64), before=(0, 0), after=(1, 0), mode="constant", value=0)
        first = n.b.reshape(slice_axis(n, slice_axis(n, ids, 0, 0, 1), 1, 0, 1), shape=())
    positions = n.b.add(step, first)
    if lengths.before is not None:
        following = cast(n, n.x(9), i64) if n.given(9) else n.b.add(step, n.b.reshape(lengths.before, shape=(q.shape[0], 1)))
        positions = n.b.where(lengths.prompt, positions, following)
    positions = checked(n, positions, cosine.shape[0], negative=False)
    cosine, sine = (n.b.take(table, positions, axis=0) for table in (cosine, sine))
    turned, interleaved = 2 * cosine.shape[2], n.attr_flag("rotary_interleaved")
    return rotated(n, q, cosine, sine, turned, interleaved), rotated(n, k, cosine, sine, turned, interleaved)


# --- attention --------------------------------------------------------------------------------------------------------


def _answer(n: Node, q: Value, k: Value, v: Value, lengths: _Lengths) -> Value:
    """The attention; a sink, or a smooth softmax, is one more key of which no value comes."""
    scale, cap = score_scale(n, q, usual_at_zero=True), score_cap(n)
    sink = n.optional(11)
    if sink is not None or n.attr_int("smooth_softmax", -1) == 1:
        sink = n.b.scalar(0.0, q.dtype) if sink is None else n.b.reshape(sink, shape=(1, q.shape[1], 1, 1))
        after = (0, 0, 1, 0)
        k, v = (n.b.pad(x, before=(0,) * 4, after=after, mode="constant", value=0.0) for x in (k, v))
    # The op knows causality where nothing is past, and every key is of a new row.
    causal = n.attr_flag("causal", True) and lengths.before is None and sink is None and cap == 0.0
    mask = _mask(n, q, k, lengths, sink, n.attr_flag("causal", True) and not causal)
    if cap == 0.0:
        return n.b.attention(q, k, v, mask, scale=scale, causal=causal, safe=True)  # type: ignore[no-any-return]
    q, k, v, dtype = cast(n, q, f32), cast(n, k, f32), cast(n, v, f32), q.dtype
    mask = mask if mask.dtype == boolean else cast(n, mask, f32)
    return cast(n, spelled(n, q, k, v, mask, scale, cap)[0], dtype)


def _mask(n: Node, q: Value, k: Value, lengths: _Lengths, sink: Value | None, causal: bool) -> Value:
    """Which keys each row sees, or what is added to their scores."""
    columns = k.shape[2]
    row, column = (n.b.iota(shape=(1, 1, lengths.rows, 1), axis=2, dtype=i64), n.b.iota(shape=(1, 1, 1, columns), axis=3, dtype=i64))
    row = row if lengths.before is None else n.b.add(row, lengths.before)
    kept = n.b.lt(column, lengths.total)
    if causal:
        kept = n.b.logical_and(kept, n.b.le(column, row))
    window = n.attr_int("local_window_size", -1)
    if window > 0:
        kept = n.b.logical_and(kept, n.b.gt(column, n.b.sub(row, window)))
    mask = joined(n, _bias(n, q, columns, lengths), kept)
    if sink is None or mask is None:
        return kept if mask is None else mask
    if mask.dtype == boolean:
        mask = n.b.where(mask, n.b.scalar(0.0, q.dtype), n.b.scalar(-math.inf, q.dtype))
    return n.b.where(n.b.eq(column, size_value(n, lengths.present)), sink, mask)  # type: ignore[no-any-return]


def _bias(n: Node, q: Value, columns: Dim, lengths: _Lengths) -> Value | None:
    """The bias of the node, as wide as the cache."""
    if not n.given(10):
        return None
    bias = fitted(n, n.x(10), (*q.shape[:3], lengths.longest), "attention_bias")
    missing = columns - bias.shape[3]
    if missing == 0:
        return bias
    result: Value = n.b.pad(bias, before=(0,) * 4, after=(0, 0, 0, missing), mode="constant", value=0.0)
    return result
