"""Engines of several exported programs: functions that share parameters and the buffers that they write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ourcc
from ourcc.compiler.cli.main import run
from ourcc.ir.errors import UnsupportedError, UsageError
from ourcc.ir.plan import Copy


class Cache(nn.Module):
    """Keys of up to 8 places, and how many calls wrote them."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)
        self.register_buffer("keys", torch.zeros(2, 8, width))
        self.register_buffer("scale", torch.full((width,), 2.0))
        self.register_buffer("calls", torch.ones((), dtype=torch.int64))


class Append(Cache):
    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(1, places, self.project(x) * self.scale)
        self.calls += 1
        return self.keys.sum(1)


class Slice(Cache):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys[:, 2:4] = x
        self.keys[0, 1] *= 2
        return self.keys.mean(), self.calls


class Read(Cache):
    def forward(self, places: torch.Tensor) -> torch.Tensor:
        return torch.index_select(self.keys, 1, places) + self.project.bias


def programs() -> tuple[dict[str, Any], dict[str, Cache]]:
    torch.manual_seed(3)
    modules: dict[str, Cache] = {"append": Append(), "slice": Slice(), "read": Read()}
    for module in modules.values():
        module.eval()
        module.load_state_dict(modules["append"].state_dict())
    count = torch.export.Dim("count", min=1, max=8)
    x, places = torch.randn(2, 3, 4), torch.tensor([1, 5, 2])
    exported = {
        "append": torch.export.export(modules["append"], (x, places), dynamic_shapes=({1: count}, {0: count})),
        "slice": torch.export.export(modules["slice"], (x[:, :2],)),
        "read": torch.export.export(modules["read"], (places,), dynamic_shapes=({0: torch.export.Dim("count", min=1, max=100)},)),
    }
    return exported, modules


@pytest.fixture(scope="module")
def built() -> tuple[Any, dict[str, Cache]]:
    exported, modules = programs()
    return ourcc.build(exported, targets=["native"], tune="off"), modules


def test_functions_share_parameters_and_states(built: tuple[Any, dict[str, Cache]]) -> None:
    engine, modules = built
    assert list(engine.functions) == ["append", "slice", "read"]
    assert {name: function.states for name, function in engine.functions.items()} == {
        "append": ("keys", "calls"),
        "slice": ("keys", "calls"),
        "read": ("keys",),
    }
    held = [name for group in engine.contents.weights.values() for name in group]
    assert len([name for name in held if name.startswith("project.bias")]) == 1
    session = engine.session()
    start = {name: value.clone() for name, value in modules["append"].state_dict().items()}
    for seed in range(6):
        torch.manual_seed(seed)
        count = 1 + seed % 4
        x, places = torch.randn(2, count, 4), torch.randperm(8)[:count]
        with torch.no_grad():
            expected = [modules["append"](x, places)]
            modules["slice"].load_state_dict(modules["append"].state_dict())
            expected += [value.clone() for value in modules["slice"](x[:, :1].expand(2, 2, 4).contiguous())]
            modules["append"].load_state_dict(modules["slice"].state_dict())
            modules["read"].load_state_dict(modules["slice"].state_dict())
            expected.append(modules["read"](places))
        got = [session(x, places), *session.functions["slice"](x[:, :1].expand(2, 2, 4).contiguous()), session.functions["read"](places)]
        for ours, theirs in zip(got, expected, strict=True):
            assert torch.allclose(ours, theirs, atol=1e-5)
        assert np.allclose(session.state("keys"), modules["read"].keys, atol=1e-5)
        assert int(session.state("calls")) == int(modules["read"].calls)
    for module in modules.values():
        module.load_state_dict(start)


def test_what_is_written_is_written_where_it_lies(built: tuple[Any, dict[str, Cache]]) -> None:
    plans = built[0].contents.best.plans
    for name in ("append", "read"):
        copied = [step for step in plans[name].steps if isinstance(step, Copy) and plans[name].moves(step)]
        assert [plans[name].named[step.target].type.rank for step in copied if plans[name].named[step.target].type.rank > 1] == []


def test_symbols_of_one_name_with_other_ranges_stay_apart(built: tuple[Any, dict[str, Cache]]) -> None:
    engine, _ = built
    append, read = (engine.functions[name].inputs for name in ("append", "read"))
    assert append[1].type.shape != read[0].type.shape
    session = engine.session()
    assert session.functions["read"](np.zeros(50, np.int64)).shape == (2, 50, 4)
    with pytest.raises(ourcc.CompilerError, match=r"expected .* in 1\.\.8"):
        session(np.zeros((2, 9, 4), np.float32), np.zeros(9, np.int64))


def test_one_program_that_writes_its_buffers_is_saved_verified_and_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported, _ = programs()
    torch.export.save(exported["append"], tmp_path / "append.pt2")
    assert run(["build", str(tmp_path / "append.pt2"), "--target", "native", "-o", str(tmp_path / "append.ourcc")]) == 0
    assert run(["inspect", str(tmp_path / "append.ourcc")]) == 0
    assert "state" in capsys.readouterr().out
    assert run(["verify", str(tmp_path / "append.ourcc"), str(tmp_path / "append.pt2")]) == 0, capsys.readouterr().out
    assert run(["bench", str(tmp_path / "append.ourcc"), "--rounds", "1"]) == 0
    assert run(["bench", str(tmp_path / "append.ourcc"), "--rounds", "1", "--kernels"]) == 0
    assert run(["build", "--rebuild", str(tmp_path / "append.ourcc"), "-o", str(tmp_path / "again.ourcc")]) == 0
    assert (tmp_path / "again.ourcc").read_bytes() == (tmp_path / "append.ourcc").read_bytes()


class Wider(Cache):
    def __init__(self) -> None:
        super().__init__(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.keys += x
        return x


def test_what_is_refused() -> None:
    exported, _ = programs()
    wider = torch.export.export(Wider(), (torch.randn(5),))
    for functions, error, message in (
        ({}, UsageError, "got no function, expected at least one"),
        ({"a b": exported["read"]}, UsageError, "function 'a b': got no plain name"),
        ({"read": 3}, UsageError, "function 'read' is a int, expected an exported program or a .pt2 file"),
        ({"a": exported["append"], "b": wider}, UnsupportedError, "state 'keys' is .*, and .* in another function, in function 'b'"),
    ):
        with pytest.raises(error, match=message):
            ourcc.build(functions, targets=["native"])


def test_a_function_runs_from_the_command_line(
    tmp_path: Path, built: tuple[Any, dict[str, Cache]], capsys: pytest.CaptureFixture[str]
) -> None:
    engine, modules = built
    engine.save(tmp_path / "cache.ourcc")
    np.save(tmp_path / "places.npy", np.array([1, 5]))
    call = ["run", str(tmp_path / "cache.ourcc"), "--input", f"places={tmp_path / 'places.npy'}"]
    assert run([*call, "--function", "read", "-o", str(tmp_path / "out.npz")]) == 0
    (rows,) = np.load(tmp_path / "out.npz").values()
    assert np.allclose(rows, modules["read"].project.bias.detach().numpy())
    capsys.readouterr()
    assert run([*call, "--function", "reed"]) == 2
    error = capsys.readouterr().err
    assert "the engine has append, slice, read" in error and "did you mean 'read'?" in error


class Holder(nn.Module):
    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("kept", torch.full((2, 3), start))


class Adds(Holder):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.add_(x)
        return self.kept * 1


class Looks(Holder):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kept * x


class Copies(Holder):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.copy_(x)
        return self.kept.sum()


@pytest.mark.parametrize("order", [("look", "add", "again"), ("add", "look", "again"), ("look", "again", "add")])
def test_who_reads_need_not_come_after_who_writes(order: tuple[str, ...]) -> None:
    x = torch.tensor(3.0)
    known = {"look": Looks(), "add": Adds(), "again": Looks()}
    session = ourcc.build({name: torch.export.export(known[name], (x,)) for name in order}, targets=["native"], tune="off").session()
    assert all(function.states == ("kept",) for function in session.functions.values())
    session.functions["add"](x)
    assert float(session.functions["look"](x).sum()) == float(session.functions["again"](x).sum()) == 6 * 9


def test_functions_that_begin_differently_are_refused() -> None:
    x = torch.tensor(3.0)
    pair = {"add": torch.export.export(Adds(), (x,)), "look": torch.export.export(Looks(5.0), (x,))}
    with pytest.raises(UnsupportedError, match="state 'kept' begins with other values than in another function, in function 'look'"):
        ourcc.build(pair, targets=["native"])


@pytest.mark.parametrize("given", [torch.zeros(3), torch.zeros(2, 3, dtype=torch.float16), torch.zeros(2, 3, dtype=torch.int64)])
def test_a_copy_that_would_convert_is_refused(given: torch.Tensor) -> None:
    with pytest.raises(UnsupportedError, match=r"state 'kept' is f32\[2, 3\] and becomes") as error:
        ourcc.build(torch.export.export(Copies(), (given,)), targets=["native"])
    assert "x.expand_as(buffer).to(buffer.dtype)" in str(error.value)
