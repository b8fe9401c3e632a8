"""Steps that need Python: host routines and calls back into the framework, on the buffers of one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ..ir.control import CallFunction, functions_of, run_control
from ..ir.dims import UNBOUNDED, evaluate
from ..ir.errors import CompilerError, EngineError, InputError, Source
from ..ir.plan import VALUE, Call, Check, CheckPlace, Host
from ..ir.types import DType, TensorType, from_numpy
from .arrays import from_torch, is_torch
from .program import Callback, Program


class Frame(Protocol):
    """The buffers of one call."""

    def read(self, number: int) -> Any:
        """A buffer as a numpy array."""

    def share(self, number: int) -> Any:
        """A buffer where it lies: a numpy array, or on a GPU a device array."""

    def write(self, number: int, value: Any) -> None:
        """Set a buffer's value; it has the buffer's type."""

    def rebind(self, values: dict[str, int]) -> None:
        """Give further symbols their values, and allocate what is known by them."""

    def values(self) -> dict[str, int]:
        """The symbol values so far."""

    def type(self, number: int) -> TensorType | None:
        """A buffer's type with its sizes; None while they are unknown."""


PythonStep = Callable[[Frame], None]


def prepare(program: Program, step: Host | Call, callback: Callback | None, call: CallFunction) -> PythonStep:
    """The step as a function of a call's buffers; EngineError if its routine or the callback is missing.

    `call` runs another function of the engine on arrays.
    """
    operands = tuple(program.index[name] if name else None for name in step.reads)
    targets = tuple(program.index[name] for name in step.writes)
    compute = _host(program, step, call) if isinstance(step, Host) else _call(step, callback)
    title = f"host step {step.routine}" if isinstance(step, Host) else f"call {step.target}"

    def run(frame: Frame) -> None:
        read = frame.read if isinstance(step, Host) else frame.share
        arrays = compute(frame, [None if number is None else read(number) for number in operands])
        if len(arrays) != len(targets):
            raise EngineError(f"{title} gave {len(arrays)} results, expected {len(targets)}")
        _bind(program, frame, step, arrays, title)
        for number, array in zip(targets, arrays, strict=True):
            expected = frame.type(number)
            got = TensorType(_dtype(array), tuple(int(size) for size in array.shape))
            if got != expected:
                raise EngineError(f"{title} gave {got} for {program.buffers[number].name}, expected {expected}")
            frame.write(number, array)

    return run


def refusal(step: Check, frame: Frame, number: int, is_told: bool = False) -> CompilerError | None:
    """The error of a check that failed, by the worst index or what kernels told of it."""
    # The op table is a heavy import that a call without a wrong index does without.
    from ..ir.ops.check import IN_RANGE, failure, told

    worst = int(frame.read(number))
    if is_told:
        worst = told(worst)
    if worst == IN_RANGE:
        return None
    size = None if step.size is None else evaluate(step.size, frame.values())
    return _explained(failure(worst, size, step.negative, step.subject), step)


def misplaced(step: CheckPlace, values: Mapping[str, int]) -> CompilerError | None:
    """The error of a place that is not there."""
    place, size = evaluate(step.place, values), evaluate(step.size, values)
    if (-size if step.negative else 0) <= place < size:
        return None
    from ..ir.ops.check import failure

    return _explained(failure(place, size, step.negative, step.subject), step)


def _explained(error: CompilerError, step: Check | CheckPlace) -> CompilerError:
    error.source = Source(step.sources[0]) if step.sources else None
    if isinstance(step, Check) and step.size is not None:
        error.hint = "a build with unchecked_indices leaves such an index undefined, and checks none"
    return error


def _bind(program: Program, frame: Frame, step: Host | Call, arrays: Sequence[Any], title: str) -> None:
    if not step.binds:
        return
    values = frame.values()
    for name, result, axis in step.binds:
        size = int(arrays[result]) if axis == VALUE else int(arrays[result].shape[axis])
        bounds = program.plan.symbols.ranges.get(name, UNBOUNDED)
        if size not in bounds:
            # What a host step gives follows from the caller's data; what a call gives is the framework's.
            kind = InputError if isinstance(step, Host) else EngineError
            raise kind(f"{title} gives {name} = {size}, expected {name} in {bounds}")
        values[name] = size
    frame.rebind(values)


def _dtype(array: Any) -> DType:
    if is_torch(array):
        found = from_torch(array.dtype)
        if found is None:
            raise EngineError(f"a call gave the torch dtype {array.dtype}, which has no element type here")
        return found
    return from_numpy(array.dtype)


def _host(program: Program, step: Host, call: CallFunction) -> Callable[[Frame, list[Any]], Sequence[Any]]:
    from ..ir import ops
    from ..ir.graph.reference import bind_attribute
    from ..ir.ops import table

    if step.routine not in table.OPS:
        hint = "run it with the version of ourcc that built it"
        raise EngineError(f"engine needs the host routine {step.routine}, which {ops.__name__} lacks", hint=hint)
    definition = table.OPS[step.routine]
    results = tuple(program.plan.named[name].type for name in step.writes)
    runs = functions_of(step.routine, step.attrs)
    note = f"it computes {', '.join(step.sources)}" if step.sources else None

    def compute(frame: Frame, operands: list[Any]) -> Sequence[Any]:
        values = frame.values()
        attrs = {name: bind_attribute(value, values) for name, value in step.attrs.items()}
        if runs:
            return run_control(step.routine, attrs, operands, call)
        try:
            return table.run(definition, tuple(operands), attrs, results, False)
        except InputError as error:
            raise InputError(error.message, note=note) from error
        except (ValueError, IndexError, TypeError, ArithmeticError, CompilerError) as error:
            # A body fails on data that its op forbids, such as an index out of range.
            raise EngineError(f"host step {step.routine} failed: {error}", note=note) from error

    return compute


def _call(step: Call, callback: Callback | None) -> Callable[[Frame, list[Any]], Sequence[Any]]:
    if callback is None:
        hint = "such an engine runs only under torch.compile"
        raise EngineError(f"engine calls {step.target} of its framework, and no callback was given", hint=hint)

    def compute(frame: Frame, operands: list[Any]) -> Sequence[Any]:
        results = callback(step, operands)
        return [np.asarray(result) if isinstance(result, np.generic) else result for result in results]

    return compute
