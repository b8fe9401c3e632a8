"""Which ATen ops AOTAutograd and torch.export take apart: those that have a decomposition and no rule here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from . import rules
from .context import find_rule
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

# Norms whose weights may be float32 where their operand has 16 bits, as under autocast on the CPU.
MIXED = ("native_layer_norm", "native_group_norm")


@functools.cache
def decompositions() -> Mapping[Any, Any]:
    """The table for AOTAutograd."""
    import torch
    from torch._decomp import core_aten_decompositions, get_decompositions

    more = get_decompositions([getattr(torch.ops.aten, name) for name in ALSO])
    wide = {operator: in_float32(function) for operator, function in get_decompositions([torch.ops.aten.grid_sampler_2d]).items()}
    table = {**core_aten_decompositions(), **more, **wide}
    norms = {getattr(torch.ops.aten, name).default: mixed(getattr(torch.ops.aten, name).default) for name in MIXED}
    taken = {**{operator: function for operator, function in table.items() if not is_kept(str(operator))}, **norms}
    return {operator: unless_refused(operator, function) for operator, function in taken.items()}


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition that computes 16-bit floats in float32 and rounds once, as torch's own kernel does."""

    @functools.wraps(function)
    def widened(x: Any, *arguments: Any, **keywords: Any) -> Any:
        if not x.dtype.is_floating_point or x.dtype.itemsize > 2:
            return function(x, *arguments, **keywords)
        wide = [argument.float() if hasattr(argument, "dtype") else argument for argument in (x, *arguments)]
        return function(*wide, **keywords).to(x.dtype)

    return widened


def mixed(operator: Callable[..., Any]) -> Callable[..., Any]:
    """A norm of 16-bit floats with float32 weights, in float32: its statistics are float32, which torch's trace does not say."""

    def widened(x: Any, *arguments: Any) -> Any:
        import torch

        weights = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        if x.dtype.itemsize > 2 or all(weight.dtype == x.dtype for weight in weights):
            return NotImplemented
        result, mean, deviation = operator(x.float(), *arguments)
        return result.to(x.dtype), mean, deviation

    return widened


def is_kept(operator: str) -> bool:
    """Whether an operator stays whole."""
    name = operator.removeprefix("aten.")
    return name.startswith(KEPT) or (find_rule(operator) is not None and not operator.endswith((".out", "_out")))
