"""Caches in few bits: what they hold is what the format's rounding gives, attention reads them as they lie, and reports say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
import torch
import transformers

import ourcc
from ourcc.compiler.language.caches import CACHES
from ourcc.compiler.options import build_options
from ourcc.compiler.report.engine import describe_engine
from ourcc.compiler.requests import CACHES as NAMES
from ourcc.ir import dims
from ourcc.ir.formats import format_of
from ourcc.ir.plan import Copy
from ourcc.ir.plan.storage import Arena
from ourcc.runtime.states import states_of

from .conftest import logits_of, model_of, save, write_gguf
from .test_architectures import KINDS, tokens_of

NARROW = [name for name in NAMES if name != "f32"]
PLAIN = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}


def rounded(x: np.ndarray[Any, Any], cache: str) -> np.ndarray[Any, Any]:
    """Rows [.., D] as a cache gives them back."""
    if cache in PLAIN:
        return x.astype(PLAIN[cache]).astype(np.float32)
    format = format_of(CACHES[cache].format or "")
    rows = x.reshape(-1, x.shape[-1])
    return format.decoded(format.encoded(rows)).reshape(x.shape)


class Rounding(transformers.DynamicCache):  # type: ignore[misc]
    """A cache of `transformers` that keeps what ours would."""

    def __init__(self, kept: str) -> None:
        super().__init__()
        self.kept = kept

    def update(self, keys: Any, values: Any, *rest: Any, **more: Any) -> Any:
        return super().update(*(torch.from_numpy(rounded(x.detach().numpy(), self.kept)) for x in (keys, values)), *rest, **more)


def rounded_logits(model: Any, tokens: list[int], cache: str) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        found: np.ndarray[Any, Any] = model(torch.tensor([tokens]), past_key_values=Rounding(cache), use_cache=True).logits[0].numpy()
    return found


def test_options_and_the_table_name_the_same_caches() -> None:
    assert tuple(CACHES) == NAMES


@pytest.mark.parametrize(
    ("kind", "cache"), [*((kind, "int8") for kind in KINDS), *(("mistral", name) for name in NARROW if name != "int8")]
)
def test_logits_are_those_of_rounded_keys_and_values(kind: str, cache: str, tmp_path: Path) -> None:
    model, tokens = model_of(kind), tokens_of(40)
    engine: Any = ourcc.build(save(model, tmp_path / "m"), tune="off", cache=cache)
    whole = engine.sequence().all_logits(tokens)
    np.testing.assert_allclose(whole, rounded_logits(model, tokens, cache), atol=2e-5)
    # So close is no cache that rounds otherwise.
    assert abs(whole - logits_of(model, tokens)).max() > 1e-4
    sequence = engine.sequence()
    found = [sequence.all_logits(tokens[:25]), *(sequence.logits(tokens[: n + 1])[None] for n in range(25, 40))]
    np.testing.assert_array_equal(np.concatenate(found), whole)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = save(model_of("llama"), tmp_path_factory.mktemp("model"))
    return {name: ourcc.build(folder, tune="off", cache=name) for name in NAMES}


@pytest.mark.parametrize("cache", NARROW)
def test_states_hold_what_the_format_makes_of_keys_and_values(cache: str, engines: dict[str, Any]) -> None:
    tokens, states = tokens_of(30), {}
    for name in ("f32", cache):
        sequence = engines[name].sequence()
        sequence.all_logits(tokens)
        states[name] = {state: sequence.session.state(state)[:, : len(tokens)] for state in sequence.session.states}
    # Layer 0 has not seen any rounded number yet, so what it keeps is known to the bit.
    for part in ("keys", "values"):
        wide, kept = states["f32"][f"cache.0.{part}"], states[cache]
        if cache in PLAIN:
            np.testing.assert_array_equal(kept[f"cache.0.{part}"], wide.astype(PLAIN[cache]))
            continue
        fields = format_of(CACHES[cache].format or "").encoded(wide.reshape(-1, wide.shape[-1]))
        for name, expected in fields.items():
            np.testing.assert_array_equal(kept[f"cache.0.{part}.{name}"].reshape(expected.shape), expected)


@pytest.mark.parametrize("cache", NAMES)
def test_attention_reads_a_cache_as_it_lies(cache: str, engines: dict[str, Any]) -> None:
    plan = engines[cache].contents.best.plans["step"]
    assert [step for step in plan.steps if isinstance(step, Copy) and plan.moves(step)] == []
    assert {state.name.split(".")[2] for state in plan.states} == {"keys", "values"}
    # Nothing else is as long as what is seen but the mask.
    states = {number for number, _ in states_of(plan.buffers)}
    seen = [b for n, b in enumerate(plan.buffers) if n not in states and "T" in {name for d in b.type.shape for name in dims.symbols(d)}]
    assert {b.type.dtype.name for b in seen if isinstance(b.storage, Arena)} == {"bool"}


def test_reports_say_which_cache(engines: dict[str, Any], tmp_path: Path) -> None:
    # Keys and values of two layers in two heads of 16 numbers.
    sizes = {"f32": 64, "bf16": 32, "f16": 32, "int8": 16 + 4, "fp8": 16 + 4}
    for cache, engine in engines.items():
        assert (engine.facts.cache, engine.facts.token_bytes) == (cache, 8 * sizes[cache])
        held = sum(type.nbytes for type in engine.session().states.values())
        assert held == engine.facts.token_bytes * engine.facts.context
        path = tmp_path / f"{cache}.ourcc"
        engine.save(path)
        facts = describe_engine(engine.contents, path).facts
        assert facts["cache"] == f"{cache}, {8 * sizes[cache]} bytes a token, {8 * sizes[cache] * 64} bytes a session"
        (row,) = (row for row in engine.contract if row.source == "attention.0")
        assert row.stored == {"f32": "", "bf16": "bf16", "f16": "fp16", "int8": "int8", "fp8": "fp8.e4m3"}[cache]


def test_what_is_not_a_cache_is_refused(tmp_path: Path) -> None:
    folder = save(model_of("llama"), tmp_path / "m")
    for options, message in (
        ({"cache": "int7"}, "unknown cache: got 'int7', expected one of f32, bf16, f16, int8, fp8"),
        ({"batch": 0}, "batch: got 0, expected a whole number of sequences from 1"),
        ({"batch": "many"}, "batch: got 'many'"),
    ):
        with pytest.raises(ourcc.UsageError, match=message):
            ourcc.build(folder, **options)  # type: ignore[arg-type]
    for option, value in (("cache", "int8"), ("batch", 2)):
        with pytest.raises(ourcc.UsageError, match=f"{option} is for language models"):
            ourcc.build(torch.nn.Linear(2, 2), (torch.zeros(1, 2),), **{option: value})  # type: ignore[arg-type]
        for road in ("torch.compile", "ourcc.explain"):
            with pytest.raises(ourcc.UsageError, match=f"'{option}' has no effect on {road}"):
                build_options({option: value}, road)  # type: ignore[arg-type]


def test_weights_activations_and_cache_are_narrow_at_once(tmp_path: Path) -> None:
    path, tokens = write_gguf(model_of("llama"), tmp_path / "m.gguf", gguf.GGMLQuantizationType.Q8_0), tokens_of(20)
    held = []
    for cache in ("f32", "int8"):
        engine: Any = ourcc.build(path, tune="off", cache=cache, quantize="a8")
        sequence = engine.sequence()
        sequence.all_logits(tokens)
        held.append(sequence.session)
    fields = format_of("int8").encoded(held[0].state("cache.0.values").reshape(-1, 16))
    np.testing.assert_array_equal(held[1].state("cache.0.values.codes").reshape(-1, 16), fields["codes"])
