"""A language model before its weights are there: the program that import would build, with weights that are only shapes.

The decoders ask for each tensor by name and shape, so what they ask for is what a checkpoint holds: there is no other list. Which of
the tensors that not every model has are there says a GGUF file's directory, or of a folder its config.json.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ...ir import dims
from ...ir.errors import InternalError, ModelError
from ...ir.graph import Builder, ConstantData, Graph, Module, Value
from ...ir.types import DTYPES, DType, TensorType, f32
from ..importers import moves
from ..importers.checkpoints.stored import Array, Checkpoint
from . import gpt2, llama
from .blocks import Change, Weights
from .config import Config
from .module import add_step, config_for

OPTIONAL: Mapping[str, Callable[[Mapping[str, Any]], frozenset[str]]] = MappingProxyType(
    {"llama": llama.optional, "mistral": llama.optional, "qwen2": llama.optional, "qwen3": llama.optional, "gpt2": gpt2.optional}
)
"""The tensors of each architecture that a config.json says are there, and need not be; numbers of layers are `{}`."""
_LAYER = re.compile(r"(?<=\.)[0-9]+(?=\.)")
MOST_LAYERS = 1024
"""A config alone that says more is taken for damaged: each layer is built, and no tensor that is missing ends it."""
_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"}


@dataclass(frozen=True)
class Outline:
    """A program for sessions of `length` tokens, whose weights are only shapes.

    `weights` are its constants by the names of tensors, `bytes` what each takes as it is stored.
    """

    config: Config
    length: int
    module: Module
    weights: Mapping[str, Value]
    bytes: Mapping[str, int]

    @property
    def graph(self) -> Graph:
        """The function that a call runs, for S tokens of one sequence that see T, and R of whose logits are asked for."""
        return self.module.main

    @property
    def parameters(self) -> int:
        """The numbers in all tensors."""
        return sum(dims.number(value.type.elements) for value in self.weights.values())


@dataclass
class _Shapes(Weights):
    """Weights that nobody reads."""

    optional: frozenset[str] = frozenset()
    dtype: DType = f32
    asked: dict[str, Value] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        if self.checkpoint.kind == "gguf":
            return super().has(name)
        return _LAYER.sub("{}", name) in self.optional

    def value(self, b: Builder, name: str, shape: tuple[int, ...], rows: Change | None = None) -> Value:
        if self.checkpoint.kind == "gguf":
            self.stored(name, shape)
        if name not in self.asked:
            data = ConstantData(load=_unread, digest=hashlib.sha256(name.encode()).hexdigest(), available=False)
            self.asked[name] = self.module.add_constant(name, data, type=TensorType(self.dtype, shape))
        return moves.cast(b, self.asked[name], f32)


def _unread() -> Array:
    raise InternalError("a weight that is only a shape is read")


def outline_of(checkpoint: Checkpoint, length: int | None = None, cache: str = "f32", dtype: DType = f32) -> Outline:
    """The outline of a checkpoint, whose tensors may be missing where it is a folder; its weights are constants of a dtype.

    A session holds `length` tokens, in a cache of `CACHES`.
    """
    config, length = config_for(checkpoint, length)
    if checkpoint.kind == "folder" and config.layers > MOST_LAYERS:
        raise ModelError(f"{checkpoint.name}: {config.layers} layers, expected at most {MOST_LAYERS}")
    module = Module(checkpoint.name)
    weights = _Shapes(module, checkpoint, optional=OPTIONAL[config.architecture](checkpoint.metadata), dtype=dtype)
    add_step(config, weights, length, cache)
    return Outline(config, length, module, weights.asked, {name: _bytes(checkpoint, name, value) for name, value in weights.asked.items()})


def _bytes(checkpoint: Checkpoint, name: str, value: Value) -> int:
    """What a tensor takes as it is stored: in a file of its own format, in a folder in the dtype that its config says."""
    if checkpoint.kind == "gguf":
        return checkpoint.tensors[name].read().nbytes
    return dims.number(TensorType(DTYPES[stored_dtype(checkpoint)], value.shape).nbytes)


def stored_dtype(checkpoint: Checkpoint) -> str:
    """The dtype that a folder's config says its tensors have; f32 where it says none."""
    said = checkpoint.metadata.get("torch_dtype", checkpoint.metadata.get("dtype")) or "float32"
    if not isinstance(said, str) or said not in _DTYPES:
        raise ModelError(f"{checkpoint.name}: torch_dtype is {said!r}, expected one of {', '.join(_DTYPES)}")
    return _DTYPES[said]
