"""Rows whose blocks are folded too: scales of blocks beside those of rows, drawn; right on every level, one kernel where that pays."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ourcc.compiler.importers.torch.export import import_exported
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import lower, simplify
from ourcc.ir.graph import Module
from ourcc.passes.lower.build_plan import Lowered

from .planned import check_plan

INNER = {"amax": torch.amax, "amin": torch.amin, "sum": torch.sum, "mean": torch.mean}


class Blocks(nn.Module):  # type: ignore[misc]
    """Blocks of rows by a fold of each, which folds of whole rows have been divided by, and what else is returned."""

    def __init__(self, block: int, inner: str, outer: str, is_returned: tuple[bool, bool], ends: str) -> None:
        super().__init__()
        self.block, self.inner, self.outer, self.is_returned, self.ends = block, INNER[inner], INNER[outer], is_returned, ends

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(.., rows, width)"""
        blocks = x.reshape(*x.shape[:-1], -1, self.block)
        parts = self.inner(blocks.abs() + 0.5, -1)
        whole = self.outer(parts, -1)
        scaled = parts / (whole[..., None].abs() + 1.0)
        if self.ends == "rows":
            result = scaled.exp()
        else:
            result = (blocks * scaled[..., None]).reshape(x.shape) if self.ends == "flat" else blocks + scaled[..., None]
        return (result, *(value for value, kept in zip((parts, whole), self.is_returned, strict=True) if kept))


def lowered(model: nn.Module, target: str, x: torch.Tensor, is_dynamic: bool) -> tuple[Module, Lowered]:
    sizes = ({0: torch.export.Dim("rows", min=2, max=64)},) if is_dynamic else None
    module, options = import_exported(torch.export.export(model.eval(), (x,), dynamic_shapes=sizes)), build_options({"targets": [target]})
    simplify(module, options)
    return module, lower(module, options.targets[0])


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("seed", range(12))
def test_drawn_blocks_are_right(seed: int, target: str) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    block = draw.choice((1, 2, 3, 7, 8, 16, 16, 32, 33))
    width = block * draw.choice((1, 2, 5, 16, 40))
    inner, outer = draw.choice(tuple(INNER)), draw.choice(tuple(INNER))
    model = Blocks(block, inner, outer, (draw.random() < 0.5, draw.random() < 0.5), draw.choice(("rows", "flat", "blocks")))
    shape = draw.choice(((1, width), (6, width), (2, 3, width), (40, width)))
    x = torch.randn(shape, dtype=draw.choice((torch.float32, torch.float32, torch.float16, torch.bfloat16)))
    x.view(-1)[draw.randrange(x.numel())] = draw.choice((0.0, 60000.0, float("inf"), float("nan")))
    module, found = lowered(model, target, x, len(shape) == 2 and shape[0] > 1 and draw.random() < 0.5)
    given: list[np.ndarray[Any, Any]] = [x.float().numpy().astype(module.main.inputs[0].dtype.numpy)]
    check_plan(module, found, given)


@pytest.mark.parametrize("form", ["nvfp4", "mxfp4", "mxfp8"])
def test_activations_are_rounded_by_one_kernel(form: str) -> None:
    model, x = nn.Linear(512, 256, bias=False, dtype=torch.bfloat16), torch.randn(40, 512, dtype=torch.bfloat16)
    module = import_exported(torch.export.export(model.eval(), (x,)))
    options = build_options({"targets": ["sm_100a"], "quantize": form})
    simplify(module, options)
    assert len(lower(module, options.targets[0]).kernels) == 2


@pytest.mark.parametrize(("width", "count"), [(16_384, 2), (32_768, 3)])
def test_rows_that_no_kernel_holds_are_folded_before(width: int, count: int) -> None:
    model, x = nn.Linear(width, 64, bias=False, dtype=torch.bfloat16), torch.randn(40, width, dtype=torch.bfloat16)
    module = import_exported(torch.export.export(model.eval(), (x,)))
    options = build_options({"targets": ["sm_100a"], "quantize": "nvfp4"})
    simplify(module, options)
    assert len(lower(module, options.targets[0]).kernels) >= count


def test_cpus_fold_blocks_before_rows() -> None:
    """One kernel for both takes several times as long there."""
    model, x = Blocks(16, "amax", "amax", (False, False), "flat"), torch.randn(64, 4096)
    assert len(lowered(model, "x86-64-v3", x, False)[1].kernels) > len(lowered(model, "sm_100a", x, False)[1].kernels)
