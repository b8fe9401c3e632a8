"""What a kernel costs the C compiler, counted in its text, and which functions are called in it because that would be too much."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from ...ir.errors import UnsupportedError
from ...ir.target import CpuLevel
from .library import ELEMENTS, RARE, WRITTEN_OUT, Library

HEAVIEST = 8_000
"""gcc takes a few seconds for so heavy a kernel, and with more than that the time grows as its square and worse."""
LIGHT, CALLING = 5_000, 1_000
"""A file up to `LIGHT` has every function written out where it is called: registers stay where they are. In a heavier one as many
functions are called as bring it down to `CALLING`, which gcc compiles in a fifth of a second.
"""
WORTH_A_CALL = 10
"""A function of fewer statements is always written out."""

_VECTOR = re.compile(r"([fiu][0-9]+)[x_]([0-9]+)(?=\W)")
_CALL = re.compile(r"\b(\w+)\(")


@dataclass(frozen=True)
class Text:
    """What counts of a kernel or a function: its own statements, and how often it calls each function that is written out in it."""

    statements: int
    calls: Counter[str]


def weigh(sources: Sequence[str], library: Library) -> int:
    """The weight of kernels' texts in one file: their statements, with those of the functions that are written out where they are
    called, and once those of the functions that are not.
    """
    weights = _Weights(sources, library)
    return weights.total(weights.called())


def check_weight(weight: int) -> None:
    """UnsupportedError for kernels that would take the C compiler long."""
    if weight > HEAVIEST:
        raise UnsupportedError(
            f"the kernel weighs {weight:,} vector statements, more than the {HEAVIEST:,} that a c compiler is given at once",
            hint="take fewer vectors at a time, or fewer ops",
        )


def functions_called(sources: Sequence[str], library: Library) -> frozenset[str]:
    """The functions that are called and not written out at each call: in a file above `LIGHT`, those that spare it most."""
    return _Weights(sources, library).called()


class _Weights:
    """The texts of a file, taken apart once."""

    def __init__(self, sources: Sequence[str], library: Library) -> None:
        self.choices = {name for name, place in library.places.items() if place == WRITTEN_OUT}
        self.functions: dict[str, Text] = {}
        for name, text in library.written():
            if library.places.get(name) != RARE:
                self.functions[name] = _text(text.partition("{")[2], library.level, self.functions)
        self.kernels = [_text(source, library.level, self.functions) for source in sources]

    def called(self) -> frozenset[str]:
        """What `functions_called` gives."""
        called = frozenset[str]()
        if self.total(called) <= LIGHT:
            return called
        while self.total(called) > CALLING and (spared := self.spared(called)):
            called |= {max(spared, key=lambda name: (spared[name], name))}
        return called

    def total(self, called: frozenset[str]) -> int:
        """The weight of the file if these functions are called."""
        whole = self._whole(called)
        return sum(_weight(text, whole, called) for text in self.kernels) + sum(whole[name] for name in called)

    def spared(self, called: frozenset[str]) -> dict[str, int]:
        """What each other function would spare if it were called too: all the places where it is written out but one."""
        places: Counter[str] = Counter()
        for text in self.kernels:
            places.update(text.calls)
        for name, text in reversed(self.functions.items()):  # each before what it calls
            times = 1 if name in called else places[name]
            for inner, count in text.calls.items():
                places[inner] += times * count
        whole = self._whole(called)
        return {
            name: (places[name] - 1) * whole[name] for name in self.choices - called if places[name] > 1 and whole[name] >= WORTH_A_CALL
        }

    def _whole(self, called: frozenset[str]) -> dict[str, int]:
        """The weight of each function, with what is written out in it."""
        whole: dict[str, int] = {}
        for name, text in self.functions.items():  # each after what it calls
            whole[name] = _weight(text, whole, called)
        return whole


def _weight(text: Text, functions: Mapping[str, int], called: frozenset[str]) -> int:
    return text.statements + sum(count * functions[name] for name, count in text.calls.items() if name not in called)


def _text(text: str, level: CpuLevel, functions: Container[str]) -> Text:
    lines = [line for line in text.splitlines() if ";" in line]
    calls = Counter(name for line in lines for name in _CALL.findall(line) if name in functions)
    return Text(sum(_registers(line, level) for line in lines), calls)


def _registers(line: str, level: CpuLevel) -> int:
    """The registers of the widest vector in a statement."""
    bits = (8 * ELEMENTS[dtype][1] * int(lanes) for dtype, lanes in _VECTOR.findall(line) if dtype in ELEMENTS)
    return max(1, -(-max(bits, default=0) // level.vector_bits))
