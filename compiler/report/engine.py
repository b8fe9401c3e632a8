"""What an engine is, in one page: its inputs, outputs, targets and contract."""

from __future__ import annotations

from pathlib import Path

from ...ir.errors import EngineError
from ...runtime.contents import Contract, EngineContents
from ...runtime.engine import choose_target
from ..contract import is_notable
from .table import Report, Table

KEPT = ("value", "source", "why")


def describe_engine(contents: EngineContents, path: Path, target: str | None = None) -> Report:
    """The summary that `ourcc build` prints and `ourcc inspect` begins with; the engine is data here and never run."""
    ports = [(port, "input") for port in contents.inputs] + [(port, "output") for port in contents.outputs]
    promises = Contract.from_json(contents.report.get("contract", []))
    rows = tuple((row.source, row.op, row.requested, row.realised, row.why or None) for row in promises if is_notable(row))
    kept = [(name, *(row[c] for c in KEPT)) for name, found in contents.report.get("kept", {}).items() for row in found]
    contract = Table("contract", ("source", "op", "requested", "realised", "why"), rows)
    return Report(
        {
            "engine": str(path),
            "bytes": path.stat().st_size,
            "targets": ", ".join(contents.targets),
            "runs_here": _runs_here(contents, target),
        },
        (
            Table("signature", ("name", "kind", "type"), tuple((port.name, kind, str(port.type)) for port, kind in ports)),
            *([contract] if rows else []),
            *([Table("kept in memory", ("target", *KEPT), tuple(kept))] if kept else []),
        ),
    )


def _runs_here(contents: EngineContents, target: str | None) -> str | None:
    try:
        return choose_target(contents, target)
    except EngineError:
        return None
