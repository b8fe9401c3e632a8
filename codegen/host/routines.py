"""Host routines in C: the files beside this module, each the body of one op of `ir/plan/steps.py`'s `IN_C`, and what runs a GPU's plan.

A routine runs as a kernel does. It is given its operands and results in order, and numbers instead of the sizes of a kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from ...ir import dims
from ...ir.dims import Dim
from ...ir.ops.table import OPS
from ...ir.types import DType, TensorType

LAUNCHES = "launches"
"""The interpreter of what `runtime/launches.py` writes."""

Asked = tuple[Dim, tuple[Dim, ...]]
"""The points of a routine, and its numbers."""

_UNSIGNED, _SIGNED, _FLOAT, _FLOAT_OF_ONE_ZERO = range(4)
"""As `order.h` has them."""
_FLOATS = {
    **{"f64": (_FLOAT, 0x7FF << 52), "f32": (_FLOAT, 0xFF << 23), "f16": (_FLOAT, 0x1F << 10), "bf16": (_FLOAT, 0xFF << 7)},
    **{"f8e4m3": (_FLOAT, 0x7E), "f8e5m2": (_FLOAT, 0x7C), "f4e2m1": (_FLOAT, 7), "f8e8m0": (_UNSIGNED, 0)},
    **dict.fromkeys(("f8e4m3fnuz", "f8e5m2fnuz"), (_FLOAT_OF_ONE_ZERO, 0x7F)),
}
"""The kind of each float, and the largest magnitude, as an integer, that is a number; NaN of f8e8m0 is the largest integer anyway."""


def routine(name: str) -> str:
    """The C file that defines a routine, as a kernel with the routine's name; what it includes of this folder is put in its place."""
    return _text(f"{name}.c")


def _text(name: str) -> str:
    text = files(__package__).joinpath(name).read_text(encoding="ascii")
    return re.sub(r'^#include "((?!ourcc)\w+\.h)"\n', lambda found: _text(found[1]), text, flags=re.MULTILINE)


def asked(name: str, types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Asked:
    """What a routine is asked for on operands and results of some types."""
    return _ASKED[name](types, OPS[name].complete(attrs))


def _sample_token(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Asked:
    """A row of logits for each point; the sizes of all operands and results."""
    return types[0].shape[0], tuple(size for type in types for size in type.shape)


def _top_k(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Asked:
    return _best(types[0], attrs["axis"], attrs["k"], attrs["largest"])


def _sort(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Asked:
    return _best(types[0], attrs["axis"], types[0].shape[attrs["axis"]], attrs["descending"])


def _best(x: TensorType, axis: int, kept: Dim, descending: bool) -> Asked:
    """A line for each point; all lines where they share bytes."""
    axis %= x.rank
    outer, inner = dims.product(x.shape[:axis]), dims.product(x.shape[axis + 1 :])
    return outer * inner if x.dtype.bits >= 8 else 1, (outer, x.shape[axis], inner, kept, int(descending), *_order(x.dtype))


def _search_sorted(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Asked:
    """An element for each point."""
    boundaries, x, _ = types
    return x.elements, (boundaries.elements, int(attrs["right"]), *_order(x.dtype))


def _order(dtype: DType) -> tuple[int, int, int]:
    """The bits, the kind and the largest magnitude of a number: how elements are put in order."""
    return dtype.bits, *(_FLOATS[dtype.name] if dtype.is_float else (_SIGNED if dtype.kind == "int" else _UNSIGNED, 0))


_ASKED: dict[str, Callable[[Sequence[TensorType], Mapping[str, Any]], Asked]] = {
    "sample_token": _sample_token,
    "top_k": _top_k,
    "sort": _sort,
    "search_sorted": _search_sorted,
}
