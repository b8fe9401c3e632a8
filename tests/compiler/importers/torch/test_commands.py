"""`.pt2` files through the real command line: build, verify, inspect, measure against eager."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ourcc.compiler.cli.main import run
from ourcc.compiler.commands.peers import make_peer


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_at: Callable[[Path], str]) -> None:
    monkeypatch.setenv("OURCC_CACHE_DIR", cache_at(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).eval()


@pytest.fixture
def path(saved: Any, model: nn.Module) -> Path:
    return saved(model, (torch.randn(3, 4),), ({0: torch.export.Dim("batch", min=1, max=16)},))


def command(capfd: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    capfd.readouterr()
    assert run([*arguments, "--json"]) == status
    return json.loads(capfd.readouterr().out)


def test_build_and_verify_under_the_users_names(path: Path, capfd: Any) -> None:
    command(capfd, "build", "model.pt2", "-o", "m.ourcc", "--shape", "input=B:2..8,4")
    assert "f32[B, 4]" in json.dumps(command(capfd, "inspect", "m.ourcc"))
    verified = json.dumps(command(capfd, "verify", "m.ourcc", "model.pt2"))
    assert "eager and float64" in verified
    # Sizes are drawn from what the engine takes.
    np.save("x.npy", np.ones((9, 4), np.float32))
    assert "9" in json.dumps(command(capfd, "run", "m.ourcc", "--input", "input=x.npy", status=1))


def test_a_shape_beyond_the_export(path: Path, capfd: Any) -> None:
    error = command(capfd, "build", "model.pt2", "-o", "m.ourcc", "--shape", "input=1..64,4", status=2)["error"]
    assert "expected sizes in 1..16" in json.dumps(error)


def test_another_model_is_found_out(path: Path, saved: Any, capfd: Any) -> None:
    command(capfd, "build", "model.pt2", "-o", "m.ourcc")
    other = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    saved(other, (torch.randn(3, 4),), ({0: torch.export.Dim("batch", min=1, max=16)},))
    command(capfd, "verify", "m.ourcc", "model.pt2", status=3)


def test_a_pickled_weight_needs_trust(path: Path, changed: Any, model: nn.Module, capfd: Any) -> None:
    def pickled(weights: Any) -> None:
        weights["config"]["0.weight"].update(use_pickle=True, path_name="own")

    data = io.BytesIO()
    torch.save(model[0].weight, data)
    file = str(changed(path, {"data/weights/model_weights_config.json": pickled, "data/weights/own": data.getvalue()}))
    error = command(capfd, "build", file, "-o", "m.ourcc", status=1)["error"]
    assert "'0.weight' is pickled" in json.dumps(error) and "--trust-pickle" in json.dumps(error)
    command(capfd, "build", file, "-o", "m.ourcc", "--trust-pickle")


def test_a_file_as_a_peer(path: Path, model: nn.Module) -> None:
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    (answer,) = make_peer("eager", path)([x])
    assert np.array_equal(answer, model(torch.from_numpy(x)).detach().numpy())
