"""One rule for every command: a wrong value of an option is wrong usage, exit status 2, and never a failure of the work."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ourcc.compiler.cli.cache import ACTIONS
from ourcc.compiler.cli.main import COMMANDS, run
from ourcc.runtime.language.model import LanguageModel

VALUES = ("", "-1", "0", "nan", "1e400", "=", "bogus", "99999999999999999999")
ALLOWED = {("verify", "--tolerance", "0"): 3}
"""Values that are right, and which the work does not meet."""


@pytest.fixture(scope="module")
def files(both: tuple[LanguageModel, Any, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Right arguments of every command, to which an option is added."""
    folder = tmp_path_factory.mktemp("statuses")
    weight = numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", 8]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "m", ports[:1], ports[1:], [weight])
    model, engine, text, config = (str(folder / name) for name in ("m.onnx", "m.ourcc", "t.txt", "config"))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), model)
    Path(text).write_text("why is the sea so blue")
    Path(config).mkdir()
    settings = '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4, '
    Path(config, "config.json").write_text(settings + '"vocab_size": 97, "max_position_embeddings": 64}')
    assert run(["build", model, "-o", engine, "--shape", "B=1..4", "-q"]) == 0
    language, other = str(both[2]), str(folder / "o.ourcc")
    return {
        "build": [model, "-o", other],
        "run": [engine],
        "generate": [language, "sky", "--raw", "--max-tokens", "1"],
        "chat": [language],
        "eval": [language, text],
        "plan": [config],
        "bench": [engine, "--rounds", "1"],
        "verify": [engine, model],
        "inspect": [engine],
        "tune": [engine, "-o", other, "--budget", "1ms"],
        "opt": [model, "--pipeline", "canonicalize"],
        "doctor": [],
        "runtime": ["-o", str(folder / "runtime")],
        **{f"cache {action}": ["store"] * 2 for action in ACTIONS},
    }


def commands() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = importlib.import_module(f"ourcc.compiler.cli.{name}").command
        yield from (
            ((f"{name} {each}", one) for each, one in command.commands.items()) if isinstance(command, click.Group) else [(name, command)]
        )


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=[name for name, _ in commands()])
def test_a_wrong_value_is_wrong_usage(
    name: str,
    command: click.Command,
    files: dict[str, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    options = [each for each in command.params if isinstance(each, click.Option) and not each.is_flag and not each.count]
    for option in options:
        is_output = isinstance(option.type, click.Path) and not option.type.exists
        for value in ("no/folder",) if is_output else VALUES:
            monkeypatch.setattr(sys, "stdin", io.StringIO("sky\n"))
            flag = option.opts[-1]
            status = run([*name.split(), *files[name], flag, value, "-q"])
            shown = capsys.readouterr()
            expected = {2} if is_output or value == "bogus" else {0, 2, ALLOWED.get((name, flag, value), 2)}
            assert status in (expected if option.metavar != "TEXT" else {0, 2}), (name, flag, value, status, shown.err)
            assert (status == 2) == (shown.err.startswith("error: ")) or status == 3
    assert run([*name.split(), *files[name], "--bogus"]) == 2


def test_the_option_is_named_before_the_engine_is_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.ourcc").write_bytes(b"no engine")
    for command in (["generate", str(tmp_path / "m.ourcc"), "sky"], ["chat", str(tmp_path / "m.ourcc")]):
        assert run([*command, "--top-p", "7"]) == 2
        assert "error: --top-p: top_p 7.0: expected more than 0 and at most 1" in capsys.readouterr().err
        assert run(command) == 1
        assert "not an engine" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--top-k", "5"], ["--seed", "1", "--temperature", "0"], ["--logprobs", "2"]])
def test_an_option_that_changes_nothing_is_wrong_usage(
    words: list[str], files: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["generate", *files["generate"], *words]) == 2
    assert f"{words[0]} has no effect" in capsys.readouterr().err
