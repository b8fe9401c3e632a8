"""What an engine holds: ports, one plan and kernels per target, weights, and the rows of its contract."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ..ir.dims import NO_FACTS, Facts
from ..ir.errors import EngineError
from ..ir.plan import Plan, Planned, StateDeclaration
from ..ir.types import TensorType
from .weights import Constant, aligned

V = TypeVar("V")


def is_public(function: str) -> bool:
    """Whether a function is the caller's to call, and no body of a branch or a loop."""
    return "." not in function


SHARED = "shared"
"""The weights file that every target reads after its own."""


@dataclass(frozen=True)
class Port:
    """An input or an output of an engine: the user's name and the type."""

    name: str
    type: TensorType

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(frozen=True)
class Ports:
    """What a function takes and gives, and the states that it keeps."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    states: tuple[str, ...] = ()

    @staticmethod
    def of(plan: Plan) -> Ports:
        """The ports of a plan."""
        return Ports(ports(plan, plan.inputs), ports(plan, plan.outputs), tuple(state.name for state in plan.states))

    def __str__(self) -> str:
        inputs, outputs = (", ".join(map(str, each)) for each in (self.inputs, self.outputs))
        return f"({inputs}) -> ({outputs})" + (f" with {', '.join(self.states)}" if self.states else "")


@dataclass(frozen=True)
class Library:
    """A shared object of a CPU target: its file among the target's kernels, the machine and the CPU flags it needs."""

    file: str
    machine: str = "x86_64"
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class TargetContents(Planned):
    """One target of an engine: the plan of each function, the files under kernels/<target>/, on the CPU its libraries, best first.

    A GPU target keeps kernel K of the plans as the file K.cubin, whose entry function is K.
    """

    plans: Mapping[str, Plan]
    files: Mapping[str, bytes] = field(default_factory=dict)
    libraries: tuple[Library, ...] = ()

    @functools.cached_property
    def states(self) -> Mapping[str, StateDeclaration]:
        """The states of all functions by name; EngineError where two functions disagree about one."""
        found: dict[str, StateDeclaration] = {}
        for function, plan in self.plans.items():
            for state in plan.states:
                if found.setdefault(state.name, state) != state:
                    known = found[state.name].type
                    raise EngineError(f"state {state.name!r} is {state.type} in function {function!r}, expected {known}, as in others")
        return found


@dataclass(frozen=True)
class ContractRow:
    """What was requested of one op of the user's model, what was realised, and why."""

    source: str
    op: str
    requested: str
    realised: str
    why: str = ""


@dataclass(frozen=True)
class Contract:
    """Requested, realised and why, one row per source op; prints as a table."""

    rows: tuple[ContractRow, ...] = ()

    def __iter__(self) -> Iterator[ContractRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        cells = [("source", "op", "requested", "realised", "why")]
        cells += [(row.source, row.op, row.requested, row.realised, row.why) for row in self.rows]
        widths = [max(len(row[column]) for row in cells) for column in range(5)]
        return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in cells)

    def to_json(self) -> list[dict[str, str]]:
        """The rows as the report keeps them."""
        return [dict(vars(row)) for row in self.rows]

    @staticmethod
    def from_json(rows: Any) -> Contract:
        """Read what `to_json` gave."""
        try:
            return Contract(tuple(ContractRow(**{key: str(value) for key, value in row.items()}) for row in rows))
        except (TypeError, AttributeError) as error:
            raise EngineError(f"contract in report.json is damaged: {error}") from error


@dataclass(frozen=True)
class EngineContents:
    """Everything in an engine file: the ports of its functions, the entry first, and each target.

    `weights` maps a file (a target's name, or "shared") to constants by name.

    `report["contract"]` holds the contract's rows.
    """

    functions: Mapping[str, Ports]
    targets: Mapping[str, TargetContents]
    symbols: Facts = NO_FACTS
    graph: str = ""
    weights: Mapping[str, Mapping[str, Constant]] = field(default_factory=dict)
    lock: str = ""
    report: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(
        targets: Mapping[str, TargetContents],
        weights: Mapping[str, Mapping[str, Constant | np.ndarray[Any, Any]]] | None = None,
        **rest: Any,
    ) -> EngineContents:
        """Contents whose functions and symbols are those of the first target; numpy arrays become constants.

        A constant that several targets keep alike is kept once.
        """
        if not targets:
            raise EngineError("an engine needs a plan for at least one target")
        plans = next(iter(targets.values())).plans
        constants = {
            file: {name: aligned(array if isinstance(array, Constant) else Constant.of(array)) for name, array in group.items()}
            for file, group in (weights or {}).items()
        }
        merged = _share(constants)
        functions = {name: Ports.of(plan) for name, plan in plans.items() if is_public(name)}
        return EngineContents(functions, targets, next(iter(plans.values())).symbols, weights=merged, **rest)

    @property
    def entry(self) -> Ports:
        """The ports of the first function, which a call of the engine calls."""
        return next(iter(self.functions.values()))

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs of the entry."""
        return self.entry.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The outputs of the entry."""
        return self.entry.outputs

    def constant(self, target: str, name: str) -> Constant:
        """A constant as the target keeps it; EngineError if there is none."""
        for file in (target, SHARED):
            if name in self.weights.get(file, {}):
                return self.weights[file][name]
        raise EngineError(f"engine holds no constant {name!r} for target {target}")


def _share(weights: Mapping[str, Mapping[str, Constant]]) -> Mapping[str, Mapping[str, Constant]]:
    shared = dict(weights.get(SHARED, {}))
    own: dict[str, dict[str, Constant]] = {file: dict(group) for file, group in weights.items() if file != SHARED}
    for name in sorted({name for group in own.values() for name in group} - shared.keys()):
        holders = [file for file in sorted(own) if name in own[file]]
        alike = [file for file in holders if own[file][name] == own[holders[0]][name]]
        if len(alike) > 1:
            shared[name] = own[alike[0]][name]
            for file in alike:
                del own[file][name]
    kept = {file: group for file, group in own.items() if group}
    return {**kept, SHARED: shared} if shared else kept


def ports(plan: Plan, pairs: tuple[tuple[str, str], ...]) -> tuple[Port, ...]:
    """The ports of a plan's inputs or outputs."""
    return tuple(Port(name, plan.named[buffer].type) for name, buffer in pairs)


class Lazy(Mapping[str, V]):
    """A read-only mapping whose values are made when first asked for."""

    def __init__(self, names: tuple[str, ...], make: Callable[[str], V], keep: bool = True) -> None:
        self._names = dict.fromkeys(names)
        self._make = make
        self._keep = keep
        self._made: dict[str, V] = {}

    def __getitem__(self, name: str) -> V:
        if name in self._made:
            return self._made[name]
        if name not in self._names:
            raise KeyError(name)
        value = self._make(name)
        if self._keep:
            # Two threads may both make it; both get the one that was stored first.
            value = self._made.setdefault(name, value)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
