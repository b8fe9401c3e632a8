"""What a program says in words that two programs share: one's symbols by the other's names, numbers and factors as they are computed."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...ir import dims
from ...ir.dims import Dim, Expr
from ...ir.graph import ConstantData, Graph, Module, Op, Value
from ...ir.graph.text import attribute_text
from ...ir.types import TensorType, f64

TURNED: Mapping[str, tuple[str, ...]] = {"matmul": ("transpose_a", "transpose_b")}
"""Attributes that say, operand by operand, that the last two axes are exchanged: of a constant either order says the same."""


def inputs_paired(left: Graph, right: Graph) -> Iterator[tuple[Value, Value]]:
    """Inputs of the same name; of the others those in one place that are of one dtype and rank."""
    named = {value.name: value for value in right.inputs}
    yield from ((value, named[value.name]) for value in left.inputs if value.name in named)
    ours = [value for value in left.inputs if value.name not in named]
    theirs = [value for value in right.inputs if value.name not in {each.name for each in left.inputs}]
    yield from (
        (one, other) for one, other in zip(ours, theirs, strict=False) if (one.dtype, one.type.rank) == (other.dtype, other.type.rank)
    )


def symbols_paired(left: Module, right: Module) -> dict[str, str]:
    """The right module's symbols by what the left one calls them, as far as inputs show it; each is one of the left's at most."""
    found: dict[str, str] = {}
    for name in left.functions.keys() & right.functions.keys():
        for one, other in inputs_paired(left.functions[name], right.functions[name]):
            for mine, its in zip(one.shape, other.shape, strict=False):
                pair = [dims.symbols(size) for size in (mine, its)]
                is_plain = all(len(names) == 1 and size == dims.symbol(*names) for names, size in zip(pair, (mine, its), strict=True))
                if is_plain and next(iter(pair[0])) not in found.values():
                    found.setdefault(next(iter(pair[1])), next(iter(pair[0])))
    # What nothing is known of keeps its name, unless that is another symbol's now.
    taken = set(found.values())
    for name in right.symbols:
        if name not in found:
            found[name] = f"{name}'" if name in taken else name
    return found


@dataclass(frozen=True)
class Wording:
    """How a program's types, attributes and constants are told: `names` are its symbols; constants are `turned` if all have values."""

    names: Mapping[str, str] = field(default_factory=dict)
    turned: bool = False

    def type(self, value: Value) -> str:
        """A value's type."""
        return str(TensorType(value.dtype, tuple(self._dim(size) for size in value.shape)))

    def attributes(self, op: Op) -> dict[str, str]:
        """All that an op is told beside its operands; what its results cannot tell apart is the same."""
        dropped = {name for name, value in zip(TURNED.get(op.name, ()), op.operands, strict=False) if self._is_turned(value)}
        is_wide = any(result.dtype == f64 for result in op.results)
        return {name: attribute_text(self._attribute(value, is_wide)) for name, value in op.attrs.items() if name not in dropped}

    def constant(self, op: Op | None, place: int, value: Value) -> Hashable:
        """What a constant holds as an op reads it; without an op as it lies."""
        assert value.constant is not None
        flags = () if op is None else TURNED.get(op.name, ())
        if place < len(flags) and op is not None and op.attrs[flags[place]] and self._is_turned(value):
            array = np.ascontiguousarray(np.swapaxes(value.constant.array, -1, -2))
            return str(TensorType(value.dtype, (*value.shape[:-2], value.shape[-1], value.shape[-2]))), ConstantData(array).digest
        return self.type(value), value.constant.digest

    def _is_turned(self, value: Value | None) -> bool:
        return self.turned and value is not None and value.constant is not None and value.type.rank >= 2

    def _dim(self, size: Dim) -> Dim:
        return dims.substitute(size, {name: dims.symbol(other) for name, other in self.names.items()})

    def _attribute(self, value: Any, is_wide: bool) -> Any:
        if isinstance(value, tuple):
            return tuple(self._attribute(part, is_wide) for part in value)
        if isinstance(value, Expr):
            return self._dim(value)
        # Exporters write numbers with the digits of f32, or with all.
        return float(np.float32(value)) if type(value) is float and not is_wide else value


def has_values(module: Module) -> bool:
    """Whether every constant of a module has its values at hand."""
    return all(value.constant is None or value.constant.available for value in module.constants.values())


__all__ = ["Wording", "has_values", "inputs_paired", "symbols_paired"]
