"""The benchmark of language models: files that it writes, sequences side by side, what counts as missed, tables and the picture."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import ourcc

from .scripts import script

lm, contenders, models, goals, report = (script(name) for name in ("lm", "lm_contenders", "lm_models", "lm_goals", "lm_report"))
SMALL = models.Shape(layers=2, width=64, inner=96, heads=4, groups=2, vocabulary=320, context=128)
RATES = {"fma_gflops": 100.0, "bf16_dot_gflops": 200.0, "int8_dot_gops": 400.0, "read_gbytes_per_second": 20.0}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = models.seeded(tmp_path_factory.mktemp("models") / "small.gguf", SMALL, models.KINDS.Q8_0)
    return path


@pytest.fixture(scope="module")
def ours(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return contenders.Ours(file, "exact", 96, 4, 1, tmp_path_factory.mktemp("engines"))


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_seeded_model_holds_the_drawn_numbers(file: Path) -> None:
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    assert list(tensors) == [name for name, _ in SMALL.tensors()]
    for number, (name, sizes) in enumerate(SMALL.tensors()):
        held = gguf.dequantize(tensors[name].data, tensors[name].tensor_type).reshape(sizes)
        expected = np.ones(sizes, np.float32) if len(sizes) == 1 else models.drawn(number, sizes)
        np.testing.assert_allclose(held, expected, atol=np.abs(expected).max() / 127)
    assert contenders.read_bytes(file) == sum(tensor.n_bytes for tensor in tensors.values()) - tensors["token_embd.weight"].n_bytes


def test_the_same_numbers_in_another_encoding(file: Path, tmp_path: Path) -> None:
    other = models.requantized(file, tmp_path / "other.gguf", models.KINDS.Q4_0)
    before, after = gguf.GGUFReader(file), gguf.GGUFReader(other)
    same = [name for name in before.fields if not name.startswith("GGUF.") and name != "general.file_type"]
    assert same and all(after.fields[name].contents() == before.fields[name].contents() for name in same)
    for one, two in zip(before.tensors, after.tensors, strict=True):
        kept = len(one.shape) == 1 or one.name == "token_embd.weight"
        assert (one.name, two.tensor_type) == (two.name, one.tensor_type if kept else models.KINDS.Q4_0)
        first, second = (gguf.dequantize(each.data, each.tensor_type) for each in (one, two))
        np.testing.assert_allclose(second, first, atol=0 if kept else np.abs(first).max() / 7)


def test_a_billion_parameters_are_so_many() -> None:
    count = sum(int(np.prod(sizes)) for _, sizes in models.BILLION.tensors())
    assert count == 1_100_048_384


def test_operations_are_those_of_products(file: Path) -> None:
    layer = 64 * (64 + 32 + 32 + 64 + 3 * 96)
    assert contenders.operations(file, 10) == 2 * (10 * 2 * layer + 320 * 64)


# --- contenders -------------------------------------------------------------------------------------------------------


def test_sequences_side_by_side_make_what_each_makes_alone(ours: Any, file: Path) -> None:
    """Tokens are noted as the engine is asked for them: those of four sequences are those of one after the other."""
    tokens, ends, told = list(range(100, 110)), [7, 8, 9, 300], []
    with ours.hold(tokens, 4) as run:
        assert run(ends[:1], 3) > 0 and run(ends, 3) > 0
    model = ourcc.load(ours.files[1], threads=1)
    for end in ends:
        told.append(int(model.sequence().logits([*tokens, end]).argmax()))
    assert [ours.first([*tokens, end]) for end in ends] == told and len(set(told)) > 1


def test_loads_are_timed_hashed_and_verified_before(ours: Any) -> None:
    found = ours.loads()
    assert found["gbytes"] == ours.files[1].stat().st_size / 1e9 and found["hashed_s"] > 0 and found["again_s"] > 0
    assert ours.tokens("ab") == [258]


def test_a_library_that_is_not_there_is_said(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "libraries", dict)
    found = contenders.makers(file, "int8", contenders.PEERS, (64, 1), 1, tmp_path)
    assert list(found) == ["ourcc exact", "ourcc a8", "ourcc a8 bf16", *contenders.PEERS]
    with pytest.raises(ImportError, match="the package llama_cpp is not installed"):
        found["llama.cpp native"]()
    assert list(contenders.makers(file, "bf16", (), (64, 1), 1, tmp_path)) == ["ourcc bf16"]


def test_a_step_of_a_pipeline_is_the_difference_of_two_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that every token moves by 2 s, and every call by 5."""
    clock, asked = [0.0], []

    class Pipeline:
        def __init__(self, *_: object) -> None:
            pass

        def made(self, prompts: list[list[int]], count: int) -> list[list[int]]:
            clock[0] += 5 + 2 * count
            asked.append((prompts, count))
            return [[1] * count for _ in prompts]

    monkeypatch.setattr(contenders, "OpenVino", Pipeline)
    monkeypatch.setattr(contenders.time, "perf_counter", lambda: clock[0])
    with contenders.GenAI(Path("m.gguf"), 64, 2, 1).hold([1, 2], 2) as run:
        assert run([3, 4], 10) == 2.0
    prompts = [[contenders.BEGIN, 2, 3], [contenders.BEGIN + 1, 2, 4]]
    assert asked == [(prompts, 11), (prompts, 1)]


# --- rounds -----------------------------------------------------------------------------------------------------------


def test_rounds_take_turns_and_warm_up() -> None:
    calls: list[str] = []
    found = lm.rounds({name: lambda name=name: calls.append(name) or float(len(calls)) for name in "ab"}, 2, 60.0)
    assert calls == list("ababab") and found == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_a_long_round_needs_no_warming_up() -> None:
    calls: list[str] = []
    found = lm.rounds({name: lambda name=name: calls.append(name) or float(len(calls)) for name in "ab"}, 5, 0.0)
    assert calls == list("abab") and found == {"a": [1.0, 3.0], "b": [2.0, 4.0]}


def test_no_two_prompts_begin_alike() -> None:
    texts = lm.Texts(list(range(1000)))
    found = [texts.prompt(32) for _ in range(500)]
    assert len({each[0] for each in found}) == 500 and {len(each) for each in found} == {32}
    assert {len(each) for each in texts.windows()} == {lm.WINDOW} and len(texts.windows()) == lm.AGREE


# --- goals and what is shown ------------------------------------------------------------------------------------------


def contender(what: str, least: float | None, rate: float = 100.0, wrong: bool = False) -> dict[str, Any]:
    side, kind = ("ours", what.split()[-1]) if what.startswith("ourcc") else ("peer", "peer")
    if least is None:
        return {"what": what, "side": side, "refused": "RuntimeError: no such kind"}
    times = {"minimum_ms": least, "median_ms": least + 1, "samples_ms": [least, least + 1], "tokens_per_second": rate}
    needed = {"needed_bytes": 20e6} if side == "ours" else {}
    return {"what": what, "side": side, "kind": kind, "wrong": wrong, "agrees": 1.0, **times, **needed}


def row(ours: float | None = 1.5, peer: float | None = 4.0, what: str = "next token", rate: float = 100.0, **more: Any) -> dict[str, Any]:
    """20 MB, which take 1 ms, or 0.4 billion operations, which take 1 ms in int8."""
    usual = {"model": "smollm2", "format": "Q4_0", "threads": 1, "what": what, "size": 128, "batch": 1, "operations": 0.4e9}
    return {**usual, "rates": RATES, "contenders": [contender("ourcc a8", ours, rate), contender("llama.cpp native", peer)], **more}


def kinds(given: dict[str, Any], *others: dict[str, Any]) -> list[str]:
    return [miss.kind for miss in goals.missed(given, [given, *others])]


def test_what_a_row_misses() -> None:
    assert kinds(row()) == [] and kinds(row(peer=2.9)) == ["ratio"] and kinds(row(peer=1.4, batch=4)) == ["floor"]
    assert kinds(row(1.7)) == ["share"] and kinds(row(1.7, threads=2)) == [] and kinds(row(1.7, batch=4)) == []
    assert kinds(row(1.7, model="1b", format="int4")) == ["share"] and kinds(row(1.2, 1.3, model="1b", format="int4")) == []
    assert kinds(row(None)) == ["answer"] and kinds(row(peer=None)) == []
    prompt = {"what": "first token", "size": 512}
    assert kinds(row(1.2, **prompt)) == [] and kinds(row(1.3, **prompt)) == ["share"] and kinds(row(1.2, 1.5, **prompt)) == ["ratio"]
    assert kinds(row(1.3, 1.4, what="first token", size=32)) == []


def test_sixteen_sequences_are_held_against_one() -> None:
    def of(format: str, rate: float, batch: int) -> dict[str, Any]:
        return row(1.2, 4.0, rate=rate, batch=batch, model="1b", format=format)

    assert kinds(of("int8", 54.0, 16), of("int8", 10.0, 1), of("int4", 1.0, 1)) == ["batch"]
    assert kinds(of("int8", 56.0, 16), of("int8", 10.0, 1)) == [] and kinds(of("int4", 34.0, 16), of("int4", 10.0, 1)) == []
    assert kinds(of("int8", 1.0, 16)) == [] and kinds(of("int8", 1.0, 4), of("int8", 10.0, 1)) == []


def test_a_wrong_answer_is_no_peer() -> None:
    quick = row(contenders=[contender("ourcc a8", 1.5), contender("a", 1.0, wrong=True), contender("b", 4.0)])
    assert kinds(quick) == []


def test_loads_are_held_against_their_size() -> None:
    assert goals.load_missed({"gbytes": 2.0, "again_s": 0.39}) == []
    assert [miss.text for miss in goals.load_missed({"gbytes": 2.0, "again_s": 0.41})] == ["0.41 s of 0.40"]


def results(rows: list[dict[str, Any]]) -> dict[str, Any]:
    cell = {"title": "smollm2, Q4_0", "threads": 1, "rows": rows, "rates": [RATES]}
    cell["loads"] = [{"contender": "ourcc a8", "gbytes": 0.5, "hashed_s": 0.4, "again_s": 0.2}]
    broken = {"title": "1b, int8", "threads": 2, "error": "the process ended with status -9"}
    facts = {
        "machine": {"cpu": "Some CPU", "flags": ["avx2"], "versions": {"openvino": "1"}},
        "llama.cpp": {"llama.cpp native": "AVX2 = 1"},
    }
    found: dict[str, Any] = lm.results([cell, broken], facts)
    return found


def test_the_table_tells_rows_refusals_and_loads() -> None:
    text = report.markdown(results([row(), row(2.0, None, batch=16), row(what="first token", size=512)]))
    assert "| next token behind 128 | **100/s** 1.50 (2.50) [100%] | **100/s** 4.00 (5.00) [100%] | **2.67** | a8 67% | met |" in text
    assert "next token behind 128, 16 sequences" in text and "- llama.cpp native: AVX2 = 1" in text
    assert "- llama.cpp native, smollm2, Q4_0: RuntimeError: no such kind" in text
    assert "- 1b, int8, threads 2: the process ended with status -9" in text
    assert "| smollm2, Q4_0 | ourcc a8 | 0.50 | 0.40 | 0.20 | 0.40 | 0.20 s of 0.10 |" in text
    assert "best peer over ours: 2.67" in report.told(row()) and "best peer" not in report.told(row(peer=None))


def test_the_picture_has_a_bar_for_each_ratio() -> None:
    root = ElementTree.fromstring(report.picture([row(), row(peer=None), row(threads=2, model="1b", format="int8")]))
    titles = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["next x 1, 128, smollm2 Q4_0: 2.67", "next x 1, 128, 1b int8: 2.67"]
    assert set(report.COLOURS) == {f"{each.name} {each.format}" for each in models.MODELS}
