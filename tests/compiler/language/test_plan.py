"""`ourcc plan`: parameters and bytes are those of checkpoints and engines, operations those of torch, figures those of their formulas."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import ourcc
from ourcc.compiler.cli.main import run
from ourcc.compiler.commands.plan import plan
from ourcc.compiler.importers.checkpoints import read_config, read_folder, read_gguf
from ourcc.compiler.importers.checkpoints.stored import Checkpoint
from ourcc.compiler.language.caches import CACHES
from ourcc.compiler.language.footprint import operations, seen_pairs, token_bytes, weigh, workspace
from ourcc.compiler.language.module import ARCHITECTURES, language_module
from ourcc.compiler.language.outline import OPTIONAL, outline_of
from ourcc.compiler.targets.machine import DeviceFigures
from ourcc.compiler.targets.registry import TARGETS
from ourcc.ir import dims
from ourcc.ir.formats import format_of
from ourcc.ir.target import GPU_TARGETS
from ourcc.passes import PASSES, load_pass
from ourcc.passes.base import PassContext
from ourcc.passes.quantize import QUANTIZATIONS

from .conftest import model_of, save, write_gguf
from .test_architectures import KINDS

LLAMA = {
    **{"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
    **{"num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5},
    **{"rope_theta": 500000.0, "tie_word_embeddings": False},
    "rope_scaling": {
        **{"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"},
        "original_max_position_embeddings": 8192,
    },
}
LARGEST = {**LLAMA, "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128}
SMOLLM2 = {
    **{"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9},
    **{"num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192, "torch_dtype": "bfloat16"},
    "tie_word_embeddings": True,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "biased": {},
    "qwen3": {"attention_bias": True, "tie_word_embeddings": True},
    "qwen2": {"tie_word_embeddings": True},
    "mistral": {"num_key_value_heads": 1},
    "llama": {"attention_bias": True, "head_dim": 8},
}


def config_only(model: Any, folder: Path) -> Path:
    """A folder that holds nothing but the model's config."""
    model.config.save_pretrained(folder)
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    return folder


def outlined(config: dict[str, Any], length: int | None = None) -> Any:
    return outline_of(Checkpoint("m", "folder", config, {}), length)


@pytest.mark.parametrize(("kind", "changed"), [*((kind, {}) for kind in KINDS), *VARIANTS.items()])
def test_a_config_alone_tells_the_tensors_of_the_checkpoint(kind: str, changed: dict[str, Any], tmp_path: Path) -> None:
    model = model_of(kind, **changed)
    outline = outline_of(read_config(config_only(model, tmp_path / "c")))
    held = read_folder(save(model, tmp_path / "m")).tensors
    assert {name.removeprefix("transformer."): value.shape for name, value in outline.weights.items()} == {
        name.removeprefix("transformer."): stored.shape for name, stored in held.items()
    }
    assert outline.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert sum(outline.bytes.values()) == sum(stored.read().nbytes for stored in held.values())


def test_published_counts() -> None:
    assert outlined(LLAMA).parameters == 70_553_706_496  # the model card's 70.6 B
    assert outlined(LARGEST).parameters == 405_853_388_800  # and 405.9 B
    assert outlined(SMOLLM2).parameters == 134_515_008
    assert sum(outlined(LLAMA).bytes.values()) == 2 * 70_553_706_496


def test_every_architecture_has_an_outline() -> None:
    assert OPTIONAL.keys() == ARCHITECTURES.keys()


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_a_gguf_file_tells_it_by_its_directory(kind: str, tmp_path: Path) -> None:
    path = write_gguf(model_of(kind, hidden_size=64, intermediate_size=96), tmp_path / "m.gguf", gguf.GGMLQuantizationType.Q4_0)
    outline, tensors = outline_of(read_gguf(path)), gguf.GGUFReader(path).tensors
    assert outline.parameters == sum(int(np.prod(tensor.shape)) for tensor in tensors)
    assert outline.bytes == {tensor.name: tensor.n_bytes for tensor in tensors}


def test_weights_of_an_outline_cannot_be_read() -> None:
    outline = outlined(LLAMA)
    assert len(outline.weights) == 3 + 80 * 9
    for value in outline.weights.values():
        with pytest.raises(ourcc.InternalError, match="only a shape is read"):
            _ = value.constant.array


@pytest.mark.parametrize("name", [name for name, each in QUANTIZATIONS.items() if each.format is not None])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_in_a_format_are_those_that_its_pass_makes(name: str, tied: bool, tmp_path: Path) -> None:
    # Inner layers of 96 are no whole groups of 64 and 128.
    model = model_of("llama", hidden_size=128, intermediate_size=96, tie_word_embeddings=tied)
    folder = save(model, tmp_path / "m")
    module = language_module(read_folder(folder))
    format = QUANTIZATIONS[name].format or ""
    for step in QUANTIZATIONS[name].steps():
        word = step.partition("{")[0]
        assert word in PASSES
        options = {"format": format} if word == "encode_weights" else {}
        load_pass(word)(**options).run(module, PassContext())
    used = {value for value in module.constants.values() if value.uses and value.name != "c" and not value.name.startswith("c.")}
    weighed = weigh(outline_of(read_config(folder)), name)
    assert weighed.coded + weighed.others == sum(dims.number(value.type.nbytes) for value in used)
    assert bool(weighed.kept) == (tied or format_of(format).group > 32)
    assert weighed.copied == (4 * 97 * 128 if tied else 0)


@pytest.mark.parametrize(("kind", "seen"), [("llama", None), ("mistral", 7), ("gpt2", None)])
def test_operations_are_those_that_torch_counts(kind: str, seen: int | None, tmp_path: Path) -> None:
    model, count = model_of(kind), 24
    outline = outline_of(read_config(config_only(model, tmp_path / "c")))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros((1, count), dtype=torch.int64))
    config = outline.config
    # torch counts pairs that a mask hides as well, and transformers' angles of rotation are an outer product.
    pairs = sum(min(place + 1, seen or count) for place in range(count))
    assert seen_pairs(outline, 0, count) == pairs and seen_pairs(outline, 5, 1) == min(6, seen or 6)
    others = 4 * config.layers * config.heads * config.head * (count * count - pairs)
    others += 0 if config.rotation is None else 2 * (config.head // 2) * count
    assert operations(outline, 0, count, wanted=count) == counter.get_total_flops() - others
    whole = [operations(outline, first, 1) for first in range(count)]
    assert operations(outline, 0, count, wanted=count) == sum(whole)


def test_caches_and_workspaces_are_those_of_an_engine(tmp_path: Path) -> None:
    folder = save(model_of("llama"), tmp_path / "m")
    engine = ourcc.build(folder, tune="off")
    outline, built = outline_of(read_config(folder)), engine.contents.best.plans["step"]
    held = sum(dims.number(state.type.nbytes) for state in built.states)
    assert token_bytes(outline, "f32") * 64 == held
    for sizes in ({"S": 1, "T": 64, "R": 1}, {"S": 64, "T": 64, "R": 1}):
        arena = sum(max(dims.evaluate(size, sizes) for size in slot.sizes) for slot in built.slots)
        assert arena / 2 <= workspace(outline.graph, sizes) <= 2 * arena
    assert {name: cache.row_bytes(64) for name, cache in CACHES.items()} == {"f32": 256, "bf16": 128, "f16": 128, "int8": 68, "fp8": 68}


def folder_of(config: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_figures_follow_from_those_that_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(LLAMA, tmp_path / "Llama-3.1-70B")
    words = ["--format", "fp8-weight", "--batch", "32", "--context", "8192", "--target", "sm_90a", "--cache", "bf16", "--prompt", "1000"]
    assert run(["plan", str(folder), *words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    memory = {row["what"]: row["bytes"] for row in told["memory"]}
    products = 80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672)
    scales = 80 * (2 * 8192 + 2 * 1024 + 2 * 28672 + 8192)
    head = 128256 * 8192
    assert memory["weights in fp8-weight"] == products + head + 4 * (scales + 128256)
    assert memory["other weights"] == 2 * (head + 161 * 8192)
    assert memory["keys and values"] == 32 * 8192 * (80 * 2 * 8 * 128 * 2)
    assert memory["all"] == sum(size for name, size in memory.items() if name != "all")
    assert told["fits"] == {"one_device": False, "devices_that_hold_it": math.ceil(memory["all"] / 141e9)}
    # Weights that are only stored so are multiplied in the model's own precision.
    assert (told["products_in"], told["instruction"]) == ("bf16", "wgmma")
    rates = GPU_TARGETS["sm_90a"]
    assert told["bytes_per_second"] == rates.memory_rate
    assert told["operations_per_second"] == pytest.approx(rates.rates["bf16"])
    decode, prompt = told["roofline"]
    assert decode["operations"] == 32 * (2 * (products + head) + 4 * 80 * 64 * 128 * 8192)
    assert prompt["operations"] == 2 * (products * 1000 + head) + 4 * 80 * 64 * 128 * 1000 * 1001 // 2
    assert decode["cache_bytes"] == 32 * 8193 * 80 * 2 * 8 * 128 * 2 and prompt["cache_bytes"] == 1000 * 80 * 2 * 8 * 128 * 2
    assert decode["weight_bytes"] == memory["weights in fp8-weight"] + 2 * 161 * 8192 + 32 * 2 * 8192
    for row, tokens in ((decode, 32), (prompt, 1000)):
        computing = row["operations"] / told["operations_per_second"]
        moving = (row["weight_bytes"] + row["cache_bytes"]) / told["bytes_per_second"]
        assert row["ms"] == pytest.approx(1e3 * max(computing, moving)) and row["bound"] == (
            "operations" if computing > moving else "bytes"
        )
        assert row["tokens_per_second"] == pytest.approx(tokens * 1e3 / row["ms"])


def test_a_cpu_is_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    device = TARGETS["cpu"].device()
    assert 1 << 28 < device.memory_bytes < 1 << 50 and device.memory_rate > 1e8 and device.rates["f32"] > 1e8
    small = DeviceFigures("a small one", 10**6, 1e9, {"f32": 1e9}, "a test")
    monkeypatch.setattr(type(TARGETS["cpu"]), "device", lambda self: small)
    folder = folder_of({**SMOLLM2, "num_hidden_layers": 1, "vocab_size": 500}, tmp_path / "m")
    report = plan(folder, format="int8")
    facts, fits = report.facts, report.numbers["fits"]
    assert facts["products_in"] == "f32" and facts["target"] == "cpu: a small one" and not fits["one_device"]
    assert str(facts["fits"]) == f"no: an engine runs on one device; {fits['devices_that_hold_it']} would hold the bytes"
    assert run(["plan", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "second order of a table" in shown and "tokens per second" in shown and max(map(len, shown.splitlines())) < 200


MULTIPLIED = {
    **{name: "i8" for name, each in QUANTIZATIONS.items() if name == "int8" or (name.endswith("a8") and name not in ("a8", "nvfp4-a8"))},
    **{"a8": "bf16", "fp8": "f8e4m3", "fp8-block": "f8e4m3", "mxfp8": "bf16", "mxfp4": "bf16", "nvfp4": "tf32x3", "nvfp4-a8": "tf32x3"},
}
"""In what Hopper multiplies a layer of Llama's in bf16; all others are decoded to that."""


def test_the_names_of_formats_are_those_of_a_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split()).replace("- ", "-")  # names go on behind their hyphens
    for each in QUANTIZATIONS.values():
        assert each.name in shown and (each.format is None or f"{format_of(each.format).bits:.3g} bits a number" in shown)
    folder = folder_of({**LLAMA, "num_hidden_layers": 1}, tmp_path / "m")
    coded = write_gguf(model_of("llama"), tmp_path / "m.gguf", gguf.GGMLQuantizationType.Q4_0)
    for name in QUANTIZATIONS:
        facts = plan(folder, format=name, target="sm_90a").facts
        assert facts["format"] == name and facts["products_in"] == MULTIPLIED.get(name, "bf16")
    for format, multiplied in (("a8", "i8"), (None, "tf32x3")):
        assert plan(coded, format=format, target="sm_90a").facts["products_in"] == multiplied
    for format, multiplied in (("f32", "tf32x3"), ("fp32", "tf32x3"), ("fp16", "f16"), ("bf16", "bf16"), (None, "bf16")):
        assert plan(folder, format=format, target="sm_90a").facts["products_in"] == multiplied
    for word, name in (("fp8", "fp8"), ("int4", "int4-weight"), ("mxfp6", "mxfp6-weight"), ("int8", "int8")):
        assert plan(folder, format=word, target="sm_90a").facts["format"] == name


def test_what_cannot_be_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(LLAMA, tmp_path / "m")
    coded = write_gguf(model_of("llama"), tmp_path / "m.gguf", gguf.GGMLQuantizationType.Q4_0)
    (tmp_path / "m.ourcc").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    for words, status, message in (
        ([tmp_path / "m.ourcc"], 2, "expected a folder with config.json, or a .gguf file"),
        ([tmp_path / "empty"], 1, "holds no config.json"),
        ([folder, "--format", "fp9"], 2, "fp9"),
        ([folder, "--format", "float16"], 2, "did you mean 'f16'?"),
        ([folder, "--cache", "int7"], 2, "int7"),
        ([folder, "--batch", "0"], 2, "batch: got 0, expected a whole number of sequences from 1 to 4096"),
        ([folder, "--batch", "9" * 20], 2, "expected a whole number of sequences from 1 to 4096"),
        ([folder, "--context", "200000"], 2, "context 200000: expected 2 to 131072"),
        ([folder, "--context", "64", "--prompt", "65"], 2, "prompt 65: expected 1 to 64"),
        ([folder, "--target", "sm_91"], 2, "unknown target"),
        ([coded, "--format", "int8"], 2, "the file's weights are coded already, token_embd.weight as q4_0"),
    ):
        assert run(["plan", *map(str, words), "-q"]) == status
        shown = capsys.readouterr()
        assert message in shown.err and not shown.out
    for changed, message in (
        ({"model_type": "mamba"}, "architecture 'mamba' is not supported"),
        ({"torch_dtype": "int4"}, "torch_dtype is 'int4', expected one of float32"),
        ({"hidden_size": -1}, "hidden_size is -1"),
    ):
        with pytest.raises(ourcc.CompilerError, match=message):
            plan(folder_of({**LLAMA, **changed}, folder), target="sm_90a")


HOSTILE = (0, -1, 1, 3, 7, 1 << 24, 1 << 40, 2.5, float("nan"), None, "x", [], {}, True)


@pytest.mark.parametrize("seed", range(12))
def test_a_config_that_says_anything_ends_in_one_error(seed: int, tmp_path: Path) -> None:
    draw = np.random.default_rng(seed)
    gpt2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 97}
    outcomes = set()
    for _ in range(25):
        small = {**SMOLLM2, "num_hidden_layers": 2, "model_type": str(draw.choice(["llama", "mistral", "qwen2", "qwen3"]))}
        config = dict(gpt2 if draw.random() < 0.2 else small)
        for _ in range(int(draw.integers(1, 4))):
            names = (*config, "head_dim", "attention_bias", "sliding_window", "rope_scaling", "n_inner", "dtype")
            config[names[draw.integers(len(names))]] = HOSTILE[draw.integers(len(HOSTILE))]
        try:
            report = plan(
                folder_of(config, tmp_path), target="sm_90a", format=("fp8-weight", "int4-a8", "bf16", None)[draw.integers(4)], context=32
            )
            assert int(report.facts["parameters"]) > 0  # type: ignore[arg-type]
            outcomes.add("planned")
        except ourcc.CompilerError as error:
            assert not isinstance(error, ourcc.InternalError)
            outcomes.add(type(error).__name__)
    assert len(outcomes) > 1


def test_a_config_cannot_ask_for_layers_without_end(tmp_path: Path) -> None:
    with pytest.raises(ourcc.ModelError, match="1025 layers, expected at most 1024"):
        plan(folder_of({**SMOLLM2, "num_hidden_layers": 1025}, tmp_path), target="sm_90a")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "quantization_config 'gptq' is not supported, only weights in floats",
        ),
        ({"hidden_size": 577}, "hidden_size is 577, expected a multiple of the 9 heads, or head_dim"),
        ({"sliding_window": -5}, "sliding_window is -5, expected a whole number from 1"),
    ],
)
def test_what_a_config_says_is_not_passed_over(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ourcc.CompilerError, match=message):
        plan(folder_of({**SMOLLM2, **changed}, tmp_path), target="sm_90a")


def test_a_config_without_a_kind_and_one_that_is_named_alone(tmp_path: Path) -> None:
    folder = folder_of({}, tmp_path)
    with pytest.raises(ourcc.ModelError, match=r"model_type is missing\n  help: it says what the model is"):
        plan(folder, target="sm_90a")
    with pytest.raises(ourcc.UsageError, match=f"help: name the folder of this file: ourcc plan {folder}"):
        plan(folder / "config.json", target="sm_90a")
