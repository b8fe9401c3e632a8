"""Seeded language models of `transformers`, small, as folders and as GGUF files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch
import transformers

import ourcc
from ourcc.compiler.cli.main import run
from ourcc.runtime.language.model import LanguageModel

SIZES = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
ROPE = {
    "none": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "original_max_position_embeddings": 16,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "longrope": {
        **{"rope_type": "longrope", "short_factor": [1.0 + n / 8 for n in range(8)], "long_factor": [2.0 + n for n in range(8)]},
        "factor": 4.0,
    },
}
CHANGED: dict[str, dict[str, Any]] = {"dynamic": {"max_position_embeddings": 16}, "longrope": {"original_max_position_embeddings": 16}}


def model_of(kind: str, rope: str = "none", **changed: Any) -> Any:
    """A seeded model in eval mode."""
    torch.manual_seed(7)
    common = {
        **SIZES,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "rope_scaling": ROPE[rope],
        **CHANGED.get(rope, {}),
        **changed,
    }
    configs: dict[str, Callable[[], Any]] = {
        "llama": lambda: transformers.LlamaConfig(**common),
        "tied": lambda: transformers.LlamaConfig(**{**common, "tie_word_embeddings": True}),
        "biased": lambda: transformers.LlamaConfig(**{**common, "attention_bias": True, "mlp_bias": True}),
        "mistral": lambda: transformers.MistralConfig(**{**common, "sliding_window": 7}),
        "qwen2": lambda: transformers.Qwen2Config(**common),
        "qwen3": lambda: transformers.Qwen3Config(**{**common, "head_dim": 24}),
        "gpt2": lambda: transformers.GPT2Config(vocab_size=97, n_embd=64, n_layer=2, n_head=4, n_positions=64),
    }
    config = configs[kind]()
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "ln_" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) / 4)
    return model


def save(model: Any, folder: Path) -> Path:
    """The model as a folder with safetensors."""
    model.save_pretrained(folder, safe_serialization=True)
    return folder


def logits_of(model: Any, tokens: list[int]) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        found: np.ndarray[Any, Any] = model(torch.tensor([tokens])).logits[0].float().numpy()
    return found


NAMES = {
    **{"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm"},
    **{"post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"},
    **{"self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"},
    **{"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"},
}


def write_gguf(model: Any, path: Path, kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32, tensors: Any = None) -> Path:
    """The model as `gguf` writes it, matrices in this type; llama's queries and keys with their pairs side by side."""
    config = model.config
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_vocab_size(config.vocab_size)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)
    for name, parameter in model.state_dict().items():
        base, _, suffix = name.rpartition(".")
        if base == "lm_head" and config.tie_word_embeddings:
            continue
        layer = base.removeprefix("model.layers.").partition(".")
        told = f"blk.{layer[0]}.{NAMES[layer[2]]}" if base.startswith("model.layers.") else NAMES[base]
        array = parameter.float().numpy()
        if config.model_type == "llama" and ("q_proj" in base or "k_proj" in base):
            heads = config.num_attention_heads if "q_proj" in base else config.num_key_value_heads
            array = array.reshape(heads, 2, array.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(array.shape)
        if array.ndim == 2 and kind != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(f"{told}.{suffix}", gguf.quantize(np.ascontiguousarray(array), kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{told}.{suffix}", np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


TEMPLATE = (
    "{% for m in messages %}<|begin|>{{ m['role'] }}\n{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)


def tokenizer_of(folder: Path, begins: bool = False) -> None:
    """A byte-level tokenizer of 297 words, with words that begin and end a turn; one that `begins` puts the first in front of texts."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=297,
        special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["the sky is blue and the sea is green, why is it so"] * 9, trainer)
    if begins:
        made.post_processor = tokenizers.processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1]}))


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguageModel, Any, Path]:
    folder = tmp_path_factory.mktemp("model")
    model = model_of("llama", vocab_size=297)
    save(model, folder)
    tokenizer_of(folder)
    path = folder / "m.ourcc"
    assert run(["build", str(folder), "-o", str(path), "-q"]) == 0
    engine = ourcc.load(path)
    assert isinstance(engine, LanguageModel)
    return engine, model, path
