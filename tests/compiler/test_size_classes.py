"""A decoder block whose sequence is a symbol: large tiles for long sequences, small ones for short ones, and both are shown."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch

from ourcc.compiler.models.importing import import_model
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import lower, simplify, stage_text
from ourcc.compiler.report.kernels import kernel_rows
from ourcc.compiler.targets.registry import TARGETS
from ourcc.ir.graph import Module
from ourcc.ir.plan import Launch
from ourcc.passes.lower.build_plan import Lowered
from ourcc.runtime.launches import holds

from ..models import models

LENGTHS = (1, 16, 100, 1000, 8000)


@pytest.fixture(scope="module")
def block() -> Module:
    """One block of a Llama, in bf16."""
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 8}
    model = models.llama(layers=1, max_position_embeddings=8192, **sizes)
    length = torch.export.Dim("S", min=1, max=8192)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        inputs = tuple(each[:1] for each in model.draw())
        # A mask makes sizes into data; a block without one is causal.
        plain = Unmasked(model.module.to(torch.bfloat16))
        program = torch.export.export(plain, inputs[:1], dynamic_shapes=({1: length},), strict=False)
        module = import_model(program, build_options({}))
    simplify(module, build_options({}))
    return module


class Unmasked(torch.nn.Module):
    """A text model that is given ids alone."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model.model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, use_cache=False)[0]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def lowered(block: Module) -> Lowered:
    return lower(block, TARGETS["sm_90a"])


def tiles(lowered: Lowered, length: int) -> list[int]:
    """The results that a program of each product has at a length."""
    (symbol,) = lowered.plan.symbols.ranges
    found = []
    for step in (step for step in lowered.plan.steps if isinstance(step, Launch)):
        variant = next(each for each in step.variants if holds(each.guard, {symbol: length}))
        unit = lowered.scheduled[variant.kernel]
        if unit.schedule.strategy == "tensor":
            found.append(unit.schedule["m"] * unit.schedule["n"])
    return found


def test_tiles_grow_with_the_sequence(lowered: Lowered) -> None:
    by_length = [tiles(lowered, length) for length in LENGTHS]
    assert len(by_length[0]) >= 6
    for shorter, longer in itertools.pairwise(by_length):
        assert all(small <= large for small, large in zip(shorter, longer, strict=True))
    assert max(by_length[0]) <= 64 * 64 and by_length[0].count(64 * 64) <= 2
    assert min(by_length[-1]) >= 64 * 64 and by_length[-1].count(128 * 128) >= len(by_length[-1]) // 2


def test_a_launch_has_five_kernels_at_most(lowered: Lowered) -> None:
    counts = [len(step.variants) for step in lowered.plan.steps if isinstance(step, Launch)]
    assert 2 <= max(counts) <= 5 and counts.count(1) >= len(counts) // 3


def test_what_is_shown_says_of_which_sizes_a_kernel_is(block: Module, lowered: Lowered) -> None:
    rows = kernel_rows(lowered, lambda _: 1e12, 1e12)
    assert {row["kernel"] for row in rows if row["when"]} == {name for name, unit in lowered.scheduled.items() if unit.when}
    # Without a workload a sequence has 128 elements: what is for longer ones is not called.
    assert all(row["calls"] == 0 for row in rows if row["when"] and row["when"].startswith("1025 <="))
    assert sum(row["share"] for row in rows) == pytest.approx(1, abs=0.05)
    assert " for 1025 <= N0\n" in stage_text(block, build_options({"targets": ["sm_90a"]}), "regions")


def test_a_workload_is_scheduled_for_its_points(block: Module) -> None:
    (symbol,) = block.facts.ranges
    options = build_options({"workload": [f"{symbol}=4000", f"{symbol}=1:0.1"]})
    found = lower(block, TARGETS["sm_90a"], options.workload_for(block.facts))
    assert tiles(found, 4000) >= tiles(lower(block, TARGETS["sm_90a"]), 100)
    assert min(tiles(found, 4000)) >= 64 * 64
