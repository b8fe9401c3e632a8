"""What compiling for one target gives: its part of the engine, its weights, and the rows that reports show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..ir.errors import InternalError
from ..ir.ops.table import bound
from ..passes.build_plan import Kept, PackedConstant
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


def pack(constant: PackedConstant) -> np.ndarray[Any, Any]:
    """A constant's values in the order in which the plan wants them in memory."""
    if constant.value.constant is None:
        raise InternalError(f"%{constant.value.name} is read as a constant and has no values")
    array = constant.value.constant.array
    return array if constant.layout is None else constant.layout.pack(array.reshape(bound(constant.shape)))
