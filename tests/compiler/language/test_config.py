"""What a checkpoint says of itself: any value of a field that is read is refused by file and name, or means something."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers

import ourcc
from ourcc.compiler.importers.checkpoints.stored import Checkpoint
from ourcc.compiler.language.assets import assets_of
from ourcc.compiler.language.config import Config
from ourcc.compiler.language.module import config_for
from ourcc.compiler.language.rotary import frequencies
from ourcc.compiler.language.said import LARGEST, MOST, Said
from ourcc.runtime.language.facts import FACTS, LanguageFacts

LLAMA = {
    **{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "vocab_size": 97, "max_position_embeddings": 64},
}
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 97}
GGUF = {
    **{"general.architecture": "llama", "llama.attention.head_count": 4, "llama.embedding_length": 64, "llama.block_count": 2},
    **{"llama.feed_forward_length": 96, "llama.vocab_size": 4, "llama.context_length": 64},
    **{"llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.attention.head_count_kv": 2, "tokenizer.ggml.model": "gpt2"},
    **{"tokenizer.ggml.tokens": ["a", "b", "c", "d"], "tokenizer.ggml.merges": []},
}
SCALED = {"original_max_position_embeddings": 16, "factor": 4.0}
ROPES = {kind: {**SCALED, "rope_type": kind} for kind in ("linear", "dynamic", "yarn", "llama3")}
ROPES["longrope"] = {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
SPECIAL: dict[str, Any] = {
    **{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]},
    **{"pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
}
TOKENIZER: dict[str, Any] = json.loads(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str())
WRONG: list[Any] = [
    *("x", "", True, False, -1, -3, 0, 0.5, -0.5, 1e-300, 1e300, 1 << 62, 10**20, 10**400, float("nan"), float("inf")),
    *([], [1], ["x"], [10**20], [-3], [True], [1.5], [None], [[1]], {}, {"a": 1}, {"content": 5}, {"content": "<s>"}),
]


def outcome(config: dict[str, Any], texts: dict[str, Any], kind: str) -> tuple[Config, LanguageFacts]:
    """What is read of a checkpoint, and what an engine would say of it; a warning of numpy's is a failure."""
    checkpoint = Checkpoint("m", kind, config, {}, {name: json.dumps(said) for name, said in texts.items()})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, length = config_for(checkpoint, None)
        if found.rotation is not None:
            assert all(np.isfinite(each).all() for each in frequencies(found.rotation))
        return found, LanguageFacts.of(assets_of(checkpoint, found, length, "f32", 1, length)[FACTS])


FIELDS: dict[str, tuple[dict[str, Any], dict[str, Any], str, tuple[str, ...]]] = {
    **{
        f"llama {field}": (LLAMA, {}, "folder", (field,))
        for field in (
            *(*LLAMA, "head_dim", "rms_norm_eps", "rope_theta", "partial_rotary_factor", "sliding_window", "tie_word_embeddings"),
            *("attention_bias", "mlp_bias", "bos_token_id", "eos_token_id", "hidden_act", "rope_scaling", "rope_parameters"),
        )
    },
    **{f"gpt2 {field}": (GPT2, {}, "folder", (field,)) for field in (*GPT2, "n_inner", "layer_norm_epsilon", "activation_function")},
    **{f"gpt2 {field}": (GPT2, {}, "folder", (field,)) for field in ("scale_attn_weights", "scale_attn_by_inverse_layer_idx")},
    **{"qwen2 window": ({**LLAMA, "model_type": "qwen2"}, {}, "folder", ("use_sliding_window",))},
    **{
        f"{kind} {field}": ({**LLAMA, "rope_scaling": rope}, {}, "folder", ("rope_scaling", field))
        for kind, rope in ROPES.items()
        for field in (*rope, "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor", "rope_theta")
    },
    **{f"GGUF {field}": (GGUF, {}, "gguf", (field,)) for field in GGUF if field not in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")},
    **{
        f"GGUF {field}": (GGUF, {}, "gguf", (field,))
        for field in (
            *("llama.attention.key_length", "llama.attention.value_length", "llama.expert_count", "llama.attention.sliding_window"),
            *("llama.rope.dimension_count", "llama.rope.freq_base", "llama.rope.scaling.type", "llama.rope.scaling.factor"),
            *("llama.rope.scaling.original_context_length", "llama.rope.scaling.attn_factor", "tokenizer.chat_template"),
            *(f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos", "eot", "eom")),
            "tokenizer.ggml.add_bos_token",
        )
    },
    **{
        f"{file} {field}": (LLAMA, {file: TOKENIZER if file == "tokenizer.json" else {}}, "folder", (file, field))
        for file, field in (
            *(("generation_config.json", "eos_token_id"), ("tokenizer.json", "post_processor")),
            *(("tokenizer_config.json", f"{name}") for name in ("bos_token", "eos_token", "chat_template")),
        )
    },
}


@pytest.mark.parametrize("what", FIELDS)
def test_any_value_of_a_field_is_read_or_refused_by_name(what: str) -> None:
    config, texts, kind, (*inside, field) = FIELDS[what]
    outcome(config, texts, kind)  # as it is it is read
    refused = 0
    for value in WRONG:
        changed, also = dict(config), {name: dict(said) for name, said in texts.items()}
        place = also if inside and inside[0] in also else changed
        for name in inside:
            place[name] = dict(place[name])
            place = place[name]
        place[field] = value
        try:
            outcome(changed, also, kind)
        except ourcc.CompilerError as error:
            assert not isinstance(error, ourcc.InternalError)
            assert error.message.startswith("m") and len(error.message) < 500
            refused += 1
    assert refused >= 12


@pytest.mark.parametrize(
    ("config", "texts", "message"),
    [
        ({"eos_token_id": "x"}, {}, "m/config.json: eos_token_id is 'x', expected a token, or several: whole numbers from 0 to 16777216"),
        ({"eos_token_id": [10**20]}, {}, r"m/config.json: eos_token_id is \[100000000000000000000\], expected a token"),
        ({"bos_token_id": -3}, {}, "m/config.json: bos_token_id is -3, expected a token"),
        ({}, {"generation_config.json": {"eos_token_id": [2, True]}}, r"m/generation_config.json: eos_token_id is \[2, True\], expected a"),
        ({}, {"tokenizer_config.json": {"bos_token": 5}}, "m/tokenizer_config.json: bos_token is 5, expected a text, or an object"),
        ({}, {"tokenizer.json": {"post_processor": {**SPECIAL, "single": 5}}}, "m/tokenizer.json: post_processor is .*, expected steps as"),
        ({}, {"tokenizer.json": {"post_processor": {**SPECIAL, "special_tokens": {}}}}, "m/tokenizer.json: post_processor is"),
        ({"tie_word_embeddings": "no"}, {}, "m/config.json: tie_word_embeddings is 'no', expected true or false"),
        ({"num_key_value_heads": 3}, {}, "m/config.json: 4 heads of queries and 3 of keys, expected a multiple"),
        ({"rope_scaling": {**ROPES["llama3"], "low_freq_factor": 4.0}}, {}, "low_freq_factor is 4.0 and high_freq_factor is 4.0, expected"),
        (
            {"rope_scaling": {**ROPES["yarn"], "beta_fast": 1}},
            {},
            "beta_slow is 1.0 and beta_fast is 1.0, expected the second to be greater",
        ),
        ({"rope_scaling": ""}, {}, "m/config.json: rope_scaling is '', expected an object"),
        ({"rope_theta": 10**400}, {}, "m/config.json: rope_theta is 1000"),
    ],
)
def test_what_is_wrong_is_named(config: dict[str, Any], texts: dict[str, Any], message: str) -> None:
    with pytest.raises(ourcc.ModelError, match=message):
        outcome({**LLAMA, **config}, texts, "folder")


def test_what_is_right_is_read() -> None:
    assert outcome({**LLAMA, "eos_token_id": 2}, {}, "folder")[1].end == (2,)
    assert outcome({**LLAMA, "eos_token_id": 2}, {"generation_config.json": {"eos_token_id": [3, 4]}}, "folder")[1].end == (3, 4)
    # A token that the model cannot make ends nothing.
    assert outcome({**LLAMA, "eos_token_id": [2, 97, LARGEST]}, {}, "folder")[1].end == (2,)
    assert outcome({**LLAMA, "eos_token_id": None, "num_key_value_heads": None}, {}, "folder")[0].groups == 4
    begins = {"tokenizer.json": {**TOKENIZER, "post_processor": {"type": "Sequence", "processors": [SPECIAL]}}}
    assert outcome(LLAMA, begins, "folder")[1].begin == (1,)
    words = {"tokenizer_config.json": {"bos_token": {"content": "<s>"}, "eos_token": None}}
    assert outcome(LLAMA, words, "folder")[1].words == ("<s>", "", "", "")
    ids = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.add_bos_token": True}
    facts = outcome({**GGUF, **ids}, {}, "gguf")[1]
    assert (facts.begin, facts.end, facts.words) == ((1,), (2,), ("b", "c", "", ""))
    assert Said({"a": MOST}, "m").real("a") == MOST


@pytest.mark.parametrize("name", ["../../etc", "", "mamba", "llama\0"])
def test_an_architecture_that_is_not_known_is_said_to_be(name: str, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", name)
    writer.add_tensor("x", np.zeros(4, np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    with pytest.raises(ourcc.UnsupportedError) as refused:
        ourcc.build(tmp_path / "m.gguf")
    assert f"m.gguf: architecture {name!r} is not supported, only llama, mistral, qwen2" in str(refused.value)


def test_a_gguf_file_scales_rotations_as_its_metadata_can_say() -> None:
    assert outcome({**GGUF, "llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}, {}, "gguf")[0].rotation is not None
    for kind in ("longrope", "dynamic", "llama3"):
        with pytest.raises(
            ourcc.UnsupportedError, match=f"rotation is scaled by '{kind}', which is not supported, only none, linear, yarn"
        ):
            outcome({**GGUF, "llama.rope.scaling.type": kind}, {}, "gguf")


@pytest.mark.parametrize(
    ("said", "scaling", "factor", "amplitude"),
    [
        ({}, "none", 1.0, None),
        ({"scaling.factor": 4.0}, "linear", 4.0, None),
        ({"scale_linear": 2.0}, "linear", 2.0, None),
        ({"scaling.factor": 0.0, "scale_linear": 2.0}, "linear", 2.0, None),
        ({"scaling.factor": 0.0}, "none", 1.0, None),
        ({"scaling.factor": 4.0, "scaling.type": "none"}, "none", 4.0, None),
        ({"scaling.factor": 4.0, "scaling.type": "yarn"}, "yarn", 4.0, None),
        ({"scaling.factor": 4.0, "scaling.type": "yarn", "scaling.attn_factor": 0.5}, "yarn", 4.0, 0.5 * (1 + 0.1 * math.log(4.0))),
    ],
)
def test_a_gguf_file_is_scaled_as_llama_cpp_reads_it(said: dict[str, Any], scaling: str, factor: float, amplitude: float | None) -> None:
    """A factor without a type is linear, also by its older name; YaRN's own amplitude comes besides what a file says."""
    found = outcome({**GGUF, **{f"llama.rope.{name}": value for name, value in said.items()}}, {}, "gguf")[0].rotation
    assert found is not None and (found.scaling, found.factor) == (scaling, factor)
    assert found.amplitude == (amplitude if amplitude is None else pytest.approx(amplitude))
