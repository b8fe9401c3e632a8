"""Shadows: images that kernels see in a memory order of their own although callers and host steps see them row-major."""

from __future__ import annotations

from collections.abc import Mapping

from ...ir import dims
from ...ir.errors import InternalError
from ...ir.graph import Graph, Op, Value
from ...ir.ops.structure import region_of
from ...ir.ops.table import OPS
from .compose import Group, in_order
from .simplify_region import simplify_region

Orders = Mapping[Value, tuple[int, ...]]


def seen_outside(graph: Graph, hosted: frozenset[Op]) -> set[Value]:
    """The values that others than kernels see: the graph's inputs and results, operands and results of its host steps."""
    return {*graph.inputs, *graph.outputs, *(value for op in hosted for value in (*op.operands, *op.results) if value is not None)}


def shadows_of(orders: Orders, outside: set[Value]) -> dict[Value, Value]:
    """For each value with an order of its own that is seen outside the buffer that kernels write and read instead of it."""
    return {value: Value(f"{value.name}_ordered", value.type, source=value.source) for value in orders if value in outside}


def copy_in(value: Value, shadow: Value, orders: Orders, facts: dims.Facts) -> Group:
    """The kernel that copies a value that no kernel computes, a caller's or a host step's, into its shadow."""
    region = region_of(OPS["transpose"], (value.type,), {"permutation": orders[value]}, value.name, facts.ranges)
    if region is None:
        raise InternalError("transpose has no region")
    return Group(simplify_region(region, facts), (value,), (shadow,), tuple(value.uses)[:1])


def copy_out(op: Op, value: Value, shadow: Value, orders: Orders, facts: dims.Facts) -> Group:
    """The kernel that copies the shadow of a result of `op` into row-major order."""
    back = tuple(orders[value].index(n) for n in range(value.type.rank))
    region = region_of(OPS["transpose"], (in_order(value, orders),), {"permutation": back}, value.name, facts.ranges)
    if region is None:
        raise InternalError("transpose has no region")
    return Group(simplify_region(region, facts), (shadow,), (value,), (op,))
