"""What is worked out once from a plan: where each buffer lives, which symbols are known when, what a call must allocate."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..ir import dims
from ..ir.dims import Dim
from ..ir.errors import CompilerError, EngineError, VerifyError
from ..ir.plan import Alias, Buffer, Call, Check, CheckPlace, Host, Launch, Plan, Slot, slot_offsets, storage
from ..ir.plan.check import check
from ..ir.plan.places import is_dense
from ..ir.plan.verify import verify
from ..ir.types import DType, TensorType, string
from .contents import Port, Ports, WrittenPlans, ports
from .signature import Signature
from .sizes import Sizes
from .states import states_of

MAX_BINDINGS = 512
Callback = Callable[[Call, Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True)
class Result:
    """An output of the engine: the buffer, and whether it is a copy (the buffer is not the caller's own memory)."""

    port: Port
    buffer: int
    copied: bool


@dataclass(frozen=True)
class Shapes:
    """What of a plan has sizes that depend on the symbols, and the check of their values."""

    buffers: tuple[Buffer, ...]
    slots: tuple[Slot, ...]
    symbol_names: tuple[str, ...]
    allocated: tuple[int, ...]
    sizes: Sizes


class Bound:
    """What steps ask of a call, once its shapes are known."""

    binding: Binding | None

    def type(self, number: int) -> TensorType | None:
        """A buffer's type with its sizes; None while they are unknown."""
        return None if self.binding is None else self.binding.type(number)

    def values(self) -> dict[str, int]:
        """The symbol values so far."""
        return {} if self.binding is None else dict(self.binding.values)


class Binding:
    """What follows from the shapes of a call: symbol values, the native array of them, sizes, places in the arena."""

    def __init__(self, shapes: Shapes, values: Mapping[str, int]) -> None:
        self.shapes = shapes
        self.values = values
        shapes.sizes.check(values)
        names = shapes.symbol_names
        self.symbols = (ctypes.c_int64 * max(1, len(names)))(*(values.get(name, 0) for name in names))
        self.arena: int | None = None
        """Bytes of the arena as native code counts them, once it was asked."""
        self._types: dict[int, TensorType | None] = {}

    def type(self, number: int) -> TensorType | None:
        """A buffer's type with its sizes; None while one of its symbols has no value."""
        if number not in self._types:
            self._types[number] = self._evaluate(self.shapes.buffers[number].type)
        return self._types[number]

    def _evaluate(self, type: TensorType) -> TensorType | None:
        if any(not dims.symbols(size) <= self.values.keys() for size in type.shape):
            return None
        return type.with_shape(tuple(dims.evaluate(size, self.values) for size in type.shape))

    @functools.cached_property
    def layout(self) -> tuple[dict[str, int], int]:
        """Where each slot of the arena starts, and the arena's bytes."""
        return slot_offsets(self.shapes.slots, self.values)

    @functools.cached_property
    def allocations(self) -> tuple[tuple[int, TensorType], ...]:
        """The buffers that each call allocates, as far as their sizes are known."""
        pairs = ((number, self.type(number)) for number in self.shapes.allocated)
        return tuple((number, type) for number, type in pairs if type is not None)

    @functools.cached_property
    def outputs(self) -> tuple[tuple[int, DType, tuple[int, ...]], ...]:
        """Of these the results that callers get as they are: buffer, element type, shape."""
        handed = ((number, type) for number, type in self.allocations if self._is_handed_out(number, type.dtype))
        return tuple((number, type.dtype, tuple(size for size in type.shape if isinstance(size, int))) for number, type in handed)

    @functools.cached_property
    def dynamic(self) -> tuple[tuple[int, TensorType], ...]:
        """All others of them, but for strings, which are objects."""
        pairs = ((number, type) for number, type in self.allocations if type.dtype != string)
        return tuple((number, type) for number, type in pairs if not self._is_handed_out(number, type.dtype))

    def _is_handed_out(self, number: int, dtype: DType) -> bool:
        return isinstance(self.shapes.buffers[number].storage, storage.Output) and dtype.bits >= 8 and dtype != string


class Program:
    """A plan made ready: checked, buffers numbered, bindings remembered by the shapes of the inputs."""

    def __init__(self, plan: Plan, is_sound: bool = False) -> None:
        """EngineError where the plan breaks a rule, which one that is known to be sound does not."""
        if not is_sound:
            _check(plan)
        self.plan = plan
        self.buffers = plan.buffers
        self.index = {buffer.name: number for number, buffer in enumerate(plan.buffers)}
        self.symbol_names = tuple(plan.symbols.ranges)
        later = tuple(name for step in plan.steps if isinstance(step, (Host, Call)) for name, _, _ in step.binds)
        places = {buffer: number for number, (_, buffer) in enumerate(plan.inputs)}
        self.numbers = tuple((symbol, places[buffer]) for symbol, buffer in plan.numbers)
        self.ports = Ports.of(plan)
        self.signature = Signature(self.ports.inputs, plan.symbols, later, _used(plan), self.numbers)
        self.inputs = tuple(self.index[buffer] for _, buffer in plan.inputs)
        self.results = tuple(self._results())
        self.states = states_of(plan.buffers)
        self.aliases = tuple(
            (n, *self._alias(buffer.storage)) for n, buffer in enumerate(plan.buffers) if isinstance(buffer.storage, Alias)
        )
        self.is_dynamic = bool(self.signature.later)
        allocated = tuple(n for n, buffer in enumerate(plan.buffers) if isinstance(buffer.storage, storage.Dynamic | storage.Output))
        if not is_sound:
            _check_memory(plan)
        # Bindings hold the shapes and not the program, which holds them: an engine that is dropped is gone at once.
        self.shapes = Shapes(plan.buffers, plan.slots, self.symbol_names, allocated, Sizes(plan))
        self._bindings: dict[tuple[Any, ...], Binding] = {}
        self._lock = threading.Lock()

    def _alias(self, held: Alias) -> tuple[int, Dim]:
        """The number of the buffer whose memory it is, and the offset in it."""
        return self.index[held.root], held.offset

    def _results(self) -> Iterable[Result]:
        seen: set[str] = set()
        for port, (_, name) in zip(ports(self.plan, self.plan.outputs), self.plan.outputs, strict=True):
            number = self.index[name]
            yield Result(port, number, name in seen or not isinstance(self.buffers[number].storage, storage.Output))
            seen.add(name)

    def bind(self, shapes: tuple[Any, ...], inputs: Sequence[Any] = ()) -> Binding:
        """The binding of a call, remembered; InputError if the shapes, or the integers that sizes are made of, do not fit."""
        given = tuple(int(inputs[place]) for _, place in self.numbers)
        key = (shapes, given) if given else shapes
        binding = self._bindings.get(key)
        if binding is not None:
            return binding
        binding = Binding(self.shapes, self.signature.bind(shapes, given))
        with self._lock:
            if len(self._bindings) >= MAX_BINDINGS:
                self._bindings.pop(next(iter(self._bindings)))
            self._bindings[key] = binding
        return binding


def programs_of(plans: Mapping[str, Plan]) -> dict[str, Program]:
    """The plans of an engine's functions made ready; a record of those of a file spares checking them."""
    written = plans if isinstance(plans, WrittenPlans) else None
    is_sound = written is not None and written.are_sound
    found = {function: Program(plan, is_sound) for function, plan in plans.items()}
    if written is not None and not is_sound:
        written.found_sound()
    return found


def _check(plan: Plan) -> None:
    """EngineError where the plan breaks a rule of form, or has what no executor runs."""
    try:
        verify(plan)
    except VerifyError as error:
        raise EngineError(error.message, note=error.note) from error
    for buffer in plan.buffers:
        if isinstance(buffer.storage, storage.Alias) and not is_dense(buffer.type, buffer.storage.strides):
            raise EngineError(f"plan for {plan.target} has the strided alias {buffer.name}, and this version runs dense ones")


def _check_memory(plan: Plan) -> None:
    """EngineError for a plan that would read what is not there, or write over what is still needed."""
    try:
        check(plan)
    except CompilerError as error:
        raise EngineError(f"plan for {plan.target} is damaged: {error.message}") from error


def _used(plan: Plan) -> set[str]:
    found: list[Dim] = [size for buffer in plan.buffers for size in buffer.type.shape]
    found += [size for slot in plan.slots for size in slot.sizes]
    found += [buffer.storage.offset for buffer in plan.buffers if isinstance(buffer.storage, Alias)]
    for step in plan.steps:
        if isinstance(step, Check) and step.size is not None:
            found.append(step.size)
        if isinstance(step, CheckPlace):
            found += [step.place, step.size]
        if isinstance(step, Launch):
            found += [size for _, size in step.symbols]
            for variant in step.variants:
                found += [*variant.grid, *variant.scalars, *variant.guard.zero, *variant.guard.positive]
    return set().union(*(dims.symbols(size) for size in found))
