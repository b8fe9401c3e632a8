"""The ATen rules, by family: a small model of each through export and import, interpreted, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ourcc.compiler.importers.torch.context import ATEN, aten, find_rule
from ourcc.compiler.importers.torch.export import import_exported
from ourcc.ir.errors import UnsupportedError

F = nn.functional
Function = Callable[..., Any]
Same = Callable[..., None]


class Wrapped(nn.Module):
    """A function as a module."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


def imported(function: Function, inputs: tuple[torch.Tensor, ...], shapes: Any = None) -> Any:
    with torch.no_grad():
        return import_exported(torch.export.export(Wrapped(function), inputs, dynamic_shapes=None if shapes is None else (shapes,)))


def drawn(*shape: int, low: float = -2.0, high: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.rand(shape, generator=generator) * (high - low) + low


def whole(*shape: int, low: int = -9, high: int = 10) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(sum(shape)))


X, Y, POSITIVE = drawn(3, 4), drawn(4), drawn(3, 4, low=0.1, high=3.0)
CUBE = drawn(2, 3, 4)
IMAGE = drawn(2, 3, 7, 8)
WHOLE, DIVISOR = whole(3, 4), whole(3, 4, low=1, high=5)

UNARY = [
    *("relu", "sigmoid", "tanh", "exp", "exp2", "expm1", "sin", "cos", "tan", "atan", "sinh", "cosh", "asinh", "erf", "erfc", "neg"),
    *("abs", "sign", "floor", "ceil", "trunc", "round", "square", "logical_not", "isnan", "isinf", "relu6", "frac", "positive"),
]
POSITIVES = ["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "lgamma"]
ACTIVATIONS = [
    "gelu",
    "silu",
    "hardswish",
    "hardsigmoid",
    "hardtanh",
    "softplus",
    "mish",
    "leaky_relu",
    "elu",
    "selu",
    "celu",
    "logsigmoid",
]
BINARY = ["add", "sub", "mul", "div", "maximum", "minimum", "atan2", "remainder", "fmod", "eq", "ne", "lt", "le", "gt", "ge", "logical_and"]
INTEGERS = ["add", "sub", "mul", "floor_divide", "remainder", "fmod", "bitwise_and", "bitwise_or", "bitwise_xor", "true_divide", "maximum"]


def named(name: str) -> Function:
    return getattr(torch, name, None) or getattr(F, name)


def all_of(names: list[str]) -> Function:
    """Several functions of the same operands, in one model."""
    return lambda *operands: tuple(named(name)(*operands) for name in names)


FAMILIES: dict[str, tuple[list[str], tuple[torch.Tensor, ...]]] = {
    "one operand": (UNARY, (torch.cat([X.flatten(), torch.tensor([0.0, -0.0, 0.5, -1.5, 2.5])]),)),
    "one positive operand": (POSITIVES, (POSITIVE,)),
    "one operand below 1": (["asin", "acos", "atanh"], (drawn(6, low=-0.9, high=0.9),)),
    "one operand above 1": (["acosh"], (drawn(6, low=1.1, high=4.0),)),
    "activations": (ACTIVATIONS, (X * 3,)),
    "two operands": (BINARY, (X, Y.round() + 0.25)),
    "two integers": (INTEGERS, (WHOLE, DIVISOR)),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_functions(family: str, same: Same) -> None:
    names, inputs = FAMILIES[family]
    same(imported(all_of(names), inputs), all_of(names), inputs)


POINTWISE: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "add with alpha": (lambda x, y: torch.add(x, y, alpha=3), (X, Y)),
    "sub with alpha": (lambda x, y: torch.sub(x, y, alpha=0.5), (X, Y)),
    "rsub": (lambda x: 1.5 - x, (X,)),
    "a number": (lambda x: x * 2 + 0.5, (X,)),
    "integers and a float": (lambda x: x * 0.5, (WHOLE,)),
    "integers divide to floats": (lambda x, y: x / y, (WHOLE, DIVISOR)),
    "rounding down": (lambda x, y: torch.div(x, y, rounding_mode="floor"), (WHOLE, DIVISOR)),
    "rounding to zero": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (X, POSITIVE)),
    "two dtypes": (lambda x, y: x + y, (X.half(), DIVISOR)),
    "a scalar tensor keeps the dtype": (lambda x, y: x + y, (X.half(), torch.tensor(1.5))),
    "pow": (lambda x: x.pow(3) + x**2, (X,)),
    "pow of tensors": (torch.pow, (POSITIVE, X)),
    "pow of a number": (lambda x: 2.0**x, (X,)),
    "integer pow": (lambda x: x**3, (WHOLE,)),
    "shifts": (lambda x, y: (x << y) + (x >> y), (whole(3, 4, low=0), DIVISOR)),
    "bits of bools": (lambda x, y: (x > 0) & (y > 0) | ~(x > 1), (X, Y)),
    "where": (lambda x, y: torch.where(x > 0, x, y), (X, Y)),
    "where with numbers": (lambda x: torch.where(x > 0, 1.0, -1.0) + torch.where(x > 1, x, 0.5), (X,)),
    "masked fill": (lambda x: x.masked_fill(x > 0, float("-inf")), (X,)),
    "clamp": (lambda x: x.clamp(-1, 1) + x.clamp(min=0) + x.clamp(max=0.5), (X,)),
    "clamp by tensors": (lambda x, y: x.clamp(min=y), (X, Y)),
    "tanh gelu": (lambda x: F.gelu(x, approximate="tanh"), (X,)),
    "softplus": (lambda x: F.softplus(x, beta=2.0, threshold=1.0), (X,)),
    "leaky": (lambda x: F.leaky_relu(x, 0.2) + F.elu(x, 1.5), (X,)),
    "rounds to even": (lambda x: x.round(), (torch.tensor([0.5, 1.5, -0.5, 2.5, -2.5]),)),
    "casts": (lambda x: (x.to(torch.int32), x.half(), x.double(), x > 0, x.to(torch.bfloat16)), (X * 3,)),
    "bool to float": (lambda x: (x > 0).float() * x, (X,)),
    "copies": (lambda x: x.clone().contiguous().detach() + 0, (X.t(),)),
    "in place": (lambda x: (x + 1).mul_(2).add_(x).clamp_(max=3), (X,)),
    "addcmul": (lambda x, y: torch.addcmul(x, x, y, value=0.5) + torch.lerp(x, y, 0.3), (X, Y.expand(3, 4).clone())),
    "nan to num": (lambda x: torch.nan_to_num(x, 1.0, 2.0, -2.0), (torch.tensor([0.0, float("nan"), float("inf"), -float("inf")]),)),
}

MOVEMENT: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "view": (lambda x: x.view(6, 4) + x.view(-1, 4), (CUBE,)),
    "reshape of strided": (lambda x: x.transpose(0, 2).reshape(4, 6), (CUBE,)),
    "flatten": (lambda x: (x.flatten(1), x.unflatten(2, (2, 2))), (CUBE,)),
    "squeeze": (lambda x: (x.unsqueeze(1).squeeze(), x[:, None, :, None].squeeze(1)), (CUBE,)),
    "permute": (lambda x: (x.permute(2, 0, 1), x.transpose(-1, 0), x.mT), (CUBE,)),
    "expand": (lambda x: x[:, :1].expand(2, 5, 4) + x[:, :1].expand(-1, -1, 4), (CUBE,)),
    "select": (lambda x: (x[1], x[:, -1], x[0, 1, 2]), (CUBE,)),
    "slice": (lambda x: (x[:, 1:], x[..., ::2], x[-1:, :-1, 1:3], x[:, 5:]), (CUBE,)),
    "concatenate": (lambda x, y: (torch.cat([x, y, x], 1), torch.stack([x, y], -1), torch.hstack([x, y])), (CUBE, CUBE + 1)),
    "concatenate two dtypes": (lambda x, y: torch.cat([x, y]), (X, WHOLE)),
    "split": (lambda x: (*x.split([1, 2], 1), *x.split(3, 2), *x.chunk(2, 0), *x.unbind(1)), (CUBE,)),
    "flip": (lambda x: (x.flip(0, 2), x.roll(1, 1), x.roll((1, -1), (0, 2)), x.roll(2)), (CUBE,)),
    "repeat": (lambda x: (x.repeat(2, 1, 3), x.tile(2), x.repeat(2, 1, 1, 1)), (CUBE,)),
    "repeat interleave": (lambda x: x.repeat_interleave(2, 1), (CUBE,)),
    "pad": (lambda x: (F.pad(x, (1, 2)), F.pad(x, (0, 0, 2, 1), value=3.0), F.pad(x, (-1, 1))), (CUBE,)),
    "pad by reflection": (lambda x: (F.pad(x, (2, 1), "reflect"), F.pad(x[None], (1, 1, 2, 0), "reflect")), (CUBE,)),
    "pad by edges": (lambda x: (F.pad(x, (2, 1), "replicate"), F.pad(x[None], (1, 1, 2, 0), "replicate")), (CUBE,)),
    "pad around": (lambda x: F.pad(x, (2, 1), "circular"), (CUBE,)),
    "diagonals": (lambda x: (x.diagonal(), x.diagonal(1, 1, 2), torch.diag_embed(x[0])), (CUBE,)),
    "triangles": (lambda x: (x.tril(), x.triu(1), x.tril(-1)), (CUBE,)),
    "written slices": (lambda x: torch.slice_scatter(x, x[:, :1] * 2, 1, 1, 2) + torch.select_scatter(x, x[0], 0, 1), (CUBE,)),
    "written diagonal": (lambda x: torch.diagonal_scatter(x, x[:, 0], 0), (X[:, :3].clone(),)),
    "unfold": (lambda x: x.unfold(2, 2, 1), (CUBE,)),
    "pixel shuffle": (lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2)), (drawn(1, 4, 2, 2),)),
    "meshgrid": (lambda x, y: torch.meshgrid(x, y, indexing="ij"), (Y, Y[:2])),
    "glu": (lambda x: F.glu(x, -1), (CUBE,)),
    "creation": (lambda x: (torch.zeros_like(x), x.new_ones(2), torch.full_like(x, 3), x.new_full((2,), 4.0), torch.eye(3)), (X,)),
    "ranges": (lambda x: (torch.arange(5), torch.arange(1, 10, 3), torch.arange(0.0, 1.0, 0.25), torch.linspace(0, 1, 5)), (X,)),
}

REDUCTIONS: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "sum": (lambda x: (x.sum(), x.sum(1), x.sum((0, 2), keepdim=True), x.sum(1, dtype=torch.float64)), (CUBE,)),
    "sum of integers": (lambda x: (x.sum(), x.to(torch.int32).sum(0), (x > 0).sum(1)), (WHOLE,)),
    "mean": (lambda x: (x.mean(), x.mean(-1), x.mean((0, 1), keepdim=True)), (CUBE,)),
    "prod": (lambda x: (x.prod(), x.prod(1), x.prod(0, keepdim=True)), (CUBE,)),
    "extremes": (lambda x: (x.amax(1), x.amin((0, 2)), x.max(), x.min()), (CUBE,)),
    "extremes with places": (lambda x: (*x.max(1), *x.min(-1, keepdim=True)), (CUBE,)),
    "places": (lambda x: (x.argmax(), x.argmax(1), x.argmin(-1, keepdim=True)), (CUBE,)),
    "ties": (lambda x: (*x.max(1), x.argmin(0)), (torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 1.0]]),)),
    "any": (lambda x: ((x > 1).any(), (x > -1).all(1), (x > 0).any((0, 1)), x.any()), (CUBE,)),
    "running": (lambda x: (x.cumsum(1), x.cumprod(-1)), (CUBE,)),
    "running integers": (lambda x: x.cumsum(0), (WHOLE,)),
    "variance": (lambda x: (x.var(), x.var(1), x.std(-1, correction=0), x.var((0, 2), keepdim=True)), (CUBE,)),
    "variance and mean": (lambda x: torch.var_mean(x, 1), (CUBE,)),
    "softmax": (lambda x: (x.softmax(1), x.log_softmax(-1), x.softmax(-1, dtype=torch.float64)), (CUBE,)),
    "softmax of masks": (lambda x: x.masked_fill(x < 0, float("-inf")).softmax(-1), (torch.cat([X.abs(), X]),)),
    "logsumexp": (lambda x: (x.logsumexp(1), x.logsumexp((0, 2), keepdim=True)), (CUBE,)),
    "norms": (lambda x: (x.norm(), x.norm(dim=1), F.normalize(x, dim=-1), torch.linalg.vector_norm(x, 1, dim=2)), (CUBE,)),
    "missing numbers": (lambda x: x.nansum(0), (torch.tensor([[1.0, float("nan")], [2.0, 3.0]]),)),
    "empty": (lambda x: (x[:, :0].sum(1), x[:0].prod(0)), (CUBE,)),
    "scalars": (lambda x: (x.sum(), x.softmax(0), x.cumsum(0), x.argmax()), (torch.tensor(2.5),)),
}

INDEX = torch.tensor([2, 0, 1, 2])
INDEXING: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "embedding": (lambda i, w: F.embedding(i, w), (INDEX.view(2, 2).clone(), X)),
    "index select": (lambda x, i: (x.index_select(0, i), x.index_select(1, i)), (X, INDEX)),
    "gather": (lambda x, i: x.gather(1, i), (X, whole(3, 2, low=0, high=4))),
    "take": (lambda x, i: (x.take(i), torch.take_along_dim(x, i[:3, None], 1)), (X, INDEX)),
    "index": (lambda x, i: (x[i], x[:, i % 4], x[i, i], x[i[:, None], i]), (X, INDEX)),
    "negative index": (lambda x, i: x[i - 3], (X, INDEX)),
    "index of apart axes": (lambda x, i: x[i % 2, :, i], (CUBE, INDEX)),
    "sort": (lambda x: (*x.sort(), *x.sort(0, descending=True), x.argsort(1)), (X,)),
    "topk": (lambda x: (*x.topk(2), *x.topk(1, dim=0, largest=False)), (X,)),
    "scatter": (lambda x, i: (x.scatter(0, i, 1.5), x.scatter(0, i, x * 2)), (X, torch.tensor([[0, 1, 2, 0]]))),
    "scatter add": (lambda x, i: (x.scatter_add(0, i, x), x.index_add(0, i[0, :3], x)), (X, torch.tensor([[0, 1, 1, 0], [2, 2, 2, 2]]))),
    "index put": (lambda x, i: (x.index_put((i,), x[0]), x.index_put((i,), x[i], accumulate=True)), (X, torch.tensor([2, 0, 2]))),
    "index copy": (lambda x, i: (x.index_copy(0, i, x[:2] * 3), x.index_fill(0, i, 7.0)), (X, torch.tensor([2, 0]))),
    "one hot": (lambda i: F.one_hot(i, 4), (INDEX,)),
    "bucketize": (lambda x, b: torch.where(x[..., None] > b, 1, 0).sum(-1), (X, Y.sort().values)),
}

WEIGHT, KERNEL = drawn(5, 4), drawn(6, 3, 3, 3)
LAYERS: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "products": (lambda x, y: (x @ y.t(), y @ x[0], x[0] @ y[0], torch.mv(x, y[0]), torch.dot(x[0], y[1])), (X, WEIGHT)),
    "batched products": (lambda x, y: (x @ y, torch.bmm(x, y[:2]), torch.einsum("bij,bjk->bki", x, y)), (CUBE, drawn(2, 4, 3))),
    "broadcast products": (lambda x, y: (x[:, None] @ y, x @ y[0]), (CUBE, drawn(5, 4, 3))),
    "product and sum": (lambda b, x, y: (torch.addmm(b, x, y), torch.addmm(b, x, y, beta=0.5, alpha=2.0)), (drawn(5), X, drawn(4, 5))),
    "batched product and sum": (lambda b, x, y: torch.baddbmm(b, x, y, alpha=0.5), (drawn(2, 3, 3), CUBE, drawn(2, 4, 3))),
    "integer products": (lambda x, y: x @ y, (WHOLE, whole(4, 2))),
    "linear": (lambda x, w, b: (F.linear(x, w, b), F.linear(x, w)), (CUBE, WEIGHT, drawn(5))),
    "half linear": (lambda x, w: F.linear(x, w), (X.half(), WEIGHT.half())),
    "convolution": (lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), (IMAGE, KERNEL, drawn(6))),
    "convolution, same": (lambda x, w: F.conv2d(x, w, padding="same", dilation=2), (IMAGE, KERNEL)),
    "grouped convolution": (lambda x, w: F.conv2d(x, w, groups=3), (IMAGE, drawn(6, 1, 2, 3))),
    "convolution of one axis": (lambda x, w: F.conv1d(x, w, padding=1), (CUBE, drawn(5, 3, 2))),
    "convolution of three axes": (lambda x, w: F.conv3d(x, w), (drawn(1, 2, 3, 4, 5), drawn(3, 2, 2, 2, 2))),
    "transposed convolution": (lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1), (IMAGE, drawn(3, 4, 3, 3))),
    "convolution without a batch": (lambda x, w: F.conv2d(x, w), (IMAGE[0], KERNEL)),
    "layer norm": (lambda x, w: (F.layer_norm(x, (4,), w, w), F.layer_norm(x, (3, 4))), (CUBE, Y)),
    "group norm": (lambda x, w: F.group_norm(x, 2, w, w, 1e-3), (drawn(2, 4, 5), Y)),
    "instance norm": (lambda x: F.instance_norm(x), (IMAGE,)),
    "batch norm": (lambda x, m, v: F.batch_norm(x, m, v, m, v), (IMAGE, drawn(3), drawn(3, low=0.5))),
    "rms norm": (lambda x, w: F.rms_norm(x, (4,), w), (CUBE, Y)),
    "max pool": (lambda x: (F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, 2, ceil_mode=True), F.max_pool1d(x[0], 2)), (IMAGE,)),
    "max pool with places": (lambda x: F.max_pool2d(x, 2, return_indices=True), (IMAGE,)),
    "average pool": (lambda x: (F.avg_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), F.avg_pool1d(x[0], 2)), (IMAGE,)),
    "adaptive pools": (lambda x: (F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (1, 4)), F.adaptive_max_pool2d(x, 1)), (IMAGE,)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), (IMAGE,)),
    "bilinear": (lambda x: F.interpolate(x, size=(5, 9), mode="bilinear", align_corners=False), (IMAGE,)),
    "dropout is nothing": (lambda x: F.dropout(x, 0.5, training=False), (X,)),
    "cross entropy": (lambda x, t: F.cross_entropy(x, t), (X, torch.tensor([0, 3, 1]))),
}

HEADS = drawn(2, 4, 5, 8), drawn(2, 4, 6, 8), drawn(2, 4, 6, 8) + 1
ATTENTION: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "plain": (F.scaled_dot_product_attention, HEADS),
    "scaled": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3), HEADS),
    "causal": (lambda q, k, v: F.scaled_dot_product_attention(q, q, q + 1, is_causal=True), HEADS),
    "causal and not square": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), HEADS),
    "a bool mask": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=k[0, 0, None, :, 0] > 0), HEADS),
    "a row without a key": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.arange(5)[:, None] > torch.arange(6)),
        HEADS,
    ),
    "a float mask": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=q[..., :6] * 2), HEADS),
    "grouped": (lambda q, k, v: F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True), HEADS),
    "three axes": (lambda q, k, v: F.scaled_dot_product_attention(q[0], k[0], v[0]), HEADS),
}

GROUPS = {
    **{"pointwise": POINTWISE, "movement": MOVEMENT, "reductions": REDUCTIONS},
    **{"indexing": INDEXING, "layers": LAYERS, "attention": ATTENTION},
}


CHUNK = 5
"""Cases in one model: an export costs more than they do."""


def chunks() -> list[Any]:
    found = []
    for cases in GROUPS.values():
        names = list(cases)
        parts = [names[start : start + CHUNK] for start in range(0, len(names), CHUNK)]
        found += [pytest.param([cases[name] for name in part], id=", ".join(part)) for part in parts]
    return found


@pytest.mark.parametrize("cases", chunks())
def test_rules(cases: list[tuple[Function, tuple[torch.Tensor, ...]]], same: Same) -> None:
    def every(*operands: torch.Tensor) -> Any:
        rest = list(operands)
        return tuple(function(*[rest.pop(0) for _ in inputs]) for function, inputs in cases)

    operands = tuple(value for _, inputs in cases for value in inputs)
    same(imported(every, operands), every, operands)


SYMBOLIC: dict[str, tuple[Function, Callable[[int], tuple[torch.Tensor, ...]], Any]] = {
    "view": (lambda x: x.view(x.shape[0], 2, -1).transpose(0, 1), lambda n: (drawn(n, 6),), {0: True}),
    "flatten": (lambda x: x.flatten(0, 1) + 1, lambda n: (drawn(3, n, 2),), {1: True}),
    "slice": (lambda x: (x[:, : x.shape[1] - 2], x[:, 1:], x[:, -1]), lambda n: (drawn(3, n),), {1: True}),
    "range": (lambda x: x + torch.arange(x.shape[1]), lambda n: (drawn(3, n),), {1: True}),
    "causal mask": (lambda x: torch.full((x.shape[0], x.shape[0]), float("-inf")).triu(1) + x @ x.t(), lambda n: (drawn(n, 3),), {0: True}),
    "mean": (lambda x: (x.mean(1), x.var(1, correction=0)), lambda n: (drawn(3, n),), {1: True}),
    "expand": (lambda x: x[:, None].expand(-1, x.shape[0], -1).sum(1), lambda n: (drawn(n, 4),), {0: True}),
    "concatenate": (lambda x: torch.cat([x, x[:1], x.flip(0)]), lambda n: (drawn(n, 4),), {0: True}),
    "pad": (lambda x: F.pad(x, (1, 2)), lambda n: (drawn(3, n),), {1: True}),
    "convolution": (lambda x: F.avg_pool1d(F.conv1d(x, KERNEL[:, :, 0], padding=1), 2, 1), lambda n: (drawn(2, 3, n),), {2: True}),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), lambda n: (drawn(2, 2, n, 4),), {2: True}),
    "a number from a size": (lambda x: x / x.shape[1] ** 0.5, lambda n: (drawn(3, n),), {1: True}),
    "halves": (lambda x: torch.cat([-x[..., x.shape[-1] // 2 :], x], -1), lambda n: (drawn(n, 6),), {0: True}),
}


@pytest.mark.parametrize("case", SYMBOLIC)
def test_symbolic_sizes(case: str, same: Same) -> None:
    function, draw, axes = SYMBOLIC[case]
    symbol = torch.export.Dim("n", min=4, max=12)
    module = imported(function, draw(6), (dict.fromkeys(axes, symbol),))
    assert len(module.facts.ranges) == 1
    for size in (4, 7, 12):
        same(module, function, draw(size))


def test_every_rule_is_reached_by_name() -> None:
    assert all(find_rule(name if name.count(".") > 1 else f"{name}.default") is not None for name in ATEN)
    assert find_rule("aten.frobnicate.default") is None
    with pytest.raises(ValueError, match=r"two rules for aten.add"):
        aten("add")(lambda: None)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: torch.linalg.svd(x)[1], "aten._linalg_svd.default has no rule"),
        (lambda x: torch.bernoulli(x.sigmoid()), "aten.bernoulli.default has no rule"),
        (lambda x: x.as_strided((2, 3), (3, 1), 2), "strides of memory have no meaning"),
    ],
)
def test_what_has_no_rule_is_named(function: Function, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message) as caught:
        imported(function, (X,))
    assert "test_rules.py" in str(caught.value)


def test_inputs_are_not_changed(same: Same) -> None:
    x = X.clone()
    module = imported(lambda x: x.relu() + 1, (x,))
    same(module, lambda x: x.relu() + 1, (x,))
    assert np.array_equal(x.numpy(), X.numpy())
