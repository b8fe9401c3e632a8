"""Rules for torch's fused attention ops, all of them the one op `attention`."""

from __future__ import annotations

import math
from typing import Any

from .....ir import dims
from .....ir.graph import Value
from ..context import Node, aten


def _attention(n: Node, q: Value, k: Value, v: Value, mask: Value | None, dropout: Any, causal: bool, scale: Any) -> Value:
    if dropout:
        raise n.fail(f"drops weights with probability {dropout}")
    if mask is not None and mask.dtype.kind != "bool":
        mask = n.cast(mask, q.dtype)
    width = q.shape[-1]
    if scale is None and not isinstance(width, int):
        raise n.fail(f"the width {width} of a head is symbolic")
    factor = float(scale) if scale is not None else 1.0 / math.sqrt(dims.number(width))
    # Torch's kernels give 0 for a row that a mask leaves empty.
    result: Value = n.b.attention(q, k, v, mask, scale=factor, causal=causal, safe=True)
    return result


@aten("scaled_dot_product_attention")
def _composite(
    n: Node,
    q: Value,
    k: Value,
    v: Value,
    attn_mask: Value | None = None,
    dropout_p: Any = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Value:
    if q.type.rank < 3:
        # One head: the op's own rank is at least three.
        q, k, v = (n.reshape(x, (1, *x.shape)) for x in (q, k, v))
        mask = attn_mask if attn_mask is None else n.reshape(attn_mask, (1, *attn_mask.shape))
        return n.reshape(_attention(n, q, k, v, mask, dropout_p, is_causal, scale), n.shape)
    if not enable_gqa and q.shape[-3] != k.shape[-3]:
        raise n.fail(f"has {q.shape[-3]} and {k.shape[-3]} heads that broadcast")
    return _attention(n, q, k, v, attn_mask, dropout_p, is_causal, scale)


def _log_sum(n: Node, q: Value, k: Value, mask: Value | None, causal: bool, scale: Any) -> Value:
    """The logarithm of each row's sum of exponentials, which the backward pass reads."""
    expected = n.results[1]
    if mask is not None or causal or expected is None or q.shape[-3] != k.shape[-3]:
        raise n.fail("its second result is read, and a mask stands in the way")
    factor = float(scale) if scale is not None else 1.0 / math.sqrt(dims.number(q.shape[-1]))
    scores = n.scaled("mul", n.b.matmul(q, k, transpose_b=True), factor, q.dtype)
    return n.cast(n.reshape(n.b.logsumexp(scores, axes=(q.type.rank - 1,)), expected.shape), expected.dtype)


@aten("_scaled_dot_product_flash_attention_for_cpu")
def _flash_for_cpu(
    n: Node,
    q: Value,
    k: Value,
    v: Value,
    dropout_p: Any = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: Any = None,
) -> tuple[Value | None, ...]:
    log_sum = _log_sum(n, q, k, attn_mask, is_causal, scale) if n.needs(1) else None
    return _attention(n, q, k, v, attn_mask, dropout_p, is_causal, scale), log_sum


@aten("_scaled_dot_product_flash_attention")
def _flash(
    n: Node,
    q: Value,
    k: Value,
    v: Value,
    dropout_p: Any = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Any = None,
) -> tuple[Value | None, ...]:
    _only_first(n)
    return _attention(n, q, k, v, None, dropout_p, is_causal, scale), *(None,) * (len(n.results) - 1)


@aten("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention")
def _efficient(
    n: Node,
    q: Value,
    k: Value,
    v: Value,
    attn_bias: Value | None,
    compute_log_sumexp: bool,
    dropout_p: Any = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Any = None,
) -> tuple[Value | None, ...]:
    _only_first(n)
    return _attention(n, q, k, v, attn_bias, dropout_p, is_causal, scale), *(None,) * (len(n.results) - 1)


@aten("_scaled_dot_product_fused_attention_overrideable")
def _fused(
    n: Node,
    q: Value,
    k: Value,
    v: Value,
    attn_bias: Value | None = None,
    dropout_p: Any = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Any = None,
) -> tuple[Value | None, ...]:
    _only_first(n)
    return _attention(n, q, k, v, attn_bias, dropout_p, is_causal, scale), *(None,) * (len(n.results) - 1)


def _only_first(n: Node) -> None:
    if n.used - {0}:
        raise n.fail("what its backward pass reads is not computed here")
