"""The models on a CUDA device by both roads, at two layers with seeded weights made in place, against eager and float64."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from ourcc.compiler.commands.build import build
from ourcc.compiler.options import build_options
from ourcc.compiler.targets.machine import probe_cuda
from ourcc.ir.graph.reference import judge

from ..models import models

pytestmark = pytest.mark.gpu
TEXT_POINTS = ((2, 9), (1, 1), (3, 17), (1, 128), (4, 511))
POINTS = {"resnet50": ((1, 64), (3, 64)), **dict.fromkeys(("vit", "convnext", "whisper"), ((1, 197), (2, 197)))}


@pytest.fixture(scope="module")
def target() -> str:
    pytest.importorskip("transformers")
    devices = probe_cuda().gpus
    if not devices or not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    # Eager is what answers are held against: in full float32.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return devices[0].target


def judged(name: str, point: tuple[int, int], ours: np.ndarray, eager: torch.Tensor, wide: torch.Tensor) -> None:
    verdict = judge(ours, eager.cpu().numpy(), wide.cpu().numpy(), factor=4, floor=4)
    assert verdict.passed, f"{name} at (B, S) = {point}: {verdict.reason}"


def wide_answer(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return model(*(x.double() if x.is_floating_point() else x for x in inputs))


@pytest.mark.parametrize("name", list(models.MODELS))
def test_torch_compile(name: str, target: str) -> None:
    torch._dynamo.reset()
    model = models.make(name)
    eager, wide = model.module.cuda(), copy.deepcopy(model.module).double().cuda()
    fast = torch.compile(eager, backend="ourcc", dynamic=True if name not in POINTS else None)
    for point in POINTS.get(name, TEXT_POINTS):
        inputs = tuple(x.cuda() for x in model.draw(*point, 0))
        with torch.no_grad():
            ours = fast(*inputs)
            assert ours.is_cuda
            judged(name, point, ours.cpu().numpy(), eager(*inputs), wide_answer(wide, inputs))


@pytest.mark.parametrize("name", list(models.MODELS))
def test_onnx_engine(name: str, target: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    from ..models.onnx_files import shapes_of, write_onnx

    model = models.make(name)
    path = write_onnx(model, tmp_path / f"{name}.onnx")
    engine = build(str(path), build_options({"targets": [target], "shapes": shapes_of(model)}))
    assert engine.target == target
    eager, wide = copy.deepcopy(model.module).cuda(), copy.deepcopy(model.module).double().cuda()
    for point in POINTS.get(name, TEXT_POINTS):
        inputs = model.draw(*point, 0)
        there = tuple(x.cuda() for x in inputs)
        with torch.no_grad():
            judged(name, point, engine(*(x.numpy() for x in inputs)), eager(*there), wide_answer(wide, there))
            from_device = engine(*there)
        assert from_device.is_cuda
        judged(name, point, from_device.cpu().numpy(), eager(*there).detach(), wide_answer(wide, there).detach())


def test_gradients(target: str) -> None:
    torch._dynamo.reset()
    model = models.make("minilm")
    module = model.module.cuda()
    inputs = tuple(x.cuda() for x in model.draw(2, 9, 0))
    fast = torch.compile(module, backend="ourcc")

    def gradients(run: torch.nn.Module, held: torch.nn.Module) -> list[np.ndarray]:
        held.zero_grad()
        run(*(x.double() if x.is_floating_point() else x for x in inputs) if held is not module else inputs).square().sum().backward()
        return [p.grad.cpu().numpy() for p in held.parameters() if p.grad is not None]

    wide = copy.deepcopy(module).double()
    for ours, eager, exact in zip(gradients(fast, module), gradients(module, module), gradients(wide, wide), strict=True):
        verdict = judge(ours, eager, exact, factor=4, floor=4)
        assert verdict.passed, verdict.reason
