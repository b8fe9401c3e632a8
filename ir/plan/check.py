"""The checker of plans: for all sizes, every read finds what was last written there, by an abstract memory of places.

It shares no code with the planner, and trusts nothing of it: what is not proved is a fault. A place of a root memory
holds versions of buffers, (name, number); a write makes a new version and destroys every version that it may touch,
and a read must find the last version of its name. A copy between two buffers of one place moves nothing: both versions
are there, until one of them is written. A step that reads and writes one name goes on with its value: nobody else reads the
name before, and nobody begins it anew before the whole has been read. The work is linear in the steps.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable

from .. import dims
from ..dims import Dim
from ..errors import VerifyError
from ..types import TensorType, i32
from . import storage
from .places import READ_ONLY, SLOT, Place, Places, Root, holds_each_once, known_at_entry
from .plan import Plan
from .steps import Call, Check, CheckPlace, Copy, Host, Launch, Step, Zero


def check(plan: Plan) -> None:
    """VerifyError with step, buffer and reason unless the plan is right for all values of its symbols."""
    _Checker(plan).run()


def own_arguments(step: Launch) -> tuple[str, ...]:
    """The arguments that only the kernel uses, workspaces and counters: neither read nor written as far as the plan says."""
    used = {*step.reads, *step.writes}
    return tuple(dict.fromkeys(name for variant in step.variants for name in variant.arguments if name and name not in used))


def counters(plan: Plan, own: Iterable[tuple[str, ...]]) -> frozenset[str]:
    """The buffers that a kernel finds zeroed: what a step fills with zeros, and what else is a kernel's own vector of i32."""
    found = {step.target for step in plan.steps if isinstance(step, Zero)}
    types = ((name, plan.named[name].type) for names in own for name in names if name in plan.named)
    return frozenset(found | {name for name, type in types if type.dtype == i32 and type.rank == 1})


class _Checker:
    """What memory holds before a step, and which symbols have a value."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.named = plan.named
        self.layout = Places(plan)
        self.places = self.layout.places
        self.own = {id(step): own_arguments(step) for step in plan.steps if isinstance(step, Launch)}
        self.counters = counters(plan, self.own.values())
        self.known, _ = known_at_entry(plan)
        self.memory: dict[Root, dict[Place, dict[str, int]]] = {}
        self.filled = 0  # the slots that hold anything
        self.versions: dict[str, int] = {}
        self.lost: dict[str, tuple[int, str]] = {}
        # The last step that has read the last version of a name, and the one that went on with it and is still to be read.
        self.seen: dict[str, int] = {}
        self.unread: dict[str, int] = {}
        self.sized: set[str] = set()
        self.step = -1

    def run(self) -> None:
        self.enter()
        for number, step in enumerate(self.plan.steps):
            self.step = number
            if isinstance(step, Launch):
                self.launch(step)
            elif isinstance(step, Host | Call):
                self.python(step)
            elif isinstance(step, Copy):
                self.copy(step)
            elif isinstance(step, Zero):
                self.sizes(step.target)
                self.write(step.target)
            elif isinstance(step, CheckPlace):
                self._need((step.place, step.size), "a place that is checked depends on")
            else:
                self.sizes(step.worst)
                self._need(() if step.size is None else (step.size,), "the size that indices are checked against depends on")
                self.read(step.worst)
        self.step = len(self.plan.steps)
        self.leave()

    # --- the ends of a call

    def enter(self) -> None:
        given = {name for _, name in self.plan.inputs}
        for name in given:
            if name not in self.named or not isinstance(self.named[name].storage, storage.Input):
                raise VerifyError(f"input {name} of the plan: got {self._storage(name)}, expected the caller's memory")
        for name, buffer in self.named.items():
            if name in given or isinstance(buffer.storage, storage.Constant | storage.State | storage.Verdict):
                self.sizes(name)
                self._hold(self.places[name], name)
        for slot in self.plan.slots:
            late = sorted(frozenset().union(*(dims.symbols(size) for size in slot.sizes)) - self.known)
            if late:
                raise VerifyError(f"slot {slot.name}: its size depends on {late[0]}, which has no value when the call begins")

    def leave(self) -> None:
        for _, name in self.plan.outputs:
            self.sizes(name)
            self.read(name)
        tied: dict[str, str] = {}
        for state, name in self.plan.ties:
            self._check_tie(state, name)
            if state in tied:
                raise self.fault(name, f"is tied to the state {state!r}, and so is {tied[state]}")
            tied[state] = name
            self.read(name)
        for name, buffer in self.named.items():
            if isinstance(buffer.storage, storage.State) and buffer.storage.name not in tied:
                if self.versions[name] or not self.finds(name):
                    why = "has been written" if self.finds(name) else self._why(name)
                    raise self.fault(name, f"the state {buffer.storage.name!r} {why}, and no tie says what it holds")

    def _check_tie(self, state: str, name: str) -> None:
        declared = self.layout.declared.get(state)
        if declared is None:
            raise self.fault(name, f"is tied to the state {state!r}, which the plan does not declare")
        self.exists(name)
        buffer, place = self.named[name], self.places[name]
        whole = self.layout.place(("state", state), 0, declared.nbytes)
        if place is not whole or buffer.type.dtype != declared.dtype:
            raise self.fault(name, f"is tied to the state {state!r} and is {buffer.type} at {place}, expected {declared} at {whole}")

    # --- steps

    def launch(self, step: Launch) -> None:
        own = self.own[id(step)]
        self._need((size for _, size in step.symbols), "the symbols of its kernel depend on")
        for variant in step.variants:
            guard = variant.guard
            sizes = (*variant.grid, *variant.scalars, *guard.zero, *guard.positive)
            self._need(sizes, f"the sizes of kernel {variant.kernel} depend on")
            for name in step.writes:
                if name not in variant.arguments:
                    raise self.fault(name, f"kernel {variant.kernel} writes it and does not take it")
        for name in (*step.reads, *step.writes, *own):
            if name:
                self.sizes(name)
        for name in own:
            if name in self.counters:
                self.read(name, "is a counter that is not zeroed:")
        self._finish(step.reads, step.writes, own)

    def python(self, step: Host | Call) -> None:
        for name in step.reads:
            if name:
                self.sizes(name)
        bound = {name for name, _, _ in step.binds}
        for name in sorted(bound & self.known):
            raise VerifyError(f"{self.title()}: it gives {name} a value, which has one already")
        attributes = tuple(step.attrs.values()) if isinstance(step, Host) else ()
        late = sorted(frozenset().union(*map(dims.symbols, dims.within(attributes))) - self.known - bound)
        if late:
            raise VerifyError(f"{self.title()}: its attributes depend on {late[0]}, which has no value yet")
        self.known |= bound
        for name in step.writes:
            self.sizes(name)
        self._finish(step.reads, step.writes, ())

    def copy(self, step: Copy) -> None:
        self.sizes(step.source)
        self.sizes(step.target)
        source, target = self.named[step.source], self.named[step.target]
        if source.type.dtype != target.type.dtype or not self._same_shape(source.type, target.type):
            raise self.fault(step.target, f"is {target.type} and a copy of {step.source}, which is {source.type}")
        if self.places[step.source] is self.places[step.target]:
            self.read(step.source)
            self._hold(self.places[step.target], step.target)
            return
        self._finish((step.source,), (step.target,), ())

    def _same_shape(self, one: TensorType, other: TensorType) -> bool:
        return one.shape == other.shape or (
            one.rank == other.rank and all(dims.equal(a, b, self.plan.symbols) is True for a, b in zip(one.shape, other.shape, strict=True))
        )

    def _finish(self, reads: tuple[str, ...], writes: tuple[str, ...], own: tuple[str, ...]) -> None:
        """Read, then destroy what the kernel only uses, then write; nothing written may be where another operand is."""
        further = [name for name in writes if name in reads]
        for name in further:
            if name in self.seen:
                raise self.fault(name, f"is gone on with, and {self._named(self.seen[name])} has read it before")
        for name in reads:
            if name:
                self.read(name)
        written = (*writes, *own)
        if len(set(writes)) != len(writes):
            raise self.fault(writes[0], f"the step writes {', '.join(writes)}, expected each of them once")
        self._check_apart([name for name in dict.fromkeys((*reads, *written)) if name], written)
        for name in own:
            self.destroy(name)
        for name in writes:
            self.write(name)
        self.unread.update(dict.fromkeys(further, self.step))

    def _check_apart(self, operands: list[str], written: tuple[str, ...]) -> None:
        by_root: dict[Root, list[str]] = {}
        for name in operands:
            by_root.setdefault(self.places[name].root, []).append(name)
        among = self._slots(by_root)
        if len(by_root) == len(operands) and among & (among - 1) == 0:
            return
        for name in written:
            for other in (other for root in self._meeting(self.places[name].root, among) for other in by_root.get(root, ())):
                if other != name and not self.layout.apart(self.places[name], self.places[other]):
                    raise self.fault(name, f"is written where the operand {other} of the same step lies, at {self.places[other]}")

    # --- memory

    def read(self, name: str, what: str = "is read, and") -> None:
        """The last version of a name must be where it lies."""
        self.exists(name)
        if not self.finds(name):
            raise self.fault(name, f"{what} {self._why(name)}")
        self.seen[name] = self.step
        self.unread.pop(name, None)

    def finds(self, name: str) -> bool:
        place, version = self.places[name], self.versions.get(name)
        return version is not None and self.memory.get(place.root, {}).get(place, {}).get(name) == version

    def write(self, name: str) -> None:
        """A new version of a name, and an end to all that it may touch."""
        place = self.places[name]
        if place.axes is not None and not holds_each_once(place, self.plan.symbols):
            raise self.fault(name, "is written, and two of its elements may lie in one place")
        self.destroy(name)
        self._hold(place, name)

    def destroy(self, name: str) -> None:
        """Something is written where a name lies."""
        place = self.places[name]
        if place.root[0] in READ_ONLY:
            raise self.fault(name, f"is written, and lies in {' '.join(place.root)}, which is only read")
        if place.is_empty:
            return
        for root in self._meeting(place.root, self.filled):
            held = self.memory.get(root, {})
            for other in [other for other in held if not self.layout.apart(place, other)]:
                for victim in held.pop(other):
                    self.lost[victim] = (self.step, name)
            if not held:
                self.filled &= ~self._slots((root,))

    def _slots(self, roots: Iterable[Root]) -> int:
        """The slots among roots, as a set of them."""
        return functools.reduce(operator.or_, (self.layout.slots.bit(name) for kind, name in roots if kind == SLOT), 0)

    def _meeting(self, root: Root, among: int) -> list[Root]:
        """A root, and if it is a slot those among others that it may share bytes with."""
        others = self.layout.slots.sharing(root[1]) & among if root[0] == SLOT else 0
        return [root, *((SLOT, name) for name in self.layout.slots.names(others))]

    def _hold(self, place: Place, name: str) -> None:
        if name in self.unread:
            raise self.fault(name, f"is begun anew, and nobody has read what {self._named(self.unread[name])} went on with")
        self.seen.pop(name, None)
        self.versions[name] = self.versions.get(name, -1) + 1
        self.filled |= self._slots((place.root,))
        self.memory.setdefault(place.root, {}).setdefault(place, {})[name] = self.versions[name]

    # --- sizes and messages

    def sizes(self, name: str) -> None:
        """The sizes of a buffer must be known."""
        if name in self.sized:
            return
        self.exists(name)
        held = self.named[name].storage
        self._need(self.named[name].type.shape, f"the sizes of {name} depend on")
        if isinstance(held, storage.Alias):
            self.sizes(held.root)
            self._need((held.offset, *held.strides), f"the place of {name} depends on")
        # What has a value keeps one.
        self.sized.add(name)

    def _need(self, sizes: Iterable[Dim], what: str) -> None:
        for size in sizes:
            if not isinstance(size, int) and not dims.symbols(size) <= self.known:
                raise VerifyError(f"{self.title()}: {what} {min(dims.symbols(size) - self.known)}, which has no value yet")

    def exists(self, name: str) -> None:
        if name not in self.named:
            raise self.fault(name, "is no buffer of the plan")

    def fault(self, name: str, why: str) -> VerifyError:
        return VerifyError(f"{self.title()}: buffer {name} {why}")

    def title(self) -> str:
        if self.step < 0:
            return "at the begin of the plan"
        if self.step == len(self.plan.steps):
            return "at the end of the plan"
        return self._named(self.step)

    def _why(self, name: str) -> str:
        if name in self.lost:
            step, writer = self.lost[name]
            return f"has been overwritten by {self._named(step)}, which uses {writer} at {self.places[writer]}"
        return "has not been written"

    def _named(self, step: int) -> str:
        return f"step {step} ({_described(self.plan.steps[step])})"

    def _storage(self, name: str) -> str:
        return type(self.named[name].storage).__name__.lower() if name in self.named else "no buffer"


def _described(step: Step) -> str:
    if isinstance(step, Launch):
        return f"launch {step.name}"
    if isinstance(step, Host):
        return f"host {step.routine}"
    if isinstance(step, Call):
        return f"call {step.target}"
    if isinstance(step, Copy):
        return f"copy {step.source} to {step.target}"
    if isinstance(step, Check):
        return f"check {step.worst}"
    return f"zero {step.target}" if isinstance(step, Zero) else f"check_place {step.place}"


__all__ = ["check", "own_arguments"]
