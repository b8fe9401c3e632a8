"""Which ATen ops AOTAutograd and torch.export take apart: those that have a decomposition and no rule here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from . import rules
from .context import find_rule
from .fused_layers import fused_layers
from .refusals import unless_refused

_FAMILIES = rules.FAMILIES  # importing the rules fills the table

# Attention stays whole, and what draws random numbers must draw them from torch's own generator, as eager does.
KEPT = (
    "scaled_dot_product",
    "native_dropout.default",
    "bernoulli",
    "rand",
    "normal",
    "uniform",
    "exponential",
    "geometric",
    "cauchy",
    "poisson",
)
# Taken apart although torch's own core set keeps them: norms, resizing, small functions, copies of views, backward halves of layers.
ALSO = (
    "linalg_vector_norm",
    "dist",
    "addmv",
    "round",
    "ldexp",
    "narrow_copy",
    "permute_copy",
    "unbind_copy",
    "_adaptive_avg_pool2d",
    "upsample_nearest2d",
    "upsample_bilinear2d",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_batch_norm_with_update_functional",
    "max_pool2d_with_indices_backward",
    "native_layer_norm_backward",
    "embedding_dense_backward",
    "native_group_norm_backward",
    "native_batch_norm_backward",
)

# Norms whose weights may be float32 where so many operands, the first ones, have 16 bits, as under autocast on the CPU.
MIXED = {
    "native_layer_norm": 1,
    "native_group_norm": 1,
    "_native_batch_norm_legit": 1,
    "_native_batch_norm_legit_functional": 1,
    "_batch_norm_with_update_functional": 1,
    "native_batch_norm_backward": 2,
}


@functools.cache
def decompositions() -> Mapping[Any, Any]:
    """The table for AOTAutograd."""
    import torch
    from torch._decomp import core_aten_decompositions, get_decompositions

    more = get_decompositions([getattr(torch.ops.aten, name) for name in ALSO])
    wide = {operator: in_float32(function) for operator, function in get_decompositions([torch.ops.aten.grid_sampler_2d]).items()}
    table = {**core_aten_decompositions(), **more, **wide}
    taken = {operator: unless_refused(operator, function) for operator, function in table.items() if not is_kept(str(operator))}
    packets = {getattr(torch.ops.aten, name): count for name, count in MIXED.items()}
    norms = {getattr(packet, name): count for packet, count in packets.items() for name in packet.overloads() if "out" not in name}
    taken |= fused_layers()
    return taken | {operator: mixed(operator, count, taken.get(operator)) for operator, count in norms.items()}


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition that computes 16-bit floats in float32 and rounds once, as torch's own kernel does."""

    @functools.wraps(function)
    def widened(x: Any, *arguments: Any, **keywords: Any) -> Any:
        if not x.dtype.is_floating_point or x.dtype.itemsize > 2:
            return function(x, *arguments, **keywords)
        return function(*map(_widened, (x, *arguments)), **keywords).to(x.dtype)

    return widened


def _widened(argument: Any) -> Any:
    """A float of 16 bits as float32."""
    is_narrow = hasattr(argument, "dtype") and argument.dtype.is_floating_point and argument.dtype.itemsize <= 2
    return argument.float() if is_narrow else argument


def mixed(operator: Callable[..., Any], count: int, decomposition: Callable[..., Any] | None) -> Callable[..., Any]:
    """A norm whose first `count` operands are floats of 16 bits and its weights float32, in float32: its statistics are float32,
    which torch's trace does not say. Any other is taken apart as it is, if it is at all.
    """

    def widened(*arguments: Any) -> Any:
        import torch

        weights = [argument for argument in arguments[count:] if isinstance(argument, torch.Tensor)]
        dtype = arguments[0].dtype
        if dtype.itemsize > 2 or all(weight.dtype == dtype for weight in weights):
            return NotImplemented if decomposition is None else decomposition(*arguments)
        result, *rest = operator(*map(_widened, arguments))
        return (None if result is None else result.to(dtype), *rest)

    return widened


def is_kept(operator: str) -> bool:
    """Whether an operator stays whole."""
    name = operator.removeprefix("aten.")
    return name.startswith(KEPT) or (find_rule(operator) is not None and not operator.endswith((".out", "_out")))
