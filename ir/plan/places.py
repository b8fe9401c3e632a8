"""Where buffers lie, as bytes of root memories, and what is proved of such places for all sizes."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from .. import dims
from ..dims import Dim, Expr, Facts, Function
from ..errors import VerifyError
from ..sizes import Solve, solves_of
from ..types import TensorType
from . import storage
from .plan import SLOT_ALIGNMENT, Plan
from .storage import Buffer, Slot

Root: TypeAlias = tuple[str, str]
"""A memory of its own: its kind (input, output, constant, slot, dynamic, state), and its name among those."""

READ_ONLY = ("input", "constant")
SLOT = "slot"
MOST_SLOTS = 1 << 15
"""Slots of an arena at most: of each it is known which ones lie below it."""
MOST_ABOVE = 1 << 20
"""Names of slots that others lie above, in all."""


@dataclass(frozen=True, eq=False)
class Place:
    """The bytes low..high of a root: all of them, or those of `axes`, each (size, stride in bytes), of so many bytes an element.

    `Places` makes each place once: two places are the same one if they are one object.
    """

    root: Root
    low: Dim
    high: Dim
    axes: tuple[tuple[Dim, Dim], ...] | None = None
    element: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether it is known to hold no byte."""
        return self.low == self.high

    def __str__(self) -> str:
        part = "" if self.axes is None else ", strided"
        return f"bytes {self.low}..{self.high} of {' '.join(self.root)}{part}"


class Slots:
    """The slots of an arena, and which of them may share bytes: sets of slots are bits of an integer, in the order of declaration.

    VerifyError where two have one name, or one lies above what is not declared before it.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        if len(slots) > MOST_SLOTS:
            raise VerifyError(f"the arena of the plan has {len(slots)} slots, expected at most {MOST_SLOTS}")
        said = sum(len(slot.above) for slot in slots)
        if said > MOST_ABOVE:
            raise VerifyError(f"slots of the arena lie above {said} others, expected at most {MOST_ABOVE} in all")
        self.named = {slot.name: slot for slot in slots}
        if len(self.named) != len(slots):
            raise VerifyError("two slots of the plan have one name")
        self._names, self._number = list(self.named), dict[str, int]()
        below: list[int] = []
        for slot in slots:
            for name in slot.above:
                if name not in self._number:
                    raise VerifyError(f"slot {slot.name} of the arena lies above {name!r}, which is not declared before it")
            self._number[slot.name] = len(below)
            under = [self._number[name] for name in slot.above]
            below.append(functools.reduce(operator.or_, (below[n] | 1 << n for n in under), 0))
        above = [0] * len(slots)
        for n in reversed(range(len(slots))):
            for name in slots[n].above:
                above[self._number[name]] |= above[n] | 1 << n
        self._ordered = [under | over | 1 << n for n, (under, over) in enumerate(zip(below, above, strict=True))]

    def bit(self, name: str) -> int:
        """The set of one slot."""
        return 1 << self._number[name]

    def sharing(self, name: str) -> int:
        """The other slots that a slot may share bytes with: none of both lies above the other."""
        return ((1 << len(self._ordered)) - 1) & ~self._ordered[self._number[name]]

    def names(self, found: int) -> Iterator[str]:
        """The slots of a set."""
        while found:
            yield self._names[found.bit_length() - 1]
            found ^= 1 << (found.bit_length() - 1)


class Places:
    """The places of a plan's buffers; VerifyError where one does not lie inside of its root for all sizes."""

    def __init__(self, plan: Plan) -> None:
        self.facts = plan.symbols
        self.named = plan.named
        self.declared = {state.name: state.type for state in plan.states}
        self.slots = Slots(plan.slots)
        self.places: dict[str, Place] = {}
        self._made: dict[tuple[Any, ...], Place] = {}
        self._bytes: dict[TensorType, Dim] = {}
        self._apart: dict[tuple[Place, Place], bool] = {}
        self._fits: dict[tuple[str, TensorType], bool] = {}
        if len(self.named) != len(plan.buffers):
            raise VerifyError("two buffers of the plan have one name")
        if len(self.declared) != len(plan.states):
            raise VerifyError("two states of the plan have one name")
        for buffer in plan.buffers:
            self.places[buffer.name] = self._place(buffer)

    def apart(self, one: Place, other: Place) -> bool:
        """Whether no byte can be in both."""
        if one is other:
            return one.is_empty
        if one.root != other.root:
            shares = self.slots.sharing(one.root[1]) & self.slots.bit(other.root[1]) if one.root[0] == other.root[0] == SLOT else 0
            return not shares or one.is_empty or other.is_empty
        known = self._apart.get((one, other))
        if known is None:
            known = at_most(one.high, other.low, self.facts) or at_most(other.high, one.low, self.facts)
            known = known or one.is_empty or other.is_empty or _interleaved(one, other, self.facts)
            self._apart[one, other] = known
        return known

    def place(self, root: Root, low: Dim, high: Dim, axes: tuple[tuple[Dim, Dim], ...] | None = None, element: int = 0) -> Place:
        """The one place of these bytes."""
        key = (root, low, high, axes, element)
        if key not in self._made:
            self._made[key] = Place(*key)
        return self._made[key]

    def _place(self, buffer: Buffer) -> Place:
        held = buffer.storage
        size = self._bytes.get(buffer.type)
        if size is None:
            size = self._bytes[buffer.type] = buffer.type.nbytes
        if isinstance(held, storage.Alias):
            return self._alias(buffer, held)
        if isinstance(held, storage.Arena):
            self._check_slot(buffer, held.slot)
            return self.place((SLOT, held.slot), 0, size)
        if isinstance(held, storage.State):
            if held.name not in self.declared:
                raise VerifyError(f"buffer {buffer.name} holds the state {held.name!r}, which the plan does not declare")
            if self.declared[held.name] != buffer.type:
                raise VerifyError(
                    f"buffer {buffer.name} is {buffer.type}, expected {self.declared[held.name]}, as the state {held.name!r} is"
                )
            return self.place(("state", held.name), 0, size)
        if isinstance(held, storage.Constant):
            # Two buffers of one constant are two views of what is never written.
            return self.place(("constant", held.key), 0, size)
        return self.place((type(held).__name__.lower(), buffer.name), 0, size)

    def _check_slot(self, buffer: Buffer, name: str) -> None:
        """A slot ends where the largest of its sizes does: a buffer must not be longer than one of these."""
        slot = self.slots.named.get(name)
        if slot is None:
            raise VerifyError(f"buffer {buffer.name} lies in slot {name!r}, which the arena lacks")
        key = (name, buffer.type)
        if key not in self._fits:
            size = buffer.type.nbytes
            rounded = dims.ceil_div(size, SLOT_ALIGNMENT) * SLOT_ALIGNMENT
            self._fits[key] = any(at_most(size, held, self.facts) or at_most(rounded, held, self.facts) for held in slot.sizes)
        if not self._fits[key]:
            sizes = ", ".join(str(held) for held in slot.sizes) or "0"
            raise VerifyError(f"buffer {buffer.name} takes {buffer.type.nbytes} bytes, which is not known to fit slot {name} of {sizes}")

    def _alias(self, buffer: Buffer, held: storage.Alias) -> Place:
        root = self.named.get(held.root)
        title = f"alias {buffer.name} of {held.root}"
        if root is None:
            raise VerifyError(f"{title}: the plan has no such buffer")
        if isinstance(root.storage, storage.Alias):
            raise VerifyError(f"{title}: that is an alias itself, expected its root {root.storage.root}")
        shape, bits = buffer.type.shape, buffer.type.dtype.bits
        if bits == 0 or root.type.dtype.bits == 0:
            raise VerifyError(f"{title}: {buffer.type} has no place in memory")
        if len(held.strides) != len(shape):
            raise VerifyError(f"{title}: got {len(held.strides)} strides, expected {len(shape)}")
        element = max(bits // 8, 1)
        if dims.divides(element, held.offset, self.facts) is not True:
            raise VerifyError(f"{title}: its offset {held.offset} is not known to be a multiple of the {element} bytes of an element")
        dense = is_dense(buffer.type, held.strides)
        if bits < 8 and not dense:
            raise VerifyError(f"{title}: elements of {bits} bits are packed, expected no strides but those of {buffer.type}")
        if not at_most(0, held.offset, self.facts) or not all(at_most(0, stride, self.facts) for stride in held.strides):
            raise VerifyError(f"{title}: its offset or a stride is not known to be at least 0")
        axes = tuple((size, stride * element) for size, stride in zip(shape, held.strides, strict=True) if size != 1)
        length = buffer.type.nbytes if dense else _extent(axes, element)
        whole = root.type.nbytes
        if not at_most(held.offset + length, whole, self.facts):
            raise VerifyError(f"{title}: it ends at byte {held.offset + length}, which is not known to lie in the {whole} of its root")
        place = self._place(root) if held.root not in self.places else self.places[held.root]
        return self.place(place.root, held.offset, held.offset + length, None if dense else axes, 0 if dense else element)


def is_dense(type: TensorType, strides: tuple[Dim, ...]) -> bool:
    """Whether elements with these strides lie side by side in row-major order."""
    return all(size == 1 or stride == own for size, stride, own in zip(type.shape, strides, type.row_major, strict=True))


def at_most(left: Dim, right: Dim, facts: Facts) -> bool:
    """Whether left <= right is proved for all values of the symbols."""
    if isinstance(left, int) and isinstance(right, int):
        return left <= right
    difference = right - left
    for _ in range(4):
        if dims.at_most(0, difference, facts) is True:
            return True
        lower = _without_divisions(difference)
        if lower == difference:
            return False
        difference = lower
    return False


def _without_divisions(dim: Dim) -> Dim:
    """A lower bound of `dim`: n // m is at least (n - m + 1) / m, and at most n / m."""
    if isinstance(dim, int):
        return dim
    result: Dim = 0
    for monomial, factor in dim.terms:
        atom = monomial[0] if len(monomial) == 1 else None
        if (
            isinstance(atom, Function)
            and atom.kind == "div"
            and isinstance(atom.right, int)
            and atom.right > 0
            and factor % atom.right == 0
        ):
            times = factor // atom.right
            result = result + times * (atom.left - (atom.right - 1 if factor > 0 else 0))
        else:
            result = result + Expr(((monomial, factor),)) if monomial else result + factor
    return result


def _extent(axes: tuple[tuple[Dim, Dim], ...], element: int) -> Dim:
    """Bytes from the first to the end of the last element; too many where an axis is empty, as there is none then."""
    total: Dim = element
    for size, stride in axes:
        total = total + (size - 1) * stride
    return total


def holds_each_once(place: Place, facts: Facts) -> bool:
    """Whether no two elements are known to share a byte: each stride steps over all that the smaller ones reach."""
    axes = list(place.axes or ())
    reach: Dim = place.element
    while axes:
        least = next((axis for axis in axes if all(at_most(axis[1], other[1], facts) for other in axes)), None)
        if least is None or not at_most(reach, least[1], facts):
            return False
        axes.remove(least)
        reach = reach + (least[0] - 1) * least[1]
    return True


def _interleaved(one: Place, other: Place, facts: Facts) -> bool:
    """Whether two places are columns of one pattern of rows that do not meet."""
    periods = [stride for place in (one, other) for _, stride in place.axes or ()]
    return any(_columns_apart(one, other, period, facts) for period in dict.fromkeys(periods))


def _columns_apart(one: Place, other: Place, period: Dim, facts: Facts) -> bool:
    columns = [_column(place, period, facts) for place in (one, other)]
    (first, first_end), (second, second_end) = columns[0] or (0, 1), columns[1] or (0, 1)
    if columns[0] is None or columns[1] is None:
        return False
    return at_most(first_end, second, facts) or at_most(second_end, first, facts)


def _column(place: Place, period: Dim, facts: Facts) -> tuple[Dim, Dim] | None:
    """The bytes of each row of `period` bytes that a place touches; None where they are not known."""
    if not at_most(1, period, facts):
        return None
    inner: tuple[tuple[Dim, Dim], ...] = ()
    if place.axes is not None:
        inner = tuple((size, stride) for size, stride in place.axes if dims.remainder(stride, period) != 0)
    width = place.high - place.low if place.axes is None else _extent(inner, place.element)
    first = dims.simplify(dims.remainder(place.low, period), facts)
    if at_most(0, first, facts) and at_most(first + width, period, facts):
        return first, first + width
    return None


def known_at_entry(plan: Plan) -> tuple[set[str], tuple[Solve, ...]]:
    """The symbols that a call gives values, the caller's own integers included, and how sizes of the inputs tell them."""
    known = set(plan.symbols.fixed)
    known |= {name for name, _ in plan.numbers}
    named: Mapping[str, Buffer] = plan.named
    solves = tuple(solves_of((named[name].type.shape if name in named else () for _, name in plan.inputs), known))
    return known | {solve.symbol for solve in solves}, solves
