"""`ourcc bench`: how long an engine or a model takes, alone or beside others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from ...ir.errors import UsageError
from ...ir.graph.parse import parse_module
from ...ir.spelling import function_of
from ...ir.target import EMULATED
from ...ir.workload import Point, Workload
from ...runtime.engine import Engine
from ...runtime.replace import replace_file
from ..engines.kinds import is_engine
from ..engines.outputs import check_places
from ..engines.recorded import recorded_changes, workload_of
from ..models.inputs import Array, read_inputs, seeded_inputs
from ..models.shapes import wanted_sizes
from ..options import BenchOptions
from ..progress import SILENT, Progress
from ..report.table import Cell, Report, Table
from ..targets.machine import read_cpu
from .load import load
from .measure import Timing, compare, rows
from .peers import OURS, Run, engine_run, make_peer, peer_file


def bench(options: BenchOptions, progress: Progress = SILENT) -> Report:
    """Measure in one process, interleaved; peers run the file said with `peer=FILE`, or that of the subject's name."""
    is_built = is_engine(options.subject)
    if not options.kernels and (options.trace or options.picture):
        raise UsageError("got --trace or --picture without --kernels, which they are made of", hint="add --kernels")
    if options.picture is not None and options.picture.suffix.lower() != ".svg":
        raise UsageError(
            f"--picture: got {options.picture.name!r}, expected a file of the suffix .svg", hint="browsers show and convert it"
        )
    check_places({"--trace": options.trace, "--picture": options.picture}, {"the subject": options.subject, "--inputs": options.inputs})
    said = {"--shape": bool(options.build.shapes), "--workload": options.build.workload is not None, "--inputs": options.inputs is not None}
    if is_built and sum(said.values()) > 1:
        got = " and ".join(name for name, is_given in said.items() if is_given)
        raise UsageError(f"got {got} for an engine, expected one of them: each says the sizes to call it with")
    if is_built:
        engine = load(options.subject, target=options.target, threads=options.threads, trusted_keys=options.trust.keys, progress=progress)
    else:
        engine = _built(options, progress)
    function = function_of(engine.functions, options.function)
    cases = _cases(options, engine, function)
    peers: dict[str, Run] = {}
    files: dict[str, Cell] = {}
    for peer in options.against:
        name, _, file = peer.partition("=")
        progress.stage(f"prepare {name}")
        path = Path(file) if file else peer_file(name, options.subject)
        if not path.exists():
            raise UsageError(f"--against {name}: there is no file {str(path)!r}")
        whole = f"{name}={path}"
        label = next((label for label in (name, f"{name}={path.name}") if label not in (OURS, *peers)), whole)
        peers[label] = _peer(name, path, options, function, progress)
        files[f"{label} runs"] = str(path)
    distances = {case: _distances(_calls(engine, function, peers, case.arrays)) for case in cases}
    timed = {case: compare(_calls(engine, function, peers, case.arrays), options.rounds, progress=progress) for case in cases}
    cpu = read_cpu()
    facts: dict[str, Cell] = {
        "subject": str(options.subject),
        **({"function": function} if len(engine.functions) > 1 else {}),
        "sizes": "; ".join(_sizes(case.arrays) for case in cases),
        "threads": options.threads,
        "rounds": options.rounds,
    }
    notes = list(_notes(engine, options.threads, (recorded_changes(engine.contents) or {}) if peers else {}))
    tables = [
        _times(f"times at {case.point}" if len(cases) > 1 else "times", timings, distances[case], notes) for case, timings in timed.items()
    ]
    if len(cases) > 1:
        tables.append(_weighed(timed))
    if options.kernels:
        heaviest = max(cases, key=lambda case: case.point.weight)
        tables += _launches(options, engine, function, heaviest.arrays, progress)
    return Report({**facts, "cpu": cpu.model, **files, **_warning(distances.values())}, tuple(tables))


def _peer(name: str, path: Path, options: BenchOptions, function: str, progress: Progress) -> Run:
    if name != OURS:
        return make_peer(name, path, options.threads)
    engine = load(path, threads=options.threads, trusted_keys=options.trust.keys, progress=progress)
    return engine_run(engine, function)


def _sizes(arrays: Sequence[Array]) -> str:
    return " ".join("x".join(map(str, array.shape)) or "scalar" for array in arrays)


@dataclass(frozen=True, eq=False)
class Case:
    """Inputs to call with, and the point of the workload that they are of."""

    point: Point
    arrays: list[Array]


def _calls(
    engine: Engine, function: str, peers: Mapping[str, Run], arrays: list[Array]
) -> dict[str, Callable[[], Sequence[Array] | Mapping[str, Array]]]:
    called = engine.session().functions[function]
    named = {port.name: array for port, array in zip(called.inputs, arrays, strict=True)}
    return {OURS: partial(called.run, named), **{name: partial(call, arrays) for name, call in peers.items()}}


FAR = 0.5
"""The distance of answers from which on they are told to be another model's: what coarser numbers change is less."""


def _distances(calls: Mapping[str, Callable[[], Sequence[Array] | Mapping[str, Array]]]) -> dict[str, float | None]:
    """How far each peer's answers lie from ours; None where they have other shapes."""
    if len(calls) == 1:
        return {}
    answers = {name: call() for name, call in calls.items()}
    arrays = {name: [*(found.values() if isinstance(found, Mapping) else found)] for name, found in answers.items()}
    return {name: _distance(arrays[OURS], found) for name, found in arrays.items() if name != OURS}


def _distance(ours: Sequence[Array], theirs: Sequence[Array]) -> float | None:
    """The largest difference over the largest magnitude, in the output where that is most."""
    pairs = list(zip(map(np.asarray, ours), map(np.asarray, theirs), strict=False))
    if len(ours) != len(theirs) or any(one.shape != other.shape for one, other in pairs):
        return None
    return float(f"{max((_share(one, other) for one, other in pairs), default=0.0):.2g}")


def _share(one: Array, other: Array) -> float:
    """Words, and what is no number on one side alone, are all different or not at all."""
    if one.dtype.kind in "OSU" or other.dtype.kind in "OSU":
        return float(bool(np.any(one != other)))
    left, right = (array.astype(np.complex128 if array.dtype.kind == "c" else np.float64) for array in (one, other))
    is_number = np.isfinite(left) & np.isfinite(right)
    if not np.array_equal(left[~is_number], right[~is_number], equal_nan=True):
        return 1.0
    magnitude = max(float(np.abs(array[is_number]).max(initial=0.0)) for array in (left, right))
    difference = float(np.abs(left[is_number] - right[is_number]).max(initial=0.0))
    return difference / magnitude if magnitude else 0.0


def _warning(distances: Iterable[Mapping[str, float | None]]) -> dict[str, Cell]:
    """What to tell of peers that answer as another model does."""
    far = dict.fromkeys(name for each in distances for name, found in each.items() if found is None or found > FAR)
    if not far:
        return {}
    return {
        "warning": f"{', '.join(far)} and ourcc answer otherwise, as different models do: is it the file that the engine was built from?"
    }


def _notes(engine: Engine, threads: int, changes: Mapping[str, str]) -> Iterator[str]:
    """What the times do not say; `changes` are what our engine was built to compute otherwise than the model, as peers do not."""
    if changes:
        made = " ".join(f"--{name} {value}" for name, value in changes.items())
        yield f"ourcc's engine was built with {made}; peers compute what their files say"
    if threads > (processors := len(os.sched_getaffinity(0))):
        yield f"{threads} threads take turns on the {processors} CPU{'s' * (processors > 1)} that this process may use"
    if (engine.part or "").endswith(EMULATED):
        yield f"{engine.part} runs models of instructions that this machine lacks: its times are not those of the level"


def _times(name: str, timings: Sequence[Timing], distances: Mapping[str, float | None], notes: Sequence[str]) -> Table:
    columns, ratio = ("what", "min_ms", "median_ms", "ratio"), "ratio: minimum over ourcc's minimum"
    if not distances:
        return Table(name, columns, rows(timings), (ratio, *notes))
    cells = tuple((*row, distances.get(row[0])) for row in rows(timings))
    difference = "difference: of answers from ourcc's on these inputs, the largest over the largest magnitude; - where shapes differ"
    return Table(name, (*columns, "difference"), cells, (ratio, difference, *notes))


def _weighed(timed: Mapping[Case, Sequence[Timing]]) -> Table:
    """The mean over the cases by their weights."""
    total = sum(case.point.weight for case in timed)
    means: dict[str, float] = {}
    for case, timings in timed.items():
        for timing in timings:
            means[timing.name] = means.get(timing.name, 0.0) + timing.minimum * case.point.weight / total
    cells = tuple((name, round(mean * 1e3, 4), round(mean / means["ourcc"], 3)) for name, mean in means.items())
    return Table("times over the workload", ("what", "min_ms", "ratio"), cells, ("mean of the minima by the points' weights",))


def _launches(options: BenchOptions, engine: Engine, function: str, arrays: list[Array], progress: Progress) -> Iterator[Table]:
    """A row for each launch, and for each kernel where some are launched more than once; the trace and the picture are written beside."""
    from .profile import draw_roofline, kernels_table, profile_beside_rates, profile_table, trace

    measured, roof = profile_beside_rates(engine, function, arrays, options.threads, options.rounds, progress)
    if options.trace is not None:
        replace_file(options.trace, trace(measured.profiles))
    if options.picture is not None:
        replace_file(options.picture, draw_roofline(measured.profiles, roof.rates))
    yield profile_table(measured, roof, _sizes(arrays))
    together = kernels_table(measured, roof)
    if together is not None:
        yield together


def _built(options: BenchOptions, progress: Progress) -> Engine:
    # An engine is measured without what would build one.

    from .build import build

    return build(options.subject, replace(options.build, threads=options.threads), progress)


def _cases(options: BenchOptions, engine: Engine, function: str) -> list[Case]:
    """The user's inputs, or seeded ones: of the workload's sizes, or for an engine of those that --shape names."""
    if options.inputs is not None:
        return [Case(Point(()), next(read_inputs(options.inputs, [port.name for port in engine.functions[function].inputs])))]
    # The engine keeps its program: what its integer inputs index is known without the model.
    module = parse_module(engine.contents.graph)
    workload = options.build.workload_for(module.facts) or workload_of(engine.contents)
    # A model was built with its --shape, so the engine's own ranges say it all.
    if is_engine(options.subject) and options.build.shapes:
        sizes = workload.sizes | wanted_sizes(options.build.shapes, module, workload.sizes)
        workload = Workload((Point(tuple(sizes.items())),))
    return [Case(point, seeded_inputs(module, 0, dict(point.sizes), function)) for point in workload.points]
