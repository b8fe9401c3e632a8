"""Runs of launches, copies and fills of a GPU plan made ready: for the sizes of a call words, which one call of C carries out.

The words of a step are their count, its kind, its number in the plan, and

- of a launch: how many choices, and for each its length, grid (3), threads, shared bytes, whether it has scratch memory, the
  kernel's handle, and three lists that begin with their counts: buffers that must be aligned, arguments, sizes;
- of a copy: target, source, bytes; of a fill with zeros: target, bytes.

`codegen/host/launches.c` reads them; where an engine holds no such program for this machine, `interpret` does.
"""

from __future__ import annotations

import ctypes
import logging
import math
import platform
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir import dims
from ..ir.errors import EngineError, InputError
from ..ir.plan import SCALAR_LIMIT, Copy, Guard, Launch, Variant, Zero
from .arrays import pointer
from .contents import LIBRARY, PartContents
from .driver import Device
from .native import cpu_flags, open_library
from .program import Binding, Program
from .weights import Array, nbytes

_LOG = logging.getLogger(__name__)

WARP = 32
LAUNCH, COPY, ZERO = 1, 2, 3
MOST_PARAMETERS = 1024
ENTRY = "ourcc_launches_1"
"""The function of the host program; another number is another form of words."""
GUARD_ALIGNMENT = 16
MAX_GRID = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True)
class Choice:
    """A variant that the symbols of a call admit, with its numbers; `aligned` buffers are still to be checked."""

    variant: Variant
    grid: tuple[int, int, int]
    scalars: tuple[int, ...]
    aligned: tuple[int, ...]


def holds(guard: Guard, values: Mapping[str, int]) -> bool:
    """Whether the symbol conditions of a guard hold; inputs are always dense when a kernel runs."""
    return all(dims.evaluate(d, values) == 0 for d in guard.zero) and all(dims.evaluate(d, values) >= 0 for d in guard.positive)


class PreparedLaunch:
    """One launch of a plan; what depends on the shapes of a call is worked out once for each."""

    def __init__(self, program: Program, launch: Launch, functions: Mapping[str, int]) -> None:
        self.launch = launch
        self.program = program
        self.functions = functions
        self.uses_scratch = any(variant.scratch for variant in launch.variants)
        self.arguments = {variant.kernel: tuple(program.index[name] for name in variant.arguments) for variant in launch.variants}
        self._choices: weakref.WeakKeyDictionary[Binding, tuple[Choice, ...]] = weakref.WeakKeyDictionary()

    def choices(self, binding: Binding) -> tuple[Choice, ...]:
        """The variants that may serve these shapes, in order; the last one asks for no alignment."""
        found = self._choices.get(binding)
        if found is None:
            found = tuple(self._choose(binding.values))
            self._choices[binding] = found
        return found

    def _choose(self, values: Mapping[str, int]) -> list[Choice]:
        result: list[Choice] = []
        for variant in self.launch.variants:
            if holds(variant.guard, values):
                aligned = tuple(self.program.index[name] for name in variant.guard.aligned)
                result.append(Choice(variant, self._grid(variant, values), self._scalars(variant, values), aligned))
                if not aligned:
                    break
        return result

    def _grid(self, variant: Variant, values: Mapping[str, int]) -> tuple[int, int, int]:
        sizes = [dims.evaluate(size, values) for size in variant.grid]
        if len(sizes) > 3:
            raise EngineError(f"launch {self.launch.name} has a grid of {len(sizes)} axes, expected at most 3")
        x, y, z = [*sizes, 1, 1, 1][:3]
        for size, limit in zip((x, y, z), MAX_GRID, strict=True):
            if not 0 <= size <= limit:
                raise InputError(
                    f"launch {self.launch.name} needs {size} blocks along one axis for {_shown(values)}, expected at most {limit}"
                )
        return x, y, z

    def _scalars(self, variant: Variant, values: Mapping[str, int]) -> tuple[int, ...]:
        numbers = [dims.evaluate(size, values) for size in variant.scalars]
        for number in numbers:
            if abs(number) >= SCALAR_LIMIT:
                raise InputError(
                    f"launch {self.launch.name} takes the number {number} for {_shown(values)}, "
                    f"expected {1 - SCALAR_LIMIT} to {SCALAR_LIMIT - 1}"
                )
        return tuple(numbers)

    def scratch(self, binding: Binding) -> int:
        """Bytes of scratch memory that the launch needs at most."""
        return max(choice.variant.scratch * math.prod(choice.grid) for choice in self.choices(binding))

    def words(self, binding: Binding) -> Iterator[int]:
        """The choices for these shapes, as the host program reads them."""
        choices = self.choices(binding)
        yield len(choices)
        for choice in choices:
            variant = choice.variant
            lists = choice.aligned, self.arguments[variant.kernel], choice.scalars
            if len(lists[1]) + len(lists[2]) > MOST_PARAMETERS:
                raise EngineError(
                    f"kernel {variant.kernel} has {len(lists[1]) + len(lists[2])} parameters, expected at most {MOST_PARAMETERS}"
                )
            words = [*choice.grid, variant.warps * WARP, variant.shared, int(variant.scratch > 0), self.functions[variant.kernel]]
            for each in lists:
                words += [len(each), *each]
            yield from (len(words) + 1, *words)

    def chosen(self, binding: Binding, cells: Sequence[int | None]) -> str:
        """The kernel that is launched where the buffers lie in these places."""
        return next(c for c in self.choices(binding) if all((cells[n] or 0) % GUARD_ALIGNMENT == 0 for n in c.aligned)).variant.kernel


class Segment:
    """Steps of a plan that need no Python: what they are for the shapes of a call is worked out once."""

    def __init__(self, program: Program, first: int, steps: Sequence[Launch | Copy | Zero], functions: Mapping[str, int]) -> None:
        self.program = program
        self.first = first
        self.end = first + len(steps)
        self.steps = {
            number: PreparedLaunch(program, step, functions) if isinstance(step, Launch) else step
            for number, step in enumerate(steps, first)
            if not isinstance(step, Copy) or program.plan.moves(step)
        }
        self.launches = tuple(step for step in self.steps.values() if isinstance(step, PreparedLaunch))
        self.uses_scratch = any(launch.uses_scratch for launch in self.launches)
        self._words: weakref.WeakKeyDictionary[Binding, Array] = weakref.WeakKeyDictionary()

    def scratch(self, binding: Binding) -> int:
        """Bytes of scratch memory that the launches need at most."""
        return max((launch.scratch(binding) for launch in self.launches if launch.uses_scratch), default=0)

    def words(self, binding: Binding) -> Array:
        """What the host program carries out for these shapes."""
        found = self._words.get(binding)
        if found is None:
            found = np.array([word for number, step in self.steps.items() for word in self._of(number, step, binding)], np.int64)
            self._words[binding] = found
        return found

    def _of(self, number: int, step: PreparedLaunch | Copy | Zero, binding: Binding) -> list[int]:
        index = self.program.index
        if isinstance(step, PreparedLaunch):
            words = [LAUNCH, number, *step.words(binding)]
        else:
            type = binding.type(index[step.target])
            size = 0 if type is None else nbytes(type) or 0
            if not size:
                return []
            if isinstance(step, Copy):
                words = [COPY, number, index[step.target], index[step.source], size]
            else:
                words = [ZERO, number, index[step.target], size]
        return [len(words) + 1, *words]

    def run(self, host: HostProgram, gpu: Device, binding: Binding, cells: Any, scratch: int, stream: int) -> None:
        """Queue all steps; DriverError says which step the driver refused."""
        words = self.words(binding)
        failed = ctypes.c_int64(-1)
        status = host(pointer(words), words.size, cells, scratch, stream, gpu.driver.table, failed)
        if status:
            # Never in a variable: an error that its own traceback leads to would keep the call's memory.
            raise gpu.driver.error(self._refused(self.steps.get(failed.value), binding, cells), status, failed.value)

    def _refused(self, step: PreparedLaunch | Copy | Zero | None, binding: Binding, cells: Sequence[int | None]) -> str:
        if isinstance(step, PreparedLaunch):
            return f"launch of kernel {step.chosen(binding, cells)} failed"
        return f"{'cuMemcpyDtoDAsync_v2' if isinstance(step, Copy) else 'cuMemsetD8Async'} failed"


HostProgram = Callable[..., int]
"""(words, their count, places of the buffers, scratch, stream, the driver's functions, the step that failed) -> the driver's status."""
_ARGUMENTS = (
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_int64),
)
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *(ctypes.c_uint,) * 7, *(ctypes.c_void_p,) * 3)
_COPY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_ZERO = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p)


def host_program(part: PartContents) -> HostProgram:
    """The host program of a part: the C that it holds, where that is for this machine, else the same in Python."""
    missing = [flag for flag in part.requires if flag not in cpu_flags()]
    if LIBRARY not in part.files:
        why = "the engine holds none"
    elif part.machine != platform.machine():
        why = f"the engine's is for {part.machine}"
    elif missing:
        why = f"the engine's needs {', '.join(missing)}"
    else:
        return open_library("the host program", part.files[LIBRARY]).function(ENTRY, ctypes.c_int32, _ARGUMENTS)
    _LOG.info("kernels are launched by Python, which is slow: there is no host program in C for this machine: %s", why)
    return interpret


def interpret(words: int, count: int, cells: Any, scratch: int, stream: int, table: Any, failed: ctypes.c_int64) -> int:
    """What the host program does, in Python."""
    launch, copy, zero = (kind(address) for kind, address in zip((_LAUNCH, _COPY, _ZERO), table, strict=True))
    w = (ctypes.c_int64 * count).from_address(words) if count else ()
    at = 0
    while at < count:
        kind, number = w[at + 1], w[at + 2]
        if kind == LAUNCH:
            status = _launch(w, at + 3, cells, scratch, stream, launch)
        elif kind == COPY:
            status = copy(cells[w[at + 3]], cells[w[at + 4]], w[at + 5], stream)
        else:
            status = zero(cells[w[at + 3]], 0, w[at + 4], stream)
        if status:
            failed.value = number
            return int(status)
        at += w[at]
    return 0


def _launch(w: Any, at: int, cells: Any, scratch: int, stream: int, launch: Callable[..., int]) -> int:
    first = at + 1
    for _ in range(w[at]):
        lists, place = [], first + 8
        for _ in range(3):
            lists.append(w[place + 1 : place + 1 + w[place]])
            place += 1 + w[place]
        aligned, arguments, sizes = lists
        if all((cells[n] or 0) % GUARD_ALIGNMENT == 0 for n in aligned):
            break
        first += w[first]
    x, y, z, threads, shared, has_scratch, function = w[first + 1 : first + 8]
    if 0 in (x, y, z):
        return 0
    values: list[Any] = [ctypes.c_void_p(cells[n]) for n in arguments] + [ctypes.c_int32(size) for size in sizes]
    values += [ctypes.c_void_p(scratch if has_scratch else None), ctypes.c_void_p(None)]
    parameters = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    return launch(function, x, y, z, threads, 1, 1, shared, stream, ctypes.addressof(parameters), None)


def _shown(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items()) or "constant shapes"
