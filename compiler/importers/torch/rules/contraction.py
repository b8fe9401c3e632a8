"""Rules for matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .....ir import dims
from .....ir.dims import Dim
from .....ir.graph import Value
from ..context import Node, aten


def product(n: Node, a: Value, b: Value) -> Value:
    """a @ b in the result's dtype."""
    result = n.b.matmul(n.cast(a, n.dtype), n.cast(b, n.dtype))
    return n.cast(result, n.dtype)


@aten("mm", "bmm", "matmul")
def _mm(n: Node, a: Value, b: Value, *_: Any) -> Value:
    left = a if a.type.rank > 1 else n.reshape(a, (1, *a.shape))
    right = b if b.type.rank > 1 else n.reshape(b, (*b.shape, 1))
    return n.reshape(product(n, left, right), n.shape)


@aten("_int_mm")
def _int_mm(n: Node, a: Value, b: Value) -> Value:
    """Bytes, whose products are added up in 32 bits."""
    return n.cast(n.b.matmul(a, b), n.dtype)


@aten("addmm", "baddbmm")
def _addmm(n: Node, bias: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    if alpha == 1 and beta in (0, 1):
        result = product(n, a, b)
        return result if beta == 0 else n.b.add(result, n.cast(bias, n.dtype))
    # Factors of products of narrow floats are float32, and the sum is rounded once.
    wide = n.dtype.compute
    left, right = n.values(a, b)
    total: Value = n.b.mul(n.cast(n.b.matmul(left, right, wide=wide != n.dtype), wide), n.value(alpha, wide))
    if beta != 0:
        total = n.b.add(total, n.b.mul(n.cast(bias, wide), n.value(beta, wide)))
    return n.cast(total, n.dtype)


@aten("linear")
def _linear(n: Node, x: Value, weight: Value, bias: Value | None = None) -> Value:
    if weight.type.rank != 2 or not x.type.rank:
        raise n.fail("the weight is not a matrix")
    rows = x if x.type.rank > 1 else n.reshape(x, (1, *x.shape))
    result = n.reshape(n.b.matmul(rows, weight, transpose_b=True), n.shape)
    return result if bias is None else n.b.add(result, bias)


@aten("_grouped_mm")
def _grouped_mm(n: Node, a: Value, b: Value, offs: Value | None = None, bias: Value | None = None, out_dtype: Any = None) -> Value:
    """Groups end at `offs`: of the rows of a matrix, of the columns of the second one, or a batch of products; rows of no group are 0."""
    if bias is not None:
        raise n.fail("a bias has no form here, expected none")
    ranks = a.type.rank, b.type.rank
    if ranks == (3, 3) and offs is None:
        return product(n, a, b)
    if offs is not None and ranks == (2, 3):
        return n.cast(n.b.grouped_matmul(a, b, offs), n.dtype)
    if offs is not None and ranks == (3, 2):
        rows: Value = n.b.grouped_matmul(n.permute(b, (1, 0)), n.permute(a, (0, 2, 1)), offs)
        return n.cast(n.permute(rows, (1, 0)), n.dtype)
    raise n.fail(f"got {a.type} and {b.type}, expected groups of rows (2-D by 3-D), of columns (3-D by 2-D) or a batch (3-D by 3-D)")


@aten("mv")
def _mv(n: Node, a: Value, b: Value) -> Value:
    return n.reshape(product(n, a, n.reshape(b, (*b.shape, 1))), n.shape)


@aten("dot")
def _dot(n: Node, a: Value, b: Value) -> Value:
    return n.reshape(product(n, n.reshape(a, (1, *a.shape)), n.reshape(b, (*b.shape, 1))), ())


@aten("_trilinear")
def _trilinear(
    n: Node,
    a: Value,
    b: Value,
    c: Value,
    a_lacks: tuple[int, ...],
    b_lacks: tuple[int, ...],
    c_lacks: tuple[int, ...],
    summed: tuple[int, ...],
    unrolled: int = 1,
) -> Value:
    """The sum over some axes of a * b * c, each without the axes that it lacks: b with c first, as far as a has no part in it."""
    rank, wide = a.type.rank + len(a_lacks), n.dtype.compute
    first, second, third = (
        _Axes(n.cast(x, wide), tuple(axis for axis in range(rank) if axis not in {n.axis(lack, rank) for lack in lacks}))
        for x, lacks in ((a, a_lacks), (b, b_lacks), (c, c_lacks))
    )
    folded = frozenset(n.axis(axis, rank) for axis in summed)
    inner = _contracted(n, second, third, folded - set(first.names))
    whole = _contracted(n, first, inner, folded)
    order = sorted(whole.names)
    return n.reshape(n.cast(n.permute(whole.value, [whole.names.index(axis) for axis in order]), n.dtype), n.shape)


@dataclass(frozen=True)
class _Axes:
    """A tensor whose axes have names."""

    value: Value
    names: tuple[int, ...]

    def size(self, name: int) -> Dim:
        return self.value.shape[self.names.index(name)]


def _contracted(n: Node, a: _Axes, b: _Axes, summed: frozenset[int]) -> _Axes:
    """The sum over `summed` of the products of two tensors: one batched product of matrices."""
    a, b = _without(n, a, summed - set(b.names)), _without(n, b, summed - set(a.names))
    both = [name for name in a.names if name in b.names]
    batch, inner = [name for name in both if name not in summed], [name for name in both if name in summed]
    rows, columns = [name for name in a.names if name not in both], [name for name in b.names if name not in both]
    product: Value = n.b.matmul(_matrices(n, a, batch, rows, inner), _matrices(n, b, batch, columns, inner), transpose_b=True)
    names = (*batch, *rows, *columns)
    return _Axes(n.reshape(product, [(a if name in a.names else b).size(name) for name in names]), names)


def _without(n: Node, x: _Axes, gone: frozenset[int]) -> _Axes:
    """The sum over the axes that the other factor does not have."""
    found = [place for place, name in enumerate(x.names) if name in gone]
    return _Axes(n.b.sum(x.value, axes=tuple(found)), tuple(name for name in x.names if name not in gone)) if found else x


def _matrices(n: Node, x: _Axes, batch: Sequence[int], rows: Sequence[int], inner: Sequence[int]) -> Value:
    """The tensor as [batch, rows, inner]: one axis of rows, one that is summed over."""
    lead = [x.size(name) for name in batch]
    sizes = [dims.product([x.size(name) for name in group]) for group in (rows, inner)]
    return n.reshape(n.permute(x.value, [x.names.index(name) for name in (*batch, *rows, *inner)]), (*lead, *sizes))


@aten("convolution")
def _convolution(
    n: Node,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: tuple[int, ...],
    padding: tuple[Any, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[Any, ...],
    groups: int,
) -> Value:
    rank = weight.type.rank - 2
    if x.type.rank != weight.type.rank:
        raise n.fail(f"got {x.type} and {weight.type}, expected one rank")
    strides, amounts, dilations, extra = (_each(values, rank) for values in (stride, padding, dilation, output_padding))
    attrs = {"strides": strides, "dilations": dilations, "before": amounts, "after": amounts, "groups": groups}
    if transposed:
        result: Value = n.b.conv_transpose(x, weight, bias, output_padding=extra, **attrs)
        return result
    result = n.b.conv(x, weight, bias, **attrs)
    return result


def _each(values: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    return tuple(values) * rank if len(values) == 1 else tuple(values)
