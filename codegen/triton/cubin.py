"""What a cubin itself says of a kernel's launch: the threads of a program, and its parameters."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ...ir.errors import ToolchainError

_INFO = b".nv.info."
# Attributes of such a section: the threads that a launch must have, and one entry for each parameter.
_THREADS, _PARAMETER = 0x10, 0x17
_SIZED = 4
"""The form of attributes with bytes behind them; all others are one word."""


@dataclass(frozen=True)
class LaunchNeeds:
    """What a launch of the kernel must bring: threads of a program, and how many parameters of which sizes."""

    threads: int
    parameters: tuple[int, ...]


def launch_needs(cubin: bytes, kernel: str) -> LaunchNeeds:
    """The needs of a kernel; ToolchainError where the cubin does not say them."""
    try:
        found = list(_attributes(_section(cubin, _INFO + kernel.encode())))
        threads = [struct.unpack("<III", data) for attribute, data in found if attribute == _THREADS]
        sizes = dict(_parameter(data) for attribute, data in found if attribute == _PARAMETER)
        (x, y, z) = threads[0]
    except (struct.error, LookupError, ValueError) as error:
        raise ToolchainError(f"the cubin of kernel {kernel} does not say how it is launched: {error}") from error
    return LaunchNeeds(x * y * z, tuple(sizes[number] for number in sorted(sizes)))


def _parameter(data: bytes) -> tuple[int, int]:
    """The number of a parameter, and its bytes, which are the upper bits of the last word."""
    _, number, _, packed = struct.unpack("<IHHI", data)
    return number, packed >> 18


def _attributes(section: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(section):
        form, attribute, value = struct.unpack_from("<BBH", section, at)
        size = value if form == _SIZED else 0
        yield attribute, section[at + 4 : at + 4 + size]
        at += 4 + size


def _section(file: bytes, name: bytes) -> bytes:
    """A section of an ELF file of 64 bits."""
    if file[:5] != b"\x7fELF\x02":
        raise ValueError("it is no ELF file of 64 bits")
    (table,) = struct.unpack_from("<Q", file, 0x28)
    size, count, named = struct.unpack_from("<HHH", file, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", file, table + number * size) for number in range(count)]
    for section in sections:
        start = sections[named][4] + section[0]
        if file[start : file.index(b"\0", start)] == name:
            return file[section[4] : section[4] + section[5]]
    raise LookupError(f"it has no section {name.decode()}")
