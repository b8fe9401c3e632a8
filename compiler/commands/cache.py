"""`ourcc cache`: looking into the tuning stores, moving records between them, and saying why a kernel was served or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...autotune.choose import Shelves
from ...autotune.objects import MAX_OBJECT
from ...autotune.plausible import believable
from ...autotune.record import Data, Record, RecordError, digest, record_id
from ...autotune.signed import UnbelievedError, seal, unseal
from ...autotune.store import RecordStore, open_store
from ...codegen.c.toolchain import find_compiler
from ...ir.errors import CompilerError, UsageError
from ...ir.target import CPU_LEVELS, cpu_level
from ...runtime.kinds import RECORDS
from ...runtime.replace import replace_file
from ..backends.tuning import cpu_environment, producer, read_journal
from ..engines.outputs import check_output
from ..engines.trust import open_contents
from ..options import CacheOptions
from ..progress import SILENT, Progress
from ..report.table import Cell, Report, Table

COLUMNS = (
    *("id", "problem", "computes", "architecture", "device", "compiler"),
    *("candidates", "failures", "samples", "fastest", "microseconds", "store"),
)
BRIEF = ("id", "computes", "fastest", "microseconds")


def cache(options: CacheOptions, progress: Progress = SILENT) -> Report:
    """One action on the tuning stores."""
    try:
        return _ACTIONS[options.action](options, progress)
    except ConnectionError as error:
        hint = f"stores in use are {', '.join(options.environment.stores)} (OURCC_CACHE)"
        raise CompilerError(f"a store cannot be reached: {error}", hint=hint) from error


def _stores(options: CacheOptions) -> list[RecordStore]:
    """The store that was named, else all in use."""
    return [_foreign(url, options) for url in options.arguments[:1]] or _in_use(options)


def _in_use(options: CacheOptions) -> list[RecordStore]:
    """The stores in use, but for those of others that are not there, as a build finds them."""
    return Shelves([open_store(url, options.trust.believed) for url in options.environment.stores], SILENT.note).checked(False).stores


def _local(options: CacheOptions) -> RecordStore:
    """The user's own store: with trusted keys it gives what they signed, with a signing key it signs what it gets."""
    return open_store(options.environment.stores[0], options.trust.believed, signing_key=options.trust.signing_key)


def _foreign(url: str, options: CacheOptions) -> RecordStore:
    """A store of others, of which trusted keys must have signed what is read."""
    folder = url.removeprefix("file://")
    if "://" not in folder and not Path(folder).is_dir():
        raise UsageError(f"there is no store {url!r}: expected a folder of records, or a URL like redis://host")
    return open_store(url, options.trust.believed)


def _written(url: str, options: CacheOptions) -> RecordStore:
    """A store to write to, signing what is written."""
    return open_store(url, signing_key=options.trust.signing_key)


def _notes(stores: Sequence[RecordStore], progress: Progress) -> None:
    for store in stores:
        for note in store.notes:
            progress.note(note)


# --- looking ----------------------------------------------------------------------------------------------------------


def _list(options: CacheOptions, progress: Progress) -> Report:
    stores = _stores(options)
    rows = [_row(record, store) for store in stores for record in store.list()]
    _notes(stores, progress)
    return Report({"stores": ", ".join(store.name for store in stores)}, (Table("records", COLUMNS, tuple(rows), (), BRIEF),))


def _row(record: Record, store: RecordStore) -> tuple[Cell, ...]:
    measured = [trial for trial in record.trials if trial.times]
    best = min(measured, key=lambda trial: trial.times[0], default=None)
    env = record.environment
    return (
        *(record.id, digest(record.problem)[:16], _summary(record.problem["region"]), env["architecture"], env["device"], env["compiler"]),
        *(len(record.trials), sum(1 for t in record.trials if t.failures), sum(len(t.times) for t in record.trials)),
        *(None if best is None else str(best.schedule), None if best is None else best.times[0] / 1e6, store.name),
    )


def _summary(region: str) -> str:
    """The operands of a region, which is what people know it by."""
    first = region.split("\n", 1)[0]
    return first.removeprefix("region @region").removesuffix(" {")[:100]


def _du(options: CacheOptions, progress: Progress) -> Report:
    rows = [(store.name, *store.size()) for store in _stores(options)]
    return Report(tables=(Table("stores", ("store", "records", "objects", "bytes"), tuple(rows)),))


def _verify(options: CacheOptions, progress: Progress) -> Report:
    stores = _stores(options)
    bad = [
        ((store.name, id, name, error.message), isinstance(error, UnbelievedError))
        for store in stores
        for id, name, error in store.damaged()
    ]
    # A record that another key signed is whole.
    kinds = {"damaged": tuple(row for row, whole in bad if not whole), "unbelieved": tuple(row for row, whole in bad if whole)}
    tables = tuple(Table(kind, ("store", "id", "object", "why"), rows) for kind, rows in kinds.items() if rows)
    facts = {kind: len(rows) for kind, rows in kinds.items() if rows or kind == "damaged"}
    violations = tuple(f"object {name} of record {id[:16]} in {store}: {why}" for (store, id, name, why), _ in bad)
    return Report({"objects": sum(store.size()[1] for store in stores), **facts}, tables, violations=violations)


# --- moving -----------------------------------------------------------------------------------------------------------


def _copy(sources: Sequence[RecordStore], destination: RecordStore, progress: Progress) -> Report:
    count = 0
    refused: list[str] = []
    for source in sources:
        progress.stage(f"copy {source.name}")
        for record in source.list():
            kept, reasons = believable(record)
            refused += [f"a time of record {record.id[:16]} in {source.name} is refused: {reason}" for reason in reasons]
            destination.put(kept)
            progress.advance()
            count += 1
        refused += source.notes
    for note in (*refused, *destination.notes):
        progress.note(note)
    return Report({"records": count, "refused": len(refused), "store": destination.name}, _refusals(refused))


def _refusals(refused: Sequence[str]) -> tuple[Table, ...]:
    return (Table("left out", ("what",), tuple((note,) for note in refused)),) if refused else ()


def _push(options: CacheOptions, progress: Progress) -> Report:
    return _copy([_local(options)], _written(options.arguments[0], options), progress)


def _pull(options: CacheOptions, progress: Progress) -> Report:
    return _copy([_foreign(options.arguments[0], options)], _local(options), progress)


def _merge(options: CacheOptions, progress: Progress) -> Report:
    *sources, destination = options.arguments
    return _copy([_foreign(url, options) for url in sources], _written(destination, options), progress)


def _prune(options: CacheOptions, progress: Progress) -> Report:
    compiler, ours = find_compiler(options.environment.compiler).identity, producer()
    levels = {level.name for level in CPU_LEVELS}
    removed = 0
    for store in _stores(options):
        for record in list(store.list()):
            env = record.environment
            if env["compiler"] != compiler or env["producer"] != ours or env["architecture"] not in levels:
                removed += 1 if store.delete(record.id) else 0
        for id, name, _ in list(store.damaged()):
            store.backend.remove(id, [name])
            removed += 1
    return Report({"removed": removed, "kept_for": f"{ours}, {compiler}"})


def _export(options: CacheOptions, progress: Progress) -> Report:
    """One record a line; the file appears whole or not at all."""
    path, store = check_output(Path(options.arguments[0]), RECORDS), _local(options)
    lines = [seal(record, options.trust.signing_key) + b"\n" for record in store.list()]
    replace_file(path, lines)
    count = len(lines)
    _notes([store], progress)
    return Report({"records": count, "file": str(path)})


def _import(options: CacheOptions, progress: Progress) -> Report:
    path, store = Path(options.arguments[0]), _local(options)
    count, refused, number = 0, list[str](), 0
    with path.open("rb") as stream:
        while line := stream.readline(MAX_OBJECT + 2):
            number += 1
            try:
                record, _ = unseal(line.rstrip(b"\n"), None, options.trust.believed)
            except UnbelievedError as error:
                refused.append(f"{path.name}, line {number}: {error.message}")
                continue
            except RecordError as error:
                hint = f"of the lines before it {count} were imported, and {number - 1 - count} left out"
                raise RecordError(f"{path.name}, line {number}: {error.message}", hint=hint) from error
            kept, reasons = believable(record)
            refused += [f"{path.name}, line {number}: a time is refused: {reason}" for reason in reasons]
            store.put(kept)
            count += 1
    for note in refused:
        progress.note(note)
    if refused and not count:
        raise RecordError(f"{path.name}: none of {len(refused)} records is imported", note=refused[0])
    return Report({"records": count, "refused": len(refused), "store": store.name}, _refusals(refused))


# --- why --------------------------------------------------------------------------------------------------------------


def _why(options: CacheOptions, progress: Progress) -> Report:
    rows, problems = _kernel(options.arguments[0], options)
    stores = _in_use(options)
    answers, differences = [], []
    for row in rows:
        id, architecture = row["problem"], row["architecture"]
        answer, differing = _explain(problems[id], architecture, options, stores)
        chosen = (row["kernel"], architecture, id[:16], row["schedule"], row["source"], row["why"])
        answers.append((*chosen, *answer))
        differences += [(row["kernel"], architecture, *item) for item in differing]
    _notes(stores, progress)
    columns = ("kernel", "architecture", "problem", "schedule", "chosen_by", "why", "now", "record", "store")
    tables = [Table("kernel", columns, tuple(answers))]
    if differences:
        names = ("kernel", "architecture", "field", "here", "record")
        tables.append(Table("nearest record", names, tuple(differences), ("a record serves where every field is equal",)))
    return Report(tables=tuple(tables))


def _kernel(name: str, options: CacheOptions) -> tuple[list[Mapping[str, Any]], Mapping[str, Data]]:
    """The rows of a kernel: ENGINE:KERNEL, or a kernel or the beginning of a problem's id in the latest build."""
    engine, colon, kernel = name.rpartition(":")
    if colon:
        data: Mapping[str, Any] = open_contents(engine, options.environment.directory, options.trust).report.get("tuning", {})
    else:
        data = read_journal(options.environment)
    found = data.get("rows", [])
    rows = [row for row in found if row["kernel"] == kernel or (len(kernel) >= 6 and row["problem"].startswith(kernel))]
    if not rows:
        known = ", ".join(sorted({row["kernel"] for row in found})[:12]) or "none"
        where = repr(engine) if colon else "the latest build"
        raise UsageError(f"{where} has no kernel {kernel!r}, expected one of {known}", hint="ourcc inspect ENGINE --kernels lists them")
    return rows, data["problems"]


def _explain(
    problem: Data, architecture: str, options: CacheOptions, stores: Sequence[RecordStore]
) -> tuple[tuple[Cell, ...], list[tuple[str, str, str]]]:
    """(what stores say now, record, store), and the fields in which the nearest record differs."""
    if architecture not in {level.name for level in CPU_LEVELS}:
        return ("no records are kept for this architecture: predicted cost decides", None, None), []
    environment = cpu_environment(cpu_level(architecture), find_compiler(options.environment.compiler))
    id = record_id(problem, environment)
    for store in stores:
        if store.get(id) is not None:
            return ("a record serves", id, store.name), []
    wanted = {"problem": problem, "environment": environment}
    nearest: tuple[tuple[bool, int, str], Record, RecordStore, list[tuple[str, str, str]]] | None = None
    for store in stores:
        for record in store.list():
            differing = list(_differences(wanted, {"problem": record.problem, "environment": record.environment}))
            rank = (any(field.startswith("problem") for field, _, _ in differing), len(differing), record.id)
            if nearest is None or rank < nearest[0]:
                nearest = rank, record, store, differing
    if nearest is None:
        return ("no store holds any record", None, None), []
    return (f"missed: the nearest record differs in {len(nearest[3])} fields", nearest[1].id, nearest[2].name), nearest[3]


def _differences(left: Any, right: Any, field: str = "") -> Iterator[tuple[str, str, str]]:
    """(field, left, right) of every leaf that differs; a text of several lines shows its first line that does."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for name in sorted({*left, *right}):
            yield from _differences(left.get(name), right.get(name), f"{field}.{name}" if field else name)
        return
    if left == right:
        return
    ours, theirs = str(left).splitlines(), str(right).splitlines()
    shown = next(((a, b) for a, b in zip(ours, theirs, strict=False) if a != b), (str(left), str(right)))
    yield field, shown[0].strip()[:200], shown[1].strip()[:200]


_ACTIONS: dict[str, Callable[[CacheOptions, Progress], Report]] = {
    "ls": _list,
    "du": _du,
    "why": _why,
    "push": _push,
    "pull": _pull,
    "merge": _merge,
    "verify": _verify,
    "prune": _prune,
    "export": _export,
    "import": _import,
}
