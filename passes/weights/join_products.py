"""Joining of products: those that share their left factor are one product, by a weight that has all of theirs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, TypeAlias

import numpy as np

from ...ir import dims
from ...ir.errors import InternalError
from ...ir.graph import ConstantData, Graph, Module, Op, Value
from ...ir.graph.rewrite import Numerics, Rewriter, take_names
from ...ir.ops.movement import reshape_groups
from ...ir.ops.structure import region_of
from ...ir.region import Load, Region
from ...ir.types import TensorType
from ..base import Pass, PassContext
from ..match import operand
from ..regions.facts import classify, has_kernel, loads_of
from .weights import values_of

Joined: TypeAlias = "dict[tuple[Value, ...], Value]"
CONTRACTIONS = frozenset({"matmul", "conv", "attention"})
ALIGNMENT = 16
"""Bytes that the columns of each product are a multiple of: vector loads start at such places on every target."""


@dataclass(frozen=True)
class JoinProducts(Pass):
    """Multiply by several constant weights at once where products share their left factor (Q, K and V), and add their biases at once.

    Before: %q = matmul(%x, @wq)   %a = add(%q, @bq)   %k = matmul(%x, @wk)   %b = add(%k, @bk)
    After:  const @w, with @wk beside @wq   const @c, with @bk behind @bq
            %p = matmul(%x, @w)   %s = add(%p, @c)   %a = slice(%s)   %b = slice(%s)

    Only where that costs nothing: whatever reads a part reads it where it lies, and could not have been the end of the product's
    kernel. A wide weight has at most `limit` bytes. No other product stands between those that are joined, so that no result waits
    for its readers longer than before. The terms are the same, a target may sum them in another order.
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
    weight: Value
    bias: Value | None
    end: Value

    @property
    def along(self) -> int:
        """The weight's axis of columns."""
        return 0 if self.product.attrs["transpose_b"] else 1

    @property
    def columns(self) -> int:
        """How many columns the product has."""
        return dims.number(self.weight.shape[self.along])

    @property
    def bytes(self) -> int:
        """How many bytes the weight has."""
        return dims.number(self.weight.type.nbytes)


def why_not(product: Op, module: Module, graph: Graph) -> str | None:
    """Why a product is not joined with others of its left factor, or None."""
    found = _part(product, module, graph)
    return found if isinstance(found, str) else None


def _runs(module: Module, graph: Graph, limit: int) -> Iterator[list[Part]]:
    """Two products or more of one left factor that may be joined, with no other contraction between them."""
    contractions = (op for op in graph if op.name in CONTRACTIONS)
    for _, run in groupby(contractions, key=_shared):
        products = list(run)
        found = [_part(op, module, graph) for op in products] if len(products) > 1 else []
        parts = [part for part in found if isinstance(part, Part)]
        yield from (few for few in _within(limit, parts) if len(few) > 1)


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
    return (op.operands[0], op.attrs["transpose_a"], op.attrs["transpose_b"], op.attrs["wide"], operand(op, 1).dtype)


def _part(product: Op, module: Module, graph: Graph) -> Part | str:
    """A product as a part of a wider one, or why it is none."""
    weight = operand(product, 1)
    if weight.constant is None or not weight.constant.available:
        return "the values of the right factor are not given"
    if weight.type.rank != 2:
        return f"the right factor has rank {weight.type.rank}, expected a matrix"
    if operand(product, 0).constant is not None:
        return "the left factor is constant"
    bias, end = _biased(product, graph)
    part = Part(product, weight, bias, end)
    row = part.columns * weight.dtype.bits // 8
    if row == 0 or row % ALIGNMENT:
        return f"its {part.columns} columns of {weight.dtype} are no multiple of {ALIGNMENT} bytes"
    return _why_not_read(end, module, graph) or part


def _biased(product: Op, graph: Graph) -> tuple[Value | None, Value]:
    """(bias, sum) where a constant row is added to a product and nobody else reads it, else (None, product)."""
    value = product.result
    user = next(iter(value.uses), None)
    if user is None or user.name != "add" or sum(value.uses.values()) != 1 or value in graph.outputs:
        return None, value
    (bias,) = (other for other in user.operands if other is not value)
    if bias is None or bias.constant is None or not bias.constant.available or user.result.type != value.type:
        return None, value
    is_row = bias.shape[-1:] == (bias.type.elements,) == value.shape[-1:]
    return (bias, user.result) if is_row else (None, value)


# --- what reads a part ------------------------------------------------------------------------------------------------


def _why_not_read(end: Value, module: Module, graph: Graph) -> str | None:
    """Why what reads a product would not read it as well where it lies between others, or None."""
    pending: list[tuple[Value, tuple[int, ...], bool]] = [(end, (end.type.rank - 1,), True)]
    for value, columns, lone in pending:
        if value in graph.outputs:
            return "the caller gets it"
        # What several read is in memory, unless all they make of it ends in one value: that is computed by the product's kernel.
        ends = lone and (sum(value.uses.values()) == 1 or _ends_in_one(value, module, graph))
        lone = lone and sum(value.uses.values()) == 1
        for user in value.uses:
            moved = _moved(user, columns) if user.name in ("reshape", "transpose") else ()
            if moved:
                pending.append((user.result, moved, lone))
                continue
            why = "a reshape mixes its rows and its columns" if moved is None else _why_not_reader(user, value, columns, ends, module)
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


def _ends_in_one(value: Value, module: Module, graph: Graph) -> bool:
    """Whether ops that make one element of each element of a value are all that read it, and all that these make but for one result."""
    made, ends = [value], 0
    for each in made:
        users = [user for user in each.uses if _is_pointwise(user, each, module)]
        made += dict.fromkeys(user.results[0] for user in users if user.results[0] not in made)
        ends += len(users) < len(each.uses) or not users or each in graph.outputs
        if ends > 1:
            return False
    return len(made) > 1


def _is_pointwise(user: Op, value: Value, module: Module) -> bool:
    equal = len(user.results) == 1 and dims.equal(user.results[0].type.elements, value.type.elements) is True
    return equal and classify(_region(user, module)) == "map"


def _region(op: Op, module: Module) -> Region | None:
    return region_of(op.definition, op.types, op.attrs, symbols=module.facts.ranges) if has_kernel(op) else None


def _why_not_reader(user: Op, value: Value, columns: tuple[int, ...], ends: bool, module: Module) -> str | None:
    """Why an op would not read a part of a wider product as well, or None; `ends`: what it makes is made by the product's kernel."""
    region = _region(user, module)
    kind = classify(region)
    if region is None or kind == "scatter" or not all(_is_plain(load, kind) for load in loads_of(region, user, value)):
        return f"{user.name} does not read it where it lies"
    if kind == "contract" and columns[-1] != value.type.rank - 1:
        return f"{user.name} reads it in another order"
    if kind == "map" and ends and dims.equal(user.results[0].type.elements, value.type.elements) is True:
        return f"{user.name} is the end of its kernel"
    return None


def _is_plain(load: Load, kind: str) -> bool:
    """Whether a load may have movements before it."""
    return not load.gathers and (load.other is None or kind in ("map", "movement"))


# --- the wider product ------------------------------------------------------------------------------------------------


def _with_own_weights(module: Module, runs: Sequence[tuple[Graph, list[Part]]]) -> Iterator[tuple[Graph, list[Part]]]:
    """The runs whose weights nobody else reads: for others they would be kept beside the wide one."""
    readers: dict[tuple[Value, ...], set[Op]] = {}
    for _, parts in runs:
        readers.setdefault(_weights(parts), set()).update(part.product for part in parts)
    kept = {id(value) for graph in module.functions.values() for value in graph.outputs}
    kept |= {id(state.initial) for state in module.states.values()}
    for graph, parts in runs:
        weights = _weights(parts)
        if all(id(weight) not in kept and weight.uses.keys() <= readers[weights] for weight in weights):
            yield graph, parts


def _weights(parts: Sequence[Part]) -> tuple[Value, ...]:
    return tuple(part.weight for part in parts)


def _join(rewriter: Rewriter, parts: Sequence[Part], known: Joined) -> None:
    """One product and one sum in front of the first of the parts, which become slices of it."""
    first = parts[0]
    weights, biased = _weights(parts), next((part for part in parts if part.bias is not None), None)
    if weights not in known:
        known[weights] = _beside(rewriter.module, weights, first.along)
    builder = rewriter.builder(first.product)
    whole = builder.matmul(first.product.operands[0], known[weights], **first.product.attrs)
    if biased is not None and biased.bias is not None:
        builder.source = biased.end.source
        whole = builder.add(whole, rewriter.module.add_constant(f"{biased.bias.name}.joined", _row(parts), biased.bias.source))
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


def _beside(module: Module, weights: Sequence[Value], along: int) -> Value:
    """A constant with the columns of all weights, made when somebody asks for its values."""
    shape = list(weights[0].shape)
    shape[along] = sum(dims.number(weight.shape[along]) for weight in weights)
    type = TensorType(weights[0].dtype, tuple(shape))
    parts = [weight.constant for weight in weights if weight.constant is not None]

    def load() -> np.ndarray[Any, Any]:
        array = np.concatenate([part.array for part in parts], axis=along)
        parts.clear()
        return array

    return module.add_constant(f"{weights[0].name}.joined", ConstantData(load=load, origin="joined"), weights[0].source, type)


def _row(parts: Sequence[Part]) -> np.ndarray[Any, Any]:
    """The biases of all parts; -0.0 where there is none, which changes no number that it is added to."""
    rows = [
        np.full(part.columns, -0.0).astype(part.end.dtype.numpy) if part.bias is None else values_of(part.bias).reshape(-1)
        for part in parts
    ]
    return np.concatenate(rows)
