"""The benchmarks of language models: their reference is `transformers` itself, and what they say of a contender follows from its logits."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from ourcc.runtime.language.scoring import compare

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PARTS = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj"}
PARTS |= {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
PARTS |= {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return lambda name: importlib.import_module(name)


def seeded(path: Path) -> Any:
    """A model whose weights a GGUF file holds as Q8_0, with these weights."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        rope_theta=500.0,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(500.0)
    kind = gguf.GGMLQuantizationType.Q8_0
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    names |= {f"model.layers.{n}.{theirs}.weight": f"blk.{n}.{ours}.weight" for n in range(2) for ours, theirs in PARTS.items()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            array = parameter.numpy()
            if array.ndim == 2:
                array = gguf.dequantize(gguf.quantize(array, kind), kind)
                parameter.copy_(torch.tensor(array))
            heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
            if heads is not None:
                array = array.reshape(heads, 2, -1, 64).swapaxes(1, 2).reshape(array.shape)
            stored = gguf.quantize(np.ascontiguousarray(array), kind) if array.ndim == 2 else array.copy()
            writer.add_tensor(names[name], stored, **({"raw_dtype": kind} if array.ndim == 2 else {}))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def test_the_reference_is_the_model_of_transformers(tmp_path: Path, scripts: Any) -> None:
    model = seeded(tmp_path / "m.gguf")
    reference = scripts("lm_quality").Reference(tmp_path / "m.gguf", 64)
    tokens = [int(each) for each in np.random.default_rng(1).integers(0, 64, 30)]
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    np.testing.assert_array_equal(reference.all_logits(tokens, 30), expected)
    np.testing.assert_allclose(reference.all_logits(tokens, 4), expected[-4:], rtol=1e-5, atol=1e-6)
    (found,) = compare(reference, reference, tokens=tokens)
    row = scripts("lm_quality").row_of("itself", found, len(tokens), 60)
    assert (row["perplexity_change_percent"], row["top1_agreement"], row["greatest_divergence"]) == (0, 1, 0)
    rows = expected[:-1].astype(np.float64)
    nats = np.log(np.exp(rows).sum(1)) - rows[np.arange(29), tokens[1:]]
    assert row["perplexity"] == pytest.approx(np.exp(nats.mean()), rel=1e-5)


def test_texts_are_cut_between_characters(scripts: Any) -> None:
    text = scripts("lm_engines").text_of(5000)
    assert 4990 < len(text.encode()) <= 5000 and scripts("lm_engines").text_of(9000).startswith(text)
