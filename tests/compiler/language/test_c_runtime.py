"""A language model's engine in C: its functions read and write the cache, a state of the session, with the bits of Python."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import ourcc
from ourcc.runtime.engine import Engine
from ourcc.runtime.language.sampling import Sampling, operands

from .conftest import model_of, save, tokenizer_of

sys.path.insert(0, str(Path(__file__).parents[2] / "runtime" / "c"))

from library import Library, compile_c, same_bits, write_sources


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("c")
    return Library(compile_c(folder / "libourcc.so", write_sources(folder / "runtime"), "-shared", "-fPIC", "-fvisibility=hidden"))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_steps_have_pythons_bits(library: Library, tmp_path: Path, kind: str) -> None:
    save(model_of(kind), tmp_path)
    tokenizer_of(tmp_path)
    path = tmp_path / "m.ourcc"
    ourcc.build(tmp_path, targets=["native"], tune="off").save(path)
    expected, opened = Engine.load(path, threads=2).session(), library.open(path, threads=2)
    found = opened.session()
    assert opened.functions == ["step", "sample"] and {port.name.decode() for port in opened.ports("states")} == set(expected.states)
    random, first = np.random.default_rng(0), 0
    for count in (7, 1, 1, 3, 1, 20, 1):
        tokens, places = random.integers(2, 90, (1, count)), np.arange(first, first + count).reshape(1, count)
        given = (tokens, places, np.arange(first + count), np.array([count - 1]))
        assert same_bits(found(*given, function="step")[0], expected(*given))
        first += count
    for count, options in ((1, Sampling()), (4, Sampling(temperature=0.9, top_k=40, top_p=0.9, repetition_penalty=1.2, bias={7: 3.0}))):
        tokens, places = random.integers(2, 90, (1, count)), np.arange(first, first + count).reshape(1, count)
        draws = operands([(options, tokens[0].tolist(), place + 1) for place in range(count)])
        given = (tokens, places, np.arange(first + count), np.arange(count), *draws, np.arange(count)[count // 2 :])
        answer, logits = expected.functions["sample"](*given)
        assert answer.shape == (count,) and len(logits) == count - count // 2 and (answer >= 0).all()
        for ours, theirs in zip(found(*given, function="sample"), (answer, logits), strict=True):
            assert same_bits(ours, theirs)
        first += count
    for name in expected.states:
        held = expected.state(name)
        assert found.read(name, held.nbytes) == held.tobytes()
