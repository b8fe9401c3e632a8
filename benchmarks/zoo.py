"""The models as the benchmarks take them: at full depth, as ONNX files, and judged at a size."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ourcc.ir.graph.reference import Verdict, judge

ROOT = Path(__file__).resolve().parent.parent

FULL: dict[str, dict[str, int]] = {
    "bert": {"layers": 12, "vocabulary": 30522},
    "gpt2": {"layers": 12, "vocabulary": 50257},
    "llama": {
        **{"layers": 16, "vocabulary": 32000, "hidden_size": 1024, "intermediate_size": 2816},
        **{"num_attention_heads": 16, "num_key_value_heads": 4},
    },
    "resnet50": {"layers": 6, "size": 224},
    "vit": {"layers": 12},
    "convnext": {"layers": 9},
    "llama110m": {
        **{"layers": 12, "vocabulary": 32000, "hidden_size": 768, "intermediate_size": 2048},
        **{"num_attention_heads": 12, "num_key_value_heads": 12},
    },
    "whisper": {"layers": 4},
}
SAME = {"llama110m": "llama"}
"""Names that are other sizes of an architecture."""
TITLES = {
    "bert": "BERT-base, 12 layers",
    "gpt2": "GPT-2, 12 layers",
    "llama": "Llama, 16 layers, hidden 1024",
    "minilm": "MiniLM-L6 (trained)",
    "resnet50": "ResNet-50, 224 x 224",
    "vit": "ViT-base, 12 layers",
    "convnext": "ConvNeXt-tiny, 224 x 224",
    "llama110m": "Llama 110 M, 12 layers",
    "whisper": "Whisper-tiny, encoder",
}

Array = np.ndarray[Any, Any]
Run = Callable[[Sequence[Array]], Sequence[Array]]


def _shared(name: str) -> ModuleType:
    """A module of tests/models, which is no package that could be imported by its name from here."""
    package = "ourcc_test_models"
    if package not in sys.modules:
        spec = ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [str(ROOT / "tests" / "models")]
        sys.modules[package] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"{package}.{name}")


def make(name: str, layers: int | None = None) -> Any:
    """A model at full depth and size, or with `layers` layers to try a script out."""
    models = _shared("models")
    if name == "minilm":
        return models.trained_minilm() if layers is None else models.make(name, layers=layers)
    options = dict(FULL[name])
    if layers is not None:
        options["layers"] = layers
    return models.make(SAME.get(name, name), **options)


def is_text(model: Any) -> bool:
    """Whether the model reads tokens, so that its inputs have a sequence length."""
    return "S" in _shared("onnx_files").symbols_of(model)


def sizes_of(model: Any, size: tuple[int, int]) -> dict[str, int]:
    """A size by the model's symbols."""
    return dict(zip(_shared("onnx_files").symbols_of(model), size, strict=False))


def attends(model: Any) -> bool:
    """Whether there is attention in it, rather than convolutions alone."""
    return any("attention" in type(part).__name__.lower() for part in model.module.modules())


def is_depthwise(model: Any) -> bool:
    """Whether a convolution of it takes each channel by itself."""
    return any(isinstance(part, torch.nn.Conv2d) and part.groups == part.in_channels > 1 for part in model.module.modules())


def operations(model: Any, inputs: Sequence[torch.Tensor]) -> int:
    """Multiplications and additions of products, convolutions and attention, as torch counts them.

    Attention runs as products here, as torch's counter passes over its fused op for CPUs.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model.module(*inputs)
    return int(counter.get_total_flops())


def size_text(model: Any, size: tuple[int, int]) -> str:
    """A size as people read it."""
    return f"B={size[0]}, S={size[1]}" if is_text(model) else f"B={size[0]}"


def write_onnx(model: Any, path: Path) -> Path:
    """The model as an ONNX file with symbolic sizes."""
    return Path(_shared("onnx_files").write_onnx(model, path))


def shapes_of(model: Any) -> list[str]:
    """The ranges of its symbols as a build takes them."""
    return list(_shared("onnx_files").shapes_of(model))


def wide_copy(model: Any) -> torch.nn.Module:
    """The model in float64."""
    return copy.deepcopy(model.module).double()


def answers(module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Array:
    """What a module answers; floats are given in the module's own type, and bf16 comes back in float32."""
    dtype = next(module.parameters()).dtype
    with torch.no_grad():
        answer = module(*(x.to(dtype) if x.is_floating_point() else x for x in inputs))
    array: Array = (answer.float() if dtype == torch.bfloat16 else answer).numpy()
    return array


def judged(model: Any, wide: torch.nn.Module, run: Run, size: tuple[int, int], seeds: int) -> Verdict:
    """The verdict on `run` at a size: the maximum over so many seeded inputs, eager standing in for stepwise."""
    ours, eager, exact = [], [], []
    for seed in range(seeds):
        inputs = model.draw(*size, seed)
        ours.append(run([x.numpy() for x in inputs])[0])
        eager.append(answers(model.module, inputs))
        exact.append(answers(wide, inputs))
    return judge(np.stack(ours), np.stack(eager), np.stack(exact), factor=4, floor=4)
