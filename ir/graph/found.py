"""What is known of sizes that only the data decide: how many there can be at most, in the symbols of what was looked at."""

from __future__ import annotations

from .. import dims
from ..dims import Dim
from .graph import Module

LOOKED_AT = {"nonzero": 0, "unique": 0, "non_max_suppression": 1}
"""The operand of which each element, or each slice along `axis`, is found once at most."""


def most_found(module: Module) -> dict[str, Dim]:
    """The symbols that ops bind when they have run, with what they are at most; inner ones first, as ops stand."""
    found: dict[str, Dim] = {}
    for op in (op for graph in module.functions.values() for op in graph if op.name in LOOKED_AT):
        name, value, axis = dims.name_of(op.attrs["count"]), op.operands[LOOKED_AT[op.name]], op.attrs.get("axis")
        if name is not None and value is not None:
            found[name] = value.type.elements if axis is None else value.shape[axis]
    return found
