"""The kernels of an engine as rows: sources, strategy, predicted time, share of the roofline, what the compiler said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...ir.plan import Launch, Plan
from ...ir.region_cost import cost_of, typical_sizes
from ...passes.build_plan import Lowered
from .table import Table

COLUMNS = (
    *("kernel", "calls", "source_ops", "strategy", "registers", "shared_bytes", "spills", "instructions"),
    *("megaflop", "megabytes", "predicted_us", "roofline", "notes"),
)


def kernel_rows(
    lowered: Lowered, operations_per_second: float, bytes_per_second: float, resources: Mapping[str, Mapping[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """One row a kernel at typical sizes; `resources` is what the assembler or compiler reported, by kernel."""
    calls = [step for step in lowered.plan.steps if isinstance(step, Launch)]
    rows = []
    for name, unit in lowered.scheduled.items():
        cost = cost_of(unit.problem.region, typical_sizes(unit.problem.symbols))
        floor = cost.seconds(operations_per_second, bytes_per_second)
        found = (resources or {}).get(name, {})
        uses = [step for step in calls if any(v.kernel == name for v in step.variants)]
        rows.append(
            {
                "kernel": name,
                "calls": len(uses),
                "source_ops": ", ".join(op.name for op in unit.group.ops),
                "sources": [list(step.sources) for step in uses],
                "strategy": str(unit.schedule),
                "refusals": [list(pair) for pair in unit.refusals],
                "registers": found.get("registers"),
                "shared_bytes": found.get("shared_bytes"),
                "spills": found.get("spills"),
                "instructions": found.get("instructions"),
                "notes": found.get("notes"),
                "megaflop": round(cost.operations / 1e6, 3),
                "megabytes": round(cost.bytes / 1e6, 3),
                "predicted_us": round(max(unit.cost, floor) * 1e6, 2),
                "roofline": round(floor / max(unit.cost, floor, 1e-12), 3),
            }
        )
    return rows


def kernel_table(target: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows as a table."""
    cells = tuple(tuple(row.get(column) for column in COLUMNS) for row in rows)
    return Table(f"kernels of {target}", COLUMNS, cells, ("sizes are typical ones: 128 for a symbol, within its range",))


def memory_tables(plan: Plan) -> tuple[Table, Table]:
    """Arena slots and constants of a plan."""
    members: dict[str, list[str]] = {}
    for buffer in plan.buffers:
        if buffer.storage == "arena":
            members.setdefault(buffer.key, []).append(buffer.name)
    slots = tuple((s.name, " | ".join(str(size) for size in s.sizes), len(members.get(s.name, []))) for s in plan.slots)
    constants = tuple((b.key, str(b.type)) for b in plan.buffers if b.storage == "constant")
    return Table("arena slots", ("slot", "bytes", "buffers"), slots), Table(
        "constants", ("constant and layout", "type in memory"), constants
    )
