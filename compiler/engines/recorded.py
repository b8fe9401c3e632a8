"""What an engine says of how it was built."""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.errors import EngineError, UsageError
from ...ir.target import GPU_BOARDS, gpu_target
from ...ir.workload import Workload, default_workload, parse_workload
from ...passes.quantize.words import TF32
from ...runtime.contents import EngineContents


def recorded_workload(contents: EngineContents) -> Workload | None:
    """The workload that its builder gave; None where it gave none."""
    texts = contents.provenance.get("workload")
    if texts is None:
        return None
    try:
        return parse_workload([str(text) for text in texts]).of(contents.symbols)
    except (UsageError, TypeError) as error:
        raise EngineError(f"the engine's workload is damaged: {error}", hint="build the engine again") from error


CHANGES = ("sparsity", "quantize", "precision")
"""Options that change what a model computes."""


def recorded_changes(contents: EngineContents) -> dict[str, str] | None:
    """The options of CHANGES that its builder gave; None where the engine does not say."""
    said = contents.provenance.get("changes")
    if not isinstance(said, dict):
        return None
    return {name: str(said[name]) for name in CHANGES if name in said}


IN_TF32 = "in_tf32"
"""The report's list of the user's ops that some part of an engine multiplies in tf32, if any does."""


def kept_precision(contents: EngineContents) -> str | None:
    """What parts that are made again are to compute products in beyond what the program says, so that the contract holds for them."""
    return TF32 if (recorded_changes(contents) or {}).get("precision") == TF32 else None


def recorded_targets(contents: EngineContents) -> dict[str, str]:
    """For each part the target that its builder asked for."""
    said = contents.provenance.get("parts")
    known = said if isinstance(said, dict) else {}
    return {name: str(known.get(name, name)) for name in contents.parts}


def simplified_for(contents: EngineContents) -> list[str]:
    """The targets that its program was simplified for: parts that were made again since may be for others."""
    said = contents.provenance.get("program")
    return [str(name) for name in said] if isinstance(said, list) and said else list(dict.fromkeys(recorded_targets(contents).values()))


def boards_of(contents: EngineContents) -> dict[str, str]:
    """For each part of a GPU the board whose figures chose its schedules and predict its times: the one that was asked for, else that of
    its architecture.
    """
    asked = {name: GPU_BOARDS.get(target) for name, target in recorded_targets(contents).items() if not contents.parts[name].is_level}
    boards = {name: board if board is not None and board.name == name else gpu_target(name) for name, board in asked.items()}
    return {name: board.board.lower() for name, board in boards.items()}


def spoken(contents: EngineContents, names: Iterable[str]) -> str:
    """Parts or targets of an engine as they are said to people: an architecture with its board."""
    boards = boards_of(contents)
    return ", ".join(f"{name} ({boards[name]})" if name in boards else name for name in names)


def workload_of(contents: EngineContents) -> Workload:
    """The workload that its builder gave, else the one where nothing is said."""
    return recorded_workload(contents) or default_workload(contents.symbols)
