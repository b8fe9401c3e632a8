"""Calls back into the framework that a model came from: opaque ops whose meaning lies outside the program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..dims import Dim
from ..errors import UnsupportedError, VerifyError
from ..types import DType, TensorType, f32, i64
from .sampling import draw, refused
from .table import Sample, bound, opaque

Tensor = np.ndarray[Any, Any]


@opaque(traits=("impure",))
def aten_call(
    *xs: Tensor, target: str, key: int, dtypes: tuple[DType, ...], shapes: tuple[tuple[Dim, ...], ...], why: str
) -> tuple[Tensor, ...]:
    """The ATen operator `target`, run by torch itself; `key` finds its other arguments, `why` says what is missing.

    Results have `dtypes` and `shapes`; a size that is a fresh symbol is bound by the call. Results that hold no
    elements, as those of a call for its side effect, have a value without torch.
    """
    if all(0 in shape for shape in shapes):
        return tuple(np.empty(bound(shape), dtype.numpy) for dtype, shape in zip(dtypes, shapes, strict=True))
    raise UnsupportedError(f"{target} is a call back into torch: {why}", hint="run the program under torch.compile")


@aten_call.infers
def _(
    *xs: TensorType, target: str, key: int, dtypes: tuple[DType, ...], shapes: tuple[tuple[Dim, ...], ...], why: str
) -> tuple[TensorType, ...]:
    if not dtypes or len(dtypes) != len(shapes):
        raise VerifyError(f"aten_call: got {len(dtypes)} dtypes and {len(shapes)} shapes, expected one of each for every result")
    return tuple(TensorType(dtype, tuple(shape)) for dtype, shape in zip(dtypes, shapes, strict=True))


@aten_call.samples
def _() -> Iterator[Sample]:
    attrs = {"target": "aten.frob.default", "key": 0, "why": "no rule"}
    yield Sample((draw(2, 3),), {**attrs, "dtypes": (f32, i64), "shapes": ((0, 3), (0,))})
    yield refused(
        (draw(2),), "got 2 dtypes and 1 shapes, expected one of each for every result", **attrs, dtypes=(f32, i64), shapes=((2,),)
    )
    yield refused((draw(2),), "got 0 dtypes and 0 shapes", **attrs, dtypes=(), shapes=())
