"""The families of parts: for each what decides whether a part runs here, and its executor."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from . import native
from .contents import CPU, EngineContents, PartContents
from .cpu import CpuPart
from .function import Part
from .program import Callback


@dataclass(frozen=True)
class Running:
    """How a caller wants an engine run: on how many threads of a CPU (0: all), with what serves calls back into a framework, and
    whether runs of launches that come again are replayed as CUDA graphs.
    """

    threads: int = 0
    call: Callback | None = None
    graphs: bool = True


Make = Callable[[EngineContents, str, Running], Part]


@dataclass(frozen=True)
class Family:
    """How parts of one family run: why one does not on this machine (None if it does), one that is loaded, and what a machine
    needs on which none runs (None where nothing but another build helps).
    """

    why_not: Callable[[str, PartContents], str | None]
    make: Make
    remedy: Callable[[], str | None] = lambda: None


def _why_not_cpu(name: str, part: PartContents) -> str | None:
    return native.why_not(part, platform.machine(), native.cpu_flags()) if part.has_native_steps else None


def _why_not_cuda(name: str, part: PartContents) -> str | None:
    from .cuda import why_not

    return why_not(name)


def _make_cpu(contents: EngineContents, name: str, running: Running) -> Part:
    return CpuPart(contents, name, running.threads, running.call)


def _make_cuda(contents: EngineContents, name: str, running: Running) -> Part:
    from .cuda import CudaPart

    return CudaPart(contents, name, running.call, running.graphs)


def _remedy_cuda() -> str | None:
    from .cuda import remedy

    return remedy()


FAMILIES: Mapping[str, Family] = {CPU: Family(_why_not_cpu, _make_cpu), "cuda": Family(_why_not_cuda, _make_cuda, _remedy_cuda)}


def why_not(contents: EngineContents, name: str) -> str | None:
    """Why a part of the engine does not run on this machine; None if it does."""
    part = contents.parts[name]
    if part.family not in FAMILIES:
        return f"this version runs parts of the families {' and '.join(FAMILIES)}, got {part.family}"
    return FAMILIES[part.family].why_not(name, part)


def remedy(contents: EngineContents, names: Iterable[str]) -> str | None:
    """What this machine lacks to run any of these parts, whatever the build; None where another build is what helps."""
    families = dict.fromkeys(contents.parts[name].family for name in names)
    return next((found for family in families if family in FAMILIES and (found := FAMILIES[family].remedy())), None)


def make_part(contents: EngineContents, name: str, running: Running) -> Part:
    """A part with its code loaded."""
    return FAMILIES[contents.parts[name].family].make(contents, name, running)


__all__ = ["FAMILIES", "Running", "make_part", "remedy", "why_not"]
