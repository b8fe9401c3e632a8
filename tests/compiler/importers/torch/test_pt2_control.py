"""Branches and loops in `.pt2` files: what the exported program answers, whichever way the data decide."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim, export

from ourcc import build
from ourcc.ir.errors import CompilerError

Program = Callable[[torch.Tensor], Any]


class Scaled(torch.nn.Module):
    """A branch that reads a parameter, and another one in it."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def deep(x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 10, lambda x: x * self.w, lambda x: x + self.w, (x,))

        return torch.cond(x.sum() > 0, deep, lambda x: x - 1, (x,))


class Several(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.cond(x.mean() > 0, lambda x: (x * 2, x.sum(0)), lambda x: (x - 1, x.amax(0)), (x,))


class Halved(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return while_loop(lambda n, x: x.abs().sum() > 1, lambda n, x: (n + 1, x / 2), (torch.zeros((), dtype=torch.int64), x))


PROGRAMS: dict[str, tuple[type[torch.nn.Module], bool]] = {
    "nested branches": (Scaled, False),
    "several results": (Several, False),
    "several results, any size": (Several, True),
    "a loop": (Halved, False),
    "a loop, any size": (Halved, True),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, tmp_path: Path) -> None:
    kind, varies = PROGRAMS[name]
    model = kind()
    program = export(model, (torch.randn(6, 4),), dynamic_shapes=({0: Dim("n", min=2, max=64)},) if varies else None)
    torch.export.save(program, tmp_path / "m.pt2")
    engine = build(tmp_path / "m.pt2")
    for scale in (0.0, 0.1, 1.0, 9.0, -3.0):
        for size in (6, 2, 17) if varies else (6,):
            x = torch.rand(size, 4) * scale
            with torch.no_grad():
                torch.testing.assert_close(engine(x), model(x))


def test_damaged_graphs_are_one_clear_error(tmp_path: Path) -> None:
    """Every field of the inner graphs, left out or of another type."""
    torch.export.save(export(Scaled(), (torch.randn(6, 4),)), tmp_path / "m.pt2")
    with zipfile.ZipFile(tmp_path / "m.pt2") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (place,) = [name for name in members if name.endswith("models/model.json")]
    program = json.loads(members[place])
    (node,) = [n for n in program["graph_module"]["graph"]["nodes"] if n["target"].endswith("cond")]
    graph = node["inputs"][1]["arg"]["as_graph"]
    tried = 0
    for holder in (graph, graph["graph"]):
        for field in list(holder):
            for wrong in (None, 3, "x", [], {}):
                before, holder[field] = holder[field], wrong
                with zipfile.ZipFile(tmp_path / "bad.pt2", "w") as archive:
                    for name, data in members.items():
                        archive.writestr(name, json.dumps(program) if name == place else data)
                try:
                    build(tmp_path / "bad.pt2", tune="off")
                except CompilerError:
                    tried += 1
                holder[field] = before
    assert tried >= 20
