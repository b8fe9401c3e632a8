"""MiniLM built for a GPU: what its kernels are made of, and every (variant, guard) pair reached where guards change."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from ourcc.compiler.importers.onnx import import_onnx
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir.plan import Launch, Plan
from ourcc.ir.target import gpu_target
from ourcc.runtime.contents import EngineContents
from ourcc.runtime.launches import GUARD_ALIGNMENT, PreparedLaunch
from ourcc.runtime.program import Program

from ..models import models

POINTS = [(batch, sequence) for batch in (1, 3) for sequence in (1, 15, 16, 17, 48, 100, 112, 511, 512)]


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> EngineContents:
    model, path = models.make("minilm"), tmp_path_factory.mktemp("variants") / "minilm.onnx"
    sizes = {0: torch.export.Dim("B", min=1, max=32), 1: torch.export.Dim("S", min=1, max=512)}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.module, model.draw(), path, input_names=list(model.names), dynamo=True, dynamic_shapes=((sizes, sizes),), verbose=False
        )
    module = import_onnx(Path(path), shapes={"B": (1, 32), "S": (1, 512)})
    return compile_module(module, build_options({"targets": ["sm_90a"]}))


@pytest.fixture(scope="module")
def plan(contents: EngineContents) -> Plan:
    return contents.parts["sm_90a"].plan


def test_products_run_on_the_matrix_units_and_nothing_spills(contents: EngineContents) -> None:
    device = gpu_target("sm_90a")
    rows = contents.report["kernels"]["sm_90a"]
    products = [row for row in rows if {"matmul", "attention"} & set(row["source_ops"].split(", "))]
    assert len(products) >= 5
    assert [row["kernel"] for row in products if device.matrix_instruction not in row["instructions"]] == []
    assert [row["notes"] for row in products if row["notes"]] == []
    assert [row["kernel"] for row in rows if row["spills"] or row["shared_bytes"] > device.shared_memory] == []


def test_every_variant_is_reached(plan: Plan) -> None:
    program = Program(plan)
    names = [name for name, _ in plan.inputs]
    reached: set[tuple[str, str]] = set()
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    functions = {variant.kernel: 1 for launch in launches for variant in launch.variants}
    for sizes in POINTS:
        binding = program.bind(tuple(sizes for _ in names))
        for launch in launches:
            choices = PreparedLaunch(program, launch, functions).choices(binding)
            for address in (4096, 4096 + GUARD_ALIGNMENT // 2):
                choice = next(c for c in choices if not c.aligned or address % GUARD_ALIGNMENT == 0)
                reached.add((launch.name, choice.variant.kernel))
    expected = {(launch.name, variant.kernel) for launch in launches for variant in launch.variants}
    assert any(len(launch.variants) > 1 for launch in launches)
    assert reached == expected


def test_the_last_variant_asks_for_nothing(plan: Plan) -> None:
    for step in plan.steps:
        if isinstance(step, Launch):
            assert not step.variants[-1].guard.zero
            assert not step.variants[-1].guard.aligned
