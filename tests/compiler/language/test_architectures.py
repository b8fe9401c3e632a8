"""Architectures: logits are those of `transformers` at every position, in prompts and token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import ourcc
from ourcc.ir.plan import Copy

from .conftest import ROPE, logits_of, model_of, save, write_gguf

KINDS = ("llama", "tied", "biased", "mistral", "qwen2", "qwen3", "gpt2")
SCALED = [("llama", rope) for rope in ROPE if rope != "none"]


def tokens_of(count: int, seed: int = 3) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 97, count)]


@pytest.mark.parametrize(("kind", "rope"), [*((kind, "none") for kind in KINDS), *SCALED])
def test_logits_are_those_of_transformers(kind: str, rope: str, tmp_path: Path) -> None:
    model, tokens = model_of(kind, rope), tokens_of(40)
    engine = ourcc.build(save(model, tmp_path / "m"), targets=["native"], tune="off")
    expected = logits_of(model, tokens)
    np.testing.assert_allclose(engine.sequence().all_logits(tokens), expected, atol=2e-5)  # type: ignore[attr-defined]
    if rope in ("dynamic", "longrope"):
        # What lies in a cache was turned by the frequencies of its own call; one call sees one length.
        return
    sequence = engine.sequence()  # type: ignore[attr-defined]
    found = [sequence.all_logits(tokens[:25])]
    found += [sequence.logits(tokens[: n + 1])[None] for n in range(25, 40)]
    np.testing.assert_allclose(np.concatenate(found), expected, atol=2e-5)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_gguf_file_and_a_folder_give_one_engine(kind: str, tmp_path: Path) -> None:
    model, tokens = model_of(kind), tokens_of(12)
    engines = [ourcc.build(path, tune="off") for path in (save(model, tmp_path / "m"), write_gguf(model, tmp_path / "m.gguf"))]
    kernels = [{name: data for name, data in engine.contents.best.files.items() if name.startswith("kernel_")} for engine in engines]
    assert kernels[0] == kernels[1]
    answers = [engine.sequence().all_logits(tokens) for engine in engines]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"])
def test_weights_stay_in_their_encoding(kind: str, tmp_path: Path) -> None:
    model = model_of("llama", rope="none", hidden_size=256, intermediate_size=512)
    type = gguf.GGMLQuantizationType[kind]
    path = write_gguf(model, tmp_path / "m.gguf", type)
    reader = gguf.GGUFReader(path)
    stored = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32) for tensor in reader.tensors}
    engine = ourcc.build(path, tune="off")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            told = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight"}.get(name)
            if parameter.ndim == 2 and told is not None:
                parameter.copy_(torch.from_numpy(stored[told].reshape(parameter.shape)))
            elif parameter.ndim == 2:
                rounded = gguf.dequantize(gguf.quantize(parameter.float().numpy(), type), type).astype(np.float32)
                parameter.copy_(torch.from_numpy(rounded.reshape(parameter.shape)))
    tokens = tokens_of(20)
    np.testing.assert_allclose(engine.sequence().all_logits(tokens), logits_of(model, tokens), atol=1e-4)  # type: ignore[attr-defined]
    held = sum(constant.data.nbytes for group in engine.contents.weights.values() for constant in group.values())
    whole = sum(parameter.numel() * 4 for parameter in model.parameters())
    # The head may lie in memory twice: as a table and for products.
    assert held < (0.8 if kind.endswith("16") else 0.6) * whole


def test_no_token_copies_the_cache(tmp_path: Path) -> None:
    engine = ourcc.build(save(model_of("llama"), tmp_path / "m"), tune="off")
    plan = engine.contents.best.plans["step"]
    assert [step for step in plan.steps if isinstance(step, Copy) and plan.moves(step)] == []
    assert {state.name for state in plan.states} == {f"cache.{layer}.{part}" for layer in (0, 1) for part in ("keys", "values")}


def test_what_is_not_supported_is_said(tmp_path: Path) -> None:
    folder = save(model_of("llama"), tmp_path / "m")
    text = (folder / "config.json").read_text()
    for before, after, message in (
        ('"model_type": "llama"', '"model_type": "mamba"', "architecture 'mamba' is not supported"),
        ('"hidden_act": "silu"', '"hidden_act": "relu"', "hidden_act 'relu' is not supported"),
        ('"hidden_size": 64', '"hidden_size": 0', "hidden_size is 0, expected a whole number from 1"),
        ('"hidden_size": 64', '"hidden_size": 32', r"tensor 'model.embed_tokens.weight' is \[97, 64\], expected \[97, 32\]"),
        ('"num_hidden_layers": 2', '"num_hidden_layers": 3', "tensor 'model.layers.2.input_layernorm.weight' is missing"),
    ):
        (folder / "config.json").write_text(text.replace(before, after))
        with pytest.raises(ourcc.CompilerError, match=message):
            ourcc.build(folder)
    (folder / "config.json").write_text(text)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ourcc.UnsupportedError, match="is pickled, and reading a pickle runs code"):
        ourcc.build(folder)
    with pytest.raises(ourcc.UsageError, match="context is for language models"):
        ourcc.build(torch.nn.Linear(2, 2), (torch.zeros(1, 2),), context=5)


def changed(folder: Path, **values: Any) -> Path:
    """The folder with a config that says so as well; None takes a name out."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    return folder


def test_a_gguf_file_may_hold_the_divisors_of_frequencies(tmp_path: Path) -> None:
    model, tokens = model_of("llama", "llama3"), tokens_of(40)
    plain = model_of("llama").model.rotary_emb.inv_freq
    divisors = (plain / model.model.rotary_emb.inv_freq).numpy()
    assert divisors.max() > 4
    path = write_gguf(model, tmp_path / "m.gguf", tensors={"rope_freqs.weight": divisors})
    engine = ourcc.build(path, tune="off")
    np.testing.assert_allclose(engine.sequence().all_logits(tokens), logits_of(model, tokens), atol=2e-5)  # type: ignore[attr-defined]


def test_newer_configs_say_rotation_in_one_place(tmp_path: Path) -> None:
    model, tokens = model_of("llama", "llama3", rope_theta=500.0), tokens_of(40)
    folder = save(model, tmp_path / "m")
    said = json.loads((folder / "config.json").read_text())
    changed(folder, rope_parameters={**said["rope_scaling"], "rope_theta": said["rope_theta"]}, rope_scaling=None, rope_theta=None)
    engine = ourcc.build(folder, tune="off")
    np.testing.assert_allclose(engine.sequence().all_logits(tokens), logits_of(model, tokens), atol=2e-5)  # type: ignore[attr-defined]


def test_a_window_is_that_of_models_that_have_one(tmp_path: Path) -> None:
    model, tokens = model_of("llama"), tokens_of(20)
    folder = changed(save(model, tmp_path / "m"), sliding_window=3)
    engine = ourcc.build(folder, tune="off")
    np.testing.assert_allclose(engine.sequence().all_logits(tokens), logits_of(model, tokens), atol=2e-5)  # type: ignore[attr-defined]


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_a_long_prompt_is_turned_by_one_length(rope: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ourcc.compiler.language.config.CHUNK", 8)
    model, tokens = model_of("llama", rope), tokens_of(40)
    engine = ourcc.build(save(model, tmp_path / "m"), tune="off")
    np.testing.assert_allclose(engine.sequence().logits(tokens), logits_of(model, tokens)[-1], atol=2e-5)  # type: ignore[attr-defined]


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "windows of some layers": ("qwen2", {"use_sliding_window": True}, "some layers have a window"),
    "unscaled scores": ("gpt2", {"scale_attn_weights": False}, "scaled otherwise"),
    "scores scaled by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scaled otherwise"),
    "what yarn may say more": (
        "llama",
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0}},
        "'mscale' of a scaled rotation",
    ),
    "no factor": ("llama", {"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
    "no list": ("llama", {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "short_factor is None, expected 8 numbers"),
    "a list of 0": (
        "llama",
        {"rope_scaling": {"rope_type": "longrope", "factor": 2.0, "short_factor": [0.0] * 8, "long_factor": [1.0] * 8}},
        "expected 8 numbers above 0",
    ),
    "a part that is no number": ("llama", {"partial_rotary_factor": "x"}, "partial_rotary_factor is 'x'"),
    "a part that is more than all": ("llama", {"partial_rotary_factor": 2.0}, "at most 1"),
    "a base of nothing": ("llama", {"rope_theta": 0.5}, "1 or more"),
    "an object that is none": ("llama", {"rope_scaling": [1]}, "expected an object"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_change_answers_silently_is_refused(what: str, tmp_path: Path) -> None:
    kind, values, message = REFUSED[what]
    with pytest.raises(ourcc.CompilerError, match=message):
        ourcc.build(changed(save(model_of(kind), tmp_path / "m"), **values))


def test_a_head_beside_a_tied_table_is_none(tmp_path: Path) -> None:
    model, tokens = model_of("tied"), tokens_of(9)
    folder = save(model, tmp_path / "m")
    held = load_file(folder / "model.safetensors")
    save_file({**held, "lm_head.weight": held["model.embed_tokens.weight"] + 1}, folder / "model.safetensors")
    engine = ourcc.build(folder, tune="off")
    np.testing.assert_allclose(engine.sequence().all_logits(tokens), logits_of(model, tokens), atol=2e-5)  # type: ignore[attr-defined]


def test_tensors_that_nobody_reads_are_refused(tmp_path: Path) -> None:
    path = write_gguf(model_of("llama"), tmp_path / "m.gguf", tensors={"blk.0.extra.weight": np.zeros(3, np.float32)})
    with pytest.raises(ourcc.UnsupportedError, match=r"tensor 'blk\.0\.extra\.weight' has no place in llama"):
        ourcc.build(path)
    with pytest.raises(ourcc.UsageError, match="context 1: expected 2 to 64"):
        ourcc.build(write_gguf(model_of("llama"), tmp_path / "n.gguf"), context=1)


def test_every_projection_is_a_product_in_the_contract(tmp_path: Path) -> None:
    """Queries, keys and values are one product in the end; each is called what it is, and keeps what was promised of it."""
    folder = save(model_of("llama"), tmp_path / "m")
    names = [f"model.layers.0.self_attn.{part}_proj" for part in "qkv"]
    engine = ourcc.build(folder, precision="bf16", require=[f"{name}:bf16" for name in names])
    rows = {row.source: row for row in engine.contract}
    assert [(rows[name].op, rows[name].realised.split(", ")[0]) for name in names] == [("linear", "bf16")] * 3


@pytest.mark.parametrize("dtype", [np.bool_, np.int32, np.int8, np.uint8, np.int64])
def test_weights_are_floats(dtype: Any, tmp_path: Path) -> None:
    folder = save(model_of("llama"), tmp_path / "m")
    held = load_file(folder / "model.safetensors")
    name = str(np.random.default_rng(np.dtype(dtype).num).choice(sorted(held)))
    save_file({**held, name: held[name].astype(dtype)}, folder / "model.safetensors")
    with pytest.raises(ourcc.ModelError, match=rf"tensor '{name}' is stored as \w+, expected floats"):
        ourcc.build(folder)


def test_divisors_of_frequencies_are_floats(tmp_path: Path) -> None:
    path = write_gguf(model_of("llama"), tmp_path / "m.gguf", tensors={"rope_freqs.weight": np.ones(8, np.int32)})
    with pytest.raises(ourcc.ModelError, match=r"'rope_freqs\.weight' is stored as i32, expected floats"):
        ourcc.build(path)
