"""The steps of a plan: what is done, in order, on which buffers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..control import functions_of
from ..dims import Dim

IN_C = frozenset({"sample_token", "search_sorted", "sort", "top_k"})
"""Routines that are written in C too (`codegen/host/routines.py`): on a CPU they are native code."""
VALUE = -1
"""In the place of an axis: the symbol is not a size of a result but its value."""


SCALAR_LIMIT = 2**31 - 2**20
"""The scalars of a GPU's kernels stay below this and above what is as far below 0, so that 32-bit indices of the last, partly filled
tile do not wrap."""


@dataclass(frozen=True)
class Guard:
    """Conditions of a variant: `zero` expressions must be 0, `positive` ones >= 0 (over symbols), `aligned` buffers
    must start at a multiple of 16 bytes, `contiguous` ones must be dense. No condition: always.
    """

    zero: tuple[Dim, ...] = ()
    positive: tuple[Dim, ...] = ()
    aligned: tuple[str, ...] = ()
    contiguous: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variant:
    """A kernel that may serve a launch: its guard, and the number of grid points (CPU) or the grid (GPU).

    On a GPU the kernel takes its arguments (pointers), its scalars (i32 within `SCALAR_LIMIT`) and two scratch pointers; the first
    points to `scratch` bytes for each program of the grid, the second is null.
    """

    kernel: str
    guard: Guard
    grid: tuple[Dim, ...]
    arguments: tuple[str, ...]
    scalars: tuple[Dim, ...] = ()
    warps: int = 0
    shared: int = 0
    scratch: int = 0


@dataclass(frozen=True)
class Launch:
    """Run the first variant whose guard holds; the last one is unguarded. `sources` name the user's ops.

    `symbols` gives the symbols of the kernel their values, in its order; grids, scalars and guards are in the plan's.
    """

    name: str
    variants: tuple[Variant, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    sources: tuple[str, ...] = ()
    symbols: tuple[tuple[str, Dim], ...] = ()


@dataclass(frozen=True)
class Host:
    """A routine of the host table (an opaque op's body) on buffers; `binds` gives new symbols their values: (symbol,
    result, axis) is the size of a result, and with VALUE for the axis the integer that the result itself is.
    """

    routine: str
    attrs: Mapping[str, Any]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    binds: tuple[tuple[str, int, int], ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Call:
    """An ATen call through the caller's callback; only under torch."""

    target: str
    key: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    binds: tuple[tuple[str, int, int], ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Copy:
    """target = source, the same type. Between two buffers of the very same place it moves nothing: so a version in place begins."""

    source: str
    target: str


@dataclass(frozen=True)
class Zero:
    """Fill a buffer with zero bytes (counters)."""

    target: str


@dataclass(frozen=True)
class Check:
    """An error if the buffer `worst` (i64[]) holds an index out of range, or without `size` if integers are divided by 0.

    See `ir/ops/check.py` for the numbers.

    On a CPU it is read where it stands; on a GPU, whose kernels never read outside an operand either, at the end of the
    call. `subject` says what the indices are, `sources` whose op reads by them.
    """

    worst: str
    size: Dim | None
    negative: bool
    subject: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckPlace:
    """An error unless `subject` has the `place`: 0..size-1, with `negative` from -size on.

    The host knows both numbers: on every target the check holds before the next step begins, so what launches do there is in place.
    """

    place: Dim
    size: Dim
    negative: bool
    subject: str
    sources: tuple[str, ...] = ()


Step: TypeAlias = Launch | Host | Call | Copy | Zero | Check | CheckPlace


def kind(declared: type) -> str:
    """The word of a kind of step in files and messages: check_place of CheckPlace."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", declared.__name__).lower()


def reads(step: Step) -> tuple[str, ...]:
    """The buffers a step reads; an absent operand is an empty name."""
    if isinstance(step, Launch | Host | Call):
        return step.reads
    if isinstance(step, Check):
        return (step.worst,)
    return (step.source,) if isinstance(step, Copy) else ()


def writes(step: Step) -> tuple[str, ...]:
    """The buffers a step writes."""
    if isinstance(step, Launch | Host | Call):
        return step.writes
    return (step.target,) if isinstance(step, Copy | Zero) else ()


def is_native(step: Step) -> bool:
    """Whether native code of a CPU does a step, without Python."""
    return step.routine in IN_C if isinstance(step, Host) else not isinstance(step, Call)


def called(step: Step) -> tuple[str, ...]:
    """The functions of the engine that a step runs."""
    return functions_of(step.routine, step.attrs) if isinstance(step, Host) else ()


def touched(step: Step) -> tuple[str, ...]:
    """The buffers that must be in memory while a step runs, what only a kernel uses (workspaces, counters) included."""
    own = [name for variant in step.variants for name in variant.arguments] if isinstance(step, Launch) else []
    return tuple(dict.fromkeys(name for name in (*reads(step), *writes(step), *own) if name))
