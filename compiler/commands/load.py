"""Loading an engine file for this machine, as users' settings and trust say."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ...ir.errors import UsageError
from ...runtime.again import read_from
from ...runtime.engine import Engine
from ...runtime.language import engine_class
from ...runtime.reader import Reading, read_engine
from ..engines.kinds import check_engine
from ..engines.trust import records_of_checks, watch
from ..environment import environment
from ..progress import SILENT, Progress


def load(
    path: str | os.PathLike[str],
    *,
    target: str | None = None,
    threads: int | None = None,
    verify: bool = False,
    trusted_keys: Iterable[bytes] | None = None,
    copy_weights: bool = False,
    graphs: bool = True,
    progress: Progress = SILENT,
) -> Engine:
    """Open an engine file for this machine."""
    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"got a {type(path).__name__}, expected the path of an engine file")
    if target is not None and not isinstance(target, str):
        raise UsageError(f"target: got {target!r}, expected the name of a target or level")
    settings = environment()
    check_engine(path)
    contents = read_engine(path, Reading(verify, trusted_keys, records_of_checks(settings.directory), copy_weights, watch(progress)))
    running = threads or settings.threads
    with read_from(path):
        return engine_class(contents)(contents, target=_part(target), threads=running, graphs=graphs and settings.graphs)


def _part(target: str | None) -> str | None:
    """What an engine calls a target. All targets there are take longer to import than an engine to load."""
    if target is None:
        return None
    from ..targets.registry import loaded_as

    return loaded_as(target)
