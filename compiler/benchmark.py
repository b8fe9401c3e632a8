"""`ourcc bench`: how long an engine or a model takes, alone or beside others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from ..ir.errors import UsageError
from ..ir.parse import parse_module
from ..runtime.engine import Engine
from ..runtime.replace import replace_file
from .driver import build, load
from .inputs import Array, read_inputs, seeded_inputs, typical_sizes
from .kinds import is_engine
from .machine import read_cpu
from .measure import compare, rows
from .options import BenchOptions
from .outputs import check_places
from .peers import make_peer, peer_file
from .progress import SILENT, Progress
from .report.table import Cell, Report, Table
from .shapes import wanted_sizes


def bench(options: BenchOptions, progress: Progress = SILENT) -> Report:
    """Measure in one process, interleaved; peers run the file said with `peer=FILE`, or that of the subject's name."""
    is_built = is_engine(options.subject)
    if not options.kernels and (options.trace or options.picture):
        raise UsageError("got --trace or --picture without --kernels, which they are made of", hint="add --kernels")
    check_places({"--trace": options.trace, "--picture": options.picture}, {"the subject": options.subject, "--inputs": options.inputs})
    if options.inputs is not None and is_built and options.build.shapes:
        raise UsageError("got --shape and --inputs for an engine, expected one of them: the inputs have their sizes")
    if is_built:
        engine = load(options.subject, threads=options.threads, trusted_keys=options.trust.keys, progress=progress)
    else:
        engine = _built(options, progress)
    arrays = _inputs(options, engine)
    named = {port.name: array for port, array in zip(engine.inputs, arrays, strict=True)}
    entry = next(iter(engine.session().functions.values()))
    calls: dict[str, Callable[[], object]] = {"ourcc": partial(entry.run, named)}
    files: dict[str, Cell] = {}
    for peer in options.against:
        name, _, file = peer.partition("=")
        progress.stage(f"prepare {name}")
        path = Path(file) if file else peer_file(name, options.subject)
        calls[name] = partial(make_peer(name, path, options.threads), arrays)
        files[f"{name} runs"] = str(path)
    timings = compare(calls, options.rounds, progress=progress)
    table = Table("times", ("what", "min_ms", "median_ms", "ratio"), rows(timings), ("ratio: minimum over ourcc's minimum",))
    cpu = read_cpu()
    facts: dict[str, Cell] = {
        "subject": str(options.subject),
        "sizes": " ".join("x".join(map(str, a.shape)) for a in arrays),
        "threads": options.threads,
        "rounds": options.rounds,
    }
    tables = (table, *_launches(options, engine, arrays, progress)) if options.kernels else (table,)
    return Report({**facts, "cpu": cpu.model, **files}, tables)


def _launches(options: BenchOptions, engine: Engine, arrays: list[Array], progress: Progress) -> Iterator[Table]:
    """A row for each launch; the trace and the picture are written beside."""
    from .profile import draw_roofline, measured_rates, profile, profile_table, trace

    profiles, rates = profile(engine.contents, arrays, options.threads, options.rounds, progress), measured_rates()
    if options.trace is not None:
        replace_file(options.trace, trace(profiles))
    if options.picture is not None:
        replace_file(options.picture, draw_roofline(profiles, rates))
    yield profile_table(profiles, rates)


def _built(options: BenchOptions, progress: Progress) -> Engine:
    from dataclasses import replace

    return build(options.subject, replace(options.build, threads=options.threads), progress)


def _inputs(options: BenchOptions, engine: Engine) -> list[Array]:
    """The user's inputs, or seeded ones: of typical sizes, or for an engine of those that --shape names."""
    if options.inputs is not None:
        return next(read_inputs(options.inputs, [port.name for port in engine.inputs]))
    # The engine keeps its program: what its integer inputs index is known without the model.
    module = parse_module(engine.contents.graph)
    sizes = typical_sizes(module)
    # A model was built with its --shape, so the engine's own ranges say it all.
    if is_engine(options.subject) and options.build.shapes:
        sizes |= wanted_sizes(options.build.shapes, module, sizes)
    return seeded_inputs(module, 0, sizes)
