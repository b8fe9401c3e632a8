"""What an engine is, in one page: its inputs, outputs, targets and contract."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..contract import is_notable
from .table import Report, Table

if TYPE_CHECKING:
    from ...runtime.engine import Engine


def describe_engine(engine: Engine, path: Path) -> Report:
    """The summary that `ourcc build` prints and `ourcc inspect` begins with."""
    ports = [(port, "input") for port in engine.inputs] + [(port, "output") for port in engine.outputs]
    rows = tuple((row.source, row.op, row.requested, row.realised, row.why or None) for row in engine.contract if is_notable(row))
    contract = Table("contract", ("source", "op", "requested", "realised", "why"), rows)
    return Report(
        {"engine": str(path), "bytes": path.stat().st_size, "targets": ", ".join(engine.targets), "runs_here": engine.target},
        (
            Table("signature", ("name", "kind", "type"), tuple((port.name, kind, str(port.type)) for port, kind in ports)),
            *([contract] if rows else []),
        ),
    )
