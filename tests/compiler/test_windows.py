"""Attention in a window, from models as users write them: right on every level, and what no row counts is not looked at."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from ourcc.compiler.importers.torch.export import import_exported
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import lower, simplify
from ourcc.ir import dims
from ourcc.ir.graph import Module
from ourcc.ir.tile.program import For, Launch
from ourcc.passes.lower.build_plan import Lowered
from ourcc.passes.tile.softmax import read_attention

from .planned import check_plan

Condition = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Windowed(nn.Module):  # type: ignore[misc]
    """Attention under a condition of rows and columns, given as a bool or as numbers that are added."""

    def __init__(self, condition: Condition, form: str, dtype: torch.dtype = torch.int64, past: int = 0) -> None:
        super().__init__()
        self.condition, self.form, self.dtype, self.past = condition, form, dtype, past

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """(1, heads, rows, depth) as q."""
        rows = torch.arange(self.past, self.past + q.shape[2], dtype=self.dtype)[:, None]
        kept = self.condition(rows, torch.arange(k.shape[2], dtype=self.dtype)[None])
        if self.form == "added":
            mask = torch.where(kept, 0.0, float("-inf")).to(q.dtype)
        elif self.form == "taken away":
            mask = torch.where(~kept, float("-inf"), 0.0).to(q.dtype)
        else:
            mask = kept
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


def before(span: int) -> Condition:
    """The last `span` columns up to the row."""
    return lambda row, column: (column <= row) & (column > row - span)


def around(span: int) -> Condition:
    return lambda row, column: (row - column < span) & (column - row < span)


def from_start(span: int) -> Condition:
    return lambda row, column: (column <= row) & ((column < 2) | (row - column < span))


def lowered(model: nn.Module, target: str, *inputs: torch.Tensor) -> tuple[Module, Lowered]:
    module = import_exported(torch.export.export(model.eval(), inputs))
    options = build_options({"targets": [target]})
    simplify(module, options)
    return module, lower(module, options.targets[0])


def arrays(*inputs: torch.Tensor) -> list[np.ndarray[Any, Any]]:
    return [each.numpy() for each in inputs]


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("seed", range(10))
def test_drawn_windows_are_right(seed: int, target: str) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    heads, rows, depth = draw.choice((1, 2, 4)), draw.choice((1, 7, 64, 150, 200)), draw.choice((16, 32, 64))
    past = draw.choice((0, 0, 13))
    condition = draw.choice((before, around, from_start))(draw.choice((1, 9, 64, 100)))
    dtype = draw.choice((torch.float32, torch.float32, torch.float16))
    model = Windowed(condition, draw.choice(("bool", "added", "taken away")), draw.choice((torch.int64, torch.int32)), past)
    q, k, v = (torch.randn(1, n, size, depth, dtype=dtype) for n, size in ((heads, rows), *[(1, rows + past)] * 2))
    module, found = lowered(model, target, q, k, v)
    given = arrays(q, k, v)
    check_plan(module, found, given)


@pytest.mark.parametrize("target", ["x86-64-v3", "sm_90a"])
@pytest.mark.parametrize(
    ("dtype", "condition"),
    [
        (torch.int32, lambda row, column: column < row + (2**31 - 1)),  # wraps behind the first row, after which nothing counts
        (torch.int32, lambda row, column: column > row - 2**30 - 2**30 - 1),
        (torch.int64, lambda row, column: (column <= row) & (column < row + (2**63 - 1))),
        (torch.int64, lambda row, column: column > row - (2**63 - 1)),
    ],
)
def test_sums_that_wrap_are_no_limits(dtype: torch.dtype, condition: Condition, target: str) -> None:
    """Sizes that only calls know keep positions from being folded."""
    q = torch.randn(1, 2, 70, 16)
    dynamic = {2: torch.export.Dim("rows", min=2, max=100)}
    program = torch.export.export(Windowed(condition, "bool", dtype).eval(), (q, q, q), dynamic_shapes=(dynamic,) * 3)
    module, options = import_exported(program), build_options({"targets": [target]})
    simplify(module, options)
    found = lower(module, options.targets[0])
    check_plan(module, found, arrays(q, q, q))


@pytest.mark.parametrize("form", ["bool", "added", "taken away"])
def test_positions_are_no_operands_and_a_window_has_two_ends(form: str) -> None:
    q = torch.randn(1, 2, 300, 32)
    _, found = lowered(Windowed(before(64), form), "sm_90a", q, q, q)
    (unit,) = found.scheduled.values()
    attention = read_attention(unit.group.region)
    assert not isinstance(attention, str)
    assert len(attention.limits) == 2 and len(unit.group.inputs) == 1, "the same tensor is query, key and value"


def test_a_window_makes_attention_as_long_as_it_is_wide() -> None:
    """Of 4,096 columns a block of rows looks at its own and those of the window."""
    looked = {}
    for target in ("x86-64-v3", "sm_90a"):
        for title, condition in (("window", before(128)), ("causal", lambda row, column: column <= row)):
            q = torch.empty(1, 64, 4096, 64)
            _, found = lowered(Windowed(condition, "bool"), target, q, q, q)
            (launch,) = found.kernels.values()
            looked[target, title] = columns_of(launch, 4096)
        assert looked[target, "window"] <= 128 + 2 * 256 < looked[target, "causal"] / 2


def columns_of(launch: Launch, rows: int) -> int:
    """Columns that the last block of rows looks at, from the loops of its launch."""
    (axis,) = [each for each in launch.grid if each.step is not None]
    values = {f"{axis.name}.first": (rows - 1) // (axis.step or 1) * (axis.step or 1)}
    loops = [each for each in launch.body if isinstance(each, For) and each.kind == "tile"]
    return sum(max(0, dims.evaluate(loop.high, values) - dims.evaluate(loop.low, values)) for loop in loops)
