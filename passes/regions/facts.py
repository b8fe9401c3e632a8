"""What is asked of one op by itself: its region, its kind, its rows, and what its functions cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...ir import dims
from ...ir.dims import Dim
from ...ir.expression import Apply
from ...ir.graph import Op, Value
from ...ir.ops.structure import region_of
from ...ir.region import Load, Reduce, Region, Scan, Store, subscripted, walk
from ...ir.region.cost import EXPENSIVE
from .compose import plain_axes


@dataclass(frozen=True)
class OpFacts:
    """The region of an op, None where it runs on the host, and its kind as in `classify`."""

    region: Region | None
    kind: str

    @property
    def sums(self) -> bool:
        """Whether it folds: a reduction or a product."""
        return self.kind in ("contract", "reduce")

    @property
    def moves(self) -> Load | None:
        """The one load of a movement; None for anything else."""
        value = self.region.body[-1].value if self.kind == "movement" and self.region is not None else None
        return value if isinstance(value, Load) else None

    @property
    def is_plain(self) -> bool:
        """Whether it is one expression of its operands, without named parts."""
        return self.kind in ("map", "movement") and self.region is not None and len(self.region.body) == 1

    @property
    def is_expensive(self) -> bool:
        """Whether it computes a function that costs far more than an addition."""
        if self.region is None:
            return True
        return any(isinstance(p, Apply) and p.primitive in EXPENSIVE for s in self.region.body for p in walk(s.value))

    @property
    def is_chained(self) -> bool:
        """Whether sums are made of sums, as in attention: strategies know it by its axes, which a movement would mix."""
        return self.region is not None and sum(isinstance(statement, Reduce) for statement in self.region.body) > 1

    @property
    def is_strided(self) -> bool:
        """Whether a movement changes the innermost axis (writing an epilogue through it would scatter); a slice only moves its start."""
        store = self.region.body[-1] if self.region is not None else None
        if not isinstance(store, Store) or not isinstance(store.value, Load):
            return True
        source, target = store.value.subscripts, store.subscripts
        return not (source and target and dims.symbols(source[-1] - target[-1]).isdisjoint(self.region.extents if self.region else ()))

    @property
    def rows(self) -> Dim | None:
        """How many results its first reduction has; None if it has none."""
        for statement in self.region.body if self.region is not None else ():
            if isinstance(statement, Reduce) and self.region is not None:
                return dims.product(self.region.axis(name).extent for name in statement.axes)
        return None

    @property
    def keeps_parallelism(self) -> bool:
        """Whether the reduction leaves an axis to run in parallel (a full reduction inside a map would run in a row)."""
        return self.region is not None and any(isinstance(s, Reduce) and s.axes for s in self.region.body)

    @property
    def writes_plainly(self) -> bool:
        """Whether each element of its one result is written once, at axes of its own."""
        return self.region is not None and plain_axes(self.region) is not None


def describe(op: Op, facts: dims.Facts) -> OpFacts:
    """The facts of an op whose sizes have the ranges of `facts`."""
    region = region_of(op.definition, op.types, op.attrs, symbols=facts.ranges) if has_kernel(op) else None
    return OpFacts(region, classify(region))


def has_kernel(op: Op) -> bool:
    """Whether an op is computed by kernels: it has a region, and so have its dtypes; others are host steps."""
    types = (*op.types, *(result.type for result in op.results))
    return op.definition.has_region and all(t is None or t.dtype.has_kernels for t in types)


def classify(region: Region | None) -> str:
    """opaque, movement (a load is stored), map, reduce, scan, contract (a sum of products of two operands) or scatter."""
    if region is None:
        return "opaque"
    stores = [s for s in region.body if isinstance(s, Store)]
    if any(s.gathers or s.combine for s in stores):
        return "scatter"
    if any(is_contraction(s) for s in region.body if isinstance(s, Reduce)):
        return "contract"
    if any(isinstance(s, Scan) for s in region.body):
        return "scan"
    if any(isinstance(s, Reduce) for s in region.body):
        return "reduce"
    return "movement" if len(region.body) == 1 and isinstance(stores[0].value, Load) else "map"


def loads_of(region: Region, user: Op, value: Value) -> Iterator[Load]:
    """The loads of a graph value in the region of an op that reads it."""
    names = {f"x{n}" for n, operand in enumerate(user.operands) if operand is value}
    for statement in region.body:
        values = [statement.value, *(g for _, g in statement.gathers)] if isinstance(statement, Store) else [statement.value]
        yield from (part for v in values for part in walk(v) if isinstance(part, Load) and part.operand in names)


def is_contraction(statement: Reduce) -> bool:
    """Whether a reduction sums products of two factors that vary over different axes."""
    value = statement.value
    if statement.kind != "sum" or not (isinstance(value, Apply) and value.primitive == "mul"):
        return False
    # Subscripts may name symbols as well, which are no axes.
    left, right = (subscripted(arg) & {*statement.axes, *statement.over} for arg in value.args)
    over = set(statement.over)
    return bool(over & left and over & right and left - right - over and right - left - over) or bool(
        over <= left & right and left != right
    )


__all__ = ["OpFacts", "classify", "describe", "has_kernel", "is_contraction", "loads_of"]
