"""What an import of a torch graph gives: the module, and what its caller must know of inputs, results and calls into torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ....ir.dims import Dim
from ....ir.errors import Source
from ....ir.graph import Module
from .fallback import AtenCall
from .views import NO_VIEWS, Views


@dataclass(frozen=True)
class Feed:
    """An engine input: a tensor argument of the graph, or (`is_number`) an integer one, an i64 scalar."""

    argument: int
    is_number: bool = False


@dataclass(frozen=True)
class Result:
    """What the graph returns at one place: an output of the engine (`is_number`: as a Python number), a size that arguments
    give, one of the `views` (`slot`), or None.
    """

    position: int | None = None
    size: Dim | None = None
    slot: int | None = None
    is_number: bool = False


@dataclass(frozen=True)
class Fallback:
    """A node that runs as an ATen call, and why."""

    operator: str
    source: Source
    why: str


@dataclass(frozen=True)
class KeptState:
    """A placeholder that is a state of the program: its name, and what it holds when a session begins."""

    name: str
    initial: Any


@dataclass(frozen=True)
class Imported:
    """A module with what its caller must know: where inputs come from, what the outputs are, the calls into torch.

    `states` are the arguments that the engine writes where they lie, `written` those that a copy of an output goes to.

    `strides` are torch's strides of the engine's outputs where they are unusual, `offsets` where in their memory they begin,
    `devices` where torch has them (None: anywhere), `views` what shares them. Symbols in these
    are the sizes or values of arguments (`places`), or scalars that the engine gives (`given`, by output).

    `frozen` are the digests of the arguments that are constants.

    Where `is_left`, nothing was imported and torch runs the graph.
    """

    module: Module
    feeds: tuple[Feed, ...]
    results: tuple[Result, ...]
    calls: tuple[AtenCall, ...]
    fallbacks: tuple[Fallback, ...]
    places: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    is_left: bool = False
    strides: tuple[tuple[Dim, ...] | None, ...] = ()
    offsets: tuple[Dim, ...] = ()
    devices: tuple[Any, ...] = ()
    views: Views = NO_VIEWS
    given: Mapping[str, int] = field(default_factory=dict)
    states: Mapping[str, int] = field(default_factory=dict)
    written: Mapping[int, int] = field(default_factory=dict)
    frozen: Mapping[int, str] = field(default_factory=dict)
