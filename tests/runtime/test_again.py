"""The command that builds an engine again names the file that was opened, and another one to write."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ourcc.ir.errors import EngineError
from ourcc.runtime.again import again, read_from
from ourcc.runtime.engine import Engine
from ourcc.runtime.file import write_engine


def test_without_a_file_it_is_a_pattern() -> None:
    assert again() == "ourcc build --rebuild ENGINE -o OUT.ourcc"
    assert again("native") == "ourcc build --rebuild ENGINE --target native -o OUT.ourcc"


@pytest.mark.parametrize("path", ["m.ourcc", "b/a model.ourcc", "noend", "./x.y.ourcc"])
def test_a_file_is_named_as_it_was_typed_and_is_not_written_over(path: str) -> None:
    with pytest.raises(EngineError) as caught, read_from(path):
        raise EngineError("no part", hint=f"do: {again('cpu')}")
    words = shlex.split(str(caught.value.hint).removeprefix("do: "))
    assert words[:5] == ["ourcc", "build", "--rebuild", path, "--target"] and words[6] == "-o"
    assert words[7] != path and (path == "noend" or os.path.splitext(words[7])[1] == os.path.splitext(path)[1])


def test_other_errors_stay_as_they_are() -> None:
    for hint in (None, "ENGINE alone is no command"):
        with pytest.raises(EngineError) as caught, read_from("m.ourcc"):
            raise EngineError("x", hint=hint)
        assert caught.value.hint == hint


def test_an_engine_without_a_part_for_this_machine(tiny: Any, tmp_path: Path) -> None:
    path = tmp_path / "far.ourcc"
    write_engine(path, replace(tiny, parts={"a": replace(tiny.parts["baseline"], machine="riscv64")}))
    with pytest.raises(EngineError, match="engine holds no target for this machine") as caught:
        Engine.load(path)
    assert f"ourcc build --rebuild {path} --target native -o {tmp_path / 'far.new.ourcc'}" in str(caught.value)
