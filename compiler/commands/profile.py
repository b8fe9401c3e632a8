"""`ourcc bench --kernels`: how long each launch of an engine takes, against what the machine was measured to do."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ...codegen.c.toolchain import find_compiler
from ...ir import dims
from ...ir.dims_text import parse_dim
from ...ir.errors import UnsupportedError
from ...ir.plan import Host, Launch, is_native
from ...runtime.contents import CPU
from ...runtime.cpu import CpuPart
from ...runtime.engine import Engine
from ...runtime.kinds import PICTURE_MARK, TRACE_MARK
from ...runtime.launches import holds
from ..models.inputs import Array
from ..progress import Progress
from ..report.table import Cell, Table
from ..targets.machine import Rates, rate_samples, read_cpu

COLUMNS = ("launch", "kernel", "source_ops", "strategy", "min_us", "median_us", "gflops", "gbytes_per_second", "roofline", "share")
BRIEF = ("launch", "kernel", "median_us", "share", "roofline", "gflops", "min_us")
BELOW = ("source_ops", "strategy")
BY_KERNEL = ("kernel", "launches", "total_us", "share", "roofline", "gflops", "source_ops", "strategy")


@dataclass(frozen=True)
class Profile:
    """One launch, or one routine of native code: its nanoseconds in each round, and the operations and bytes that it cannot do without."""

    number: int
    launch: Launch | Host
    kernel: str
    row: Mapping[str, Any]
    samples: tuple[int, ...]
    operations: float
    bytes: float

    @property
    def median(self) -> float:
        """Seconds."""
        return max(statistics.median(self.samples), 1) * 1e-9

    @property
    def minimum(self) -> float:
        """Seconds."""
        return max(min(self.samples), 1) * 1e-9

    def floor(self, rates: Rates) -> float:
        """The seconds that one thread of the machine needs at least: the longer of computing and of moving from memory."""
        return max(self.operations / (rates.fma_gflops * 1e9), self.bytes / (rates.read_gbytes_per_second * 1e9))


@dataclass(frozen=True)
class Rounds:
    """What was timed: every launch, and the nanoseconds of each round's call as a whole."""

    profiles: list[Profile]
    calls: tuple[int, ...]

    def outside(self) -> float:
        """Seconds of a call beside its launches, of which both are of the same round: the median."""
        own = [sum(times) for times in zip(*(item.samples for item in self.profiles), strict=True)] or [0] * len(self.calls)
        rest: float = statistics.median(call - launches for call, launches in zip(self.calls, own, strict=True))
        return max(rest, 0.0) * 1e-9


def profile(
    engine: Engine,
    function: str,
    inputs: Sequence[Array],
    threads: int,
    rounds: int,
    progress: Progress,
    between: Callable[[], None] = lambda: None,
) -> Rounds:
    """Each launch of a function in the part that runs, in every round, after two calls that warm up.

    `between` is called before the first round, halfway and behind the last one; calls that warm up follow it.
    """
    contents = engine.contents
    if engine.part is None or engine.target != CPU:
        raise UnsupportedError("launches are timed on a cpu only, and the engine runs on none here", hint="bench it without --kernels")
    part = CpuPart(contents, engine.part, threads)
    executor, states = part.executor(function), part.states()
    plan = executor.program.plan
    launches = [step for step in plan.steps if isinstance(step, Launch | Host) and is_native(step)]
    progress.stage("time launches", rounds)
    samples, calls = [], []
    for number in range(rounds):
        if number in (0, rounds // 2):
            between()
            for _ in range(2):
                executor.run(inputs, states)
        times, call = executor.times(inputs, states)
        samples.append(times)
        calls.append(call)
        progress.advance()
    between()
    values = executor.program.bind(tuple(array.shape for array in inputs), inputs).values
    rows = {row["kernel"]: row for row in contents.report.get("kernels", {}).get(engine.part, ())}
    kernels = [_serving(step, values) for step in launches]
    profiles = [
        Profile(n, step, kernel, rows.get(kernel, {}), each, *_cost(rows.get(kernel, {}), step, values))
        for n, (step, kernel, each) in enumerate(zip(launches, kernels, zip(*samples, strict=True), strict=True))
    ]
    return Rounds(profiles, tuple(calls))


def _serving(step: Launch | Host, values: Mapping[str, int]) -> str:
    """The kernel that a launch runs at these sizes, or the routine; the one for all where a size is that only the call finds out."""
    if isinstance(step, Host):
        return step.routine
    known = (variant for variant in step.variants if all(dims.symbols(size) <= values.keys() for size in variant.guard.positive))
    return next(variant.kernel for variant in known if holds(variant.guard, values))


def _cost(row: Mapping[str, Any], step: Launch | Host, values: Mapping[str, int]) -> tuple[float, float]:
    """Operations and bytes at these sizes; not known of routines, and where a size is that only the call finds out."""
    if isinstance(step, Host) or "operations" not in row or any(not dims.symbols(size) <= values.keys() for _, size in step.symbols):
        return math.nan, math.nan
    own = {name: dims.evaluate(size, values) for name, size in step.symbols}
    operations, bits = (dims.evaluate(parse_dim(row[field]), own) for field in ("operations", "bits"))
    return float(operations), bits / 8


@dataclass(frozen=True)
class Roof:
    """What one thread can do, and where the rate of arithmetic is from."""

    rates: Rates
    source: str


def profile_beside_rates(
    engine: Engine, function: str, inputs: Sequence[Array], threads: int, rounds: int, progress: Progress
) -> tuple[Rounds, Roof]:
    """The rounds, and what the machine does before, between and after its rounds."""
    found: list[Rates] = []
    with rate_samples(find_compiler(), read_cpu()) as sample:
        measured = profile(engine, function, inputs, threads, rounds, progress, lambda: found.append(sample()))
    return measured, roof_of(found, measured.profiles, threads)


def roof_of(found: Sequence[Rates], profiles: Sequence[Profile], threads: int) -> Roof:
    """The best of several samples, and no fewer operations than a thread of the fastest kernel was seen to do."""
    best = Rates(max(rates.fma_gflops for rates in found), max(rates.read_gbytes_per_second for rates in found))
    known = [item for item in profiles if not math.isnan(item.operations)]
    fastest = max(known, key=lambda item: item.operations / item.minimum, default=None)
    reached = 0.0 if fastest is None else fastest.operations / fastest.minimum * 1e-9 / threads
    if fastest is None or reached <= best.fma_gflops:
        return Roof(best, f"the best of {len(found)} samples before, between and after")
    source = f"reached by {fastest.kernel}, above the best of {len(found)} samples, {best.fma_gflops:.0f}"
    return Roof(Rates(reached, best.read_gbytes_per_second), source)


def profile_table(measured: Rounds, roof: Roof, sizes: str = "") -> Table:
    """One row a launch, the longest first; `sizes` are those of the inputs."""
    profiles, rates = measured.profiles, roof.rates
    total = sum(item.median for item in profiles) or 1.0
    rows: list[tuple[Cell, ...]] = []
    for item in sorted(profiles, key=lambda item: -item.median):
        known = not math.isnan(item.operations)
        row: tuple[Cell, ...] = (
            *(item.number, item.kernel, item.row.get("source_ops"), item.row.get("strategy")),
            *(round(item.minimum * 1e6, 2), round(item.median * 1e6, 2)),
            round(item.operations / item.median * 1e-9, 2) if known else None,
            round(item.bytes / item.median * 1e-9, 2) if known else None,
            round(item.floor(rates) / item.median, 3) if known else None,
            round(item.median / total, 4),
        )
        rows.append(row)
    notes = (
        f"roofline: the least time one thread needs, at {rates.fma_gflops:.0f} GFLOP/s ({roof.source}) and"
        f" {rates.read_gbytes_per_second:.1f} GB/s, over the median; operands in a cache may exceed it",
        f"all launches: {total * 1e6:.1f} us by their medians{f', of inputs {sizes}' if sizes else ''}",
        f"outside of launches: {measured.outside() * 1e6:.1f} us of a call (median): steps in Python, checks, memory",
    )
    return Table("launches", COLUMNS, tuple(rows), notes, BRIEF, BELOW, keys=("kernel",))


def kernels_table(measured: Rounds, roof: Roof) -> Table | None:
    """One row a kernel, the one whose launches take longest together first; None where each is launched once."""
    found: dict[str, list[Profile]] = {}
    for item in measured.profiles:
        found.setdefault(item.kernel, []).append(item)
    if len(found) == len(measured.profiles):
        return None
    total = sum(item.median for item in measured.profiles)
    rows: list[tuple[Cell, ...]] = []
    for kernel, items in sorted(found.items(), key=lambda pair: -sum(item.median for item in pair[1])):
        taken, row = sum(item.median for item in items), items[0].row
        known = not any(math.isnan(item.operations) for item in items)
        rates = (
            round(sum(item.floor(roof.rates) for item in items) / taken, 3) if known else None,
            round(sum(item.operations for item in items) / taken * 1e-9, 2) if known else None,
        )
        rows.append(
            (kernel, len(items), round(taken * 1e6, 2), round(taken / total, 4), *rates, row.get("source_ops"), row.get("strategy"))
        )
    notes = ("the launches of each kernel together, by their medians",)
    return Table("kernels", BY_KERNEL, tuple(rows), notes, BY_KERNEL[:6], BELOW, keys=("kernel",))


def trace(profiles: Sequence[Profile]) -> list[bytes]:
    """The launches one after another, as a file that chrome://tracing and Perfetto open."""
    events, at = [], 0.0
    for item in profiles:
        args = {"sources": list(item.launch.sources), "strategy": item.row.get("strategy"), "kernel": item.kernel}
        name = item.row.get("source_ops") or item.kernel
        events.append({"name": name, "ph": "X", "ts": at, "dur": item.median * 1e6, "pid": 1, "tid": 1, "args": args})
        at += item.median * 1e6
    return [json.dumps({"otherData": TRACE_MARK, "traceEvents": events, "displayTimeUnit": "ms"}).encode()]


# --- the picture --------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, EDGE = 760, 460, 60


def draw_roofline(profiles: Sequence[Profile], rates: Rates) -> list[bytes]:
    """Every launch as a disc under the machine's roof, its area its share of the time; an SVG."""
    shown = [item for item in profiles if item.operations > 0 and item.bytes > 0]
    ridge = rates.fma_gflops / rates.read_gbytes_per_second
    across = _Axis([item.operations / item.bytes for item in shown] + [ridge / 8, ridge * 8], EDGE, WIDTH - 20)
    up = _Axis([item.operations / item.median * 1e-9 for item in shown] + [rates.fma_gflops, rates.fma_gflops / 100], HEIGHT - EDGE, 20)
    total = sum(item.median for item in profiles)
    left, right = across.low, across.high
    roof = [(left, left * rates.read_gbytes_per_second), (ridge, rates.fma_gflops), (right, rates.fma_gflops)]
    points = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in roof)
    lines = [f'<polyline points="{points}" fill="none" stroke="#444" stroke-width="2"/>']
    for item in sorted(shown, key=lambda item: -item.median):
        x, y = item.operations / item.bytes, item.operations / item.median * 1e-9
        radius = 3 + 40 * math.sqrt(item.median / total)
        title = f"{item.kernel}: {item.row.get('source_ops')}, {item.median * 1e6:.1f} us, {y:.1f} GFLOP/s"
        lines.append(
            f'<circle cx="{across.at(x):.1f}" cy="{up.at(y):.1f}" r="{radius:.1f}" fill="#3b7dd8" fill-opacity="0.45" stroke="#1d4f91">'
            f"<title>{escape(title)}</title></circle>"
        )
    lines += [f'<text x="{across.at(x):.1f}" y="{HEIGHT - EDGE + 20}" text-anchor="middle">{x:g}</text>' for x in across.ticks()]
    lines += [f'<text x="{EDGE - 8}" y="{up.at(y) + 4:.1f}" text-anchor="end">{y:g}</text>' for y in up.ticks()]
    lines.append(
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 14}" text-anchor="middle">arithmetic intensity (operations per byte of memory)</text>'
    )
    lines.append(f'<text transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">arithmetic (GFLOP/s)</text>')
    lines += _legend(rates)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {PICTURE_MARK} viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">'
    return ["\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *lines, "</svg>\n"]).encode()]


def _legend(rates: Rates) -> list[str]:
    """What the line and the discs are."""
    texts = (
        f"line: what one thread can do, {rates.fma_gflops:.0f} GFLOP/s and {rates.read_gbytes_per_second:.1f} GB/s",
        "disc: a launch; its area is its share of the time",
    )
    return [f'<text x="{EDGE + 12}" y="{36 + 16 * number}">{escape(text)}</text>' for number, text in enumerate(texts)]


class _Axis:
    """A logarithmic axis that holds all values, from one place of the picture to another."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        self.low, self.high = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))
        self.first, self.last = first, last

    def at(self, value: float) -> float:
        share = math.log10(value / self.low) / max(math.log10(self.high / self.low), 1e-9)
        return self.first + share * (self.last - self.first)

    def ticks(self) -> list[float]:
        count = round(math.log10(self.high / self.low))
        return [self.low * 10**n for n in range(count + 1)]
