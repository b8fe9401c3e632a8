"""Horizontal fusion of products: those that share their left factor are one, by a weight that has all of theirs side by side."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, TypeAlias

import numpy as np

from ...ir import dims
from ...ir.errors import InternalError
from ...ir.formats import format_of
from ...ir.graph import ConstantData, Graph, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rewriter, take_names
from ...ir.ops.movement import reshape_groups
from ...ir.ops.structure import region_of
from ...ir.region import Load, Region
from ...ir.types import TensorType
from ...ir.workload import default_workload
from ..base import Pass, PassContext
from ..match import operand
from ..regions.facts import classify, has_kernel, loads_of
from ..weights.weights import STORED
from .choices import Choices
from .partition import choose

Array: TypeAlias = "np.ndarray[Any, Any]"
Joined: TypeAlias = "dict[tuple[Value, ...], Value]"
"""Constants that lie side by side, by those that they were made of."""
CONTRACTIONS = frozenset({"matmul", "conv", "attention"})
ALIGNMENT = 16
"""Bytes that the columns of each product are a multiple of: vector loads start at such places on every target."""


@dataclass(frozen=True)
class JoinProducts(Pass):
    """Multiply by several constant weights at once where products share their left factor (Q, K and V), and add their biases at once.

    Before: %q = matmul(%x, @wq)   %a = add(%q, @bq)   %k = matmul(%x, @wk)   %b = add(%k, @bk)
    After:  const @w, with @wk beside @wq   const @c, with @bk behind @bq
            %p = matmul(%x, @w)   %s = add(%p, @c)   %a = slice(%s)   %b = slice(%s)

    Only where that costs nothing: whatever reads a part reads it where it lies, and would not be the end of the product's kernel. A wide
    weight has at most `limit` bytes. No other product stands between those that are joined, so that no result waits for its readers
    longer than before. The terms are the same, a target may sum them in another order. Weights that are coded alike are joined as they
    are stored, where every column has codes and scales of its own.
    """

    limit: int = 1 << 31
    numerics: ClassVar[Numerics] = "REASSOCIATES"

    def run(self, module: Module, context: PassContext) -> bool:
        """Join what may be joined in every function; functions that join the same weights share the wide one."""
        runs = [(graph, run) for graph in module.functions.values() for run in _runs(module, graph, self.limit)]
        known: Joined = {}
        changed = False
        for graph, parts in _with_own_weights(module, runs):
            if context.spend():
                _join(context.rewriter(module, graph, self.name), parts, known)
                changed = True
        return changed


@dataclass(frozen=True)
class Part:
    """One of the products: its weight, its bias if there is one, and the value that is theirs together."""

    product: Op
    stored: Stored
    bias: Value | None
    end: Value

    @property
    def columns(self) -> int:
        """How many columns the product has."""
        return dims.number(self.end.shape[-1])

    @property
    def bytes(self) -> int:
        """How many bytes the weight has."""
        return sum(dims.number(field.type.nbytes) for field in self.stored.fields)


@dataclass(frozen=True)
class Stored:
    """A weight as it lies in memory: constants, each with its axis of columns, and the op that makes numbers of them, if there is one."""

    weight: Value
    fields: tuple[Value, ...]
    along: tuple[int, ...]

    @property
    def op(self) -> Op | None:
        """What decodes the constants."""
        return self.weight.op


def why_not(product: Op, module: Module, graph: Graph) -> str | None:
    """Why a product is not joined with others of its left factor, or None."""
    found = _part(product, module, graph)
    return found if isinstance(found, str) else _why_ended(found, _fused(module, graph))


def _runs(module: Module, graph: Graph, limit: int) -> Iterator[list[Part]]:
    """Two products or more of one left factor that may be joined, with no other contraction between them."""
    contractions, fused = (op for op in graph if op.name in CONTRACTIONS), None
    for _, run in groupby(contractions, key=_shared):
        products = list(run)
        found = [_part(op, module, graph) for op in products] if len(products) > 1 else []
        parts = [part for part in found if isinstance(part, Part)]
        if len(parts) < 2:
            continue
        fused = fused or _fused(module, graph)
        parts = [part for part in parts if _why_ended(part, fused) is None]
        yield from (few for few in _within(limit, parts) if len(few) > 1)


def _fused(module: Module, graph: Graph) -> Choices:
    """What fusion makes of the graph as it is."""
    return choose(module, graph, {}, default_workload(module.facts).sizes)


def _why_ended(part: Part, fused: Choices) -> str | None:
    """What the kernel of a product computes behind it, and would not where the product is joined; None where it only moves it."""
    pending = [part.end]
    for value in pending:
        for user in value.uses if value in fused.inlined or value in fused.beside else ():
            if fused.facts[user].kind != "movement":
                return f"{user.name} %{user.results[0].name} is computed at the end of its kernel"
            pending.append(user.result)
    return None


def _within(limit: int, parts: Sequence[Part]) -> Iterator[list[Part]]:
    """The parts in their order, together as far as their weights have at most so many bytes."""
    taken: list[Part] = []
    for part in parts:
        if sum(each.bytes for each in (*taken, part)) > limit and taken:
            yield taken
            taken = []
        taken.append(part)
    yield taken


def _shared(op: Op) -> tuple[Any, ...]:
    """What the products of a run have in common."""
    if op.name != "matmul":
        return (op,)
    weight = operand(op, 1)
    stored = None if weight.op is None else (weight.op.name, dict(weight.op.attrs), [each and each.dtype for each in weight.op.operands])
    return (op.operands[0], op.attrs["transpose_a"], op.attrs["transpose_b"], op.attrs["wide"], weight.dtype, stored)


def _part(product: Op, module: Module, graph: Graph) -> Part | str:
    """A product as a part of a wider one, or why it is none."""
    weight = operand(product, 1)
    stored = _stored(weight, 0 if product.attrs["transpose_b"] else 1)
    if isinstance(stored, str):
        return stored
    if operand(product, 0).constant is not None:
        return "the left factor is constant"
    bias, end = _biased(product, graph)
    part = Part(product, stored, bias, end)
    row = part.columns * weight.dtype.bits // 8
    if row == 0 or row % ALIGNMENT:
        return f"its {part.columns} columns of {weight.dtype} are no multiple of {ALIGNMENT} bytes"
    return _why_not_read(end, module, graph) or part


def _stored(weight: Value, along: int) -> Stored | str:
    """How a weight lies in memory where columns along this axis may lie beside others, or why they may not."""
    if weight.type.rank != 2:
        return f"the right factor has rank {weight.type.rank}, expected a matrix"
    op = weight.op
    if op is not None and op.name not in (*STORED, "cast"):
        return "the right factor is computed"
    fields = (weight,) if op is None else op.operands
    if any(field is None or field.constant is None for field in fields):
        return "the values of the right factor are not given"
    axes = (along,) if op is None else _decoded_along(op, along)
    return axes if isinstance(axes, str) else Stored(weight, tuple(field for field in fields if field is not None), axes)


def _decoded_along(op: Op, along: int) -> tuple[int, ...] | str:
    """The axis of each field of a coded matrix that its columns lie along, or why columns share fields."""
    if op.name == "cast":
        return (along,)
    axis, ranks = op.attrs["axis"], [field.type.rank for field in op.operands if field is not None]
    is_across = axis is not None and axis % 2 != along
    if op.name == "decode":
        columns, rows = dims.number(op.result.shape[along]), [field.rows for field in format_of(op.attrs["format"]).fields]
        return (along,) * len(ranks) if is_across and all(each and columns % each == 0 for each in rows) else "columns share scales"
    if op.attrs["block"]:
        return (along,) * len(ranks) if is_across else "columns share scales"
    is_along = axis is not None and not is_across and all(each == 1 for each in ranks[1:])
    return (along, *(0 for _ in ranks[1:])) if is_along else "columns share scales"


def _biased(product: Op, graph: Graph) -> tuple[Value | None, Value]:
    """(bias, sum) where a constant row is added to a product and nobody else reads it, else (None, product)."""
    value = product.result
    user = next(iter(value.uses), None)
    if user is None or user.name != "add" or sum(value.uses.values()) != 1 or value in graph.outputs:
        return None, value
    (bias,) = (other for other in user.operands if other is not value)
    if bias is None or bias.constant is None or user.result.type != value.type:
        return None, value
    is_row = bias.shape[-1:] == (bias.type.elements,) == value.shape[-1:]
    return (bias, user.result) if is_row else (None, value)


# --- what reads a part ------------------------------------------------------------------------------------------------


def _why_not_read(end: Value, module: Module, graph: Graph) -> str | None:
    """Why what reads a product would not read it as well where it lies between others, or None."""
    pending: list[tuple[Value, tuple[int, ...]]] = [(end, (end.type.rank - 1,))]
    for value, columns in pending:
        if value in graph.outputs:
            return "the caller gets it"
        for user in value.uses:
            moved = _moved(user, columns) if user.name in ("reshape", "transpose") else ()
            if moved:
                pending.append((user.result, moved))
                continue
            why = "a reshape mixes its rows and its columns" if moved is None else _why_not_reader(user, value, columns, module)
            if why is not None:
                return why
    return None


def _moved(move: Op, columns: tuple[int, ...]) -> tuple[int, ...] | None:
    """The dimensions of a movement's result that a product's columns lie along, the slowest first; None where rows do as well."""
    if move.name == "transpose":
        return tuple(move.attrs["permutation"].index(n) for n in columns)
    before = operand(move, 0).shape
    wide = tuple(n for n in columns if before[n] != 1)
    found: dict[int, tuple[int, ...]] = {}
    for sources, targets in reshape_groups(before, move.result.shape):
        own = tuple(n for n in sources if before[n] != 1)
        if set(own).isdisjoint(wide):
            continue
        place = wide.index(own[0]) if own[0] in wide else 0
        if own != wide[place : place + len(own)]:
            return None
        found[place] = targets
    return tuple(n for place in sorted(found) for n in found[place])


def _region(op: Op, module: Module) -> Region | None:
    return region_of(op.definition, op.types, op.attrs, symbols=module.facts.ranges) if has_kernel(op) else None


def _why_not_reader(user: Op, value: Value, columns: tuple[int, ...], module: Module) -> str | None:
    """Why an op would not read a part of a wider product as well, or None."""
    region = _region(user, module)
    kind = classify(region)
    if region is None or kind == "scatter" or not all(_is_plain(load, kind) for load in loads_of(region, user, value)):
        return f"{user.name} does not read it where it lies"
    if kind == "contract" and columns[-1] != value.type.rank - 1:
        return f"{user.name} reads it in another order"
    return None


def _is_plain(load: Load, kind: str) -> bool:
    """Whether a load may have movements before it."""
    return not load.gathers and (load.other is None or kind in ("map", "movement"))


# --- the wider product ------------------------------------------------------------------------------------------------


def _with_own_weights(module: Module, runs: Sequence[tuple[Graph, list[Part]]]) -> Iterator[tuple[Graph, list[Part]]]:
    """The runs whose weights nobody else reads: for others they would be kept beside the wide one."""
    readers: dict[tuple[Value, ...], set[Op]] = {}
    for _, parts in runs:
        readers.setdefault(_fields(parts), set()).update(each for part in parts for each in (part.product, part.stored.op) if each)
    kept = {id(value) for graph in module.functions.values() for value in graph.outputs}
    kept |= {id(state.initial) for state in module.states.values()}
    for graph, parts in runs:
        own = readers[_fields(parts)]
        read = {value for part in parts for value in (part.stored.weight, *part.stored.fields)}
        if all(id(value) not in kept and value.uses.keys() <= own for value in read):
            yield graph, parts


def _fields(parts: Sequence[Part]) -> tuple[Value, ...]:
    return tuple(field for part in parts for field in part.stored.fields)


def _join(rewriter: Rewriter, parts: Sequence[Part], known: Joined) -> None:
    """One product and one sum in front of the first of the parts, which become slices of it."""
    first = parts[0]
    biased = next((part for part in parts if part.bias is not None), None)
    fields = []
    for number, along in enumerate(first.stored.along):
        constants = tuple(part.stored.fields[number] for part in parts)
        if constants not in known:
            known[constants] = _beside(rewriter.module, constants, along)
        fields.append(known[constants])
    builder = rewriter.builder(first.product)
    decoded = first.stored.op
    (weight,) = fields if decoded is None else builder.build(decoded.definition, fields, decoded.attrs)
    whole = builder.matmul(first.product.operands[0], weight, **first.product.attrs)
    if biased is not None and biased.bias is not None:
        builder.source = biased.end.source
        whole = builder.add(whole, _row(rewriter.module, parts))
    start = 0
    for part in parts:
        end = part.end.op
        if end is None:
            raise InternalError(f"%{part.end.name} is no result of an op")
        *rows, _ = part.end.shape
        starts, sizes = (*(0 for _ in rows), start), (*rows, part.columns)
        value = rewriter.builder(end, part.product.source).slice(whole, starts=starts, sizes=sizes, steps=(1,) * len(sizes))
        take_names(end, [value], [value.op])
        rewriter.replace(end, [value])
        if end is not part.product:
            rewriter.erase(part.product)
        start += part.columns


def _beside(module: Module, fields: Sequence[Value], along: int) -> Value:
    """A constant with all of these side by side along an axis."""
    shape = list(fields[0].shape)
    shape[along] = sum(dims.number(field.shape[along]) for field in fields)
    return _later(module, fields, TensorType(fields[0].dtype, tuple(shape)), lambda arrays: np.concatenate(arrays, axis=along))


def _row(module: Module, parts: Sequence[Part]) -> Value:
    """The biases of all parts; -0.0 where there is none, which changes no number that it is added to."""
    biases = [part.bias for part in parts if part.bias is not None]
    dtype, columns = biases[0].dtype, [(part.columns, part.bias is not None) for part in parts]

    def joined(arrays: Sequence[Array]) -> Array:
        given = iter(arrays)
        rows = [next(given).reshape(-1) if has_bias else np.full(count, -0.0).astype(dtype.numpy) for count, has_bias in columns]
        return np.concatenate(rows)

    return _later(module, biases, TensorType(dtype, (sum(count for count, _ in columns),)), joined)


def _later(module: Module, of: Sequence[Value], type: TensorType, join: Callable[[Sequence[Array]], Array]) -> Value:
    """A constant made of others when somebody asks for its values; from then on they are kept for it no more."""
    parts = [value.constant for value in of if value.constant is not None]

    def load() -> Array:
        array = join([part.array for part in parts])
        parts.clear()
        return array

    available = all(part.available for part in parts)
    digest = None if available else hashlib.sha256(" ".join(part.digest for part in parts).encode()).hexdigest()
    data = ConstantData(load=load, origin="joined", digest=digest, available=available)
    return module.add_constant(f"{of[0].name}.joined", data, of[0].source, type)
