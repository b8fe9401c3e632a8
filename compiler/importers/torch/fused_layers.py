"""Layers that eager torch has one op for where no gradients are asked for, taken apart into the ops of their definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def fused_layers() -> Mapping[Any, Callable[..., Any]]:
    """How each is taken apart."""
    import torch

    aten = torch.ops.aten
    return {aten._transformer_encoder_layer_fwd.default: encoder_layer, aten._native_multi_head_attention.default: attention_layer}


def encoder_layer(
    src: Any,
    width: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """`torch.nn.TransformerEncoderLayer` of src [B, S, E]; one with a mask stays whole."""
    from torch.nn import functional

    if mask is not None or src.is_nested:
        return NotImplemented

    def attended(x: Any) -> Any:
        return _attended(x, x, x, heads, qkv_weight, qkv_bias, proj_weight, proj_bias)

    def first(x: Any) -> Any:
        return functional.layer_norm(x, (width,), norm_weight_1, norm_bias_1, eps)

    def second(x: Any) -> Any:
        return functional.layer_norm(x, (width,), norm_weight_2, norm_bias_2, eps)

    def forward(x: Any) -> Any:
        hidden = functional.linear(x, ffn_weight_1, ffn_bias_1)
        hidden = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
        return functional.linear(hidden, ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attended(first(src))
        return x + forward(second(x))
    x = first(src + attended(src))
    return second(x + forward(x))


def attention_layer(
    query: Any,
    key: Any,
    value: Any,
    width: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """`torch.nn.MultiheadAttention` of [B, S, E], and its weights; one with a mask, or that is not asked for them, stays whole."""
    if mask is not None or not need_weights or query.is_nested:
        return NotImplemented
    q, k, v = _projected(query, key, value, heads, qkv_weight, qkv_bias)
    weights = (q * (q.shape[-1] ** -0.5) @ k.transpose(-2, -1)).softmax(-1)
    result = _joined(weights @ v, proj_weight, proj_bias)
    return result, weights.mean(1) if average_attn_weights else weights


def _attended(query: Any, key: Any, value: Any, heads: int, weight: Any, bias: Any, proj_weight: Any, proj_bias: Any) -> Any:
    from torch.nn import functional

    return _joined(functional.scaled_dot_product_attention(*_projected(query, key, value, heads, weight, bias)), proj_weight, proj_bias)


def _projected(query: Any, key: Any, value: Any, heads: int, weight: Any, bias: Any) -> list[Any]:
    """Queries, keys and values by head: [B, H, S, D]."""
    from torch.nn import functional

    biases = (None, None, None) if bias is None else bias.chunk(3)
    parts = [functional.linear(x, w, b) for x, w, b in zip((query, key, value), weight.chunk(3), biases, strict=True)]
    return [part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts]


def _joined(x: Any, weight: Any, bias: Any) -> Any:
    """What heads give [B, H, S, D], side by side and projected."""
    from torch.nn import functional

    return functional.linear(x.transpose(1, 2).flatten(2), weight, bias)
