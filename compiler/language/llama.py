"""Llama 2 and 3, SmolLM, Mistral: RMS norms before each part, rotary positions, grouped heads, gated SiLU.

Touvron et al., LLaMA (2023); Jiang et al., Mistral 7B (2023). With `bias` on queries, keys and values it is Qwen 2, with norms
of queries and keys Qwen 3 (Yang et al., 2024 and 2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ...ir.graph import Value
from .blocks import Change, Step, paired

GGUF = {
    **{"embedding": "token_embd", "norm": "output_norm", "head": "output"},
    **{"before": "blk.{}.attn_norm", "between": "blk.{}.ffn_norm"},
    **{"query": "blk.{}.attn_q", "key": "blk.{}.attn_k", "value": "blk.{}.attn_v", "output": "blk.{}.attn_output"},
    **{"query_norm": "blk.{}.attn_q_norm", "key_norm": "blk.{}.attn_k_norm"},
    **{"gate": "blk.{}.ffn_gate", "up": "blk.{}.ffn_up", "down": "blk.{}.ffn_down"},
}
FOLDER = {
    **{"embedding": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"},
    **{"before": "model.layers.{}.input_layernorm", "between": "model.layers.{}.post_attention_layernorm"},
    **{"query": "model.layers.{}.self_attn.q_proj", "key": "model.layers.{}.self_attn.k_proj"},
    **{"value": "model.layers.{}.self_attn.v_proj", "output": "model.layers.{}.self_attn.o_proj"},
    **{"query_norm": "model.layers.{}.self_attn.q_norm", "key_norm": "model.layers.{}.self_attn.k_norm"},
    **{"gate": "model.layers.{}.mlp.gate_proj", "up": "model.layers.{}.mlp.up_proj", "down": "model.layers.{}.mlp.down_proj"},
}


def optional(said: Mapping[str, Any]) -> frozenset[str]:
    """What a config.json says is there of the tensors that not every model of the family has; numbers of layers are `{}`."""
    architecture = said.get("model_type")
    biased = {
        **dict.fromkeys(("query", "key", "value"), architecture == "qwen2" or (architecture != "mistral" and said.get("attention_bias"))),
        "output": architecture in ("llama", "qwen3") and said.get("attention_bias"),
        **dict.fromkeys(("gate", "up", "down"), architecture == "llama" and said.get("mlp_bias")),
    }
    scaled = ("query_norm", "key_norm") if architecture == "qwen3" else ()
    heads = () if said.get("tie_word_embeddings", False) else ("head",)
    parts = [f"{part}.bias" for part, there in biased.items() if there] + [f"{part}.weight" for part in (*scaled, *heads)]
    return frozenset(f"{FOLDER[part]}.{kind}" for part, _, kind in (each.partition(".") for each in parts))


def decoder(s: Step) -> tuple[Value, str]:
    """Hidden states [B, S, width] behind the last norm, and the name of what makes logits of them."""
    names = GGUF if s.weights.checkpoint.kind == "gguf" else FOLDER
    x = s.embedding(names["embedding"], s.config.vocabulary)
    for layer in range(s.config.layers):
        x = _layer(s, x, layer, {part: name.format(layer) for part, name in names.items()})
    tied = s.config.tied or not s.weights.has(f"{names['head']}.weight")
    return s.rms_norm(x, names["norm"]), names["embedding" if tied else "head"]


def _layer(s: Step, x: Value, layer: int, names: dict[str, str]) -> Value:
    b, config = s.b, s.config
    seen = s.rms_norm(x, names["before"])
    bias = s.weights.has(f"{names['query']}.bias")
    q, k, v = (
        s.heads(s.linear(seen, names[part], count * config.head, bias, _order(s, part, count)), count)
        for part, count in (("query", config.heads), ("key", config.groups), ("value", config.groups))
    )
    if s.weights.has(f"{names['query_norm']}.weight"):
        q, k = s.rms_norm(q, names["query_norm"]), s.rms_norm(k, names["key_norm"])
    mixed = s.attend(layer, s.turned(q), s.turned(k), v)
    x = b.add(x, s.linear(mixed, names["output"], config.width, s.weights.has(f"{names['output']}.bias")))
    seen = s.rms_norm(x, names["between"])
    gate, up = (s.linear(seen, names[part], config.inner, s.weights.has(f"{names[part]}.bias")) for part in ("gate", "up"))
    down = s.linear(b.mul(b.silu(gate), up), names["down"], config.width, s.weights.has(f"{names['down']}.bias"))
    result: Value = b.add(x, down)
    return result


def _order(s: Step, part: str, heads: int) -> Change | None:
    """GGUF keeps the pairs of queries and keys of llama side by side; those of the others are halves, as everywhere else."""
    is_paired = s.weights.checkpoint.kind == "gguf" and s.config.architecture == "llama" and part != "value"
    return partial(paired, heads) if is_paired else None
