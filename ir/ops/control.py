"""Control flow: ops that run functions of their module, as the data say; `ir/control.py` has what they do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..dims import Dim
from ..errors import UnsupportedError, VerifyError
from ..types import DType, TensorType, boolean, f32, i64
from .sampling import draw, refused
from .table import Sample, bound, opaque

Tensor = np.ndarray[Any, Any]
Shapes: TypeAlias = tuple[tuple[Dim, ...], ...]


ENDLESS = 2**63 - 1
"""The count of a loop that only its condition ends."""


@opaque(traits=("impure",))
def branch(*xs: Tensor, then: str, otherwise: str, dtypes: tuple[DType, ...], shapes: tuple[tuple[Dim, ...], ...]) -> tuple[Tensor, ...]:
    """Where the first operand, a bool, is true, what the function `then` gives for the others, else what `otherwise` gives.

    Results have `dtypes` and `shapes`; a size that is a fresh symbol is bound by the function that ran.
    """
    return _empty("branch", dtypes, shapes)


@branch.infers
def _(*xs: TensorType, then: str, otherwise: str, dtypes: tuple[DType, ...], shapes: tuple[tuple[Dim, ...], ...]) -> tuple[TensorType, ...]:
    if xs[:1] != (TensorType(boolean, ()),):
        raise VerifyError(f"branch: got the condition {xs[0] if xs else 'nothing'}, expected bool[]")
    return _results("branch", dtypes, shapes)


@branch.samples
def _() -> Iterator[Sample]:
    attrs = {"then": "yes", "otherwise": "no"}
    yield Sample((np.asarray(True), draw(3)), {**attrs, "dtypes": (f32,), "shapes": ((0, 3),)})
    yield refused((draw(1, dtype=boolean),), "got the condition bool[1], expected bool[]", **attrs, dtypes=(f32,), shapes=((2,),))
    yield refused((np.asarray(True),), "got 1 dtypes and 0 shapes", **attrs, dtypes=(f32,), shapes=())


@opaque(traits=("impure",))
def loop(*xs: Tensor, body: str, carried: int, dtypes: tuple[DType, ...], shapes: tuple[tuple[Dim, ...], ...]) -> tuple[Tensor, ...]:
    """Run the function `body` at most as often as the first operand, an i64, says, while the second one, a bool, is true.

    The body takes the number of the round, the condition, the `carried` values and the operands after these; it gives the
    next condition, the next carried values, and a row for each further result, whose rows are stacked.
    """
    return _empty("loop", dtypes, shapes)


@loop.infers
def _(*xs: TensorType, body: str, carried: int, dtypes: tuple[DType, ...], shapes: tuple[tuple[Dim, ...], ...]) -> tuple[TensorType, ...]:
    if xs[:2] != (TensorType(i64, ()), TensorType(boolean, ())):
        raise VerifyError(f"loop: got the count and condition {', '.join(map(str, xs[:2])) or 'nothing'}, expected i64[], bool[]")
    if not 0 <= carried <= min(len(xs) - 2, len(dtypes)):
        raise VerifyError(f"loop: got {carried} carried values of {len(xs) - 2} operands and {len(dtypes)} results")
    return _results("loop", dtypes, shapes)


@loop.samples
def _() -> Iterator[Sample]:
    attrs = {"body": "body", "carried": 1}
    head = (np.asarray(3), np.asarray(True))
    yield Sample((*head, draw(0, 3)), {**attrs, "dtypes": (f32, f32), "shapes": ((0, 3), (0, 2))})
    yield refused(
        (np.asarray(3), draw(), draw(3)),
        "got the count and condition i64[], f32[], expected i64[], bool[]",
        **attrs,
        dtypes=(f32,),
        shapes=((3,),),
    )
    yield refused(head, "got 1 carried values of 0 operands and 1 results", **attrs, dtypes=(f32,), shapes=((3,),))


def result_attrs(types: Sequence[TensorType]) -> dict[str, Any]:
    """The attributes that say of which types the results are."""
    return {"dtypes": tuple(type.dtype for type in types), "shapes": tuple(type.shape for type in types)}


def _empty(op: str, dtypes: tuple[DType, ...], shapes: Shapes) -> tuple[Tensor, ...]:
    """Results that hold no elements have a value without the module."""
    if all(0 in shape for shape in shapes):
        return tuple(np.empty(bound(shape), dtype.numpy) for dtype, shape in zip(dtypes, shapes, strict=True))
    raise UnsupportedError(f"{op} runs functions of its module, which are not at hand")


def _results(op: str, dtypes: tuple[DType, ...], shapes: Shapes) -> tuple[TensorType, ...]:
    if len(dtypes) != len(shapes):
        raise VerifyError(f"{op}: got {len(dtypes)} dtypes and {len(shapes)} shapes, expected one of each for every result")
    return tuple(TensorType(dtype, tuple(shape)) for dtype, shape in zip(dtypes, shapes, strict=True))
