"""What compiling for one target gives: its part of the engine, its weights, and the rows that reports show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..ir.errors import InternalError
from ..ir.graph import Module
from ..ir.plan.storage import Constant
from ..passes.build_plan import Kept
from ..runtime.contents import TargetContents


@dataclass(frozen=True)
class Built:
    """One target's part of an engine."""

    contents: TargetContents
    weights: dict[str, np.ndarray[Any, Any]]
    rows: list[dict[str, Any]] = field(default_factory=list)
    kept: tuple[Kept, ...] = ()

    def kept_rows(self) -> list[dict[str, str]]:
        """What fusion had to keep in memory, as the report holds it."""
        return [dict(vars(row)) for row in self.kept]


def pack(held: Constant, module: Module) -> np.ndarray[Any, Any]:
    """A constant's values in the order in which the plan wants them in memory."""
    value = module.constants[held.value]
    if value.constant is None:
        raise InternalError(f"%{value.name} is read as a constant and has no values")
    array = value.constant.array
    return array if held.layout is None else held.layout.pack(array.reshape(held.shape))


def unpack(held: Constant, array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The constant of `shape` of which `pack` gave the array."""
    return array if held.layout is None else held.layout.unpack(array, held.shape).reshape(shape)
