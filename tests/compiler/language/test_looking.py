"""Language models are looked at as other models are, from folders and GGUF files alike."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest

from ourcc.compiler.cli.main import run

from .conftest import model_of, save, write_gguf


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder, model = tmp_path_factory.mktemp("looking"), model_of("llama")
    coded = write_gguf(model, folder / "m.gguf", gguf.GGMLQuantizationType.Q4_0)
    return {"folder": str(save(model, folder / "m")), "gguf": str(coded)}


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_a_language_model_is_inspected_measured_and_optimized(
    kind: str, models: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = models[kind]
    for words, seen in (
        (["inspect", model], "cache.0.keys"),
        (["inspect", model, "--kernels"], "kernel_0"),
        (["inspect", model, "--graph", str(tmp_path / "g.svg")], "import"),
        (["inspect", model, "--diff", model], "the programs are the same"),
        (["bench", model, "--rounds", "1"], "times at S=1"),
        (["opt", model, "--pipeline", "canonicalize, eliminate_dead_code"], "func @step"),
    ):
        assert run([*words, "-q"]) == 0, capsys.readouterr().err
        assert seen in capsys.readouterr().out
    assert run(["inspect", model, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["constant_bytes"] > 0
