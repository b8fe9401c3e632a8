"""What decoders share, on the graph builder: linear layers over stored weights, norms, attention over a cache.

A call sees tokens [B, S] at their positions, and of the cache as many places as `context` has: T. A cache holds for each
layer keys and values of one sequence, [1, C, G, D], or of several in pages of P places, [pages, P, G, D]: place t of a sequence is
then place t mod P of the page that its table names for t div P. A call writes keys at its positions, and attends to all that lie at
most as far as a token's own position.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from ...ir.dims import Dim
from ...ir.errors import ModelError, Source
from ...ir.formats import format_of
from ...ir.formats.ggml import split
from ...ir.graph import Builder, ConstantData, Graph, Module, Value
from ...ir.types import TensorType, f32, i64
from ..importers import moves
from ..importers.checkpoints.stored import Array, Checkpoint, Stored
from .caches import CacheFormat
from .config import Config
from .rotary import angles, rotated

Change = Callable[[Array], Array]


@dataclass
class Weights:
    """A checkpoint's tensors as constants of a module, in their own encoding; each is taken once, and none that is missing."""

    module: Module
    checkpoint: Checkpoint
    taken: dict[tuple[str, bool], tuple[Value, ...]] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds the tensor."""
        return name in self.checkpoint.tensors

    def stored(self, name: str, shape: tuple[int, ...]) -> Stored:
        """A tensor of floats of this shape; ModelError if there is none."""
        found = self.checkpoint.tensors.get(name)
        if found is None:
            raise ModelError(f"{self.checkpoint.name}: tensor {name!r} is missing")
        check_floats(self.checkpoint, found)
        if found.shape != shape:
            raise ModelError(f"{self.checkpoint.name}: tensor {name!r} is {list(found.shape)}, expected {list(shape)}")
        return found

    def value(self, b: Builder, name: str, shape: tuple[int, ...], rows: Change | None = None) -> Value:
        """A tensor as f32; `rows` changes the order of its rows."""
        stored = self.stored(name, shape)
        key = name, rows is not None
        if key not in self.taken:
            self.taken[key] = tuple(self._constants(stored, rows))
        fields = self.taken[key]
        if stored.format is not None:
            result: Value = b.decode(*fields, format=stored.format, axis=len(shape) - 1, dtype=f32)
            return result
        return moves.cast(b, fields[0], f32)

    def _constants(self, stored: Stored, rows: Change | None) -> list[Value]:
        array = stored.read() if rows is None else rows(stored.read())
        if stored.format is None:
            return [self.module.add_constant(stored.name, ConstantData(array))]
        fields = split(format_of(stored.format), array)
        return [self.module.add_constant(f"{stored.name}.{name}", ConstantData(each)) for name, each in fields.items()]


@dataclass
class Step:
    """A call of a decoder under construction: where its tokens stand, and what all layers share."""

    b: Builder
    graph: Graph
    config: Config
    weights: Weights
    tokens: Value
    positions: Value
    context: Value
    length: int
    cache: CacheFormat = field(default_factory=CacheFormat)
    pages: Value | None = None
    held: tuple[int, int] = (1, 0)
    """The first two sizes of a cache."""
    after: dict[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        b, config = self.b, self.config
        self.at("positions")
        (batch, count), (seen,) = self.tokens.shape, self.context.shape
        own, places = b.reshape(self.positions, shape=(batch, 1, count, 1)), b.reshape(self.context, shape=(1, 1, 1, seen))
        self.mask: Value = b.le(places, own)
        if config.window is not None:
            self.mask = b.logical_and(self.mask, b.gt(places, b.sub(own, config.window)))
        self.places: Value = self._places(batch, count, seen)
        if config.rotation is not None:
            cosine, sine = angles(b, config.rotation, self.positions, self._lengths(seen))
            spread = (batch, count, 1, config.rotation.size)
            self.cosine, self.sine = b.reshape(cosine, shape=spread), b.reshape(sine, shape=spread)

    def _places(self, batch: Dim, count: Dim, seen: Dim) -> Value:
        """Where the tokens' keys lie, as index vectors of a cache's first two axes: i64[B, S, 2]."""
        b, positions, spread = self.b, self.positions, (batch, count, 1)
        if self.pages is None:
            return self._paired(b.iota(shape=spread, axis=0, dtype=i64), b.reshape(positions, shape=spread))
        pages, size = self.held
        # What is clamped or left out elsewhere would be another sequence's here.
        self.pages = b.check_index(self.pages, size=pages, negative=False)
        positions = b.check_index(positions, size=seen, negative=False)
        own = b.take_along_axis(self.pages, b.floor_div(positions, size), axis=1)
        return self._paired(b.reshape(own, shape=spread), b.reshape(b.mod(positions, size), shape=spread))

    def _paired(self, first: Value, second: Value) -> Value:
        pairs: Value = self.b.concat(first, second, axis=2)
        return pairs

    def _lengths(self, seen: Dim) -> Value:
        """How many positions a sequence sees: i64[], or i64[B, 1, 1] where each has its own."""
        b = self.b
        if self.pages is None:
            result: Value = b.dim(value=seen)
            return result
        last = b.reduce_max(self.positions, axes=(1,), keepdims=True)
        result = b.add(b.reshape(last, shape=(self.tokens.shape[0], 1, 1)), 1)
        return result

    # --- layers without a memory ---

    def at(self, name: str) -> None:
        """Say which part of the model is built next: the name of its tensors."""
        self.b.source = Source(name, self.weights.checkpoint.name)

    def linear(self, x: Value, name: str, outputs: int, bias: bool = False, rows: Change | None = None) -> Value:
        """x [.., K] times a stored weight [N, K]."""
        self.at(name)
        size = x.shape[-1]
        assert isinstance(size, int)
        y: Value = self.b.matmul(x, self.weights.value(self.b, f"{name}.weight", (outputs, size), rows), transpose_b=True)
        if not bias:
            return y
        result: Value = self.b.add(y, self.weights.value(self.b, f"{name}.bias", (outputs,), rows))
        return result

    def embedding(self, name: str, rows: int) -> Value:
        """The rows of a table [rows, width] for the tokens: [B, S, width]."""
        self.at(name)
        table = self.weights.value(self.b, f"{name}.weight", (rows, self.config.width))
        result: Value = self.b.take(table, self.tokens, axis=0)
        return result

    def rms_norm(self, x: Value, name: str) -> Value:
        """RMS norm over the last axis, with the stored scale."""
        self.at(name)
        size = x.shape[-1]
        assert isinstance(size, int)
        scale = self.weights.value(self.b, f"{name}.weight", (size,))
        result: Value = self.b.rms_norm(x, scale, axes=(len(x.shape) - 1,), epsilon=self.config.epsilon)
        return result

    def layer_norm(self, x: Value, name: str) -> Value:
        """Layer norm over the last axis, with the stored scale and bias."""
        self.at(name)
        scale, bias = (self.weights.value(self.b, f"{name}.{part}", (self.config.width,)) for part in ("weight", "bias"))
        result: Value = self.b.layer_norm(x, scale, bias, axes=(len(x.shape) - 1,), epsilon=self.config.epsilon)
        return result

    # --- attention ---

    def heads(self, x: Value, count: int) -> Value:
        """[B, S, heads * D] as [B, S, heads, D]."""
        result: Value = self.b.reshape(x, shape=(*x.shape[:-1], count, self.config.head))
        return result

    def turned(self, x: Value) -> Value:
        """[B, S, heads, D] turned by its positions."""
        return rotated(self.b, x, self.cosine, self.sine)

    def attend(self, layer: int, q: Value, k: Value, v: Value) -> Value:
        """Append k and v [B, S, G, D] to the layer's cache, and attend from q [B, S, H, D]: [B, S, H * D]."""
        self.at(f"attention.{layer}")
        b, (batch, count), (seen,) = self.b, self.tokens.shape, self.context.shape
        keys, values = (self._cached(f"cache.{layer}.{name}", x, seen) for name, x in (("keys", k), ("values", v)))
        scale = 1 / math.sqrt(self.config.head)
        mixed = b.attention(b.transpose(q, permutation=(0, 2, 1, 3)), keys, values, self.mask, scale=scale)
        result: Value = b.reshape(b.transpose(mixed, permutation=(0, 2, 1, 3)), shape=(batch, count, self.config.heads * self.config.head))
        return result

    def _cached(self, name: str, x: Value, seen: Dim) -> Value:
        """What the call sees of a cache behind its own tokens' x [B, S, G, D]: [B, G, T, D]."""
        rows = zip(self.cache.parts(self.config.head), self.cache.encoded(self.b, x), strict=True)
        return self.cache.decoded(self.b, [self._append(f"{name}{part}", row, seen) for part, row in rows])

    def _append(self, name: str, x: Value, seen: Dim) -> Value:
        """The state with x [B, S, G, n] written at the tokens' places, and what the call sees of it: [B, G, T, n]."""
        b, (batch, _, *sizes) = self.b, x.shape
        state = self.weights.module.add_state(name, TensorType(x.dtype, (*self.held, *sizes)))
        held = self.after[name] = b.scatter_nd(self.graph.add_state(state), self.places, x)
        if self.pages is not None:
            _, count = self.pages.shape
            held = b.reshape(b.take(held, self.pages, axis=0), shape=(batch, count * self.held[1], *sizes))
        part = b.slice(held, starts=(0, 0, 0, 0), sizes=(batch, seen, *sizes), steps=(1, 1, 1, 1))
        result: Value = b.transpose(part, permutation=(0, 2, 1, 3))
        return result


def check_floats(checkpoint: Checkpoint, stored: Stored) -> None:
    """ModelError for a weight that is stored as anything but floats: as whole numbers it would be codes whose scales are elsewhere."""
    if not stored.dtype.is_float:
        hint = "save the model in f32, f16 or bf16"
        raise ModelError(f"{checkpoint.name}: tensor {stored.name!r} is stored as {stored.dtype}, expected floats", hint=hint)


def paired(heads: int, x: Array) -> Array:
    """Rows of a query or key weight whose pairs lie side by side, as GGUF's llama keeps them, with halves instead."""
    cut = x.reshape(heads, x.shape[0] // heads // 2, 2, *x.shape[1:])
    return cut.swapaxes(1, 2).reshape(x.shape)
