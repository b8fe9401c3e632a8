"""Networks that are estimated end to end, as their users write them: inputs, weights in bf16, and the shapes of their attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from ours import Problem
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Network:
    """A module with its inputs; those of `ids` are token numbers. `attention` is a problem as large as each of its attentions."""

    name: str
    module: Callable[[], nn.Module]
    shapes: Shapes
    attention: Problem
    ids: bool = False

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Inputs to export it with."""
        return tuple(torch.zeros(shape, dtype=dtype) for shape, dtype in self.typed())

    def typed(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Shapes and dtypes of its inputs."""
        return [(shape, torch.int64 if self.ids else torch.bfloat16) for shape in self.shapes]


class EncoderLayer(nn.Module):
    """A layer of BERT: attention and two products with GELU between, each added to its input and normalised."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.rise, self.fall = nn.Linear(width, inner), nn.Linear(inner, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, length, width] to the same."""
        query, key, value = (split(part(x), self.heads) for part in (self.query, self.key, self.value))
        x = self.first(x + self.output(joined(scaled_dot_product_attention(query, key, value))))
        return self.second(x + self.fall(nn.functional.gelu(self.rise(x))))


class Encoder(nn.Module):
    """BERT's encoder over sequences that are all full: token numbers to states."""

    def __init__(self, layers: int, width: int, heads: int, inner: int, length: int, words: int = 30522) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.zeros(length, width))
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads, inner) for _ in range(layers))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[batch, length] to [batch, length, width]."""
        x = self.norm(self.words(ids) + self.places)
        for layer in self.layers:
            x = layer(x)
        return x


class LlamaLayer(nn.Module):
    """A layer of Llama-3-8B without its attention: what comes before and what comes after."""

    def __init__(self, width: int = 4096, heads: int = 32, groups: int = 8, inner: int = 14336) -> None:
        super().__init__()
        self.heads, self.groups, deep = heads, groups, width // heads
        self.query, self.output = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, groups * deep, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
        self.first, self.second = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)

    def before(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values, turned."""
        x = self.first(x)
        query, key, value = split(self.query(x), self.heads), split(self.key(x), self.groups), split(self.value(x), self.groups)
        return turned(query, cosine, sine), turned(key, cosine, sine), value

    def after(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The layer's result."""
        x = x + self.output(joined(attended))
        found = self.second(x)
        return x + self.down(nn.functional.silu(self.gate(found)) * self.up(found))


class Prefill(LlamaLayer):
    """A layer over a prompt."""

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The layer's result, and the keys and values that it leaves behind."""
        query, key, value = self.before(x, cosine, sine)
        return self.after(x, scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)), key, value


class Decode(LlamaLayer):
    """A layer over the next token of each sequence, whose cache has room for it; its key and value are results, to be put there."""

    def forward(
        self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """The layer's result, and the token's key and value."""
        query, key, value = self.before(x, cosine, sine)
        return self.after(x, scaled_dot_product_attention(query, keys, values, enable_gqa=True)), key, value


def split(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[batch, length, heads * deep] as [batch, heads, length, deep]."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def joined(x: torch.Tensor) -> torch.Tensor:
    """The way back."""
    return x.transpose(1, 2).flatten(2)


def turned(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of halves (Su et al., arXiv:2104.09864, in the order of Llama's published code for transformers)."""
    low, high = x.chunk(2, -1)
    return x * cosine + torch.cat((-high, low), -1) * sine


def _encoder(name: str, layers: int, width: int, heads: int, inner: int, batch: int, length: int) -> Network:
    shape = (batch, heads, length, width // heads)
    attention = Problem("attention prefill", name, nn.Identity, (shape, shape, shape), torch.bfloat16)
    return Network(
        f"{name}, {batch} x {length}",
        lambda: Encoder(layers, width, heads, inner, length).bfloat16(),
        ((batch, length),),
        attention,
        ids=True,
    )


def _prefill(length: int) -> Network:
    query, kept, table = (1, 32, length, 128), (1, 8, length, 128), (length, 128)
    attention = Problem("attention prefill", "causal", nn.Identity, (query, kept, kept), torch.bfloat16)
    return Network(f"Llama-3-8B layer, prompt of {length}", lambda: Prefill().bfloat16(), ((1, length, 4096), table, table), attention)


def _decode(batch: int, context: int) -> Network:
    query, kept, table = (batch, 32, 1, 128), (batch, 8, context, 128), (1, 128)
    attention = Problem("attention decode", "decode", nn.Identity, (query, kept, kept), torch.bfloat16)
    shapes = ((batch, 1, 4096), table, table, kept, kept)
    return Network(f"Llama-3-8B layer, next of {batch} behind {context}", lambda: Decode().bfloat16(), shapes, attention)


def networks() -> list[Network]:
    """The list."""
    return [
        _encoder("MiniLM-L6", 6, 384, 12, 1536, 1, 128),
        _encoder("MiniLM-L6", 6, 384, 12, 1536, 64, 128),
        _encoder("BERT-base", 12, 768, 12, 3072, 16, 128),
        _prefill(2048),
        _decode(1, 8192),
        _decode(16, 8192),
    ]
