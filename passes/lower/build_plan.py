"""Plan building: scheduled groups and host steps become a plan with buffers, arena slots and launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...ir import dims
from ...ir.errors import InternalError, VerifyError
from ...ir.graph import Graph, Module, Op, State, Value
from ...ir.layout import Layout
from ...ir.ops.table import bound
from ...ir.plan import (
    VALUE,
    Buffer,
    Call,
    Check,
    CheckPlace,
    Copy,
    Guard,
    Host,
    Launch,
    Plan,
    Planned,
    StateDeclaration,
    Step,
    Storage,
    Variant,
    Zero,
    storage,
    touched,
)
from ...ir.plan.verify import verify
from ...ir.region import Region
from ...ir.target import GPU_TARGETS
from ...ir.tile.program import GridAxis, Made, Param, TileProgram
from ...ir.tile.program import Launch as TileLaunch
from ...ir.types import TensorType, i32, string
from ...ir.workload import Workload
from ..fusion.decision import Decision
from ..fusion.partition import HostOp
from .arena import Lifetime, assign_slots
from .in_place import in_place
from .schedule import Scheduled
from .symbols import given, numbers_given

ALIGNMENT = 64
NO_SLOT = storage.Arena("")
"""The arena, before buffers are given their slots."""


@dataclass(frozen=True)
class Kept:
    """A value that is in memory although it could have been computed where it is read, and why."""

    value: str
    source: str
    why: str

    def __str__(self) -> str:
        return f"kept %{self.value} in memory: {self.why}"


@dataclass
class Lowered(Planned):
    """The plans of a module's functions, their kernels by name (tile launches), what fusion had to give up, and all that it decided.

    `faults` are the mistakes of our own that it was made in spite of.
    """

    plans: Mapping[str, Plan]
    kernels: dict[str, TileLaunch]
    scheduled: dict[str, Scheduled]
    kept: tuple[Kept, ...] = ()
    decisions: tuple[Decision, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def launches(self) -> Iterator[Launch]:
        """The launches of all functions."""
        return (step for plan in self.plans.values() for step in plan.steps if isinstance(step, Launch))


@dataclass
class Kernels:
    """The kernels that functions share: equal programs once, under one name for each of their launches."""

    launches: dict[str, TileLaunch] = field(default_factory=dict)
    scheduled: dict[str, Scheduled] = field(default_factory=dict)
    names: dict[int, tuple[str, ...]] = field(default_factory=dict)
    programs: dict[int, TileProgram] = field(default_factory=dict)
    numbered: list[str] = field(default_factory=list)

    def of(self, unit: Scheduled) -> tuple[str, ...]:
        """The names of the launches of a unit's program."""
        fresh = tuple(f"kernel_{len(self.numbered) + n}" for n in range(len(unit.program.launches)))
        if id(unit.program) not in self.names:
            self.numbered += fresh
        return self._named(unit, fresh)

    def variants_of(self, unit: Scheduled) -> list[tuple[str, ...]]:
        """Those of its variants: the name of the kernel for all sizes, and of which sizes it is; so one more or less of them,
        as another instruction set may have, leaves all other names as they are.
        """
        usual = self.of(unit)
        return [self._named(each, tuple(f"{name}_{each.when.word}" for name in usual if each.when is not None)) for each in unit.variants]

    def _named(self, unit: Scheduled, fresh: tuple[str, ...]) -> tuple[str, ...]:
        program = unit.program
        if id(program) not in self.names:
            # Nothing else may get its number while it is known by it.
            self.programs[id(program)] = program
            self.names[id(program)] = fresh
            self.launches.update(zip(fresh, program.launches, strict=True))
            self.scheduled.update(dict.fromkeys(fresh, unit))
        return self.names[id(program)]


def build_plan(
    module: Module, graph: Graph, units: Sequence[Scheduled | HostOp], target: str, kernels: Kernels, workload: Workload | None = None
) -> Plan:
    """The plan of a graph whose units are scheduled, in order; its kernels join those of other functions, and its arena is
    laid out for the workload.
    """
    return verified(_Planner(module, graph, target, kernels, workload).run(units))


def verified(plan: Plan) -> Plan:
    """The plan; InternalError if it breaks a rule of form, which no program of a user's can make it do."""
    try:
        verify(plan)
    except VerifyError as error:
        raise InternalError(f"building a plan failed: {error}") from error
    return plan


@dataclass
class _Planner:
    """Collects buffers and steps."""

    module: Module
    graph: Graph
    target: str
    kernels: Kernels
    workload: Workload | None
    buffers: dict[str, Buffer] = field(default_factory=dict)
    names: dict[tuple[Value, str], str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    outputs: list[tuple[str, str]] = field(default_factory=list)
    numbers: dict[str, Value] = field(default_factory=dict)
    late: list[Step] = field(default_factory=list)
    replaced: Mapping[Value, Value] = field(default_factory=dict)
    """Results by the versions of states whose memory they take."""
    given: frozenset[str] = frozenset()
    """Symbols that the caller's shapes and integers bind."""
    bound: set[str] = field(default_factory=set)
    """Those, and what the steps so far have bound."""
    unchecked: list[CheckPlace] = field(default_factory=list)
    """Checks of places whose numbers the steps so far do not tell."""

    def run(self, units: Sequence[Scheduled | HostOp]) -> Plan:
        inputs = []
        graph = self.graph
        self.numbers, self.given = numbers_given(graph), given(graph)
        self.bound = set(self.given)
        for value in graph.arguments:
            name = self._add(value, value.type, storage.Input())
            inputs.append((value.name, name))
        for name, before, _ in graph.ties:
            self._add(before, before.type, storage.State(name))
        self.replaced = in_place(graph, units)
        for tell in (tell for unit in units if isinstance(unit, Scheduled) for tell in unit.tells):
            self._add(tell.worst, tell.worst.type, storage.Verdict())
        produced = {result for unit in units for result in (unit.op.results if isinstance(unit, HostOp) else unit.group.outputs)}
        copies: list[tuple[Value, str]] = []
        passed: list[tuple[int, Value]] = []
        for name, value in zip(graph.result_names, graph.results, strict=True):
            if value in produced and (value, "") not in self.names and value not in self.replaced:
                self.outputs.append((name, self._add(value, value.type, storage.Output())))
                continue
            if value.type.dtype == string:
                # Native code copies no strings: the runtime gives the caller an array of its own.
                passed.append((len(self.outputs), value))
                self.outputs.append((name, ""))
                continue
            # An input, a constant, a state or a value returned twice: the caller gets memory of its own.
            copy = self._new(value.type, storage.Output())
            self.outputs.append((name, copy))
            copies.append((value, copy))
        self.unchecked = [_check_place(unit.op) for unit in units if isinstance(unit, HostOp) and unit.op.name == "refuse_place"]
        self._check_places()
        for unit in units:
            if isinstance(unit, HostOp):
                self._host(unit.op)
                self._check_places()
            else:
                self._launches(unit)
        for place, value in passed:
            self.outputs[place] = (self.outputs[place][0], self._buffer(value, None))
        self.steps += [Copy(self._buffer(value, None), copy) for value, copy in copies]
        ties = self._tie()
        self.steps += self.late
        return self._finish(inputs, ties)

    def _tie(self) -> tuple[tuple[str, str], ...]:
        """What states hold when the call ends, written to their memory where it is not there already."""
        lie_in = {before: name for name, before, _ in self.graph.ties}
        for value, base in self.replaced.items():
            lie_in[value] = lie_in[base]
        ties: dict[str, str] = {}
        moves: list[tuple[str, Value, str]] = []
        for name, before, after in self.graph.ties:
            source = self._buffer(after, None)
            if lie_in.get(after) == name:
                ties[name] = source
                continue
            if after in lie_in:
                # What another state holds may be overwritten before it gets here.
                held = self._new(after.type, self._storage(after.type))
                self.steps.append(Copy(source, held))
                source = held
            moves.append((name, before, source))
        for name, before, source in moves:
            ties[name] = self._whole(before)
            self.steps.append(Copy(source, ties[name]))
        return tuple(ties.items())

    def _whole(self, base: Value) -> str:
        """A buffer with all of the memory that another one lies in."""
        root = self.buffers[self._buffer(base, None)]
        held = root.storage if isinstance(root.storage, storage.Alias) else storage.Alias(root.name, 0, root.type.row_major)
        return self._new(base.type, held)

    def _add(self, value: Value, type: TensorType, held: Storage) -> str:
        name = self._new(type, held)
        self.names[value, held.key if isinstance(held, storage.Constant) else ""] = name
        return name

    def _new(self, type: TensorType, held: Storage) -> str:
        name = f"b{len(self.buffers)}"
        self.buffers[name] = Buffer(name, type, held)
        return name

    def _buffer(self, value: Value, layout: Layout | None, shape: tuple[dims.Dim, ...] | None = None) -> str:
        """The buffer of a value; a constant has one for each layout that it is read in, as a tensor of `shape`."""
        if value.constant is None:
            known = self.names.get((value, ""))
            return known if known is not None else self._add(value, value.type, self._storage(value.type))
        return self._constant(value, layout, value.shape if shape is None else shape)

    def _constant(self, value: Value, layout: Layout | None, shape: tuple[dims.Dim, ...]) -> str:
        held = storage.Constant(value.name) if layout is None else storage.Constant(value.name, layout, bound(shape))
        if (value, held.key) not in self.names:
            return self._add(value, value.type if layout is None else value.type.with_shape(layout.extents(shape)), held)
        return self.names[value, held.key]

    def _made(self, param: Param, made: Made, region: Region, value: Value) -> str:
        """The buffer of what is made of a constant."""
        layout = param.layout
        if layout is None or value.constant is None:
            raise InternalError(f"%{param.name} is not made of a constant, in a layout")
        held = storage.Constant(value.name, layout, bound(region.operand(made.operand).type.shape), made.how)
        known = self.names.get((value, held.key))
        return known or self._add(value, TensorType(param.dtype, layout.extents(held.laid)), held)

    def _storage(self, type: TensorType) -> Storage:
        """The arena, or memory of its own where the size is known only after a host step."""
        named = {name for size in type.shape for name in dims.symbols(size)}
        return NO_SLOT if named <= self.given else storage.Dynamic()

    def _host(self, op: Op) -> None:
        if op.name == "item" and str(op.attrs["symbol"]) in self.numbers and not _is_read(op, self.graph):
            # The caller's own integer: it is known before the first step.
            return
        if op.name == "refuse_place":
            # It stands where its numbers were first known, before all that relies on it.
            return
        reads = tuple(self._buffer(v, None) if v is not None else "" for v in op.operands)
        binds = self._binds(op)
        self.bound.update(symbol for symbol, _, _ in binds)
        writes = tuple(self.names.get((r, "")) or self._add(r, r.type, self._storage(r.type)) for r in op.results)
        sources = (str(op.source),) if op.source else ()
        if op.name == "refuse_index":
            # Asking a GPU for a number waits for it: once, when all work of the call is queued; but before a state is written.
            steps = self.late if self.target in GPU_TARGETS and not self.graph.states else self.steps
            steps.append(Check(reads[0], op.attrs["size"], op.attrs["negative"], op.attrs["subject"], sources))
            return
        if op.name == "aten_call":
            self.steps.append(Call(op.attrs["target"], op.attrs["key"], reads, writes, binds, sources))
            return
        self.steps.append(Host(op.name, op.attrs, reads, writes, binds, sources))

    def _check_places(self) -> None:
        """The checks of places for which the steps so far are enough: nothing has been launched that relies on them."""
        ready = [check for check in self.unchecked if dims.symbols(check.place) | dims.symbols(check.size) <= self.bound]
        self.steps += ready
        self.unchecked = [check for check in self.unchecked if check not in ready]

    def _binds(self, op: Op) -> tuple[tuple[str, int, int], ...]:
        """The symbols that a step gives values; where two results have one new size, the first says what it is."""
        fresh: dict[str, tuple[int, int]] = {}
        for number, result in enumerate(op.results):
            for axis, symbol in enumerate(_symbols(result.type)):
                if symbol and symbol not in self.bound:
                    fresh.setdefault(symbol, (number, axis))
        if op.name == "item" and str(op.attrs["symbol"]) not in self.numbers:
            fresh[str(op.attrs["symbol"])] = (0, VALUE)
        return tuple((symbol, *place) for symbol, place in fresh.items())

    def _launches(self, unit: Scheduled) -> None:
        operands: dict[str, str] = {}
        for operand, value in zip(unit.problem.region.inputs, unit.group.inputs, strict=True):
            operands[operand.name] = self._buffer(value, unit.problem.layouts.get(operand.name), operand.type.shape)
        written: set[str] = set()
        for operand, value in zip(unit.problem.region.outputs, unit.group.outputs, strict=True):
            base = self.replaced.get(value)
            if base is not None:
                # The first launch would copy what is there already.
                self.names[value, ""] = self._whole(base)
                self.steps.append(Copy(self._buffer(base, None), self.names[value, ""]))
                written.add(operand.name)
            operands[operand.name] = self._buffer(value, None)
        operands |= {tell.told: self._buffer(tell.worst, None) for tell in unit.tells}
        for space in unit.program.workspaces:
            type = TensorType(space.dtype, tuple(map(unit.bound, space.shape)))
            operands[space.name] = self._new(type, self._storage(type))
        constants = {operand.name: value for operand, value in zip(unit.problem.region.inputs, unit.group.inputs, strict=True)}
        for each in (unit, *unit.variants):
            for param, made in each.program.made:
                operands[param.name] = self._made(param, made, unit.problem.region, constants[made.operand])
        choices = list(zip((unit, *unit.variants), (self.kernels.of(unit), *self.kernels.variants_of(unit)), strict=True))
        for number, launch in list(enumerate(unit.program.launches))[1 if written else 0 :]:
            self._launch(number, choices, operands, written)
            written |= {param.name for param in launch.params if param.role != "in"}

    def _launch(
        self, number: int, choices: Sequence[tuple[Scheduled, tuple[str, ...]]], operands: dict[str, str], written: set[str]
    ) -> None:
        """Launch `number` of a unit and of its variants, all with the names of their kernels."""
        unit, names = choices[0]
        launch = unit.program.launches[number]
        counters = {}
        for counter in launch.counters:
            type = TensorType(i32, (unit.bound(counter.extent),))
            counters[counter.name] = self._new(type, self._storage(type))
            self.steps.append(Zero(counters[counter.name]))
        # Launches of one program each write a part of a result: what the earlier ones wrote stays.
        reads = tuple(operands[p.name] for p in launch.params if p.role in ("in", "inout") or p.name in written)
        writes = tuple(operands[p.name] for p in launch.params if p.role in ("out", "inout"))
        sources = tuple(dict.fromkeys(str(op.source) for op in unit.group.ops if op.source is not None))
        own, *others = (self._variant(kernels[number], each, number, operands | counters) for each, kernels in choices)
        self.steps.append(Launch(names[number], (*others, own), reads, writes, sources, tuple(unit.binding.items())))

    def _variant(self, kernel: str, unit: Scheduled, number: int, operands: Mapping[str, str]) -> Variant:
        launch = unit.program.launches[number]
        arguments = [operands[name] for name in (*(p.name for p in launch.params), *(c.name for c in launch.counters))]
        grid = tuple(unit.bound(points(axis)) for axis in launch.grid)
        guard = Guard() if unit.when is None else unit.when.guard(unit.binding[unit.when.symbol], self.module.facts)
        return Variant(kernel, guard, grid, tuple(arguments))

    def _finish(self, inputs: list[tuple[str, str]], ties: tuple[tuple[str, str], ...]) -> Plan:
        lives: dict[str, tuple[int, int]] = {}
        for n, step in enumerate(self.steps):
            for name in touched(step):
                first, _ = lives.get(name, (n, n))
                lives[name] = (first, n)
        lifetimes = []
        for name, (first, last) in lives.items():
            buffer = self.buffers[name]
            if buffer.storage == NO_SLOT:
                size = dims.ceil_div(buffer.type.nbytes, ALIGNMENT) * ALIGNMENT
                lifetimes.append(Lifetime(name, size, first, last))
        slots, place = assign_slots(lifetimes, self.module.facts, self.workload)
        buffers = tuple(replace(b, storage=storage.Arena(place[b.name])) if b.name in place else b for b in self.buffers.values())
        numbers = tuple((symbol, self.names[value, ""]) for symbol, value in self.numbers.items())
        states = tuple(map(_declared, (self.module.states[name] for name in self.graph.states)))
        ports = tuple(inputs), tuple(self.outputs)
        return Plan(self.target, self.module.facts, *ports, buffers, slots, tuple(self.steps), numbers, states, ties)


def _declared(state: State) -> StateDeclaration:
    return StateDeclaration(state.name, state.type, state.initial.name if state.initial is not None else "")


def _check_place(op: Op) -> CheckPlace:
    sources = (str(op.source),) if op.source else ()
    return CheckPlace(op.attrs["place"], op.attrs["size"], op.attrs["negative"], op.attrs["subject"], sources)


def points(axis: GridAxis) -> dims.Dim:
    """The number of grid points along an axis."""
    return axis.high - axis.low if axis.step is None else dims.ceil_div(axis.high - axis.low, axis.step)


def _is_read(op: Op, graph: Graph) -> bool:
    return any(result.uses or result in graph.outputs for result in op.results)


def _symbols(type: TensorType) -> list[str]:
    return [dims.name_of(size) or "" for size in type.shape]
