"""Launches of a GPU plan made ready: the variant for a call, its grid, and its parameters."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..ir import dims
from ..ir.errors import EngineError, InputError
from ..ir.plan import Guard, Launch, Variant
from .driver import Device
from .program import Binding, Program

WARP = 32
GUARD_ALIGNMENT = 16
MAX_GRID = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True)
class Choice:
    """A variant that the symbols of a call admit, with its numbers; `aligned` buffers are still to be checked."""

    variant: Variant
    grid: tuple[int, int, int]
    scalars: tuple[ctypes.c_int32, ...]
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

    def _scalars(self, variant: Variant, values: Mapping[str, int]) -> tuple[ctypes.c_int32, ...]:
        numbers = [dims.evaluate(size, values) for size in variant.scalars]
        for number in numbers:
            if not -(2**31) <= number < 2**31:
                raise InputError(f"launch {self.launch.name} needs the size {number} for {_shown(values)}, which does not fit 32 bits")
        return tuple(ctypes.c_int32(number) for number in numbers)

    def scratch(self, binding: Binding) -> int:
        """Bytes of scratch memory that the launch needs at most."""
        return max(choice.variant.scratch * math.prod(choice.grid) for choice in self.choices(binding))

    def run(self, gpu: Device, binding: Binding, cells: Sequence[ctypes.c_void_p], scratch: int, stream: int) -> None:
        """Launch the first variant whose guard holds; nothing if the grid is empty."""
        choice = next(c for c in self.choices(binding) if all((cells[n].value or 0) % GUARD_ALIGNMENT == 0 for n in c.aligned))
        if 0 in choice.grid:
            return
        variant = choice.variant
        ends = (ctypes.c_void_p(scratch if variant.scratch else None), ctypes.c_void_p(None))
        values: list[Any] = [*(cells[n] for n in self.arguments[variant.kernel]), *choice.scalars, *ends]
        parameters = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        function = self.functions[variant.kernel]
        gpu.launch(variant.kernel, function, choice.grid, variant.warps * WARP, variant.shared, stream, parameters)


def _shown(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items()) or "constant shapes"
