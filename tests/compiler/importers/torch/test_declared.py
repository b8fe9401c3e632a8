"""What torch takes for granted of a size while it takes a program apart is an error that names the axis and the op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ourcc.compiler.importers.torch import export as exporting
from ourcc.compiler.importers.torch.decompositions import decompositions
from ourcc.compiler.importers.torch.export import import_exported
from ourcc.ir.errors import UnsupportedError

IMAGE = (2, 4, 8, 8)
BATCH, HEIGHT = (1, 16), (4, 20)


class Applied(nn.Module):
    """A function of one tensor."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def exported(model: nn.Module, axis: int, bounds: tuple[int, int]) -> Any:
    """The program of a model of images one of whose axes varies."""
    size = torch.export.Dim("size", min=bounds[0], max=bounds[1])
    with torch.no_grad():
        return torch.export.export(model, (torch.randn(IMAGE),), dynamic_shapes=({axis: size},))


def test_taking_a_program_apart_that_fixes_a_size_is_an_error(monkeypatch: Any) -> None:
    """A second attempt says the same, though torch does not ask again."""

    def fixing(x: torch.Tensor) -> torch.Tensor:
        return x * x.sigmoid() * (int(x.shape[0]) > 0)

    program = exported(Applied(lambda x: F.silu(x) + 1), 0, BATCH)
    with monkeypatch.context() as patched:
        patched.setattr(exporting, "decompositions", lambda: {**decompositions(), torch.ops.aten.silu.default: fixing})
        for _ in range(2):
            with pytest.raises(
                UnsupportedError, match=r"aten\.silu\.default takes the size s\d+ \(axis 0 of x\) for 2, .* 1\.\.16"
            ) as caught:
                import_exported(program)
            assert "at silu (test_declared.py" in str(caught.value)
        with pytest.raises(UnsupportedError, match=r"takes the size s\d+ \(axis 0 of x\) for 2"):
            import_exported(program, shapes={_symbol(program): 1})
        import_exported(program, shapes={_symbol(program): 2})
    assert not isinstance(import_exported(exported(Applied(lambda x: F.silu(x) + 1), 0, BATCH)).main.inputs[0].type.shape[0], int)


def _symbol(program: Any) -> str:
    (symbol,) = program.range_constraints
    return str(symbol)


def test_a_program_that_someone_else_has_fixed_is_an_error() -> None:
    program = exported(Applied(lambda x: x + 1), 0, BATCH)
    (value,) = (node.meta["val"] for node in program.graph.nodes if node.op == "placeholder")
    int(value.shape[0])
    with pytest.raises(UnsupportedError, match=r"an op of the program takes the size s\d+ \(axis 0 of x\) for 2, .* 1\.\.16"):
        import_exported(program)


@pytest.mark.parametrize("target", [{"size": (5, 7)}, {"scale_factor": 0.5}])
def test_an_op_that_is_taken_apart_for_some_sizes_alone_is_an_error(same: Any, target: Any) -> None:
    """Torch takes windows of one size for adaptive pooling where the sizes that it saw divide each other: here others do not."""
    model = Applied(lambda x: F.interpolate(x, mode="area", **target))
    program = exported(model, 2, HEIGHT)
    message = r"adaptive_avg_pool2d\.default apart for sizes with .* alone, and s\d+ \(axis 2 of x\), declared as 4\.\.20, may be 5"
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=message):
            import_exported(program)
    same(import_exported(program, shapes={_symbol(program): 8}), model, (torch.randn(IMAGE),))
