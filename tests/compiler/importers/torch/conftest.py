"""Torch programs saved, taken apart and changed, for the importer's tests."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ourcc.compiler.importers.torch.tensors import array_of
from ourcc.ir.graph import Module
from ourcc.ir.graph.reference import interpret, judge

Change = Callable[[Any], None]


def export(model: torch.nn.Module, inputs: tuple[Any, ...], shapes: Any = None) -> Any:
    with torch.no_grad():
        return torch.export.export(model.eval(), inputs, dynamic_shapes=shapes)


def flat(value: Any) -> list[torch.Tensor]:
    return [part for part in torch.utils._pytree.tree_leaves(value) if isinstance(part, torch.Tensor)]


@pytest.fixture
def same() -> Callable[..., None]:
    return check


def check(module: Module, model: Any, inputs: tuple[torch.Tensor, ...]) -> None:
    """The module's results against eager's: dtypes and shapes exactly, values by the judge."""
    arrays = [array_of(value) for value in inputs]
    with torch.no_grad():
        eager = [array_of(value) for value in flat(model(*inputs))]
    stepwise, wide = interpret(module, arrays), interpret(module, arrays, wide=True)
    assert len(stepwise) == len(eager)
    for number, (got, exact, expected) in enumerate(zip(stepwise, wide, eager, strict=True)):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        verdict = judge(expected, got, exact)
        assert verdict.passed, f"output {number}: {verdict.reason}"


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Save a model as a file of torch.export."""

    def save(model: torch.nn.Module, inputs: tuple[Any, ...], shapes: Any = None) -> Path:
        path = tmp_path / "model.pt2"
        torch.export.save(export(model, inputs, shapes), path)
        return path

    return save


@pytest.fixture
def changed(tmp_path: Path) -> Callable[..., Path]:
    """A copy of an archive with members replaced: bytes, or a function that changes the member's JSON in place; None drops it."""

    def rewrite(path: Path, members: dict[str, Change | bytes | None], compression: int = zipfile.ZIP_STORED) -> Path:
        result = tmp_path / "changed.pt2"
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(result, "w") as new:
            found = set()
            for info in old.infolist():
                name = info.filename.partition("/")[2]
                change = members.get(name, old.read(info))
                found.add(name)
                if change is None:
                    continue
                if not isinstance(change, bytes):
                    entries = json.loads(old.read(info))
                    change(entries)
                    change = json.dumps(entries).encode()
                new.writestr(f"model/{name}", change, compression if name in members else zipfile.ZIP_STORED)
            for name in members.keys() - found:
                new.writestr(f"model/{name}", members[name])
        return result

    return rewrite


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
