"""Where a plan's buffers lie: every kind of memory says as data what it is, and nothing is ever read back from a name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ..dims import Dim
from ..layout import Layout
from ..making import Making
from ..types import TensorType


@dataclass(frozen=True)
class Input:
    """The caller's memory, which is read and never written."""


@dataclass(frozen=True)
class Output:
    """Memory that is the caller's from the end of the call on."""


@dataclass(frozen=True)
class Constant:
    """The values of the module's constant `value`; in `layout`, which is of the sizes `shape`, where it has one.

    A region may see a constant with adjacent dimensions merged, so `shape` need not be that of the module. With `making`
    these are not the values but what it makes of them, in the layout.
    """

    value: str
    layout: Layout | None = None
    shape: tuple[int, ...] = ()
    making: Making | None = None

    @property
    def key(self) -> str:
        """The name of these bytes among an engine's weights. It is only ever compared."""
        if self.layout is None:
            return self.value
        made = "" if self.making is None else f" {self.making.word} {self.making}"
        return f"{self.value} {self.layout} of [{', '.join(map(str, self.shape))}]{made}"

    @property
    def laid(self) -> tuple[int, ...]:
        """The sizes that the layout is of: `shape`, or those of what is made of it."""
        return self.shape if self.making is None else self.making.shape(self.shape)


@dataclass(frozen=True)
class Arena:
    """The beginning of a slot of the arena, which buffers share that are not alive at the same time."""

    slot: str


@dataclass(frozen=True)
class Dynamic:
    """Memory of its own, made during the call, when the sizes are known."""


@dataclass(frozen=True)
class State:
    """Memory that lives as long as a session; the buffer is what the state `name` holds when the call begins."""

    name: str


@dataclass(frozen=True)
class Alias:
    """A part of the memory of the buffer `root`, which is itself no alias: `offset` in bytes, `strides` in elements."""

    root: str
    offset: Dim
    strides: tuple[Dim, ...]


@dataclass(frozen=True)
class Verdict:
    """A number (i64) beside the arena of a GPU's call: it is `IN_RANGE` when a call begins, and kernels raise it by atomic maxima.

    See `ir/ops/check.py` for what it says. It is set anew only after a call that failed.
    """


Storage: TypeAlias = Input | Output | Constant | Arena | Dynamic | State | Alias | Verdict


@dataclass(frozen=True)
class Buffer:
    """A tensor of the plan and where it lies."""

    name: str
    type: TensorType
    storage: Storage


@dataclass(frozen=True)
class Slot:
    """A piece of the arena: as many bytes as the largest of its sizes, from where all slots end that it lies `above`.

    These are declared before it. Slots of which none lies above the other, nor above one that does, may share bytes.
    """

    name: str
    sizes: tuple[Dim, ...]
    above: tuple[str, ...] = ()


@dataclass(frozen=True)
class StateDeclaration:
    """A state of a plan: its name among a session's memory, and what it holds; `initial` is the constant, none for zeros,
    that a session begins with.
    """

    name: str
    type: TensorType
    initial: str = ""
