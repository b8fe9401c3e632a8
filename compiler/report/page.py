"""The page that `ourcc build --report` writes: where the time should go, what is in memory when, and what was promised.

One HTML file that needs nothing else: no script, no font, no picture from elsewhere. Names from the model are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ...ir import dims
from ...ir.plan import Plan, slot_offsets, storage
from ...ir.plan.lives import arena_lives
from ...runtime.contents import Contract, EngineContents
from ...runtime.kinds import PAGE_MARK
from ..contract import is_notable
from ..engines.recorded import spoken, workload_of
from .engine import signature
from .kernels import COLUMNS, spent_us

WIDTH, HEIGHT = 900, 260
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2330; max-width: 960px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; } p, figcaption { color: #556; }
table { border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto; } figure { margin: 1rem 0; }
th, td { text-align: left; padding: 2px 12px 2px 0; border-bottom: 1px solid #e6e8ee; vertical-align: top; white-space: nowrap; }
td.number { text-align: right; font-variant-numeric: tabular-nums; } svg { max-width: 100%; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: #1d2330; } .quiet { fill: #889; } .bar { fill: #3b6fb6; } .slack { fill: #c5d6ee; }
.slot { fill: #3b6fb6; fill-opacity: .55; stroke: #fff; }
"""


def page(contents: EngineContents, title: str) -> str:
    """The page of an engine."""
    ports = signature(contents)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>For {escape(spoken(contents, contents.parts))}, made by {escape(str(contents.provenance.get('producer', 'ourcc')))}.</p>",
        _table(ports.columns, ports.rows),
        *_contract(Contract.from_json(contents.report.get("contract", []))),
    ]
    sizes = workload_of(contents).sizes
    for name, part in contents.parts.items():
        parts += _times(name, sizes, contents.report.get("kernels", {}).get(name, []))
        for function, plan in part.plans.items():
            parts += _memory(f"{name}, {function}" if len(part.plans) > 1 else name, plan, sizes)
        parts += _kept(name, contents.report.get("kept", {}).get(name, []))
    parts += _tuning(contents.report.get("tuning", {}).get("rows", []))
    head = f'<!doctype html><html lang="en"><meta charset="utf-8">{PAGE_MARK}<title>{escape(title)}</title><style>{STYLE}</style>'
    return "\n".join([head, *parts, "</html>", ""])


def _contract(contract: Contract) -> Iterable[str]:
    notable = [row for row in contract if is_notable(row)]
    yield "<h2>Contract</h2>"
    yield f"<p>{len(list(contract))} rows; those that say more than that an op keeps the model's own precision: {len(notable)}.</p>"
    if notable:
        columns = ("source", "op", "requested", "realised", "why")
        yield _table(columns, [tuple(getattr(row, column) for column in columns) for row in notable])


def _times(name: str, sizes: Mapping[str, int], rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    at = ", ".join(f"{symbol} = {value}" for symbol, value in sizes.items())
    yield f"<h2>{escape(name)}: where the time should go</h2>"
    where = f", at {at}" if at else ""
    yield _figure(_bars(rows), f"Predicted time of each kernel, all its calls together{where}; dark: what the machine needs at least.")
    yield _table(COLUMNS, [tuple(row.get(column) for column in COLUMNS) for row in rows])


def _memory(name: str, plan: Plan, sizes: Mapping[str, int]) -> Iterable[str]:
    at = ", ".join(f"{symbol} = {value}" for symbol, value in sizes.items())
    where = f", at {at}" if at else ""
    offsets, total = slot_offsets(plan.slots, sizes)
    yield f"<h2>{escape(name)}: memory</h2>"
    constants = sum(int(b.type.nbytes) for b in plan.buffers if isinstance(b.storage, storage.Constant) and isinstance(b.type.nbytes, int))
    boxes = "each box is a buffer, from the step that writes it to the last that reads it"
    yield _figure(_arena(plan, offsets, total, sizes), f"One arena of {_bytes(total)}{where}: {boxes}. Constants: {_bytes(constants)}.")


def _kept(name: str, rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    if rows:
        yield f"<h2>{escape(name)}: kept in memory</h2>"
        yield "<p>Values that could have been computed where they are read, and why they are not.</p>"
        yield _table(("value", "source", "why"), [(row["value"], row["source"], row["why"]) for row in rows])


def _bars(rows: Sequence[Mapping[str, Any]]) -> str:
    """Kernels by predicted time, longest first."""
    times = sorted(((spent_us(row), row) for row in rows if row["predicted_us"] is not None), key=lambda pair: -pair[0])[:24]
    longest = max((time for time, _ in times), default=0) or 1
    lines = []
    for number, (time, row) in enumerate(times):
        y, width = 24 * number, 430 * time / longest
        label = f"{row['kernel']} x {row['calls']}"
        ops = row["source_ops"] if len(row["source_ops"]) < 44 else row["source_ops"][:41] + "..."
        lines.append(
            f'<text x="0" y="{y + 15}">{escape(label)}</text><rect class="slack" x="110" y="{y + 3}" width="{width:.1f}" height="16"/>'
            f'<rect class="bar" x="110" y="{y + 3}" width="{width * row["roofline"]:.1f}" height="16"/>'
            f'<text x="{116 + width:.1f}" y="{y + 15}">{_seconds(time)}<tspan class="quiet" dx="8">{escape(ops)}</tspan></text>'
        )
    return _svg("".join(lines), 24 * len(times))


def _arena(plan: Plan, offsets: Mapping[str, int], total: int, sizes: Mapping[str, int]) -> str:
    """Buffers of the arena as boxes: steps to the right, bytes upwards."""
    lives = arena_lives(plan)
    boxes = []
    for buffer in plan.buffers:
        if not isinstance(buffer.storage, storage.Arena) or buffer.name not in lives or not total:
            continue
        (first, last), held = lives[buffer.name], dims.evaluate(buffer.type.nbytes, sizes)
        x, width = WIDTH * first / len(plan.steps), WIDTH * (last - first + 1) / len(plan.steps)
        height = HEIGHT * held / total
        y = HEIGHT - HEIGHT * offsets[buffer.storage.slot] / total - height
        text = f"{buffer.name}: {buffer.type}, {_bytes(held)}, steps {first} to {last}"
        box = f'<rect class="slot" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}">'
        boxes.append(f"{box}<title>{escape(text)}</title></rect>")
    return _svg("".join(boxes), HEIGHT)


def _tuning(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    if rows:
        columns = ("target", "architecture", "kernel", "schedule", "source", "why")
        yield "<h2>Schedules</h2>"
        yield _table(columns, [tuple(row.get(column) for column in columns) for row in rows])


# --- pieces -----------------------------------------------------------------------------------------------------------


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(column.replace('_', ' '))}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f'<td class="number">{value:,}</td>'
    return f"<td>{escape('-' if value is None else str(value))}</td>"


def _figure(picture: str, caption: str) -> str:
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def _svg(content: str, height: int) -> str:
    return f'<svg role="img" viewBox="0 0 {WIDTH} {max(1, height)}" width="{WIDTH}" height="{max(1, height)}">{content}</svg>'


def _bytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count / 1e3:.1f} kB"


def _seconds(microseconds: float) -> str:
    return f"{microseconds / 1e3:.2f} ms" if microseconds >= 1000 else f"{microseconds:.1f} us"
