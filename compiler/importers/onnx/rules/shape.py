"""Rules that read and change shapes: Shape, Reshape, Expand and what is written with them."""

from __future__ import annotations

from .....ir import dims
from .....ir.dims import Dim
from .....ir.errors import UnsupportedError
from .....ir.graph import Value
from .....ir.types import i64
from ... import moves
from ..broadcasting import common_size, note, repeated
from ..context import Node, rule


@rule("Shape")
def _shape(n: Node) -> Value:
    rank = n.rank()
    start, end = (_clamped(n.attr_int(name, default), rank) for name, default in (("start", 0), ("end", rank)))
    return n.b.sizes(n.x().shape[start:end])


def _clamped(axis: int, rank: int) -> int:
    return min(max(axis + rank if axis < 0 else axis, 0), rank)


@rule("Size")
def _size(n: Node) -> Value:
    elements = n.x().type.elements
    if isinstance(elements, int):
        return n.b.scalar(elements, i64)
    result: Value = n.b.dim(value=elements)
    return result


@rule("Reshape")
def _reshape(n: Node) -> Value:
    x = n.x(0)
    wanted: tuple[Dim, ...] = n.sizes(1, "the shape") if n.opset >= 5 else tuple(n.attr_ints("shape") or ())
    return reshape(n, x, wanted, n.attr_flag("allowzero"))


def reshape(n: Node, x: Value, wanted: tuple[Dim, ...], allow_zero: bool = False) -> Value:
    """ONNX's reshape: 0 keeps a size, -1 is what is left."""
    shape = list(wanted)
    for axis, size in enumerate(shape):
        if size == 0 and not allow_zero:
            if axis >= x.type.rank:
                raise n.fail(f"size 0 at axis {axis} keeps a size that rank {x.type.rank} does not have")
            shape[axis] = x.shape[axis]
    unknown = [axis for axis, size in enumerate(shape) if size == -1]
    if len(unknown) > 1 or any(isinstance(size, int) and size < -1 for size in shape):
        raise n.fail(f"shape {[str(s) for s in wanted]} is not valid")
    if unknown:
        rest = dims.product(size for axis, size in enumerate(shape) if axis != unknown[0])
        if rest == 0:
            raise n.fail(f"size -1 in {[str(s) for s in wanted]} is ambiguous, another size is 0")
        shape[unknown[0]] = _quotient(n, x.type.elements, rest)
    return moves.reshape(n.b, x, shape)


def _quotient(n: Node, total: Dim, rest: Dim) -> Dim:
    if isinstance(total, int) and isinstance(rest, int):
        if total % rest:
            raise n.fail(f"{total} elements do not divide into groups of {rest}")
        return total // rest
    quotient = dims.simplify(total // rest, n.facts)
    if dims.equal(quotient * rest, total, n.facts) is not True:
        raise UnsupportedError(
            f"{total} elements are not known to divide into groups of {rest}", hint="fix or relate the symbolic sizes at import (shapes)"
        )
    return quotient


@rule("Flatten")
def _flatten(n: Node) -> Value:
    x, axis = n.x(), n.attr_int("axis", 1)
    rank = x.type.rank
    if not -rank <= axis <= rank:
        raise n.fail(f"axis {axis} is out of range for rank {rank}")
    axis = axis + rank if axis < 0 else axis
    result: Value = n.b.reshape(x, shape=(dims.product(x.shape[:axis]), dims.product(x.shape[axis:])))
    return result


@rule("Squeeze")
def _squeeze(n: Node) -> Value:
    x = n.x()
    axes = _axes_operand(n)
    if axes is None:
        if not all(isinstance(size, int) for size in x.shape):
            raise UnsupportedError("removes all sizes 1 of a symbolic shape", hint="name the axes in the model")
        axes = tuple(axis for axis, size in enumerate(x.shape) if size == 1)
    axes = n.axes(axes, x.type.rank)
    for axis in axes:
        if dims.equal(x.shape[axis], 1, n.facts) is False:
            raise n.fail(f"axis {axis} has size {x.shape[axis]}, expected 1")
        if x.shape[axis] != 1:
            raise UnsupportedError(
                f"axis {axis} has size {x.shape[axis]}, which is not known to be 1", hint="fix that size at import (shapes)"
            )
    result: Value = n.b.reshape(x, shape=tuple(size for axis, size in enumerate(x.shape) if axis not in axes))
    return result


@rule("Unsqueeze")
def _unsqueeze(n: Node) -> Value:
    x = n.x()
    axes = _axes_operand(n)
    if axes is None:
        raise n.fail("axes are missing")
    return unsqueeze(n, x, axes)


def unsqueeze(n: Node, x: Value, axes: tuple[int, ...]) -> Value:
    """x with sizes 1 at `axes` of the result."""
    rank = x.type.rank + len(axes)
    axes = n.axes(axes, rank)
    sizes = iter(x.shape)
    result: Value = n.b.reshape(x, shape=tuple(1 if axis in axes else next(sizes) for axis in range(rank)))
    return result


def _axes_operand(n: Node) -> tuple[int, ...] | None:
    """Axes: an attribute before opset 13, an operand since."""
    if n.opset < 13:
        return n.attr_ints("axes")
    return n.integers(1, "axes") if n.given(1) else None


@rule("Expand")
def _expand(n: Node) -> Value:
    x = n.x()
    return expand(n, x, n.sizes(1, "the shape"))


def expand(n: Node, x: Value, wanted: tuple[Dim, ...]) -> Value:
    """Broadcasting in both directions: a size 1 of either side takes the other's."""
    rank = max(x.type.rank, len(wanted))
    have = (*(1,) * (rank - x.type.rank), *x.shape)
    want = (*(1,) * (rank - len(wanted)), *wanted)
    shape: list[Dim] = []
    for mine, other in zip(have, want, strict=True):
        if mine == 1 or other == 1:
            shape.append(other if mine == 1 else mine)
        elif dims.equal(mine, other, n.facts) is True:
            shape.append(mine)
        elif isinstance(mine, int) and isinstance(other, int):
            raise n.fail(f"sizes {mine} and {other} do not broadcast")
        else:
            common = common_size(mine, other, n.facts)
            if common is None:
                raise UnsupportedError(f"sizes {mine} and {other} are not known to broadcast", hint="relate them at import (shapes)")
            note(n.b.module, mine, other)
            shape.append(common)
    x = repeated(n.b, x, shape)
    return moves.broadcast(n.b, x, shape)


@rule("Tile")
def _tile(n: Node) -> Value:
    x = n.x()
    if n.opset < 6:
        axis, times = n.integers(2, "the axis")[0], n.sizes(1, "the repeats")[0]
        repeats: tuple[Dim, ...] = tuple(times if a == axis else 1 for a in range(x.type.rank))
    else:
        repeats = n.sizes(1, "the repeats")
    if len(repeats) != x.type.rank:
        raise n.fail(f"got {len(repeats)} repeats, expected one for each of {x.type.rank} axes")
    return tile(n, x, repeats)


def tile(n: Node, x: Value, repeats: tuple[Dim, ...]) -> Value:
    """x repeated along each axis."""
    if all(times == 1 for times in repeats):
        return x
    split: list[Dim] = []
    wide: list[Dim] = []
    for size, times in zip(x.shape, repeats, strict=True):
        split += [1, size] if times != 1 else [size]
        wide += [times, size] if times != 1 else [size]
    spread = n.b.broadcast_to(n.b.reshape(x, shape=tuple(split)), shape=tuple(wide))
    result: Value = n.b.reshape(spread, shape=tuple(size * times for size, times in zip(x.shape, repeats, strict=True)))
    return result


@rule("Range")
def _range(n: Node) -> Value:
    dtype = n.x(0).dtype
    if dtype.is_float:
        start, limit, delta = (
            float(n.array(position, what).reshape(-1)[0]) for position, what in enumerate(("the start", "the limit", "the step"))
        )
        if delta == 0:
            raise n.fail("step is 0")
        count: Dim = max(int(-((limit - start) // -delta)), 0)
        index = n.b.cast(n.b.iota(shape=(count,), axis=0, dtype=i64), dtype=dtype)
        result: Value = n.b.add(n.b.mul(index, delta), start)
        return result
    first, end, step = (n.sizes(position, what)[0] for position, what in enumerate(("the start", "the limit", "the step")))
    if not isinstance(step, int):
        raise UnsupportedError("step is symbolic", hint="make it a constant of the model")
    if step == 0:
        raise n.fail("step is 0")
    count = dims.ceil_div(end - first, step) if step > 0 else dims.ceil_div(first - end, -step)
    count = dims.simplify(dims.maximum(count, 0), n.facts)
    index = n.b.iota(shape=(count,), axis=0, dtype=dtype)
    index = index if step == 1 else n.b.mul(index, step)
    if first == 0:
        return index  # type: ignore[no-any-return]
    offset = n.b.scalar(first, dtype) if isinstance(first, int) else n.b.cast(n.b.dim(value=first), dtype=dtype)
    result = n.b.add(index, offset)
    return result
