"""GPT-2: learned positions, layer norms before each part, queries, keys and values of one product, GELU.

Radford et al., Language Models are Unsupervised Multitask Learners (2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...ir.graph import Value
from .blocks import Step

GGUF = {
    **{"embedding": "token_embd", "positions": "position_embd", "norm": "output_norm", "head": "output"},
    **{"before": "blk.{}.attn_norm", "between": "blk.{}.ffn_norm", "joined": "blk.{}.attn_qkv"},
    **{"output": "blk.{}.attn_output", "up": "blk.{}.ffn_up", "down": "blk.{}.ffn_down"},
}
FOLDER = {
    **{"embedding": "wte", "positions": "wpe", "norm": "ln_f", "head": "lm_head"},
    **{"before": "h.{}.ln_1", "between": "h.{}.ln_2", "joined": "h.{}.attn.c_attn"},
    **{"output": "h.{}.attn.c_proj", "up": "h.{}.mlp.c_fc", "down": "h.{}.mlp.c_proj"},
}


def optional(said: Mapping[str, Any]) -> frozenset[str]:
    """What a config.json says is there of the tensors that not every model has: a head, unless it is the embedding."""
    return frozenset() if said.get("tie_word_embeddings", True) else frozenset({f"{FOLDER['head']}.weight"})


def decoder(s: Step) -> tuple[Value, str]:
    """Hidden states [B, S, width] behind the last norm, and the name of what makes logits of them."""
    names = dict(GGUF)
    if s.weights.checkpoint.kind != "gguf":
        prefix = "transformer." if s.weights.has("transformer.wte.weight") else ""
        names = {part: prefix + name if part != "head" else name for part, name in FOLDER.items()}
    table = s.weights.value(s.b, f"{names['positions']}.weight", (s.config.context, s.config.width))
    x = s.b.add(s.embedding(names["embedding"], s.config.vocabulary), s.b.take(table, s.positions, axis=0))
    for layer in range(s.config.layers):
        x = _layer(s, x, layer, {part: name.format(layer) for part, name in names.items()})
    return s.layer_norm(x, names["norm"]), names["head" if s.weights.has(f"{names['head']}.weight") else "embedding"]


def _layer(s: Step, x: Value, layer: int, names: dict[str, str]) -> Value:
    b, config = s.b, s.config
    joined = _linear(s, s.layer_norm(x, names["before"]), names["joined"], 3 * config.width)
    rank = len(joined.shape)
    q, k, v = (
        s.heads(
            b.slice(joined, starts=(0,) * (rank - 1) + (n * config.width,), sizes=(*joined.shape[:-1], config.width), steps=(1,) * rank),
            config.heads,
        )
        for n in range(3)
    )
    x = b.add(x, _linear(s, s.attend(layer, q, k, v), names["output"], config.width))
    up = b.gelu(_linear(s, s.layer_norm(x, names["between"]), names["up"], config.inner), approximate="tanh")
    result: Value = b.add(x, _linear(s, up, names["down"], config.width))
    return result


def _linear(s: Step, x: Value, name: str, outputs: int) -> Value:
    """A linear layer whose weight a folder keeps as [K, N], a GGUF file as [N, K]."""
    if s.weights.checkpoint.kind == "gguf":
        return s.linear(x, name, outputs, bias=True)
    s.at(name)
    size = x.shape[-1]
    assert isinstance(size, int)
    product = s.b.matmul(x, s.weights.value(s.b, f"{name}.weight", (size, outputs)))
    result: Value = s.b.add(product, s.weights.value(s.b, f"{name}.bias", (outputs,)))
    return result
