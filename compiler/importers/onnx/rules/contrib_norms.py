"""Rules of ONNX Runtime's own normalizations: of sums, without a mean, of embeddings."""

from __future__ import annotations

from .....ir import dims
from .....ir.graph import Value
from .....ir.types import f32, i32, i64
from ..context import Node, cast, rule
from .indexing import checked
from .normalization import expect_stash, reciprocal_deviation
from .quantization import MICROSOFT


@rule("SimplifiedLayerNormalization")
@rule("SimplifiedLayerNormalization", domain=MICROSOFT)
def _simplified(n: Node) -> list[Value | None]:
    """The root-mean-square norm; ONNX Runtime writes it into ONNX's own domain, and counts opsets as it likes there."""
    x, scale = n.x(0), n.x(1)
    axis = n.axis(n.attr_int("axis", -1), x.type.rank)
    axes = tuple(range(axis, x.type.rank))
    epsilon = n.attr_float("epsilon", 1e-5)
    expect_stash(n)
    y = cast(n, n.b.rms_norm(x, cast(n, scale, x.dtype), axes=axes, epsilon=epsilon), scale.dtype)
    return [y, reciprocal_deviation(n, cast(n, x, f32), axes, epsilon) if n.wanted(1) else None]


@rule("SkipLayerNormalization", domain=MICROSOFT)
def _skip(n: Node) -> list[Value | None]:
    total = _sum(n, n.optional(4))
    epsilon = n.attr_float("epsilon", 1e-12)
    y: Value = n.b.layer_norm(total, n.x(2), n.optional(3), axes=(total.type.rank - 1,), epsilon=epsilon)
    return [y, *_statistics(n, total, centred=True, epsilon=epsilon), total]


@rule("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip_simplified(n: Node) -> list[Value | None]:
    total = _sum(n, n.optional(3))
    epsilon = n.attr_float("epsilon", 1e-12)
    y: Value = n.b.rms_norm(total, n.x(2), axes=(total.type.rank - 1,), epsilon=epsilon)
    return [y, *_statistics(n, total, centred=False, epsilon=epsilon), total]


def _sum(n: Node, bias: Value | None) -> Value:
    """The input plus what skips to it, plus a bias."""
    x, skip = n.x(0), n.x(1)
    if x.type.rank not in (2, 3) or skip.type.rank not in (2, 3) or skip.type.rank > x.type.rank:
        raise n.fail(f"got {x.type} and skip {skip.type}, expected rank 2 or 3")
    for have, want in zip(reversed(skip.shape[-2:]), reversed(x.shape[-2:]), strict=True):
        if dims.equal(have, want, n.facts) is False:
            raise n.fail(f"got {x.type} and skip {skip.type}, expected the same last two sizes")
    total: Value = n.b.add(x, skip)
    return total if bias is None else n.b.add(total, bias)


def _statistics(n: Node, x: Value, centred: bool, epsilon: float) -> list[Value | None]:
    """The mean and the reciprocal deviation of each row, where the node gives them."""
    axes, wide = (x.type.rank - 1,), cast(n, x, f32)
    mean = n.b.mean(wide, axes=axes, keepdims=True)
    centre = n.b.sub(wide, mean) if centred else wide
    return [mean if n.wanted(1) else None, reciprocal_deviation(n, centre, axes, epsilon) if n.wanted(2) else None]


@rule("EmbedLayerNormalization", domain=MICROSOFT)
def _embed(n: Node) -> list[Value | None]:
    ids = n.x(0)
    if ids.type.rank != 2:
        raise n.fail(f"got {ids.type}, expected ids of [batch, sequence]")
    words, positions = n.x(2), n.x(3)
    if n.given(8):
        places = n.x(8)
    else:
        places = n.b.iota(shape=(1, ids.shape[1]), axis=1, dtype=i64)
    total = n.b.add(_row(n, words, ids), _row(n, positions, places))
    if n.given(1) and n.given(4):
        total = n.b.add(total, _row(n, n.x(4), n.x(1)))
    y: Value = n.b.layer_norm(total, n.x(5), n.x(6), axes=(2,), epsilon=n.attr_float("epsilon", 1e-12))
    return [y, _mask_index(n, ids), total]


def _row(n: Node, table: Value, indices: Value) -> Value:
    """Rows of a table."""
    result: Value = n.b.take(table, checked(n, indices, table.shape[0], negative=False), axis=0)
    return result


def _mask_index(n: Node, ids: Value) -> Value:
    """How many words of each sequence the mask keeps; without a mask ONNX Runtime says 0."""
    if not n.given(7):
        return n.b.full(shape=(ids.shape[0],), value=0, dtype=i32)  # type: ignore[no-any-return]
    kept = n.b.cast(n.b.eq(n.x(7), 1), dtype=i64)
    return cast(n, n.b.sum(kept, axes=(1,), keepdims=False), i32)
