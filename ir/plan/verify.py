"""The verifier of plans: rules of form, checked in near-linear time after every build and whenever an engine is loaded.

Names, storage, symbols and steps are looked at in this order, so that every rule may rely on those before it. Whether
buffers that share a slot are alive at the same time is not asked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .. import dims
from ..dims import Dim
from ..dims_text import LARGEST_NUMBER, is_symbol
from ..errors import ParseError, VerifyError
from ..types import TensorType, i64, string
from . import storage
from .plan import Plan
from .steps import VALUE, Call, Check, CheckPlace, Copy, Guard, Host, Launch, Step, Variant, Zero, reads, touched, writes
from .steps import kind as kind_of
from .storage import Buffer
from .verify_storage import declared, undeclared, verify_storage

_COUNT = 2**31
"""Warps and bytes of a variant are below this."""
_LONGEST = 400
"""Characters of a message and of its note."""


def verify(plan: Plan) -> None:
    """Raise VerifyError at the first rule that the plan breaks; the note is the step as text."""
    verifier = _Verifier(plan)
    try:
        verifier.run()
    except VerifyError as error:
        raise VerifyError(_short(error.message), note=verifier.note()) from None
    except ParseError as error:
        # Arithmetic on sizes that mean nothing: a division by 0, more terms than there are symbols for.
        raise VerifyError(_short(f"{verifier.where()}: {error.message}"), note=verifier.note()) from error


def _short(message: str) -> str:
    """A message that can be read, whatever names a damaged plan has."""
    return message if len(message) <= _LONGEST else f"{message[:_LONGEST]} ..."


class _Verifier:
    """One plan: which buffers have a value so far, which symbols are known, and which of them the call has given."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.declared = plan.symbols.ranges.keys()
        self.known: set[str] = set()
        self.bound: set[str] = set()
        self.written: set[str] = set()
        self.number = 0
        self.step: Step | None = None
        self._symbols: dict[TensorType, frozenset[str]] = {}

    def run(self) -> None:
        self.facts()
        self.names("buffer", (buffer.name for buffer in self.plan.buffers))
        self.names("slot", (slot.name for slot in self.plan.slots))
        self.names("state", (state.name for state in self.plan.states))
        verify_storage(self.plan)
        self.ports()
        self.start()
        for number, step in enumerate(self.plan.steps):
            self.number, self.step = number, step
            self.operands(step)
            _RULES[type(step)](self, step)
            self.written.update(writes(step), (self.root(name).name for name in writes(step)))
        self.step = None
        self.finish()

    # --- words of messages ---

    def where(self) -> str:
        """The step that is being looked at, for messages."""
        if self.step is None:
            return f"plan for {self.plan.target}"
        return f"step {self.number} ({_title(self.step)})"

    def note(self) -> str | None:
        """The step as text."""
        if self.step is None:
            return None
        # The text of attributes needs the op table, a heavy import that a right plan does without.
        from .text import step_lines

        try:
            return _short(step_lines(self.step)[0])
        except VerifyError:
            return None

    def sizes(self, found: Iterable[Dim], what: str) -> None:
        """Numbers of a plan can be written, and symbols are declared and known where they are read."""
        for size in found:
            if dims.magnitude(size) > LARGEST_NUMBER:
                raise VerifyError(f"{what} has a number beyond {LARGEST_NUMBER}")
            declared(size, self.declared, what)
            late = dims.symbols(size) - self.known
            if late:
                raise VerifyError(f"{what} is {str(size)[:80]}, where {min(late)} has no value yet")

    def of(self, type: TensorType) -> frozenset[str]:
        """The symbols of a type."""
        if type not in self._symbols:
            self._symbols[type] = frozenset().union(*(dims.symbols(size) for size in type.shape))
        return self._symbols[type]

    def needs(self, buffer: Buffer) -> frozenset[str]:
        """The symbols of a buffer: those of its type and of its place."""
        held = buffer.storage
        places = (held.offset, *held.strides) if isinstance(held, storage.Alias) else ()
        return self.of(buffer.type).union(*map(dims.symbols, places))

    # --- what stands before the steps ---

    def facts(self) -> None:
        facts = self.plan.symbols
        for name, bounds in facts.ranges.items():
            if not is_symbol(name):
                raise VerifyError(f"symbol {name!r} of the plan is not a name that a size can have")
            low, high = bounds.low, bounds.high
            if low is not None and high is not None and low > high:
                raise VerifyError(f"symbol {name} of the plan has the empty range {bounds}")
        for name, divisor in facts.divisors.items():
            if name not in facts.ranges or divisor < 2:
                raise VerifyError(f"symbol {name!r} of the plan has divisor {divisor}, expected a declared symbol and 2 or more")
        if facts.extents:
            raise VerifyError(f"plan has the axis {min(facts.extents)!r}, and axes belong to kernels")
        for size in (size for pair in facts.broadcasts for size in pair):
            declared(size, self.declared, "a broadcast of the plan")

    def names(self, kind: str, names: Iterable[str]) -> None:
        seen: set[str] = set()
        for name in names:
            if not name:
                raise VerifyError(f"plan for {self.plan.target} has a {kind} without a name")
            if name in seen:
                raise VerifyError(f"plan for {self.plan.target} has two {kind}s of one name, {name}")
            seen.add(name)

    def ports(self) -> None:
        """Inputs, outputs and numbers name buffers of their kind, and all of them."""
        named = self.plan.named
        for kind, pairs in (("input", self.plan.inputs), ("output", self.plan.outputs)):
            self.names(kind, (user for user, _ in pairs))
            for user, name in pairs:
                if name not in named:
                    raise VerifyError(f"{kind} {user!r} of the plan names the buffer {name!r}, and the plan does not hold it")
        self.names("input buffer", (name for _, name in self.plan.inputs))
        inputs, outputs = ({name for _, name in pairs} for pairs in (self.plan.inputs, self.plan.outputs))
        for user, name in self.plan.inputs:
            if not isinstance(named[name].storage, storage.Input):
                raise VerifyError(f"input {user!r} of the plan is %{name}, which lies in {_kind(named[name])}")
        for buffer in self.plan.buffers:
            if isinstance(buffer.storage, storage.Input) and buffer.name not in inputs:
                raise VerifyError(f"buffer %{buffer.name} is an input, and the plan does not list it")
            if isinstance(buffer.storage, storage.Output) and buffer.name not in outputs:
                raise VerifyError(f"buffer %{buffer.name} is an output, and the plan does not list it")
        self.names("number", (symbol for symbol, _ in self.plan.numbers))
        for symbol, name in self.plan.numbers:
            if symbol not in self.declared:
                raise VerifyError(undeclared(f"number {symbol}", symbol))
            if name not in inputs or named[name].type != TensorType(i64, ()):
                raise VerifyError(f"plan for {self.plan.target} takes {symbol} from the buffer {name!r}, expected an input that is i64[]")

    def start(self) -> None:
        """Before the first step: inputs and constants have values, and so have the symbols that the caller gives."""
        given = storage.Input | storage.Constant | storage.State | storage.Verdict
        self.written = {buffer.name for buffer in self.plan.buffers if isinstance(buffer.storage, given)}
        self.bound = {symbol for symbol, _ in self.plan.numbers}
        self.bound.update(*(self.of(self.plan.named[name].type) for _, name in self.plan.inputs))
        self.known = self.plan.symbols.fixed.keys() | self.bound
        for slot in self.plan.slots:
            late = sorted(frozenset().union(*map(dims.symbols, slot.sizes)) - self.known)
            if late:
                raise VerifyError(f"slot {slot.name} of the arena depends on {late[0]}, which is known only during a call")
            self.sizes(slot.sizes, f"slot {slot.name} of the arena")
        for state in self.plan.states:
            self.sizes(state.type.shape, f"state {state.name!r} of the plan")

    def finish(self) -> None:
        """After the last step: every output has its value, and every symbol."""
        states = {state.name for state in self.plan.states}
        self.names("tied state", (state for state, _ in self.plan.ties))
        for state, name in self.plan.ties:
            if state not in states or name not in self.plan.named:
                raise VerifyError(f"state {state!r} of the plan is tied to %{name}, expected a declared state and a buffer of the plan")
            if not self.has_value(name):
                raise VerifyError(f"state {state!r} of the plan is tied to %{name}, which no step writes")
        for user, name in self.plan.outputs:
            if not self.has_value(name):
                raise VerifyError(f"output {user!r} of the plan is %{name}, which no step writes")
        for buffer in self.plan.buffers:
            late = self.needs(buffer) - self.known
            if late:
                raise VerifyError(f"buffer %{buffer.name} is {buffer.type}, where nothing gives {min(late)} a value")

    # --- steps ---

    def operands(self, step: Step) -> None:
        """What a step names exists; what it reads has a value, and what it writes may be written."""
        named = self.plan.named
        for name in (*touched(step), *_guarded(step)):
            if name not in named:
                raise VerifyError(f"{self.where()} names the buffer {name!r}, and the plan does not hold it")
        for name in reads(step):
            if not name and not isinstance(step, Host | Call):
                raise VerifyError(f"{self.where()} reads a buffer without a name, and only a host step's operand may be absent")
            if name and not self.has_value(name):
                raise VerifyError(f"{self.where()} reads %{name} before any step has written it")
        for name in writes(step):
            if not name:
                raise VerifyError(f"{self.where()} writes a buffer without a name")
            if isinstance(self.root(name).storage, storage.Input | storage.Constant):
                raise VerifyError(f"{self.where()} writes %{name}, which is {_kind(self.root(name))}")
        if len(set(writes(step))) != len(writes(step)):
            raise VerifyError(f"{self.where()} writes one buffer twice")
        # What a step makes may be of sizes that it makes known.
        sized = reads(step) if isinstance(step, Host | Call) else touched(step)
        for name in sized:
            self.ready(name)
            if name and named[name].type.dtype == string and not isinstance(step, Host | Call):
                raise VerifyError(f"{self.where()} has the strings of %{name}, which only a host step can have")

    def root(self, name: str) -> Buffer:
        """The buffer whose memory this one is, or is a part of."""
        buffer = self.plan.named[name]
        return self.plan.named[buffer.storage.root] if isinstance(buffer.storage, storage.Alias) else buffer

    def has_value(self, name: str) -> bool:
        """Whether something was written there; which parts of it and what is left of them is not a question of form."""
        return name in self.written or self.root(name).name in self.written

    def ready(self, name: str) -> None:
        """The sizes of a buffer are known."""
        unknown = self.needs(self.plan.named[name]) - self.known if name else None
        if unknown:
            raise VerifyError(f"{self.where()} uses %{name}: {self.plan.named[name].type}, where {min(unknown)} has no value yet")

    def launch(self, step: Launch) -> None:
        if not step.variants:
            raise VerifyError(f"{self.where()} has no variant")
        if step.variants[-1].guard != Guard():
            raise VerifyError(f"{self.where()} may have no variant for a call: the last one must be unguarded")
        if len(dict(step.symbols)) != len(step.symbols):
            twice = next(symbol for n, (symbol, _) in enumerate(step.symbols) if symbol in dict(step.symbols[:n]))
            raise VerifyError(f"{self.where()} gives the symbol {twice} of its kernels two values")
        for symbol, size in step.symbols:
            if not is_symbol(symbol):
                raise VerifyError(f"{self.where()} gives its kernels the symbol {symbol!r}, which is not a name that a size can have")
            self.sizes((size,), f"{self.where()}: symbol {symbol} of its kernels")
        first = set(step.variants[0].arguments)
        for variant in step.variants:
            if set(variant.arguments) != first:
                raise VerifyError(f"{self.where()} gives kernel {variant.kernel} other buffers than kernel {step.variants[0].kernel}")
            self.variant(variant, first)
        for name in (*step.reads, *step.writes):
            if name not in first:
                raise VerifyError(f"{self.where()} reads or writes %{name}, which is not an argument of its kernels")
        for name in first - set(step.reads):
            if isinstance(self.root(name).storage, storage.Input | storage.Constant):
                raise VerifyError(f"{self.where()} has the argument %{name}, which is {_kind(self.root(name))} and not read")

    def variant(self, variant: Variant, arguments: set[str]) -> None:
        what = f"{self.where()}: kernel {variant.kernel}"
        if not variant.kernel:
            raise VerifyError(f"{self.where()} has a kernel without a name")
        self.sizes(variant.grid, f"{what}: its grid")
        self.sizes(variant.scalars, f"{what}: a size")
        self.sizes((*variant.guard.zero, *variant.guard.positive), f"{what}: its guard")
        for name in (*variant.guard.aligned, *variant.guard.contiguous):
            if name not in arguments:
                raise VerifyError(f"{what}: its guard asks about %{name}, which is not among its arguments")
        for word in ("warps", "shared", "scratch"):
            if not 0 <= getattr(variant, word) < _COUNT:
                raise VerifyError(f"{what} has {word} {getattr(variant, word)}, expected 0 to {_COUNT - 1}")

    def python(self, step: Host | Call) -> None:
        """A host step or a call: what it binds is known after it, and for its own results and attributes."""
        for symbol, result, axis in step.binds:
            self.bind(step, symbol, result, axis)
            self.bound.add(symbol)
            self.known.add(symbol)
        for name in step.writes:
            self.ready(name)
        if isinstance(step, Host):
            for name, value in step.attrs.items():
                self.sizes(dims.within(value), f"{self.where()}: its attribute {name}")

    def bind(self, step: Host | Call, symbol: str, result: int, axis: int) -> None:
        if symbol not in self.declared:
            raise VerifyError(undeclared(f"{self.where()}: a bind", symbol))
        if symbol in self.bound:
            raise VerifyError(f"{self.where()} binds {symbol}, which has a value already")
        if not 0 <= result < len(step.writes):
            raise VerifyError(f"{self.where()} binds {symbol} by result {result}, expected one of its {len(step.writes)} results")
        type = self.plan.named[step.writes[result]].type
        if axis == VALUE:
            if not type.dtype.is_integer or type.shape:
                raise VerifyError(f"{self.where()} binds {symbol} by the value of %{step.writes[result]}: {type}, expected one integer")
        elif not 0 <= axis < type.rank or type.shape[axis] != dims.symbol(symbol):
            what = f"size {axis} of %{step.writes[result]}: {type}"
            raise VerifyError(f"{self.where()} binds {symbol} by {what}, expected a dimension whose size is {symbol}")

    def copy(self, step: Copy) -> None:
        source, target = self.plan.named[step.source], self.plan.named[step.target]
        if source.type != target.type:
            raise VerifyError(f"{self.where()} copies %{source.name}: {source.type}, expected the type of %{target.name}: {target.type}")
        if source == target:
            raise VerifyError(f"{self.where()} copies %{source.name} to itself")

    def zero(self, step: Zero) -> None:
        """That the buffer can be written is all there is to a fill."""

    def check(self, step: Check) -> None:
        if self.plan.named[step.worst].type != TensorType(i64, ()):
            raise VerifyError(f"{self.where()} looks at %{step.worst}: {self.plan.named[step.worst].type}, expected i64[]")
        self.sizes(() if step.size is None else (step.size,), f"{self.where()}: its size")

    def check_place(self, step: CheckPlace) -> None:
        self.sizes((step.place, step.size), f"{self.where()}: its place or size")


_RULES: Mapping[type, Callable[[_Verifier, Any], None]] = {
    Launch: _Verifier.launch,
    Host: _Verifier.python,
    Call: _Verifier.python,
    Copy: _Verifier.copy,
    Zero: _Verifier.zero,
    Check: _Verifier.check,
    CheckPlace: _Verifier.check_place,
}


def _title(step: Step) -> str:
    named = {Launch: "name", Host: "routine", Call: "target"}.get(type(step))
    return kind_of(type(step)) + (f" {getattr(step, named)}" if named else "")


def _kind(buffer: Buffer) -> str:
    word = type(buffer.storage).__name__.lower()
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def _guarded(step: Step) -> tuple[str, ...]:
    if not isinstance(step, Launch):
        return ()
    return tuple(name for variant in step.variants for name in (*variant.arguments, *variant.guard.aligned, *variant.guard.contiguous))
