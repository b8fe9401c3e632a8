"""Estimates beside published times and our own measured ones: the points that were fitted to, those held out, and the search.

python benchmarks/kernels/validate.py          the table
python benchmarks/kernels/validate.py --fit    the fitted numbers again, from the points to fit
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import lzma
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, prod
from pathlib import Path
from statistics import median
from typing import Any

from cubins import Cubin, compile_function
from estimate import FITTED, Estimate, Fitted, Launch, estimate
from machines import H100, MACHINES, Machine

POINTS = Path(__file__).with_name("points.json")

MEASURED = Path(__file__).with_name("measured.json.xz")
"""The kernels of the 70 problems as they ran on an H100 (commit f8d0849, Triton 3.6.0), with the tracer's microseconds of each.

Their times are those of benchmarks/results/gpu_h100_first.json. Kernels change; what was measured is kept here as it was.
"""

# Only points were measured on it: 94 GB of HBM3 with 3.9 TB/s, boost clock 1.785 GHz (NVIDIA H100 NVL product brief).
H100_NVL = replace(H100, name="H100 NVL", clock=1.785e9, memory=3.9e12)

APART = 1.15
"""Two measured rates that differ by so much are a pair whose order must be right."""


@dataclass(frozen=True)
class Point:
    """A published time in seconds, the launches that it may stand for (whole lists were tuned over), and where it is published.

    `work` are multiplications and additions, or bytes of a kernel that `moves` them only. A problem of our own has a
    `group`, its launches run one after the other, and its work is the time that the machine needs for it at least.
    """

    name: str
    machine: Machine
    seconds: float
    work: float
    moves: bool
    launches: tuple[Launch, ...]
    source: str
    fit: bool
    group: str = ""


@dataclass(frozen=True)
class Compared:
    """A point and its estimate: of published launches that of the fastest, as tuning would choose, of our own their sum."""

    point: Point
    estimate: Estimate

    @property
    def ratio(self) -> float:
        """Estimated over published time."""
        return self.estimate.seconds / self.point.seconds


def read_points(path: Path = POINTS) -> tuple[Point, ...]:
    """The points of a file; their kernels are compiled."""
    return tuple(point_of(row) for row in json.loads(path.read_text(encoding="utf-8")))


def read_measured(path: Path = MEASURED, seed: int = 1) -> tuple[Point, ...]:
    """Our own problems as they were measured; of each group half of them, drawn with the seed, is fitted to."""
    rows = json.loads(lzma.decompress(path.read_bytes()))
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row["problem"])
    generator = random.Random(seed)
    fit: set[tuple[str, str]] = set()
    for group, names in groups.items():
        fit |= {(group, name) for name in generator.sample(names, len(names) // 2)}
    return tuple(_measured_point(row, (row["group"], row["problem"]) in fit) for row in rows)


def _measured_point(row: Mapping[str, Any], fit: bool) -> Point:
    launches = tuple(Launch(Cubin(**each["cubin"]), tuple(each["grid"]), each["unique"]) for each in row["launches"])
    found = [estimate(launch, H100) for launch in launches]
    least = sum(each.share * each.seconds for each in found)
    name = f"{row['group']}: {row['problem']}"
    return Point(
        name, H100, sum(each["us"] for each in row["launches"]) * 1e-6, least, False, launches, "gpu_h100_first.json", fit, row["group"]
    )


def compare(points: Sequence[Point], fitted: Fitted = FITTED) -> list[Compared]:
    """Each point beside its estimate."""
    return [Compared(point, _estimate_of(point, fitted)) for point in points]


def _estimate_of(point: Point, fitted: Fitted) -> Estimate:
    found = [estimate(launch, point.machine, fitted, published=not point.group) for launch in point.launches]
    if not point.group:
        return min(found, key=lambda each: each.seconds)
    slowest = max(found, key=lambda each: each.seconds)
    return replace(slowest, seconds=sum(each.seconds for each in found))


def right_order(compared: Sequence[Compared]) -> tuple[int, int]:
    """Of pairs whose measured rates on one machine are at least 15 % apart: those in the right order, and all.

    Rates are compared, not times: of two problems of different sizes, everyone knows which one takes longer.
    """
    right = total = 0
    for one, other in itertools.combinations(compared, 2):
        kinds = [(each.point.machine.name, each.point.moves, each.point.group) for each in (one, other)]
        if kinds[0] != kinds[1]:
            continue
        share = other.point.work / one.point.work
        measured = one.point.seconds / other.point.seconds * share
        if 1 / APART < measured < APART:
            continue
        total += 1
        right += (measured > 1) == (one.estimate.seconds / other.estimate.seconds * share > 1)
    return right, total


def errors(compared: Sequence[Compared]) -> tuple[float, float]:
    """Median and worst relative error."""
    found = [abs(each.ratio - 1) for each in compared]
    return median(found), max(found)


def search(points: Sequence[Point], steps: int = 600, seed: int = 1) -> Fitted:
    """The fitted numbers with the least sum of errors (logarithms to the power of 1.5), by a seeded walk inside of what is sensible."""
    ranges = {
        "started": (0.8e-6, 3e-6),
        "far": (700.0, 2200.0),
        "first": (0.0, 0.8),
        "overlap": (1.5, 8.0),
        "memory": (0.8, 0.97),
        "cache": (0.7, 1.3),
        "throttle": (0.1, 0.4),
    }

    def loss(fitted: Fitted) -> float:
        return sum(abs(log(each.ratio)) ** 1.5 for each in compare(points, fitted))

    generator = random.Random(seed)
    best = FITTED
    least = loss(best)
    for step in range(steps):
        name = generator.choice(sorted(ranges))
        low, high = ranges[name]
        moved = getattr(best, name) + generator.gauss(0, (high - low) * (0.2 if step < steps // 3 else 0.05))
        tried = replace(best, **{name: min(max(moved, low), high)})
        if (found := loss(tried)) < least:
            best, least = tried, found
    return best


def point_of(row: Mapping[str, Any]) -> Point:
    """A row of the file as a point; its kernels are compiled."""
    sizes = row["sizes"]
    launches = tuple(_KERNELS[row["kernel"]](row["kernel"], {**sizes, **more}) for more in row.get("configurations", [{}]))
    operations = (
        4 * prod(sizes[name] for name in "BHSSD") if row["kernel"] == "attention" else 2 * prod(sizes.get(name, 1) for name in "MNK")
    )
    seconds = row["us"] * 1e-6 if "us" in row else operations / row["tflops"] / 1e12
    machine = H100_NVL if row["machine"] == H100_NVL.name else MACHINES[row["machine"]]
    moves = row["kernel"] in ("rms_norm", "layer_norm")
    return Point(row["name"], machine, seconds, launches[0].unique if moves else operations, moves, launches, row["source"], row["fit"])


@functools.cache
def _compiled(
    name: str, types: tuple[tuple[str, str], ...], constants: tuple[tuple[str, Any], ...], options: tuple[tuple[str, int], ...]
) -> Cubin:
    import equivalents

    return compile_function(getattr(equivalents, name), 90, dict(types), dict(constants), dict(options))


def _options(sizes: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    return ("num_warps", sizes["warps"]), ("num_stages", sizes["stages"])


def _product(name: str, sizes: Mapping[str, Any]) -> Launch:
    m, n, k = (sizes[letter] for letter in "MNK")
    persistent = name != "product"
    constants = {letter: sizes[letter] for letter in ("M", "N", "K", "BM", "BN", "BK")} | {"GROUP": 8}
    constants |= {"PROGRAMS": H100.processors} if persistent else {}
    types = tuple((letter, f"*{sizes['type']}") for letter in "abc")
    cubin = _compiled(name, types, tuple(constants.items()), _options(sizes))
    grid = H100.processors if persistent else m // sizes["BM"] * (n // sizes["BN"])
    return Launch(cubin, (grid,), (m * k + n * k + m * n) * (1 if sizes["type"].startswith("fp8") else 2))


def _attention(name: str, sizes: Mapping[str, Any]) -> Launch:
    heads, length, deep = sizes["B"] * sizes["H"], sizes["S"], sizes["D"]
    constants = {
        "S": length,
        "D": deep,
        "BM": sizes["BM"],
        "BN": sizes["BN"],
        "SCALE": deep**-0.5 * 1.4426950408889634,
        "DESCRIPTORS": False,
    }
    types = (*((letter, "*fp16") for letter in "qkvy"), ("largest", "*fp32"))
    cubin = _compiled(name, types, tuple(constants.items()), _options(sizes))
    return Launch(cubin, (length // sizes["BM"], heads), 4 * heads * length * deep * 2)


def _rows(name: str, sizes: Mapping[str, Any]) -> Launch:
    """Rows of Liger's kernels: warps by the width, as its calculate_settings chooses them."""
    width = 1 << (sizes["N"] - 1).bit_length()
    warps = 32 if width >= 32768 else 16 if width >= 8192 else 8 if width >= 2048 else 4
    element, size = ("bf16", 2) if name == "rms_norm" else ("fp32", 4)
    names = ("y", "x", "weight") if name == "rms_norm" else ("y", "x", "weight", "bias", "mean")
    types = (*((letter, f"*{element}") for letter in names), ("inverse", "*fp32"))
    cubin = _compiled(name, types, (("N", sizes["N"]), ("WIDTH", width)), (("num_warps", warps),))
    return Launch(cubin, (sizes["M"],), 2 * sizes["M"] * sizes["N"] * size)


_KERNELS: dict[str, Callable[[str, Mapping[str, Any]], Launch]] = {
    "product": _product,
    "product_persistent": _product,
    "product_by_descriptors": _product,
    "attention": _attention,
    "rms_norm": _rows,
    "layer_norm": _rows,
}


def table(compared: Sequence[Compared]) -> str:
    """The points as a table in markdown."""
    rows = ["| point | measured us | estimated us | ratio | bound | set |", "|---|---|---|---|---|---|"]
    for each in compared:
        part = "fitted" if each.point.fit else "held out"
        times = f"{each.point.seconds * 1e6:.1f} | {each.estimate.seconds * 1e6:.1f} | {each.ratio:.2f}"
        rows.append(f"| {each.point.name} ({each.point.machine.name}) | {times} | {each.estimate.bound} | {part} |")
    return "\n".join(rows)


def verdict(compared: Sequence[Compared]) -> str:
    """Median, worst and order of the points, one line a set."""
    lines = []
    for kind, own, part, fit in (
        (k, o, p, f) for k, o in (("published", False), ("our own", True)) for p, f in (("fitted", True), ("held out", False))
    ):
        chosen = [each for each in compared if each.point.fit == fit and bool(each.point.group) == own]
        middle, worst = errors(chosen)
        right, total = right_order(chosen)
        said = f"error {middle:.1%} at the median, {worst:.1%} at worst, {right} of {total} pairs in order"
        lines.append(f"{kind}, {part}: {len(chosen)} points, {said}")
    return "\n".join(lines)


def main() -> None:
    """Print the table, or fit again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true")
    points = read_points() + read_measured()
    if parser.parse_args().fit:
        print(search([point for point in points if point.fit]))
        return
    compared = compare(points)
    print(table(compared), verdict(compared), sep="\n\n")


if __name__ == "__main__":
    main()
