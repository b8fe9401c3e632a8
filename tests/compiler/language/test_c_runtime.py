"""A language model's engine in C: its step reads and writes the cache, a state of the session, with the bits of Python."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import ourcc
from ourcc.runtime.engine import Engine

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
    for name in expected.states:
        held = expected.state(name)
        assert found.read(name, held.nbytes) == held.tobytes()
