"""Attention over a cache as both kinds of machine would compute it: tile programs, interpreted, against the graph's meaning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ourcc.compiler.backends.built import pack
from ourcc.compiler.importers.checkpoints import read_checkpoint
from ourcc.compiler.language import module as module_of
from ourcc.compiler.language.module import language_module
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import lower, simplify
from ourcc.compiler.requests import CACHES
from ourcc.compiler.targets.registry import TARGETS
from ourcc.ir import dims
from ourcc.ir.graph.reference import initial, interpret
from ourcc.ir.plan.interpret import run_plan
from ourcc.ir.region import Load, walk
from ourcc.ir.region.region import rewritten, scalars
from ourcc.ir.target import AVX512
from ourcc.passes.tile.cpu.attention import CpuAttention
from ourcc.passes.tile.schedule import Problem, Refusal

from .conftest import model_of, save

PROMPT = [[5, 9, 3, 7]], [[0, 1, 2, 3]]
ALONE = [(*PROMPT, None, [3]), ([[8]], [[4]], None, [0])]
"""Tokens, positions, pages and the rows whose logits are asked for: a prompt, then one token."""
TOGETHER = [(*PROMPT, [[2, 5]], [3]), ([[4, 6]], [[0, 1]], [[4]], [0, 1]), ([[8, 8], [3, 2]], [[4, 4], [2, 3]], [[2, 5], [4, 4]], [0, 3])]
"""Two prompts, then one token of the first, twice, beside two of the second; pages of three places, so that the first has two."""
MODELS = [*(("mistral", cache, 1 if cache == "bf16" else 3) for cache in CACHES), ("qwen3", "int8", 1)]


def inputs_of(call: tuple[Any, ...]) -> list[np.ndarray[Any, Any]]:
    tokens, positions, pages, rows = call
    given = (tokens, positions, *([] if pages is None else [pages]), range(np.max(positions) + 1), rows)
    return [np.asarray(each, np.int64) for each in given]


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize(("kind", "cache", "batch"), MODELS)
def test_programs_compute_what_the_graph_means(
    kind: str, cache: str, batch: int, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_of, "PAGE", 3)
    window = {"sliding_window": 3} if kind == "mistral" else {}
    folder = save(model_of(kind, num_hidden_layers=1, **window), tmp_path / "m")
    module = language_module(read_checkpoint(folder), 16, cache, batch)
    calls = [inputs_of(call) for call in (ALONE if batch == 1 else TOGETHER)]
    meant: dict[str, Any] = {}
    expected = [interpret(module, inputs, states=meant)[0] for inputs in calls]
    simplify(module, build_options({}))
    lowered = lower(module, TARGETS[target])
    # One kernel reads keys and values as they are kept.
    kept = {state.type.dtype for state in module.states.values()}
    (attention,) = (launch for launch in lowered.kernels.values() if "attention" in launch.name)
    assert kept <= {param.dtype for param in attention.params}
    constants = {key: pack(held, module) for key, held in lowered.constants.items()}
    states = {name: initial(state).copy() for name, state in module.states.items()}
    for inputs, wanted in zip(calls, expected, strict=True):
        found = run_plan(lowered.plans["step"], lowered.kernels, constants, inputs, states)
        np.testing.assert_allclose(found[0], wanted, atol=2e-5)


def test_heads_that_look_into_one_table_may_read_their_pages_together(tmp_path: Path) -> None:
    module = language_module(read_checkpoint(save(model_of("llama", num_hidden_layers=1), tmp_path / "m")), 64, "f32", 2)
    simplify(module, build_options({}))
    (scheduled,) = (each for each in lower(module, TARGETS["cpu"]).scheduled.values() if each.schedule.strategy == "attention")
    problem, region = scheduled.problem, scheduled.problem.region

    def together(problem: Problem) -> set[int]:
        match = CpuAttention().match(problem, AVX512)
        assert not isinstance(match, Refusal)
        return {schedule["heads"] for schedule in match.strategy.space(match, AVX512)}

    # Four heads over two of keys: those of a pair find the same page at every place.
    assert together(problem) == {1, 2}
    # If each looked into a row of its own, they would not, though they read the same keys of a page.
    gathers = [gather for load in scalars(region.body) if isinstance(load, Load) for _, gather in load.gathers]
    (table,) = {part.operand for gather in gathers for part in walk(gather) if isinstance(part, Load)}
    heads = region.axes[1].name
    assert region.extents[heads] == 4

    def own(name: str, subscripts: tuple[dims.Dim, ...]) -> tuple[dims.Dim, ...]:
        return (dims.symbol(heads), *subscripts[1:]) if name == table else subscripts

    apart = replace(rewritten(region, own, lambda dim: dim), inputs=region.inputs)
    assert together(replace(problem, region=apart)) == {1}
