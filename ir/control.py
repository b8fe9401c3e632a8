"""What control flow does: a branch runs one of two functions of its module, a loop one of them again and again.

The bodies are functions like any other: what they read stands among their inputs, so nothing crosses the border unseen.
Whoever runs a program, be it graph, plan or engine, brings `call`, which runs one of its functions; what happens in
between is here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from .dims import Dim
from .errors import InputError
from .types import DType

Array = np.ndarray[Any, Any]
CallFunction: TypeAlias = Callable[[str, Sequence[Array]], Sequence[Array]]

LIMIT = 1_000_000
"""A loop that has run so often ends in an error: it would hardly end by itself."""


def functions_of(name: str, attrs: Mapping[str, Any]) -> tuple[str, ...]:
    """The functions that an op of this name and these attributes runs."""
    if name == "branch":
        return attrs["then"], attrs["otherwise"]
    return (attrs["body"],) if name == "loop" else ()


def run_control(name: str, attrs: Mapping[str, Any], operands: Sequence[Array | None], call: CallFunction) -> list[Array]:
    """The results of `branch` or `loop`, whose functions `call` runs."""
    if name == "branch":
        condition, *rest = (operand for operand in operands if operand is not None)
        return list(call(attrs["then"] if bool(condition) else attrs["otherwise"], rest))
    return _run_loop(attrs, operands, call)


def _run_loop(attrs: Mapping[str, Any], operands: Sequence[Array | None], call: CallFunction) -> list[Array]:
    count, condition, *rest = (operand for operand in operands if operand is not None)
    carried, captured = rest[: attrs["carried"]], rest[attrs["carried"] :]
    goes_on, most = bool(condition), int(count)
    rows: list[list[Array]] = [[] for _ in attrs["dtypes"][attrs["carried"] :]]
    done = 0
    while goes_on and done < most:
        if done == LIMIT:
            hint = "does its condition ever become false? give the loop a count"
            raise InputError(f"a loop has run {LIMIT} times without an end", hint=hint)
        after, *results = call(attrs["body"], [np.asarray(done, np.int64), np.asarray(True), *carried, *captured])
        carried = results[: attrs["carried"]]
        for kept, row in zip(rows, results[attrs["carried"] :], strict=True):
            if kept and row.shape != kept[0].shape:
                raise InputError(f"a loop collects rows of one shape: got {list(row.shape)} in round {done}, {list(kept[0].shape)} before")
            kept.append(row)
        goes_on = bool(after)
        done += 1
    stacked = zip(rows, attrs["dtypes"][attrs["carried"] :], attrs["shapes"][attrs["carried"] :], strict=True)
    return [*carried, *(np.stack(kept) if kept else _no_rows(dtype, shape) for kept, dtype, shape in stacked)]


def _no_rows(dtype: DType, shape: tuple[Dim, ...]) -> Array:
    """The rows of a loop that never ran; sizes that only a round would tell are 0."""
    return np.zeros((0, *(size if isinstance(size, int) else 0 for size in shape[1:])), dtype.numpy)
