"""Which ATen ops AOTAutograd and torch.export take apart: those that have a decomposition and no rule here."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from . import rules
from .context import find_rule

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
# Taken apart although torch's own core set keeps them: backward halves of layers.
ALSO = ("native_layer_norm_backward", "embedding_dense_backward", "native_group_norm_backward", "native_batch_norm_backward")


@functools.cache
def decompositions() -> Mapping[Any, Any]:
    """The table for AOTAutograd."""
    import torch
    from torch._decomp import core_aten_decompositions, get_decompositions

    more = get_decompositions([getattr(torch.ops.aten, name) for name in ALSO])
    table = {**core_aten_decompositions(), **more}
    return {operator: function for operator, function in table.items() if not is_kept(str(operator))}


def is_kept(operator: str) -> bool:
    """Whether an operator stays whole."""
    name = operator.removeprefix("aten.")
    return name.startswith(KEPT) or (find_rule(operator) is not None and not operator.endswith((".out", "_out")))
