"""A builder that knows values: small integers as dimensions, small constants folded, so that shapes stay symbolic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ....ir import dims
from ....ir.dims import Dim
from ....ir.errors import CompilerError, ParseError, Source
from ....ir.expression import literal
from ....ir.graph import Builder, Graph, Module, Value
from ....ir.ops import table
from ....ir.ops.table import OpDef
from ....ir.types import DTYPES, DType, boolean, i64
from .broadcasting import aligned

# What one known value, and all folding of one import, may hold.
KNOWN_ELEMENTS = 4096
FOLDED_ELEMENTS = 1 << 26
CALL = 2048
"""Computing an op at all takes as long as so many elements."""

Known: TypeAlias = np.ndarray[Any, Any]  # of objects: dimensions, or bools for a boolean value

# Low precision stays explicit: passes decide what happens to it.
KEPT = frozenset({"quantize", "dequantize", "dim"})


class FoldingBuilder(Builder):
    """Builds ops; what is computed from constants and sizes alone is computed now."""

    def __init__(self, module: Module, graph: Graph, source: Source | None = None) -> None:
        super().__init__(module, graph, source=source)
        self.known: dict[Value, Known] = {}
        self.scalars: dict[tuple[str, str], Value] = {}
        self.folded = 0

    def build(self, definition: OpDef, operands: Sequence[Any], attrs: Mapping[str, Any], names: Sequence[str] = ()) -> tuple[Value, ...]:
        results = super().build(definition, self._broadcast(definition, operands), attrs, names)
        folded = self._fold(results)
        if folded is not None:
            return folded
        if len(results) != 1:
            return results
        self._learn(results[0])
        return (self._shortest(results[0]),)

    def _broadcast(self, definition: OpDef, operands: Sequence[Any]) -> Sequence[Any]:
        """The operands with the sizes made equal that may be 1 when the program runs."""
        skipped = 0 if definition.kind == "pointwise" else 2 if definition.name == "matmul" else None
        if skipped is None or len(operands) < 2:
            return operands
        values = [operand if isinstance(operand, Value) else None for operand in operands]
        return [other if value is None else value for value, other in zip(aligned(self, values, skipped), operands, strict=True)]

    def _shortest(self, result: Value) -> Value:
        """A known value without the arithmetic that led to it: a constant, or one size."""
        known = self.known.get(result)
        if known is None:
            return result
        if not any(isinstance(part, dims.Expr) for part in known.flat):
            return self.module.add_constant(result.name, known.astype(result.dtype.numpy), self.source)
        if known.shape or result.dtype != i64 or result.op is None or result.op.name == "dim":
            return result
        size: Value = self.dim(value=known[()])
        return size

    def _fold(self, results: tuple[Value, ...]) -> tuple[Value, ...] | None:
        """Constants in place of an op on small constants, or None."""
        op = results[0].op
        if op is None or op.name in KEPT or not op.definition.is_pure or any(v is not None and v.constant is None for v in op.operands):
            return None
        sizes = [v.type.elements for v in (*op.operands, *results) if v is not None]
        if any(not isinstance(size, int) or size > KNOWN_ELEMENTS for size in sizes):
            return None
        if _is_symbolic(op.attrs):
            return None
        self.folded += CALL + sum(dims.number(size) for size in sizes)
        if self.folded > FOLDED_ELEMENTS:
            return None
        operands = tuple(None if v is None or v.constant is None else v.constant.array for v in op.operands)
        try:
            arrays = table.run(op.definition, operands, op.attrs, tuple(r.type for r in results), False)
        except CompilerError as error:
            error.source = error.source or self.source
            raise
        self.graph.remove(op)
        return tuple(self.module.add_constant(r.name, array, self.source) for r, array in zip(results, arrays, strict=True))

    def _learn(self, result: Value) -> None:
        op = result.op
        rule = RULES.get(op.name) if op is not None else None
        if op is None or rule is None or not (result.dtype.is_integer or result.dtype == boolean):
            return
        elements = result.type.elements
        if not isinstance(elements, int) or elements > KNOWN_ELEMENTS:
            return
        operands = [None if v is None else self.dims_of(v) for v in op.operands]
        if any(known is None and v is not None for known, v in zip(operands, op.operands, strict=True)) or (
            op.name != "dim" and _is_symbolic(op.attrs)
        ):
            return
        try:
            answer = rule(self.module.facts, result, operands, op.attrs)
        except ParseError:
            # Too many terms or factors for a dimension: the value is computed when the engine runs.
            return
        if answer is not None:
            self.known[result] = answer

    def dims_of(self, value: Value) -> Known | None:
        """The elements of a small integer or boolean value as dimensions and bools, where they are known."""
        if value in self.known:
            return self.known[value]
        array = self.array_of(value)
        if array is None or array.size > KNOWN_ELEMENTS or not (value.dtype.is_integer or value.dtype == boolean):
            return None
        convert: Callable[[Any], Any] = bool if value.dtype == boolean else int
        known = np.empty(array.shape, dtype=object)
        for position in np.ndindex(array.shape):
            known[position] = convert(array[position])
        self.known[value] = known
        return known

    @staticmethod
    def array_of(value: Value) -> np.ndarray[Any, Any] | None:
        """The array of a constant; None for anything computed."""
        return value.constant.array if value.constant is not None else None

    def sizes(self, values: Sequence[Dim]) -> Value:
        """Dimensions as an i64 vector, remembered as such."""
        if all(isinstance(value, int) for value in values):
            return self.module.add_constant("sizes", np.array(values, dtype=np.int64), self.source)
        parts = [
            self.reshape(self.dim(value=value), shape=(1,)) if not isinstance(value, int) else np.array([value], np.int64)
            for value in values
        ]
        result: Value = self.concat(*parts, axis=0)
        return result

    def scalar(self, value: bool | int | float, dtype: DType) -> Value:
        """A constant of rank 0; the same one for the same value."""
        key = (dtype.name, literal(value))
        if key not in self.scalars:
            self.scalars[key] = self.module.add_constant("c", np.asarray(value).astype(dtype.numpy), self.source)
        return self.scalars[key]

    def value(self, operand: Any, others: Sequence[Any] = ()) -> Value | None:
        """An operand as a Value; Python numbers take the dtype of the first Value."""
        dtype = next((other.dtype for other in others if isinstance(other, Value)), None)
        if isinstance(operand, (bool, int, float)) and dtype is not None:
            return self.scalar(operand, dtype)
        return super().value(operand, others)


def _is_symbolic(attrs: Mapping[str, Any]) -> bool:
    return any(isinstance(part, dims.Expr) for value in attrs.values() for part in (value if isinstance(value, tuple) else (value,)))


# --- what ops do to known values --------------------------------------------------------------------------------------

Rule: TypeAlias = Callable[[dims.Facts, Value, list[Known | None], Mapping[str, Any]], Known | None]
RULES: dict[str, Rule] = {}


def _elementwise(function: Callable[..., Any]) -> Rule:
    def apply(facts: dims.Facts, result: Value, operands: list[Known | None], attrs: Mapping[str, Any]) -> Known | None:
        arrays = np.broadcast_arrays(*[operand for operand in operands if operand is not None])
        answer = np.empty(arrays[0].shape, dtype=object)
        for position in np.ndindex(answer.shape):
            element = function(facts, *(array[position] for array in arrays))
            if element is None:
                return None
            answer[position] = element
        return answer

    return apply


def _structural(function: Callable[..., Any]) -> Rule:
    def apply(facts: dims.Facts, result: Value, operands: list[Known | None], attrs: Mapping[str, Any]) -> Known | None:
        answer = np.asarray(function(*operands, **attrs), dtype=object)
        return answer if answer.shape == result.shape else None

    return apply


def _truncated(facts: dims.Facts, left: Dim, right: Dim) -> Dim | None:
    """C division, where flooring is the same."""
    if isinstance(left, int) and isinstance(right, int):
        return 0 if right == 0 else abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    if dims.at_most(0, left, facts) and dims.at_most(1, right, facts):
        return dims.simplify(left // right, facts)
    return None


def _floored(facts: dims.Facts, left: Dim, right: Dim) -> Dim | None:
    return dims.simplify(left // right, facts) if dims.at_most(1, right, facts) else None


def _remainder(facts: dims.Facts, left: Dim, right: Dim) -> Dim | None:
    return dims.simplify(left % right, facts) if dims.at_most(1, right, facts) else None


def _c_remainder(facts: dims.Facts, left: Dim, right: Dim) -> Dim | None:
    return _remainder(facts, left, right) if dims.at_most(0, left, facts) else None


def _negated(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def _below(facts: dims.Facts, left: Dim, right: Dim) -> bool | None:
    return dims.at_most(left + 1, right, facts)


def _equal(facts: dims.Facts, left: Any, right: Any) -> bool | None:
    return left == right if isinstance(left, bool) else dims.equal(left, right, facts)


def _cast(facts: dims.Facts, result: Value, operands: list[Known | None], attrs: Mapping[str, Any]) -> Known | None:
    known, dtype = operands[0], attrs["dtype"]
    if known is None or not (
        dtype in (i64, DTYPES["i32"], boolean) or all(isinstance(part, int) and 0 <= part < 128 for part in known.flat)
    ):
        return None
    if dtype == boolean:
        return _elementwise(lambda f, x: x if isinstance(x, bool) else _negated(dims.equal(x, 0, f)))(facts, result, operands, {})
    return _elementwise(lambda f, x: int(x) if isinstance(x, bool) else x)(facts, result, operands, {})


def _slice(x: Known, starts: tuple[int, ...], sizes: tuple[int, ...], steps: tuple[int, ...]) -> Known:
    for axis, (start, size, step) in enumerate(zip(starts, sizes, steps, strict=True)):
        x = np.take(x, [start + n * step for n in range(size)], axis=axis)
    return x


def _pad(x: Known, before: tuple[int, ...], after: tuple[int, ...], mode: str, value: float) -> Known | None:
    if mode != "constant" or min((*before, *after), default=0) < 0:
        return None
    return np.pad(x, list(zip(before, after, strict=True)), constant_values=int(value))


def _checked(facts: dims.Facts, result: Value, operands: list[Known | None], attrs: Mapping[str, Any]) -> Known | None:
    """Indices that are known to lie in range."""
    size, known = attrs["size"], operands[0]
    low = -size if attrs["negative"] else 0
    if known is None or not all(dims.at_most(low, part, facts) and dims.at_most(part, size - 1, facts) for part in known.flat):
        return None
    return known


def _iota(shape: tuple[int, ...], axis: int, dtype: DType) -> Known:
    view = [1] * len(shape)
    view[axis] = shape[axis]
    return np.broadcast_to(np.arange(shape[axis]).reshape(view), shape)


def _fold_axes(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(x: Known, axes: tuple[int, ...], keepdims: bool = False) -> Any:
        return function(x, axis=tuple(axes), keepdims=keepdims)

    return apply


def _cumulative(x: Known, axis: int, exclusive: bool, reverse: bool) -> Known:
    x = np.flip(x, axis) if reverse else x
    total = np.cumsum(x, axis)
    total = total - x if exclusive else total
    return np.flip(total, axis) if reverse else total


RULES.update(
    {
        "add": _elementwise(lambda f, a, b: a + b),
        "sub": _elementwise(lambda f, a, b: a - b),
        "mul": _elementwise(lambda f, a, b: a * b),
        "neg": _elementwise(lambda f, a: -a),
        "abs": _elementwise(lambda f, a: a if dims.at_most(0, a, f) else -a if dims.at_most(a, 0, f) else None),
        "div": _elementwise(_truncated),
        "floor_div": _elementwise(_floored),
        "mod": _elementwise(_remainder),
        "fmod": _elementwise(_c_remainder),
        "maximum": _elementwise(lambda f, a, b: dims.simplify(dims.maximum(a, b), f)),
        "minimum": _elementwise(lambda f, a, b: dims.simplify(dims.minimum(a, b), f)),
        "eq": _elementwise(_equal),
        "ne": _elementwise(lambda f, a, b: _negated(_equal(f, a, b))),
        "lt": _elementwise(_below),
        "le": _elementwise(lambda f, a, b: dims.at_most(a, b, f)),
        "gt": _elementwise(lambda f, a, b: _below(f, b, a)),
        "ge": _elementwise(lambda f, a, b: dims.at_most(b, a, f)),
        "where": _elementwise(lambda f, c, a, b: a if c else b),
        "logical_not": _elementwise(lambda f, a: not a),
        "logical_and": _elementwise(lambda f, a, b: a and b),
        "logical_or": _elementwise(lambda f, a, b: a or b),
        "clip": _elementwise(lambda f, x, low, high: dims.simplify(dims.minimum(dims.maximum(x, low), high), f)),
        "cast": _cast,
        "reshape": _structural(lambda x, shape: np.reshape(x, shape)),
        "transpose": _structural(lambda x, permutation: np.transpose(x, permutation)),
        "broadcast_to": _structural(lambda x, shape: np.broadcast_to(x, shape)),
        "concat": _structural(lambda *xs, axis: np.concatenate(xs, axis=axis)),
        "slice": _structural(_slice),
        "pad": _structural(_pad),
        "iota": _structural(_iota),
        "full": _structural(lambda shape, value, dtype: np.full(shape, value, dtype=object)),
        "dim": _structural(lambda value: np.array(value, dtype=object)),
        "check_index": _checked,
        "take": _structural(lambda x, indices, axis: np.take(x, indices.astype(np.int64), axis=axis)),
        "sum": _structural(_fold_axes(np.sum)),
        "prod": _structural(_fold_axes(np.prod)),
        "cumsum": _structural(_cumulative),
    }
)
