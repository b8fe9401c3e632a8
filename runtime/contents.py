"""What an engine holds: ports, parts with plans and kernels of their own, weights, and the rows of its contract."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ..ir.dims import NO_FACTS, Facts
from ..ir.errors import EngineError
from ..ir.plan import Plan, Planned, StateDeclaration, segments
from ..ir.plan.digest import digest_of, digest_of_bytes
from ..ir.types import TensorType
from .checked import Checked
from .weights import Constant, aligned

V = TypeVar("V")


def is_public(function: str) -> bool:
    """Whether a function is the caller's to call, and no body of a branch or a loop."""
    return "." not in function


CPU = "cpu"
"""The family of all parts for instruction-set levels, and the target that means the best of them."""

SHARED = "shared"
"""The weights file that every part reads after its own."""

LIBRARY = "engine.so"
"""The file of a CPU part that is its native code."""

PLANS = "plans.sha256"
"""The file of a GPU part that is the digest of the plans which its kernels were made for; native code says it itself."""


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
class PartContents(Planned):
    """What can be loaded of an engine: the plan of each function, the files under kernels/<part>/, and what they run on.

    A part of the family `cpu` is for one instruction-set level: its code is the file `LIBRARY`, for machines of this kind
    whose CPUs have all flags in `requires`. One of the family `cuda` keeps kernel K of the plans as the file K.cubin, whose
    entry function is K, and its name says the architecture.
    """

    plans: Mapping[str, Plan]
    files: Mapping[str, bytes] = field(default_factory=dict)
    family: str = CPU
    machine: str = "x86_64"
    requires: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """What code that was made for these plans carries."""
        return self.plans.digest if isinstance(self.plans, WrittenPlans) else digest_of(self.plans)

    @property
    def is_level(self) -> bool:
        """Whether it is for an instruction-set level of a CPU."""
        return self.family == CPU

    @functools.cached_property
    def has_native_steps(self) -> bool:
        """Whether any step is native code."""
        return any(is_native for plan in self.plans.values() for is_native, _ in segments(plan.steps))

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
    """What was requested of one op of the user's model, what was realised, and why.

    `runs` is what it was lowered to (a kernel, a host step, an ATen call), `stored` how its weight lies in memory, `summed`
    the precision that it adds up in; each is empty where there is nothing to say.
    """

    source: str
    op: str
    requested: str
    realised: str
    why: str = ""
    runs: str = ""
    stored: str = ""
    summed: str = ""


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
    """Everything in an engine file: the ports of its functions, the entry first, and its parts by name, best first.

    A part is named by its instruction-set level or its GPU target. `weights` maps a file (a part's name, or "shared") to
    constants by name.

    `report["contract"]` holds the contract's rows, `assets` what callers of the functions need beside them, as a tokenizer.
    """

    functions: Mapping[str, Ports]
    parts: Mapping[str, PartContents]
    symbols: Facts = NO_FACTS
    graph: str = ""
    weights: Mapping[str, Mapping[str, Constant]] = field(default_factory=dict)
    lock: str = ""
    report: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    assets: Mapping[str, bytes] = field(default_factory=dict)

    @staticmethod
    def of(
        parts: Mapping[str, PartContents],
        weights: Mapping[str, Mapping[str, Constant | np.ndarray[Any, Any]]] | None = None,
        **rest: Any,
    ) -> EngineContents:
        """Contents whose functions and symbols are those of the best part; numpy arrays become constants.

        Parts are put in order: GPUs first, then CPUs, those that need more first. A constant that several parts keep
        alike is kept once.
        """
        if not parts:
            raise EngineError("an engine needs a plan for at least one target")
        parts = dict(sorted(parts.items(), key=lambda item: (item[1].is_level, -len(item[1].requires))))
        plans = next(iter(parts.values())).plans
        functions = {name: Ports.of(plan) for name, plan in plans.items() if is_public(name)}
        return EngineContents(functions, parts, next(iter(plans.values())).symbols, weights=_share(_constants(weights or {})), **rest)

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

    @property
    def best(self) -> PartContents:
        """The first part, of which all others have the functions."""
        return next(iter(self.parts.values()))

    @property
    def targets(self) -> tuple[str, ...]:
        """What a caller may ask for beside the parts' own names: `cpu` for the best of the CPU's, and each GPU's."""
        return tuple(dict.fromkeys(map(self.target, self.parts)))

    def target(self, part: str) -> str:
        """What a caller asks for to get the best of a part's family: `cpu` for all levels, a GPU by its own name."""
        return CPU if self.parts[part].is_level else part

    def named(self, target: str) -> tuple[str, ...]:
        """The parts that a target means, best first: all of the CPU's for `cpu`, else the one of that name."""
        return tuple(name for name in self.parts if target in (name, self.target(name)))

    def constant(self, part: str, name: str) -> Constant:
        """A constant as the part keeps it; EngineError if there is none."""
        for file in (part, SHARED):
            if name in self.weights.get(file, {}):
                return self.weights[file][name]
        raise EngineError(f"engine holds no constant {name!r} for {part}")


def _constants(weights: Mapping[str, Mapping[str, Constant | np.ndarray[Any, Any]]]) -> dict[str, dict[str, Constant]]:
    """Arrays as constants; an array that several parts hold becomes one."""
    made: dict[int, Constant] = {}
    for group in weights.values():
        for array in group.values():
            if id(array) not in made:
                made[id(array)] = aligned(array if isinstance(array, Constant) else Constant.of(array))
    return {file: {name: made[id(array)] for name, array in group.items()} for file, group in weights.items()}


def _share(weights: Mapping[str, Mapping[str, Constant]]) -> Mapping[str, Mapping[str, Constant]]:
    """Of each name what most parts hold alike is held once, the rest by its parts."""
    shared = dict(weights.get(SHARED, {}))
    own: dict[str, dict[str, Constant]] = {file: dict(group) for file, group in weights.items() if file != SHARED}
    for name in sorted({name for group in own.values() for name in group} - shared.keys()):
        alike = max(_alike({file: own[file][name] for file in sorted(own) if name in own[file]}), key=len)
        if len(alike) > 1:
            shared[name] = own[alike[0]][name]
            for file in alike:
                del own[file][name]
    kept = {file: group for file, group in own.items() if group}
    return {**kept, SHARED: shared} if shared else kept


def _alike(constants: Mapping[str, Constant]) -> list[list[str]]:
    """The files of equal constants."""
    groups: list[list[str]] = []
    for file, constant in constants.items():
        for group in groups:
            if constants[group[0]] is constant or constants[group[0]] == constant:
                group.append(file)
                break
        else:
            groups.append([file])
    return groups


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


class LazyObject(Mapping[str, Any]):
    """A read-only object of JSON that is made when first asked for."""

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self._make = make

    @functools.cached_property
    def _made(self) -> Mapping[str, Any]:
        return self._make()

    def __getitem__(self, name: str) -> Any:
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


class WrittenPlans(Lazy[Plan]):
    """The plans of a file, which have their digest from its bytes: it is told without reading them as plans.

    `records` know of plans that were found sound before.
    """

    def __init__(
        self, names: tuple[str, ...], make: Callable[[str], Plan], written: Callable[[str], bytes], records: Checked | None = None
    ) -> None:
        super().__init__(names, make)
        self._written = written
        self._records = records

    @functools.cached_property
    def digest(self) -> str:
        """What `digest_of` gives."""
        return digest_of_bytes((name, self._written(name)) for name in self)

    @property
    def are_sound(self) -> bool:
        """Whether a record says so."""
        return self._records is not None and self._records.holds_plans(self.digest)

    def found_sound(self) -> None:
        """Remember it."""
        if self._records is not None:
            self._records.add_plans(self.digest)
