"""The verifier of plans, the part that concerns memory: slots, states, and where each buffer lies."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from .. import dims
from ..dims import Dim
from ..dims_text import LARGEST_NUMBER
from ..errors import VerifyError
from ..target import GPU_TARGETS
from ..types import TensorType, i64
from . import storage
from .places import Slots
from .plan import SLOT_ALIGNMENT, Plan
from .storage import Buffer, Slot, StateDeclaration

_AXIS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def verify_storage(plan: Plan) -> None:
    """Raise VerifyError at the first slot, state or buffer that breaks a rule."""
    verifier = _Storage(plan)
    for slot in plan.slots:
        verifier.slot(slot)
    for state in plan.states:
        verifier.type(state.type, f"state {state.name!r}")
        verifier.begins(state)
    for buffer in plan.buffers:
        verifier.type(buffer.type, f"buffer %{buffer.name}")
        _RULES[type(buffer.storage)](verifier, buffer, buffer.storage)


def declared(size: Dim, names: Collection[str], what: str) -> None:
    """VerifyError unless the symbols of a size are among these."""
    for name in sorted(dims.symbols(size)):
        if name not in names:
            raise VerifyError(undeclared(what, name))


def undeclared(what: str, name: str) -> str:
    """The message about a symbol that is used and not declared."""
    return f"{what} names the symbol {name}, which the plan does not declare"


class _Storage:
    """What the buffers of one plan may name; which types are known to be right, and to fit a slot."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.slots = Slots(plan.slots).named
        self.states = {state.name: state.type for state in plan.states}
        held = ((buffer.storage, buffer.type) for buffer in plan.buffers)
        self.constants = {place.key: type for place, type in held if isinstance(place, storage.Constant)}
        self._right: set[TensorType] = set()
        self._covered: dict[tuple[str, TensorType], bool] = {}

    def size(self, size: Dim, what: str) -> None:
        declared(size, self.plan.symbols.ranges, what)
        if dims.magnitude(size) > LARGEST_NUMBER:
            raise VerifyError(f"{what} has a number beyond {LARGEST_NUMBER}")

    def slot(self, slot: Slot) -> None:
        if not slot.sizes:
            raise VerifyError(f"slot {slot.name} of the arena has no size")
        for size in slot.sizes:
            self.size(size, f"slot {slot.name} of the arena")
            if dims.at_most(0, size, self.plan.symbols) is False:
                raise VerifyError(f"slot {slot.name} of the arena has {str(size)[:80]} bytes")

    def type(self, type: TensorType, what: str) -> None:
        """Sizes are declared, none is below 0, and memory can hold what is known of them."""
        if type in self._right:
            return
        for size in type.shape:
            declared(size, self.plan.symbols.ranges, what)
            if isinstance(size, int) and size < 0:
                raise VerifyError(f"{what} is {type}, expected no size below 0")
        excess = type.excess()
        if excess is not None:
            raise VerifyError(f"{what} has {excess}, more than any memory")
        self._right.add(type)

    def begins(self, state: StateDeclaration) -> None:
        """What a state begins as has its type, where the plan reads that constant as well."""
        given = self.constants.get(storage.Constant(state.initial).key) if state.initial else None
        if given is not None and given != state.type:
            raise VerifyError(f"state {state.name!r} of the plan begins as the constant {state.initial!r}, {given}, expected {state.type}")

    def free(self, buffer: Buffer, held: Any) -> None:
        """Memory that the caller or the call makes: nothing more is said of it."""

    def arena(self, buffer: Buffer, held: storage.Arena) -> None:
        """The slot is as large as the buffer, by one of its sizes for all values of the symbols."""
        slot = self.slots.get(held.slot)
        if slot is None:
            raise VerifyError(f"buffer %{buffer.name} of the plan lies in slot {held.slot!r}, which the arena lacks")
        key = slot.name, buffer.type
        if key not in self._covered:
            exact = buffer.type.nbytes
            rounded = dims.ceil_div(exact, SLOT_ALIGNMENT) * SLOT_ALIGNMENT
            self._covered[key] = (
                exact in slot.sizes
                or rounded in slot.sizes
                or any(dims.at_most(needed, size, self.plan.symbols) for needed in (exact, rounded) for size in slot.sizes)
            )
        if not self._covered[key]:
            what = f"buffer %{buffer.name}: {buffer.type} needs {buffer.type.nbytes} bytes"
            raise VerifyError(f"{what}, and its slot {slot.name} has {', '.join(map(str, slot.sizes))}")

    def state(self, buffer: Buffer, held: storage.State) -> None:
        if self.states.get(held.name) != buffer.type:
            got = self.states.get(held.name, "no such state")
            raise VerifyError(f"buffer %{buffer.name}: {buffer.type} is the state {held.name!r}, and the plan declares {got}")

    def verdict(self, buffer: Buffer, held: storage.Verdict) -> None:
        """What kernels of a GPU tell: one number."""
        if buffer.type != TensorType(i64, ()):
            raise VerifyError(f"buffer %{buffer.name} of the plan is a verdict of the type {buffer.type}, expected i64[]")
        if self.plan.target not in GPU_TARGETS:
            raise VerifyError(f"buffer %{buffer.name} of the plan is a verdict, which {self.plan.target} has none of: only GPUs have")

    def alias(self, buffer: Buffer, held: storage.Alias) -> None:
        root = self.plan.named.get(held.root)
        if root is None or isinstance(root.storage, storage.Alias):
            why = "the plan does not hold" if root is None else "is an alias itself"
            raise VerifyError(f"buffer %{buffer.name} is a part of %{held.root}, which {why}")
        if len(held.strides) != buffer.type.rank:
            raise VerifyError(f"buffer %{buffer.name}: {buffer.type} has {len(held.strides)} strides, expected one for each dimension")
        for size in (held.offset, *held.strides):
            self.size(size, f"the place of buffer %{buffer.name}")

    def constant(self, buffer: Buffer, held: storage.Constant) -> None:
        """A constant has known sizes, in a layout those that the layout gives."""
        if not held.value:
            raise VerifyError(f"buffer %{buffer.name} is a constant without a name")
        if not buffer.type.is_static:
            raise VerifyError(f"buffer %{buffer.name} is a constant of the type {buffer.type}, expected known sizes")
        if held.layout is None:
            if held.shape or held.making is not None:
                raise VerifyError(f"buffer %{buffer.name} is a constant of {list(held.shape)} without a layout, expected no such sizes")
            return
        if not all(_AXIS.fullmatch(axis) for axis in held.layout.axes):
            raise VerifyError(f"buffer %{buffer.name} is a constant in a layout of the axes {held.layout.axes}, expected plain names")
        if len(held.layout.axes) != len(held.shape) or any(size < 0 for size in held.shape):
            raise VerifyError(f"buffer %{buffer.name} is a constant of the sizes {list(held.shape)} in the layout {held.layout}")
        if held.layout.extents(held.laid) != buffer.type.shape:
            kept = ", ".join(map(str, held.layout.extents(held.laid)))
            raise VerifyError(f"buffer %{buffer.name} is {buffer.type}, expected [{kept}], what {held.layout} of {list(held.laid)} takes")


_RULES: Mapping[type, Callable[[_Storage, Buffer, Any], None]] = {
    storage.Input: _Storage.free,
    storage.Output: _Storage.free,
    storage.Dynamic: _Storage.free,
    storage.Constant: _Storage.constant,
    storage.Arena: _Storage.arena,
    storage.State: _Storage.state,
    storage.Alias: _Storage.alias,
    storage.Verdict: _Storage.verdict,
}
