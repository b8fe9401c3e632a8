"""Rules of ONNX's attention and what belongs to it: Attention (opset 23), RotaryEmbedding; the parts that ONNX Runtime's ops share."""

from __future__ import annotations

import math

from .....ir import dims
from .....ir.dims import Dim
from .....ir.errors import UnsupportedError
from .....ir.graph import Value
from .....ir.types import boolean, i64
from ..context import Node, cast, rule
from ..tensors import element_type
from .indexing import checked
from .movement import slice_axis, transpose
from .quantization import MICROSOFT


@rule("Attention")
def _attention(n: Node) -> list[Value]:
    q, k, v = (_heads(n, n.x(position), name) for position, name in ((0, "q_num_heads"), (1, "kv_num_heads"), (2, "kv_num_heads")))
    past: Dim = 0
    if n.given(4):
        past = n.x(4).shape[2]
        k, v = n.b.concat(n.x(4), k, axis=2), n.b.concat(n.x(5), v, axis=2)
    scale = score_scale(n, q) if n.has("scale") else usual_scale(n, q)
    causal = n.attr_flag("is_causal")
    window = (n.attr_int("left_window_size", -1), n.attr_int("right_window_size", -1))
    # The op knows causality from the upper left corner; every other kind is a mask.
    plain_causal = causal and past == 0 and not n.given(6)
    mask = joined(n, _operand_mask(n, k.shape[2]), _kept(n, q, k, past, causal and not plain_causal, window))
    cap = score_cap(n)
    if cap == 0.0 and len(n.outputs) < 4 and n.attr_int("softmax_precision", 1) == 1:
        y: Value = n.b.attention(q, k, v, mask, scale=scale, causal=plain_causal, safe=True)
        scores: Value | None = None
    else:
        if plain_causal:
            mask = joined(n, mask, _kept(n, q, k, past, True, (-1, -1)))
        y, scores = spelled(n, q, k, v, mask, scale, cap)
    if n.x(0).type.rank == 3:
        y = merged(n, y)
    results = [y, k, v]
    return [*results, scores] if scores is not None else results


def score_scale(n: Node, q: Value, usual_at_zero: bool = False) -> float:
    """What scores are multiplied by: any number, below 0 too; 0 may ask for the usual one. No number is an error."""
    scale = n.attr_float("scale")
    if not math.isfinite(scale):
        raise n.fail(f"scale is {scale}, expected a finite number")
    return usual_scale(n, q) if usual_at_zero and scale == 0.0 else scale


def usual_scale(n: Node, q: Value) -> float:
    """One over the root of the size of a head."""
    return 1.0 / math.sqrt(head_size(n, q.shape[3]))


def score_cap(n: Node) -> float:
    """What scores are bent to stay below; 0 for none, which anything that is not above 0 asks for."""
    cap = n.attr_float("softcap")
    if cap == math.inf:
        raise n.fail("softcap is inf, expected a finite number, or 0 for none")
    return cap if cap > 0 else 0.0


def head_size(n: Node, size: Dim) -> int:
    """The size of a head, which must be a number."""
    if not isinstance(size, int):
        raise UnsupportedError(f"head size {size} is symbolic", hint="fix it at import (shapes)")
    return max(size, 1)


def _heads(n: Node, x: Value, name: str) -> Value:
    """[batch, heads, rows, size], whatever of both forms is given."""
    if x.type.rank == 4:
        return x
    count = n.attr_int(name)
    if x.type.rank != 3 or count < 1:
        raise n.fail(f"got {x.type} with {name} = {count}, expected rank 4, or rank 3 and a number of heads")
    return split_heads(n, x, count)


def split_heads(n: Node, x: Value, count: int) -> Value:
    """[batch, rows, heads * size] as [batch, heads, rows, size]."""
    batch, rows, width = x.shape
    if isinstance(width, int) and width % count:
        raise n.fail(f"got {x.type}, expected a multiple of {count} heads")
    return transpose(n, n.b.reshape(x, shape=(batch, rows, count, width // count)), (0, 2, 1, 3))


def merged(n: Node, x: Value) -> Value:
    """[batch, heads, rows, size] as [batch, rows, heads * size]."""
    batch, heads, rows, size = x.shape
    result: Value = n.b.reshape(transpose(n, x, (0, 2, 1, 3)), shape=(batch, rows, heads * size))
    return result


def _operand_mask(n: Node, columns: Dim) -> Value | None:
    """The mask operand; one that is shorter than the keys hides the rest."""
    mask = n.optional(3)
    if mask is None or mask.shape[-1] == 1 or dims.equal(mask.shape[-1], columns, n.facts) is True:
        return mask
    missing = (*(0,) * (mask.type.rank - 1), columns - mask.shape[-1])
    fill: float = False if mask.dtype == boolean else -math.inf
    result: Value = n.b.pad(mask, before=(0,) * mask.type.rank, after=missing, mode="constant", value=fill)
    return result


def _kept(n: Node, q: Value, k: Value, past: Dim, causal: bool, window: tuple[int, int]) -> Value | None:
    """Which key each query may see, by position: causality, a sliding window, the lengths of a padded cache."""
    rows, columns, lengths = q.shape[2], k.shape[2], n.optional(6)
    row, column = (n.b.iota(shape=(rows, columns), axis=axis, dtype=i64) for axis in (0, 1))
    length: Value | None = None
    if lengths is not None:
        length = n.b.reshape(cast(n, lengths, i64), shape=(lengths.type.elements, 1, 1, 1))
    if length is not None and past == 0:
        row = n.b.add(row, n.b.sub(length, size_value(n, rows)))
    elif past != 0:
        row = n.b.add(row, size_value(n, past))
    conditions: list[Value] = []
    if causal:
        conditions.append(n.b.le(column, row))
    if window[0] >= 0:
        conditions.append(n.b.le(n.b.sub(row, column), window[0]))
    if window[1] >= 0:
        conditions.append(n.b.le(n.b.sub(column, row), window[1]))
    if length is not None:
        conditions.append(n.b.lt(column, length))
    kept: Value | None = None
    for condition in conditions:
        kept = condition if kept is None else n.b.logical_and(kept, condition)
    return kept


def joined(n: Node, mask: Value | None, kept: Value | None) -> Value | None:
    """Both restrictions as one mask."""
    if mask is None or kept is None:
        return kept if mask is None else mask
    if mask.dtype == boolean:
        return n.b.logical_and(mask, kept)  # type: ignore[no-any-return]
    return n.b.where(kept, mask, n.b.scalar(-math.inf, mask.dtype))  # type: ignore[no-any-return]


def size_value(n: Node, value: Dim) -> Value:
    """A size as an i64 scalar."""
    return n.b.scalar(value, i64) if isinstance(value, int) else n.b.dim(value=value)


def spelled(n: Node, q: Value, k: Value, v: Value, mask: Value | None, scale: float, cap: float) -> tuple[Value, Value]:
    """Attention in its parts, where a score is an output or a cap stands between them."""
    groups = q.shape[1] // k.shape[1]
    if groups != 1:
        k, v = (repeated(n, x, groups) for x in (k, v))
    root = math.sqrt(abs(scale))
    raw = n.b.matmul(n.b.mul(q, math.copysign(root, scale)), n.b.mul(k, root), transpose_b=True)
    bias: Value | None = None
    if mask is not None and mask.dtype == boolean:
        bias = n.b.where(mask, n.b.scalar(0.0, raw.dtype), n.b.scalar(-math.inf, raw.dtype))
    elif mask is not None:
        bias = cast(n, mask, raw.dtype)
    capped = raw if cap == 0.0 else n.b.mul(n.b.tanh(n.b.div(raw, cap)), cap)
    masked = capped if bias is None else n.b.add(capped, bias)
    number = n.attr_int("softmax_precision")
    dtype = element_type(number, n.source) if number else masked.dtype
    wide = cast(n, masked, dtype if dtype.is_float and dtype.bits >= masked.dtype.bits else masked.dtype)
    weights = n.b.softmax(wide, axis=3)
    if bias is not None:
        # A row that sees nothing has no weights.
        dead = n.b.eq(n.b.reduce_max(bias, axes=(bias.type.rank - 1,), keepdims=True), -math.inf)
        weights = n.b.where(dead, n.b.scalar(0.0, weights.dtype), weights)
    weights = cast(n, weights, q.dtype)
    # The stages that a second result may show: the product, capped, masked, and the weights.
    stages = {0: raw, 1: capped, 2: masked, 3: weights}
    mode = n.attr_int("qk_matmul_output_mode")
    if mode not in stages:
        raise n.fail(f"qk_matmul_output_mode is {mode}, expected 0 to 3")
    return n.b.matmul(weights, v), stages[mode]


def repeated(n: Node, x: Value, groups: Dim) -> Value:
    """Each head `groups` times."""
    batch, heads, rows, size = x.shape
    wide = n.b.broadcast_to(n.b.reshape(x, shape=(batch, heads, 1, rows, size)), shape=(batch, heads, groups, rows, size))
    result: Value = n.b.reshape(wide, shape=(batch, heads * groups, rows, size))
    return result


# --- rotary embedding -------------------------------------------------------------------------------------------------


@rule("RotaryEmbedding")
def _rotary(n: Node) -> Value:
    x, cosine, sine = n.x(0), n.x(1), n.x(2)
    flat = x.type.rank == 3
    if flat:
        count = n.attr_int("num_heads")
        if count < 1:
            raise n.fail("num_heads is missing for an input of rank 3")
        x = split_heads(n, x, count)
    if n.given(3):
        cosine, sine = (n.b.take(table, n.x(3), axis=0) for table in (cosine, sine))
    y = rotated(n, x, cosine, sine, n.attr_int("rotary_embedding_dim") or x.shape[3], n.attr_flag("interleaved"))
    return merged(n, y) if flat else y


def rotated(n: Node, x: Value, cosine: Value, sine: Value, turned: Dim, interleaved: bool) -> Value:
    """The first `turned` elements of each head [batch, heads, rows, size], turned pair by pair by the angles [batch, rows, turned / 2]."""
    batch, heads, rows, size = x.shape
    half = dims.simplify(turned // 2, n.facts)
    cosine, sine = (n.b.reshape(table, shape=(table.shape[0], 1, rows, half)) for table in (cosine, sine))
    head = slice_axis(n, x, 3, 0, turned)
    if interleaved:
        first, second = (slice_axis(n, head, 3, start, half, 2) for start in (0, 1))
    else:
        first, second = slice_axis(n, head, 3, 0, half), slice_axis(n, head, 3, half, half)
    real = n.b.sub(n.b.mul(cosine, first), n.b.mul(sine, second))
    imaginary = n.b.add(n.b.mul(sine, first), n.b.mul(cosine, second))
    if interleaved:
        pair = [n.b.reshape(part, shape=(batch, heads, rows, half, 1)) for part in (real, imaginary)]
        y = n.b.reshape(n.b.concat(*pair, axis=4), shape=(batch, heads, rows, turned))
    else:
        y = n.b.concat(real, imaginary, axis=3)
    if turned != size:
        y = n.b.concat(y, slice_axis(n, x, 3, turned, size - turned), axis=3)
    return cast(n, y, x.dtype)


@rule("RotaryEmbedding", domain=MICROSOFT)
def _rotary_at(n: Node) -> Value:
    """ONNX Runtime's: positions before the tables, one of them where the rows follow each other. Its `scale` changes nothing."""
    x, positions, cosine, sine = (n.x(position) for position in range(4))
    if n.attr_flag("is_packed_batching"):
        raise UnsupportedError("attribute 'is_packed_batching' is 1", hint="give every sequence a row of its own")
    turned, flat = n.attr_int("rotary_embedding_dim"), x.type.rank == 3
    if cosine.type.rank != 2 or x.type.rank not in (3, 4):
        raise n.fail(f"got {x.type} and a table {cosine.type}, expected rank 3 or 4 and a matrix")
    if flat:
        width, half = x.shape[2], cosine.shape[1]
        count = n.attr_int("num_heads") if turned else dims.simplify(width // (2 * half), n.facts)
        if not isinstance(count, int) or count < 1:
            raise n.fail(f"got {x.type} and {count} heads, expected a positive number of them")
        x = split_heads(n, x, count)
    cosine, sine = (rows_at(n, table, positions, x.shape[2]) for table in (cosine, sine))
    y = rotated(n, x, cosine, sine, turned or x.shape[3], n.attr_flag("interleaved"))
    return merged(n, y) if flat else y


def rows_at(n: Node, table: Value, positions: Value, rows: Dim) -> Value:
    """The rows of a table at positions [batch, rows]; a single one is the first of as many rows as there are."""
    if positions.type.rank < 2:
        positions = n.b.add(n.b.iota(shape=(1, rows), axis=1, dtype=positions.dtype), n.b.reshape(positions, shape=(1, 1)))
    result: Value = n.b.take(table, checked(n, positions, table.shape[0], negative=False), axis=0)
    return result
