"""The sizes that follow from a call's shapes: none is negative, none is more than memory can hold, so none wraps around in 64 bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..ir import dims
from ..ir.errors import InputError, OutOfMemoryError
from ..ir.plan import Call, Host, Launch, Plan, slot_offsets
from ..ir.types import LARGEST, TensorType
from .memory import HINT, text


@dataclass(frozen=True)
class Sized:
    """A symbolic type of the plan's buffers, and what is computed with it, for messages."""

    type: TensorType
    symbols: frozenset[str]
    what: str


class Sizes:
    """Checks symbol values against every type of a plan; made once. What fits for all values in the symbols' ranges is not looked at."""

    def __init__(self, plan: Plan) -> None:
        sources = {}
        for step in plan.steps:
            if isinstance(step, (Launch, Host, Call)):
                sources.update({name: step.sources[0] for name in step.writes if step.sources})
        found: dict[TensorType, Sized] = {}
        for buffer in plan.buffers:
            names = frozenset(name for size in buffer.type.shape for name in dims.symbols(size))
            if names and buffer.type not in found:
                found[buffer.type] = Sized(buffer.type, names, sources.get(buffer.name, type(buffer.storage).__name__.lower()))
        self.sized = tuple(sized for sized in found.values() if not _always_fits(sized.type, plan.symbols))
        most = [max((_most(size, plan.symbols) for size in slot.sizes), default=0) for slot in plan.slots]
        self.slots = plan.slots if sum(most) > LARGEST else ()
        self.slot_symbols = frozenset().union(*(dims.symbols(size) for slot in self.slots for size in slot.sizes))

    def check(self, values: Mapping[str, int]) -> None:
        """InputError for a negative size, OutOfMemoryError for more bytes than there can be; symbols without a value pass."""
        known = values.keys()
        for sized in self.sized:
            if not sized.symbols <= known:
                continue
            shape = tuple(_evaluated(size, values) for size in sized.type.shape)
            if any(size < 0 for size in shape):
                raise InputError(
                    f"{sized.what} would have sizes {list(shape)}, expected none below 0", note=f"{sized.type}, {_given(sized, values)}"
                )
            # An empty tensor has no bytes, and its other sizes are multiplied all the same.
            taken = sized.type.dtype.bits
            for size in shape:
                taken *= max(size, 1)
            if taken > 8 * LARGEST:
                raise OutOfMemoryError(
                    f"out of memory: {sized.what} needs {text(taken // 8)}: {sized.type.with_shape(shape)}",
                    note=f"{sized.type}, {_given(sized, values)}",
                    hint=HINT,
                )
        total = slot_offsets(self.slots, values)[1] if self.slot_symbols <= known else 0
        if total > LARGEST:
            raise OutOfMemoryError(f"out of memory: values between kernels need {text(total)}", hint=HINT)


def _most(size: dims.Dim, facts: dims.Facts) -> float:
    """The largest value of a size; infinite where none is known."""
    high = dims.range_of(size, facts).high
    return math.inf if high is None else high


def _always_fits(type: TensorType, facts: dims.Facts) -> bool:
    """Whether a type has sizes from 0 on, and no more bytes than there can be, for all values in the symbols' ranges."""
    lows = [dims.range_of(size, facts).low for size in type.shape]
    taken = type.dtype.bits * math.prod(max(_most(size, facts), 1) for size in type.shape)
    return all(low is not None and low >= 0 for low in lows) and taken <= 8 * LARGEST


def _evaluated(size: dims.Dim, values: Mapping[str, int]) -> int:
    """A size for these symbol values; InputError where an integer of the caller's makes it a division by zero."""
    try:
        return dims.evaluate(size, values)
    except ZeroDivisionError as error:
        shown = ", ".join(f"{name} = {values[name]}" for name in sorted(dims.symbols(size)))
        raise InputError(f"the size {size} divides by zero for {shown}") from error


def _given(sized: Sized, values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {values[name]}" for name in sorted(sized.symbols))
