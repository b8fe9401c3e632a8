"""What ONNX Runtime's quantizers make of a model for the benchmark: every product in the codes asked for, answers near those in floats."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from ourcc.compiler.commands.peers import onnxruntime_run

from ..models.models import Model
from ..peers import needs_exact_sums
from .scripts import script

pytest.importorskip("onnxscript")
bench_files = script("bench_files")


class Stack(torch.nn.Sequential):
    """Layers as a function from the inputs of a `Model`."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs[0])


def draw(batch: int, sequence: int = 0, seed: int = 0) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 64, generator=torch.Generator().manual_seed(seed)),)


def files_of(folder: Path, *layers: torch.nn.Module) -> Any:
    return bench_files.Files(Model(Stack(*layers).eval(), ("input",), draw, {"input": {0: "B"}}), "stack", (8, 1), folder)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two products of rows, which are exported as Gemm."""
    torch.manual_seed(0)
    return files_of(tmp_path_factory.mktemp("files"), torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 32))


KINDS = {
    "floats": ("Gemm", 2),
    "coded": ("QuantizeLinear", 3),
    "dynamic": ("MatMulInteger", 2),
    "blocks": ("MatMulNBits", 2),
    "blocks_int8": ("MatMulNBits", 2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_product_is_in_its_codes(files: Any, kind: str) -> None:
    path: Path = getattr(files, kind)
    if kind == "coded":
        needs_exact_sums()
    op, count = KINDS[kind]
    assert Counter(node.op_type for node in onnx.load(path).graph.node)[op] == count
    (x,) = draw(8)
    with torch.no_grad():
        eager = files.model.module(x).numpy()
    (answer,) = onnxruntime_run(path, 1, {"B": 8})([x.numpy()])
    apart = np.linalg.norm(answer - eager) / np.linalg.norm(eager)
    assert apart < 1e-5 if kind == "floats" else 1e-4 < apart < 0.2


def test_a_model_without_products_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="makes no MatMulInteger of this model"):
        _ = files_of(tmp_path, torch.nn.Tanh()).dynamic
