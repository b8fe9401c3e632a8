"""Plans that a record says were found sound are not verified again; whatever else the bytes are, they are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from ourcc.ir.errors import EngineError
from ourcc.runtime import checked, program
from ourcc.runtime.contents import EngineContents
from ourcc.runtime.engine import Engine
from ourcc.runtime.file import write_engine


@pytest.fixture
def path(tiny: EngineContents, tmp_path: Path) -> Path:
    write_engine(tmp_path / "tiny.ourcc", tiny)
    return tmp_path / "tiny.ourcc"


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The targets of the plans that were verified."""
    found: list[str] = []
    monkeypatch.setattr(program, "_check", lambda plan: found.append(plan.target))
    return found


def record_in(folder: Path) -> Path:
    (record,) = (path for path in folder.iterdir() if path.name.startswith("plans-"))
    return record


def test_plans_are_verified_once(path: Path, tmp_path: Path, verified: list[str]) -> None:
    folder = tmp_path / "checked"
    for _ in range(3):
        engine = Engine.load(path, checked=str(folder))
        assert engine(np.ones((2, 4), np.float32))[0].shape == (2, 4)
    assert len(verified) == 1
    assert record_in(folder).stat().st_size < 400 and json.loads(record_in(folder).read_bytes())["schema"] == 1
    # The same plans in another file, but for whoever asks for everything, or names no folder.
    (tmp_path / "copy.ourcc").write_bytes(path.read_bytes())
    Engine.load(tmp_path / "copy.ourcc", checked=str(folder))
    assert len(verified) == 1
    Engine.load(path, checked=str(folder), verify=True)
    Engine.load(path)
    assert len(verified) == 3


@pytest.mark.parametrize("spoil", ["flip", "cut", "longer", "others may write", "link", "other rules", "no rules"])
def test_a_record_that_is_none_is_not_believed(
    path: Path, tmp_path: Path, verified: list[str], monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    folder = tmp_path / "checked"
    Engine.load(path, checked=str(folder))
    record = record_in(folder)
    data = record.read_bytes()
    if spoil == "flip":
        record.write_bytes(data.replace(b'"schema":1', b'"schema":2'))
    elif spoil in ("cut", "longer"):
        record.write_bytes(data[:-1] if spoil == "cut" else data + b" ")
    elif spoil == "others may write":
        record.chmod(0o666)
    elif spoil == "link":
        record.rename(tmp_path / "elsewhere")
        record.symlink_to(tmp_path / "elsewhere")
    else:
        monkeypatch.setattr(checked, "_rules", lambda: "0" * 64 if spoil == "other rules" else "")
    Engine.load(path, checked=str(folder))
    assert len(verified) == 2


def test_nothing_is_remembered_of_plans_that_break_a_rule(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(plan: object) -> None:
        raise EngineError("broken")

    folder = tmp_path / "checked"
    with monkeypatch.context() as patch:
        patch.setattr(program, "_check_memory", refuse)
        for _ in range(2):
            with pytest.raises(EngineError, match="broken"):
                Engine.load(path, checked=str(folder))
    assert not folder.exists() or not any(name.startswith("plans-") for name in os.listdir(folder))
    Engine.load(path, checked=str(folder))
    assert record_in(folder)


def test_rules_are_the_sources_of_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {line.split()[0] for line in checked._sources()}
    assert {"verify.py", "check.py", "json.py", "storage.py", "expr.py", "layout.py", "types.py"} <= names
    before = checked._rules()
    checked._rules.cache_clear()
    monkeypatch.setattr(checked, "_sources", lambda: ["verify.py 1 2"])
    assert checked._rules() != before and len(checked._rules()) == 64
    checked._rules.cache_clear()
