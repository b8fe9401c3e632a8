"""What an engine runs, as rows: kernels, host steps and ATen calls, their sources, schedules, predicted times and shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...ir import dims
from ...ir.plan import Call, Host, Launch, Plan, Step, Variant, slot_offsets, storage
from ...ir.plan.lives import most_alive
from ...ir.region import Region
from ...ir.region.cost import Cost, cost_of, reached_elements, symbolic_cost
from ...ir.tile.program import Dot, Let, statements, walk
from ...ir.tile.program import Launch as TileLaunch
from ...ir.workload import Workload, default_workload, heaviest, size_at
from ...passes.lower.build_plan import Lowered
from ...passes.lower.in_place import changes, copied
from ...passes.lower.schedule import Scheduled
from .table import Cell, Table

COLUMNS = (
    *("kernel", "function", "kind", "calls", "when", "source_ops", "strategy", "registers", "shared_bytes", "spills", "inner_spills"),
    *("instructions", "megaflop", "megabytes", "predicted_us", "share", "bound", "roofline", "notes"),
)
BRIEF = ("kernel", "predicted_us", "share", "bound", "calls", "function", "roofline", "when", "kind")
BELOW = ("source_ops", "strategy")


def kernel_rows(
    lowered: Lowered,
    operations_per_second: Callable[[Scheduled], float],
    bytes_per_second: float,
    resources: Mapping[str, Mapping[str, Any]] | None = None,
    workload: Workload | None = None,
    *,
    floored: bool = True,
    launch_seconds: float = 0.0,
) -> list[dict[str, Any]]:
    """One row a kernel, a kind of host step, and an ATen operator, at the workload's sizes, with its share of the predicted time.

    `resources` is what the assembler or compiler reported, by kernel. Unless `floored`, a prediction below the time that the rates
    allow stands as it is: its roofline is above 1, as where bytes come from a cache. `launch_seconds` are what predictions say of each
    launch whatever it does. Nobody predicts the launches of one program apart: one of them has the time and the operations of all,
    the others say in `time_in` which; bytes are those of each.
    """
    sizes = (workload or default_workload(lowered.plan.symbols)).sizes
    calls = list(lowered.launches)
    rows: list[dict[str, Any]] = []
    programs = _programs(lowered)
    for name, unit in lowered.scheduled.items():
        at, whole = dict(heaviest(unit.points).sizes), unit.problem.region
        region = changes(whole) if _is_in_place(lowered, unit) else whole
        cost = _cost(unit, region, at)
        rates = operations_per_second(unit), bytes_per_second
        floor = cost.seconds(*rates)
        # The schedule's cost is that of the whole region.
        left = floor / max(_cost(unit, whole, at).seconds(*rates), 1e-12)
        together, leader = programs[id(unit.program)]
        starting = launch_seconds * len(together)
        seconds = starting + (unit.cost - launch_seconds * len(unit.program.launches)) * left
        seconds = max(seconds, floor if floored else 0.0)
        is_told, moved = name == leader, cost.bytes if len(together) == 1 else _moved(lowered.kernels[name], unit, at)
        operations, bits = symbolic_cost(region)
        found = (resources or {}).get(name, {})
        uses = [step for step in calls if any(variant.kernel == name for variant in step.variants)]
        served = sum(_serving(step, sizes).kernel == name for step in uses)
        rows.append(
            {
                "kernel": name,
                "function": _functions(lowered, name),
                "kind": "kernel",
                "calls": served,
                "when": None if unit.when is None else str(unit.when),
                "source_ops": ", ".join(op.name for op in unit.group.ops),
                "sources": [list(step.sources) for step in uses],
                "strategy": str(unit.schedule),
                "refusals": [list(pair) for pair in unit.refusals],
                "registers": found.get("registers"),
                "shared_bytes": found.get("shared_bytes"),
                "spills": found.get("spills"),
                "inner_spills": found.get("inner_spills"),
                "instructions": found.get("instructions"),
                "notes": found.get("notes"),
                "operations": str(dims.floor_divide(operations * unit.operations.numerator, unit.operations.denominator)),
                "bits": str(bits),
                "megaflop": round(cost.operations / 1e6, 3) if is_told else None,
                "megabytes": round(moved / 1e6, 3),
                "predicted_us": round(seconds * 1e6, 2) if is_told else None,
                "time_in": None if is_told else leader,
                "bound": bound_of(cost, rates, seconds, starting) if is_told else None,
                "roofline": round(floor / max(seconds, 1e-12), 3) if is_told else None,
            }
        )
    for function, plan in lowered.plans.items():
        named = function if len(lowered.plans) > 1 else None
        rows += [{**row, "function": named} for row in _other_rows(plan, bytes_per_second, sizes)]
    total = sum(map(spent_us, rows))
    return [{**row, "share": None if row["predicted_us"] is None else round(spent_us(row) / total, 3) if total else 0.0} for row in rows]


def spent_us(row: Mapping[str, Any]) -> float:
    """The predicted microseconds of a row in one call of its functions; none where another row has them, or nobody predicts them."""
    return float((row.get("predicted_us") or 0.0) * row.get("calls", 0))


def _programs(lowered: Lowered) -> dict[int, tuple[list[str], str]]:
    """Of each program, by its identity, its kernels, and that which the time of all is told of: one that multiplies, else the last."""
    found: dict[int, list[str]] = {}
    for name, unit in lowered.scheduled.items():
        found.setdefault(id(unit.program), []).append(name)
    return {
        program: (names, next((name for name in names if _multiplies(lowered.kernels[name])), names[-1]))
        for program, names in found.items()
    }


def _multiplies(launch: TileLaunch) -> bool:
    return any(
        isinstance(part, Dot) for statement in statements(launch.body) if isinstance(statement, Let) for part in walk(statement.value)
    )


def _moved(launch: TileLaunch, unit: Scheduled, at: Mapping[str, int]) -> float:
    """The bytes of a launch's own operands, each once; of those of the region no more than the region reaches."""
    reached = {name: dims.evaluate(elements, at) for name, elements in reached_elements(unit.problem.region).items()}
    sizes = {param.name: dims.evaluate(dims.product(param.shape), at) for param in launch.params}
    return sum(min(sizes[param.name], reached.get(param.name, sizes[param.name])) * param.dtype.bits / 8 for param in launch.params)


def bound_of(cost: Cost, rates: tuple[float, float], seconds: float, starting: float) -> str:
    """What bounds a kernel by its prediction: starting its launches, arithmetic, or memory; `other` where all of them explain less than
    half of it, as where steps wait for each other, or few programs leave a device idle.
    """
    math, memory = cost.operations / rates[0], cost.bytes / rates[1]
    parts = {"launch": starting, "math" if math > memory else "memory": max(math, memory)}
    return max(parts, key=lambda part: parts[part]) if sum(parts.values()) >= seconds / 2 else "other"


def _cost(unit: Scheduled, region: Region, at: Mapping[str, int]) -> Cost:
    """What a region costs as it is computed: a schedule may need fewer operations than the region says."""
    cost = cost_of(region, at)
    return replace(cost, operations=cost.operations * float(unit.operations))


def _functions(lowered: Lowered, kernel: str) -> str | None:
    """The functions that launch a kernel, where there are several."""
    if len(lowered.plans) < 2:
        return None
    return ", ".join(name for name, plan in lowered.plans.items() if any(kernel in kernels_of(step) for step in plan.steps))


def kernels_of(step: Step) -> list[str]:
    """The kernels of which a step launches one."""
    return [variant.kernel for variant in step.variants] if isinstance(step, Launch) else []


def _is_in_place(lowered: Lowered, unit: Scheduled) -> bool:
    """Whether a unit's result takes the memory of the state that it changes: the launch that would copy it is nobody's."""
    return copied(unit) is not None and sum(each.program is unit.program for each in lowered.scheduled.values()) < len(
        unit.program.launches
    )


def _serving(step: Launch, sizes: Mapping[str, int]) -> Variant:
    """The variant that serves calls of these sizes, whatever is aligned."""
    return next(v for v in step.variants if all(size_at(size, sizes) >= 0 for size in v.guard.positive))


def _other_rows(plan: Plan, bytes_per_second: float, sizes: Mapping[str, int]) -> list[dict[str, Any]]:
    """What runs outside of kernels: routines of the host, and calls into torch; one row a routine."""
    steps: dict[tuple[str, str], list[Host | Call]] = {}
    for step in plan.steps:
        if isinstance(step, Host | Call):
            named = ("host", step.routine) if isinstance(step, Host) else ("aten", step.target)
            steps.setdefault(named, []).append(step)
    return [_other_row(kind, name, uses, plan, bytes_per_second, sizes) for (kind, name), uses in steps.items()]


def _other_row(
    kind: str, name: str, uses: Sequence[Host | Call], plan: Plan, bytes_per_second: float, sizes: Mapping[str, int]
) -> dict[str, Any]:
    moved = sum(_nbytes(plan, buffer, sizes) for step in uses for buffer in (*step.reads, *step.writes) if buffer) / len(uses)
    return {
        "kernel": name,
        "kind": kind,
        "calls": len(uses),
        "source_ops": name,
        "sources": [list(step.sources) for step in uses],
        "strategy": None,
        "refusals": [],
        **dict.fromkeys(("registers", "shared_bytes", "spills", "inner_spills", "instructions", "notes", "megaflop", "time_in")),
        "megabytes": round(moved / 1e6, 3),
        "predicted_us": None if kind == "host" else round(moved / bytes_per_second * 1e6, 2),
        "bound": None if kind == "host" else "memory",
        "roofline": None if kind == "host" else 1.0,
    }


def _nbytes(plan: Plan, buffer: str, sizes: Mapping[str, int]) -> int:
    size = plan.named[buffer].type.nbytes
    return dims.evaluate(size, sizes) if dims.symbols(size) <= sizes.keys() else 0


def kernel_table(target: str, rows: Sequence[Mapping[str, Any]], workload: Workload, *, on_cpu: bool = True) -> Table:
    """The rows as a table; they were predicted for the workload."""
    cells = tuple(tuple(_cell(row, column) for column in COLUMNS) for row in rows)
    total = sum(map(spent_us, rows))
    several = len({name for row in rows for name in (row.get("function") or "").split(", ")}) > 1
    each = "one call of each function" if several else "one call"
    at = f"; sizes are those of the workload: {workload}" if workload.sizes else ""
    notes = [
        f"{each}: {total:.5g} us predicted{at}",
        "times, shares and roofline are predicted, not measured: "
        + ("ourcc bench measures" if on_cpu else "ourcc bench measures whole calls on a GPU"),
        "bound: what most of a prediction is, starting launches, math or memory; other: waiting, where these explain less than half",
        "roofline: what math or memory would take at the machine's rates, over the prediction; share: of the time of one call",
    ]
    if any((row.get("roofline") or 0) > 1 for row in rows if row.get("kind", "kernel") == "kernel"):
        notes.append("a roofline above 1: faster than memory brings the bytes, which a cache is reckoned to hold, or work is skipped")
    if any(row.get("kind", "kernel") != "kernel" for row in rows):
        notes.append("host and aten rows run outside of kernels: of host rows no time is predicted, of aten rows that to move their bytes")
    if any(row.get("time_in") for row in rows):
        notes.append("launches of one schedule are predicted together: operations and time are those of all, megabytes of each")
    numbers = {name: tuple(row.get(name) for row in rows) for name in ("predicted_us", "time_in")}
    return Table(f"kernels of {target}", COLUMNS, cells, tuple(notes), BRIEF, BELOW, keys=("kernel",), numbers=numbers)


def _cell(row: Mapping[str, Any], column: str) -> Cell:
    """A cell of a row; of a launch whose time is told with another's, where."""
    return f"in {row['time_in']}" if column == "predicted_us" and row.get("time_in") else row.get(column)


def arena_bytes(plan: Plan, sizes: Mapping[str, int]) -> tuple[str, dict[str, int]]:
    """What the arena takes at these sizes, and how much of it is alive at once: as a sentence, and as numbers."""
    numbers = {"bytes": slot_offsets(plan.slots, sizes)[1], "alive": most_alive(plan, sizes)}
    at = ", ".join(f"{name} = {sizes[name]}" for name in plan.symbols.ranges if name in sizes)
    return f"{numbers['bytes']:,} bytes, of which {numbers['alive']:,} are alive at once{f'; {at}' if at else ''}", numbers


def memory_tables(plan: Plan, target: str | None = None) -> tuple[Table, Table]:
    """Arena slots and constants of a plan; `target` is named where there are several."""
    of = "" if target is None else f" of {target}"
    members: dict[str, list[str]] = {}
    for buffer in plan.buffers:
        if isinstance(buffer.storage, storage.Arena):
            members.setdefault(buffer.storage.slot, []).append(buffer.name)
    slots = tuple((s.name, " | ".join(map(str, s.sizes)), ", ".join(s.above), len(members.get(s.name, []))) for s in plan.slots)
    constants = tuple((b.storage.key, str(b.type)) for b in plan.buffers if isinstance(b.storage, storage.Constant))
    return Table(f"arena slots{of}", ("slot", "bytes", "above", "buffers"), slots), Table(
        f"constants{of}", ("constant and layout", "type in memory"), constants
    )
