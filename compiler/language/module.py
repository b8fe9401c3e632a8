"""A checkpoint of a language model as a graph module: one function `step`, the caches as its states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ...ir.errors import UnsupportedError, UsageError
from ...ir.graph import Builder, Graph, Module, Value
from ...ir.types import TensorType, i64
from ..importers.checkpoints.stored import Checkpoint
from . import gpt2, llama
from .assets import assets_of
from .blocks import Step, Weights
from .config import config_of

Decoder = Callable[[Step], tuple[Value, str]]
ARCHITECTURES: Mapping[str, Decoder] = MappingProxyType(
    {"llama": llama.decoder, "mistral": llama.decoder, "qwen2": llama.decoder, "qwen3": llama.decoder, "gpt2": gpt2.decoder}
)
CONTEXT = 4096
"""Places of a cache where nothing else is said and the model allows as many."""
ANSWER, PROMPT = 256, 128
"""What kernels are scheduled for where nothing else is said: tokens one by one behind so many others, and prompts of so many."""


@dataclass(frozen=True)
class Room:
    """What a session has room for: sequences side by side, and tokens of each."""

    slots: int = 1
    context: int | None = None


def language_module(checkpoint: Checkpoint, room: Room = Room()) -> Module:
    """The module, with the assets of a language model.

    `step(tokens i64[B, S], positions i64[B, S], context i64[T], wanted i64[R]) -> logits f32[R, vocabulary]`: `context` is 0 .. T-1
    for all places that any token looks at, `wanted` numbers those of the B * S tokens whose logits are asked for.
    """
    config = config_of(checkpoint.kind, checkpoint.metadata, checkpoint.name)
    decoder = ARCHITECTURES.get(config.architecture)
    if decoder is None:
        raise UnsupportedError(f"{checkpoint.name}: architecture {config.architecture!r} is not supported, only {', '.join(ARCHITECTURES)}")
    length = room.context if room.context is not None else min(config.context, CONTEXT)
    if not 1 <= length <= config.context:
        raise UsageError(f"context {length}: the model was made for 1 to {config.context} tokens")
    module = Module(checkpoint.name.rpartition(".")[0] or checkpoint.name)
    graph = module.functions["step"] = Graph("step")
    batch = 1 if room.slots == 1 else module.declare("B", 1, room.slots)
    count, seen, wanted = module.declare("S", 1, length), module.declare("T", 1, length), module.declare("R", 1, room.slots * length)
    tokens = graph.add_input("tokens", TensorType(i64, (batch, count)))
    positions = graph.add_input("positions", TensorType(i64, (batch, count)))
    context = graph.add_input("context", TensorType(i64, (seen,)))
    rows = graph.add_input("wanted", TensorType(i64, (wanted,)))
    b = Builder(module, graph)
    step = Step(b, graph, config, Weights(module, checkpoint), tokens, positions, context, room.slots, length)
    hidden, head = decoder(step)
    flat = b.reshape(hidden, shape=(batch * count, config.width))
    logits = step.linear(b.take(flat, rows, axis=0), head, config.vocabulary)
    graph.set_outputs([logits], ["logits"], step.after)
    module.workload = f"S=1,T={min(ANSWER, length)},R=1:4", f"S={min(PROMPT, length)},T={min(PROMPT, length)},R=1"
    module.assets.update(assets_of(checkpoint, config, room.slots, length))
    return module
