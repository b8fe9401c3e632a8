"""What an engine or a model is, in one page: its inputs, outputs, and targets and contract, or ops."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...ir.errors import EngineError
from ...ir.plan import Launch
from ...runtime.captured import FEWEST
from ...runtime.captured import TOLD as GRAPHS
from ...runtime.contents import Contract, EngineContents, PartContents
from ...runtime.engine import choose_part
from ...runtime.file import read_signature
from ...runtime.language.facts import FACTS, TOKENIZER, LanguageFacts
from ..contract import FP32, IN_PARTS, is_notable, moves, products_of
from ..engines.recorded import boards_of, spoken, workload_of
from .repeated import WORDY, fold
from .table import Cell, Report, Table

if TYPE_CHECKING:
    from ...ir.graph import Module

_PORT = ("name", "kind", "type")
KEPT = ("value", "source", "why")
SHOWN = 3
"""Values that are kept in memory of which a summary says why."""
SOURCES = (".c", ".py")
"""Suffixes of the texts of kernels; other members of a part are run."""


def describe_engine(contents: EngineContents, path: Path, target: str | None = None) -> Report:
    """The summary that `ourcc build` prints and `ourcc inspect` begins with; the engine is data here and never run."""
    promises = Contract.from_json(contents.report.get("contract", []))
    rows = tuple(
        (row.source, row.op, row.requested, row.realised, row.why or None) for row in promises if is_notable(row) and not moves(row)
    )
    kept = [(name, *(row[c] for c in KEPT)) for name, found in contents.report.get("kept", {}).items() for row in found]
    contract = Table("contract", ("source", "op", "requested", "realised", "why"), rows)
    weights, code = _weights(contents), _code(contents)
    facts: dict[str, Cell] = {
        "engine": str(path),
        "bytes": path.stat().st_size,
        "targets": spoken(contents, contents.targets),
        "parts": spoken(contents, contents.parts),
        "weights": f"{weights['stored']} bytes stored" + ("" if weights["model"] is None else f", {weights['model']} in the model"),
        "products": _products(contents, promises),
        "code": f"{code['native']} bytes of native code, {code['sources']} of sources",
        "workload": str(workload_of(contents)) or None,
        "runs_here": None if (here := _runs_here(contents, target)) is None else spoken(contents, [here]),
        "signed_by": _signed_by(path),
        **({"graphs": GRAPHS} if any(_has_runs(part) for part in contents.parts.values()) else {}),
        **_language(contents),
        **({"kept": f"{len(kept)} values in memory, the first {SHOWN} of them below; --fusion shows all"} if len(kept) > SHOWN else {}),
        **({"note": "; ".join(notes)} if (notes := contents.report.get("notes", [])) else {}),
    }
    values = Table("kept in memory", ("part", *KEPT), tuple(kept[:SHOWN]))
    tables = (
        signature(contents),
        *([fold(contract, ("source", "why"), WORDY, any_of="source")] if rows else []),
        *([fold(values, ("value", "source", "why"), WORDY)] if kept else []),
    )
    boards = boards_of(contents)
    return Report(facts, tables, numbers={"weights": weights, "code": code, **({"boards": boards} if boards else {})})


def _products(contents: EngineContents, promises: Contract) -> str | None:
    """How many products are multiplied in which precision, and what fp32 is on GPUs."""
    said = products_of(promises)
    has_gpu = any(not part.is_level for part in contents.parts.values())
    return f"{said}; {IN_PARTS}" if said is not None and has_gpu and FP32 in said else said


def _has_runs(part: PartContents) -> bool:
    """Whether a part for a GPU may launch so many kernels one after the other that they become a graph."""
    launches = [sum(isinstance(step, Launch) for step in plan.steps) for plan in part.plans.values()]
    return not part.is_level and max(launches, default=0) >= FEWEST


def _weights(contents: EngineContents) -> dict[str, int | None]:
    """The bytes of all constants that the engine stores, those that several parts share once, and of the model's as it was brought."""
    stored = sum(constant.data.nbytes for group in contents.weights.values() for constant in group.values())
    brought = contents.report.get("model_bytes")
    return {"stored": stored, "model": brought if isinstance(brought, int) else None}


def _code(contents: EngineContents) -> dict[str, int | None]:
    """The bytes of what all parts run, and of the texts that it was made from."""
    found: dict[str, int | None] = {}
    members = [(Path(name).suffix in SOURCES, len(data)) for part in contents.parts.values() for name, data in part.files.items()]
    for kind, is_source in (("native", False), ("sources", True)):
        found[kind] = sum(size for of_source, size in members if of_source == is_source)
    return found


def signature(contents: EngineContents) -> Table:
    """What functions take, give and keep; what several of them have alike is said once."""
    states = {name: str(state.type) for name, state in contents.best.states.items()}
    found: dict[tuple[str, ...], list[str]] = {}
    for function, ports in contents.functions.items():
        own = [(port.name, "input", str(port.type)) for port in ports.inputs]
        own += [(port.name, "output", str(port.type)) for port in ports.outputs]
        own += [(name, "state", states.get(name, "")) for name in ports.states]
        for port in own:
            found.setdefault(port, []).append(function)
    if len(contents.functions) > 1:
        rows = tuple((", ".join(functions), *port) for port, functions in found.items())
        return fold(Table("signature", ("function", *_PORT), rows), ("name",))
    return fold(Table("signature", _PORT, tuple(found)), ("name",))


def _signed_by(path: Path) -> str | None:
    """The public key, and whether its signature holds; the file's digest has been checked already."""
    found = read_signature(path)
    if found is None:
        return None
    return f"{found.signature.public.hex()}{'' if found.is_right else ', and the signature does not fit'}"


def _runs_here(contents: EngineContents, target: str | None) -> str | None:
    try:
        return choose_part(contents, target)
    except EngineError:
        return None


def describe_module(module: Module, path: Path) -> Report:
    """The summary of a model as it is imported."""
    ports = [(value.name, "input", str(value.type)) for value in module.main.arguments]
    ports += [(value.name, "output", str(value.type)) for value in module.main.results]
    ports += [(name, "state", str(value.type)) for name, value, _ in module.main.ties]
    kinds = Counter(op.name for op in module.main)
    ops = tuple(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))
    symbols = ", ".join(f"{name} in {bounds}" for name, bounds in module.facts.ranges.items())
    facts = {
        "model": str(path),
        "symbols": symbols or None,
        "ops": kinds.total(),
        "constants": len(module.constants),
        "constant_bytes": module.constant_bytes,
    }
    return Report(facts, (Table("signature", _PORT, tuple(ports)), Table("ops", ("op", "count"), ops)))


def _language(contents: EngineContents) -> dict[str, Any]:
    """What the language model of an engine is, if it holds one."""
    if FACTS not in contents.assets:
        return {}
    facts = LanguageFacts.of(contents.assets[FACTS])
    has = [what for what, there in (("tokenizer", TOKENIZER in contents.assets), ("chat template", facts.template is not None)) if there]
    several = f"{facts.sequences} sequences of " if facts.sequences > 1 else ""
    sizes = f"{facts.vocabulary} words, sessions of {several}{facts.context} tokens"
    whole = facts.places * facts.token_bytes
    return {
        "language_model": f"{facts.architecture}, {sizes}, {' and '.join(has) or 'no tokenizer: it speaks in numbers'}",
        "cache": f"{facts.cache}, {facts.token_bytes} bytes a token, {whole} bytes a session",
    }
