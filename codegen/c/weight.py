"""What a kernel costs the C compiler, counted in its text: its statements, those of what it calls, and the registers they take."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...ir.errors import UnsupportedError
from ...ir.target import CpuLevel
from .library import ELEMENTS, Library

HEAVIEST = 8_000
"""gcc takes a few seconds for so heavy a kernel, and with more than that the time grows as its square and worse."""

_VECTOR = re.compile(r"([fiu][0-9]+)[x_]([0-9]+)(?=\W)")
_CALL = re.compile(r"\b(\w+)\(")


def weigh(source: str, library: Library) -> int:
    """The weight of a kernel's text: its statements, with those of the functions that are written out where it calls them."""
    called: dict[str, int] = {}
    for name, text in library.written():
        head, _, body = text.partition("{")
        called[name] = 0 if "noinline" in head else _lines(body, library.level, called)
    return _lines(source, library.level, called)


def check_weight(source: str, library: Library) -> None:
    """UnsupportedError for a kernel that would take the C compiler long."""
    weight = weigh(source, library)
    if weight > HEAVIEST:
        raise UnsupportedError(
            f"the kernel weighs {weight:,} vector statements, more than the {HEAVIEST:,} that a c compiler is given at once",
            hint="take fewer vectors at a time, or fewer ops",
        )


def _lines(text: str, level: CpuLevel, called: Mapping[str, int]) -> int:
    return sum(
        _registers(line, level) + sum(called.get(name, 0) for name in _CALL.findall(line)) for line in text.splitlines() if ";" in line
    )


def _registers(line: str, level: CpuLevel) -> int:
    """The registers of the widest vector in a statement."""
    bits = (8 * ELEMENTS[dtype][1] * int(lanes) for dtype, lanes in _VECTOR.findall(line) if dtype in ELEMENTS)
    return max(1, -(-max(bits, default=0) // level.vector_bits))
