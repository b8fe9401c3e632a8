"""What compiling for one level or GPU gives: a part of the engine, its weights, and the rows that reports show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ...ir.errors import InternalError
from ...ir.graph import Module
from ...ir.plan.storage import Constant
from ...passes.fusion.decision import Decision
from ...passes.lower.build_plan import Kept
from ...runtime.contents import PartContents


class Decoding(NamedTuple):
    """The predicted seconds of all products of coded weights, and what they would be of weights in the `dtypes` that are multiplied."""

    coded: float
    plain: float
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class Built:
    """A part of an engine, by its name, and the target that asked for it."""

    name: str
    target: str
    contents: PartContents
    weights: dict[str, np.ndarray[Any, Any]]
    rows: list[dict[str, Any]] = field(default_factory=list)
    kept: tuple[Kept, ...] = ()
    decisions: tuple[Decision, ...] = ()
    in_tf32: frozenset[str] = frozenset()
    """The user's ops in kernels that round the factors of products to tf32."""
    faults: tuple[str, ...] = ()
    """Mistakes of our own that another choice was taken for."""
    moved: float = 0.0
    """Bytes a second that a level of a CPU is reckoned to read."""
    decoding: Decoding | None = None
    """What products of coded weights are predicted to take on a GPU."""

    def kept_rows(self) -> list[dict[str, str]]:
        """What fusion had to keep in memory, as the report holds it."""
        return [dict(vars(row)) for row in self.kept]

    def fusion_rows(self) -> list[dict[str, Any]]:
        """What fusion decided for each value, as the report holds it."""
        return [{**vars(row), "where": list(row.where)} for row in self.decisions]


def faults_of(parts: Sequence[Built]) -> list[str]:
    """The notes of parts that were made in spite of a mistake of our own."""
    return [f"{part.name}: {fault}" for part in parts for fault in part.faults]


class PackedConstants:
    """A module's constants as plans want them in memory: each is packed once, however many parts hold it."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._made: dict[str, np.ndarray[Any, Any]] = {}

    def of(self, constants: Mapping[str, Constant]) -> dict[str, np.ndarray[Any, Any]]:
        """The constants of a part, by their keys, which say the layout."""
        for key, held in constants.items():
            if key not in self._made:
                self._made[key] = pack(held, self._module)
        return {key: self._made[key] for key in constants}


def pack(held: Constant, module: Module) -> np.ndarray[Any, Any]:
    """A constant's values in the order in which the plan wants them in memory."""
    value = module.constants[held.value]
    if value.constant is None:
        raise InternalError(f"%{value.name} is read as a constant and has no values")
    array = value.constant.array
    if held.layout is None:
        return array
    array = array.reshape(held.shape)
    return held.layout.pack(array if held.making is None else held.making.of(array))


def unpack(held: Constant, array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The constant of `shape` of which `pack` gave the array."""
    return array if held.layout is None else held.layout.unpack(array, held.shape).reshape(shape)
