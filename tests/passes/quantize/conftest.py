"""Drawn attention that tests of narrow and of integer factors share."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.types import TensorType, boolean, f32

Drawn = Callable[[int, Sequence[int]], tuple[Module, list[np.ndarray]]]


@pytest.fixture
def drawn_attention() -> Drawn:
    """A module and its inputs, of a seed."""
    return _drawn


def _drawn(seed: int, sizes: Sequence[int]) -> tuple[Module, list[np.ndarray]]:
    """Attention of drawn sizes, its heads of one of `sizes`, with a mask or without, and what it is given."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    groups = draw.choice((1, 2, 3))
    heads, head, features = groups * draw.choice((1, 2)), draw.choice(sizes), draw.choice((8, 16, 33, 64))
    rows, columns = draw.choice((1, 2, 5, 12, 13, 40)), draw.choice((1, 2, 31, 64, 129, 197))
    module = Module("net")
    graph = module.functions["main"] = Graph("main")
    b, count = Builder(module, graph), module.declare("T", 1, 300) if draw.random() < 0.5 else columns
    shapes = [(2, heads, rows, head), (2, groups, count, head), (2, groups, count, features)]
    q, k, v = (graph.add_input(name, TensorType(f32, shape)) for name, shape in zip("qkv", shapes, strict=True))
    given = [numbers.standard_normal([columns if n == count else n for n in shape]).astype(np.float32) for shape in shapes]
    kind = draw.choice(("none", "keep", "added", "causal"))
    mask = None
    if kind in ("keep", "added"):
        mask = graph.add_input("mask", TensorType(boolean if kind == "keep" else f32, (2, 1, 1, count)))
        kept = numbers.random((2, 1, 1, columns)) < 0.7
        kept[..., 0] = True
        given.append(kept if kind == "keep" else np.where(kept, 0, np.finfo(np.float32).min).astype(np.float32))
    graph.set_outputs([b.attention(q, k, v, mask, scale=head**-0.5, causal=kind == "causal", safe=draw.random() < 0.3)])
    return module, given
