"""Texts of kernels by content: the C file of a launch is printed once and kept beside its object file, which is found by it.

What is kept is code, so it lies in the folder of object files and is taken from it as they are; and it is known by all that
it was printed from, the modules that print it among it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...ir.digits import whole_number
from ...ir.dims import Facts
from ...ir.sources import digest_of_sources
from ...ir.target import CpuLevel
from ...ir.tile.program import Launch
from ...ir.tile.text import launch_lines
from .abi import KERNEL
from .objects import ObjectFolder
from .printer import SourceFile
from .weight import weigh

PRINTERS = ("codegen/c", "ir")
"""The folders of the modules that decide how a launch is printed."""


@dataclass(frozen=True)
class KernelText:
    """The C file of a kernel, and its weight there (codegen/c/weight.py)."""

    text: str
    weight: int


class KeptTexts:
    """The texts of kernels for one level, kept in the folder `cache`; in none without one."""

    def __init__(self, level: CpuLevel, cache: Path | None = None) -> None:
        self.level = level
        self._folder = None if cache is None or digest_of_sources(*PRINTERS) is None else ObjectFolder(cache)

    def of(self, launch: Launch, symbols: Sequence[str], facts: Facts) -> KernelText:
        """The C file of a launch, whose kernel is called `KERNEL`; errors as `SourceFile.add` raises them, which are not kept."""
        if self._folder is None:
            return _printed(self.level, launch, symbols, facts)
        key = self._key(launch, symbols, facts)
        if (data := self._folder.get(key)) is not None:
            said, _, text = data.decode(errors="replace").partition("\n")
            weight = whole_number(said)
            if weight is not None and text:
                return KernelText(text, weight)
        made = _printed(self.level, launch, symbols, facts)
        self._folder.put(key, f"{made.weight}\n{made.text}".encode())
        return made

    def _key(self, launch: Launch, symbols: Sequence[str], facts: Facts) -> str:
        known = (dict(facts.ranges), dict(facts.divisors), {name: str(extent) for name, extent in facts.extents.items()})
        broadcasts = [tuple(map(str, pair)) for pair in facts.broadcasts]
        parts = (
            *(str(digest_of_sources(*PRINTERS)), repr(self.level), repr(tuple(symbols)), repr((*known, broadcasts))),
            *launch_lines(replace(launch, name=KERNEL)),
        )
        return f"text-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}"


def _printed(level: CpuLevel, launch: Launch, symbols: Sequence[str], facts: Facts) -> KernelText:
    file = SourceFile(level)
    kernel = file.add(launch, KERNEL, symbols, facts)
    return KernelText(file.text(), weigh([kernel.source], file.library))
