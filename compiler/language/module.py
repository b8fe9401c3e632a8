"""A checkpoint of a language model as a graph module: one function `step`, the caches as its states."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from ...ir import dims
from ...ir.errors import ModelError, UnsupportedError, UsageError
from ...ir.graph import Builder, Graph, Module, Value
from ...ir.ops.sample_token import ROWS
from ...ir.types import TensorType, f64, i64
from ..importers.checkpoints.stored import Checkpoint
from . import gpt2, llama
from .assets import assets_of
from .blocks import Step, Weights, check_floats
from .caches import CACHES
from .config import Config, chunk_of, config_of

Decoder = Callable[[Step], tuple[Value, str]]
ARCHITECTURES: Mapping[str, Decoder] = MappingProxyType(
    {"llama": llama.decoder, "mistral": llama.decoder, "qwen2": llama.decoder, "qwen3": llama.decoder, "gpt2": gpt2.decoder}
)
CONTEXT = 4096
"""Places of a cache where nothing else is said and the model allows as many."""
PAGE = 16
"""Places of a page of the caches of several sequences."""
MOST_EDITS = 1 << 26
"""Scores of single tokens that a call changes at most."""
ANSWER, PROMPT = 256, 128
"""What kernels are scheduled for where nothing else is said: tokens one by one behind so many others, and prompts of so many."""


DIVISORS = "rope_freqs.weight"
"""What a GGUF file divides the frequencies of a rotation by."""


def _with_divisors(config: Config, checkpoint: Checkpoint) -> Config:
    """The config with the divisors of frequencies that a GGUF file keeps as a tensor."""
    stored, rotation = checkpoint.tensors.get(DIVISORS), config.rotation
    if stored is None or rotation is None:
        return config
    check_floats(checkpoint, stored)
    if stored.format is not None or stored.shape != (rotation.size // 2,) or rotation.scaling not in ("none", "linear"):
        raise UnsupportedError(f"{checkpoint.name}: {DIVISORS} of {list(stored.shape)} beside a rotation scaled by {rotation.scaling!r}")
    divisors = tuple(float(each) for each in stored.read())
    if not all(0 < each < 1e30 for each in divisors):
        raise ModelError(f"{checkpoint.name}: {DIVISORS} holds what is no number above 0")
    return replace(config, rotation=replace(rotation, long=divisors))


def _without_effect(checkpoint: Checkpoint, config: Config) -> set[str]:
    """Tensors that older files keep beside the weights: masks and frequencies that follow from the config, a head that is tied."""
    ends = (".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq", *(("lm_head.weight",) if config.tied else ()))
    return {name for name in checkpoint.tensors if name.endswith(ends)}


def config_for(checkpoint: Checkpoint, length: int | None) -> tuple[Config, int]:
    """The config of a checkpoint whose architecture is known, and the tokens that a sequence holds (default: what the model allows up
    to `CONTEXT`).
    """
    config = config_of(checkpoint.kind, checkpoint.metadata, checkpoint.name, ARCHITECTURES)
    length = min(config.context, CONTEXT) if length is None else length
    if not 2 <= length <= config.context:
        raise UsageError(f"context {length}: expected 2 to {config.context} tokens, for which the model was made")
    return config, length


def cache_sizes(length: int, batch: int) -> tuple[int, int]:
    """The first two sizes of a cache: one sequence lies in one piece, several in pages, enough for each to have `length` tokens."""
    return (1, length) if batch == 1 else (batch * -(-length // PAGE), PAGE)


def add_step(config: Config, weights: Weights, length: int, cache: str = "f32", batch: int = 1) -> None:
    """Give the module of weights its function `step`, over a cache of `CACHES` for `batch` sequences of `length` tokens.

    `step(tokens i64[B, S], positions i64[B, S], pages i64[B, ceil(T / P)], context i64[T], wanted i64[R]) -> logits f32[R, vocabulary]`:
    `pages` are the places of the B sequences in the cache, by pages of P = `PAGE` places, `context` is 0 .. T-1 for all places that any
    token looks at, `wanted` numbers those of the B * S tokens whose logits are asked for. With a batch of 1 there are no pages, and B
    is 1. A token that is there twice, at one position of one sequence, is one token: so sequences with fewer tokens than others repeat
    their last one.
    """
    step, logits = _logits("step", config, weights, length, cache, batch)
    step.graph.set_outputs([logits], ["logits"], step.after)


def add_sample(config: Config, weights: Weights, length: int, cache: str = "f32", batch: int = 1) -> None:
    """Give the module its function `sample`: a step that chooses tokens by its logits, and gives those rows of them that are shown.

    `sample(.., wanted i64[R], temperature f64[R], top_k i64[R], top_p f64[R], min_p f64[R], seed i64[R], place i64[R],
    edited i64[E, 2], edits f64[E, 2], shown i64[L]) -> token i64[R], logits f32[L, vocabulary]`: the inputs of `step`, the operands of
    the op `sample_token`, and of the R rows the numbers of those whose logits are asked for, which may be none.
    """
    step, logits = _logits("sample", config, weights, length, cache, batch)
    b, graph, wanted = step.b, step.graph, logits.shape[0]
    step.at("sample")
    rows = [graph.add_input(name, TensorType(dtype, (wanted,))) for name, dtype in zip(ROWS, (f64, i64, f64, f64, i64, i64), strict=True)]
    changes = weights.module.declare("E", 0, min(length * batch * (length + config.vocabulary), MOST_EDITS))
    edited = graph.add_input("edited", TensorType(i64, (changes, 2)))
    edits = graph.add_input("edits", TensorType(f64, (changes, 2)))
    shown = graph.add_input("shown", TensorType(i64, (weights.module.declare("L", 0, chunk_of(config, length) * batch),)))
    token, _ = b.sample_token(logits, *rows, edited, edits)
    step.at("logits")
    graph.set_outputs([token, b.take(logits, shown, axis=0)], ["token", "logits"], step.after)


def _logits(name: str, config: Config, weights: Weights, length: int, cache: str, batch: int) -> tuple[Step, Value]:
    """A function that is begun: its step, and the logits of the wanted tokens."""
    module = weights.module
    graph = module.functions[name] = Graph(name)
    most = chunk_of(config, length)
    count, seen = module.declare("S", 1, most), module.declare("T", 1, length)
    wanted = module.declare("R", 1, most * batch)
    rows_held = module.declare("B", 1, batch) if batch > 1 else 1
    tokens = graph.add_input("tokens", TensorType(i64, (rows_held, count)))
    positions = graph.add_input("positions", TensorType(i64, (rows_held, count)))
    pages = graph.add_input("pages", TensorType(i64, (rows_held, dims.ceil_div(seen, PAGE)))) if batch > 1 else None
    context = graph.add_input("context", TensorType(i64, (seen,)))
    rows = graph.add_input("wanted", TensorType(i64, (wanted,)))
    b = Builder(module, graph)
    held = cache_sizes(length, batch)
    step = Step(b, graph, config, weights, tokens, positions, context, length, CACHES[cache], pages, held)
    hidden, head = ARCHITECTURES[config.architecture](step)
    flat = b.reshape(hidden, shape=(rows_held * count, config.width))
    return step, step.linear(b.take(flat, rows, axis=0), head, config.vocabulary)


def language_module(checkpoint: Checkpoint, length: int | None = None, cache: str = "f32", batch: int = 1) -> Module:
    """The module, with the assets of a language model; its functions are those of `add_step` and `add_sample`."""
    config, length = config_for(checkpoint, length)
    config = _with_divisors(config, checkpoint)
    module = Module(checkpoint.name.rpartition(".")[0] or checkpoint.name)
    weights = Weights(module, checkpoint)
    add_step(config, weights, length, cache, batch)
    add_sample(config, weights, length, cache, batch)
    unread = sorted(checkpoint.tensors.keys() - {name for name, _ in weights.taken} - {DIVISORS} - _without_effect(checkpoint, config))
    if unread:
        raise UnsupportedError(
            f"{checkpoint.name}: tensor {unread[0]!r} has no place in {config.architecture}, nor have {len(unread) - 1} others"
        )
    one, all_of = (f"B={count},R={count},E=0,L=0" if batch > 1 else "R=1,E=0,L=0" for count in (1, batch))
    prompt = min(PROMPT, chunk_of(config, length))
    module.workload = f"S=1,T={min(ANSWER, length)},{all_of}:4", f"S={prompt},T={prompt},{one}"
    module.assets.update(assets_of(checkpoint, config, length, cache, batch, math.prod(cache_sizes(length, batch))))
    return module
