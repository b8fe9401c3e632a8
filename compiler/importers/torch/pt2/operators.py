"""Which functions a `.pt2` may name: ATen, prims and quantizers' operators, branches, loops, arithmetic on sizes; all else is refused."""

from __future__ import annotations

import math
import operator
import re
from typing import Any

from .....ir.errors import ModelError, Source, UnsupportedError
from ..context import QUANTIZED

_ATEN = re.compile(rf"torch\.ops\.(aten|prims|{QUANTIZED})\.([A-Za-z_][A-Za-z0-9_]*)\.([A-Za-z_][A-Za-z0-9_]*)")
_ARITHMETIC = (
    "add",
    "sub",
    "mul",
    "floordiv",
    "truediv",
    "mod",
    "neg",
    "pos",
    "pow",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "and_",
    "or_",
    "xor",
    "not_",
    "getitem",
)
_ROUNDINGS = ("trunc", "floor", "ceil")
_SIZES = ("sym_max", "sym_min", "sym_int", "sym_float", "sym_not", "sym_ite", "sym_sum", "sym_sqrt")
INLINED = ("torch.ops.higher_order.wrap_with_set_grad_enabled", "torch.ops.higher_order.wrap_with_autocast")
"""Wrappers that change nothing here: gradients are off, and casts stand in the graph they wrap."""
CONTROL = ("cond", "while_loop")
"""What runs graphs as the data decide."""
# These reach outside the program.
_DENIED = frozenset({"from_file", "_print"})


def resolve(target: str, source: Source) -> Any:
    """The function of that name; UnsupportedError or ModelError says why there is none."""
    import torch

    module, _, name = target.rpartition(".")
    if module in ("_operator", "operator") and name in _ARITHMETIC:
        return getattr(operator, name)
    if module == "math" and name in _ROUNDINGS:
        return getattr(math, name)
    if module == "torch" and name in _SIZES:
        return getattr(torch, name)
    if target.startswith("torch.ops.higher_order.") and name in CONTROL:
        return getattr(torch.ops.higher_order, name)
    if target.startswith("torch.ops.higher_order."):
        raise UnsupportedError(
            f"{target[:120]!r} is control flow, which has no form here", source=source, hint="compute both sides and use torch.where"
        )
    match = _ATEN.fullmatch(target)
    if match is None:
        raise UnsupportedError(f"the operator {target[:120]!r} is not torch's own", source=source, hint="decompose it before the export")
    namespace, packet, overload = match.groups()
    if namespace == QUANTIZED:
        import torch.ao.quantization.fx._decomposed  # which declares them
    found = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload, None)
    if packet in _DENIED or not isinstance(found, torch._ops.OpOverload):
        raise ModelError(f"there is no operator {target[:120]!r}", source=source, hint="the file may come from another version of torch")
    return found
