"""A function of an engine as it is called: inputs in order or by name, outputs alone, in order or by name."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..ir.errors import EngineError, InputError
from ..ir.spelling import nearest
from .contents import Port, Ports
from .program import Program
from .states import KeptStates, StateMemory


class Functions(dict[str, "Function"]):
    """Functions by name; an error for another name lists them."""

    def __missing__(self, name: object) -> Function:
        raise InputError(f"there is no function {name!r}, the engine has {', '.join(self)}", hint=nearest(str(name), self))


class Executor(Protocol):
    """What runs the plan of one function on one kind of device."""

    @property
    def program(self) -> Program:
        """The plan, and what its inputs must be."""

    def run(self, values: Sequence[Any], states: StateMemory | None = None) -> list[Any]:
        """The outputs for inputs in order."""


class Part(Protocol):
    """One target of an engine, ready to run."""

    @property
    def device(self) -> str:
        """Where it runs, in torch's words."""

    def executor(self, function: str) -> Executor:
        """What runs a function."""

    def states(self) -> KeptStates:
        """Memory for the states of one session, as they begin."""


def call_function(part: weakref.ref[Part], function: str, arrays: Sequence[Any]) -> list[Any]:
    """Another function of an engine on arrays. Executors hold no part, which holds them; the call that asks for it does."""
    held = part()
    if held is None:
        raise EngineError(f"function {function} of the engine is called after the engine was dropped")
    return held.executor(function).run(arrays)


class Function:
    """A function: `f(x, mask)` takes inputs in order, `f(x, mask=mask)` by name too; outputs are in fresh memory."""

    def __init__(self, name: str, ports: Ports, part: Part) -> None:
        self.name = name
        self._ports = ports
        self._part = part
        self._count = len(ports.inputs)

    def __call__(self, /, *inputs: Any, **named: Any) -> Any:
        """The output, or a tuple of outputs, for inputs in order, the rest of them by name."""
        executor = self._part.executor(self.name)
        if named:
            inputs = tuple(executor.program.signature.fill(inputs, named))
        elif len(inputs) != self._count:
            executor.program.signature.check_count(len(inputs))
        outputs = self._run(executor, inputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name for inputs by name."""
        if not isinstance(inputs, Mapping):
            hint = (
                f"as in run({{{self.inputs[0].name!r}: x}}); the engine itself is called with inputs in order: engine(x)"
                if self.inputs
                else None
            )
            raise InputError(f"run() got a {type(inputs).__name__}, expected a mapping of inputs by name", hint=hint)
        executor = self._part.executor(self.name)
        outputs = self._run(executor, executor.program.signature.order(inputs))
        return {port.name: value for port, value in zip(self._ports.outputs, outputs, strict=True)}

    def call(self, inputs: Sequence[Any], states: StateMemory | None) -> list[Any]:
        """The outputs in order, the states in memory of the caller's: it is written, and nobody else may use it meanwhile."""
        return self._part.executor(self.name).run(inputs, states)

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Names and types of the inputs."""
        return self._ports.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Names and types of the outputs."""
        return self._ports.outputs

    @property
    def states(self) -> tuple[str, ...]:
        """The states that it reads or writes."""
        return self._ports.states

    def _run(self, executor: Executor, inputs: Sequence[Any]) -> list[Any]:
        if self._ports.states:
            what = ", ".join(map(repr, self._ports.states))
            hint = "session = engine.session(), and call it there"
            raise EngineError(f"function {self.name!r} keeps state ({what}), which lives in a session", hint=hint)
        return executor.run(inputs)

    def __repr__(self) -> str:
        return f"{type(self).__name__.strip('_')} {self.name}{self._ports}"
