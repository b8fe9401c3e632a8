"""Memory that is asked for by size: refused with that size where the machine does not have it, before the kernel kills."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..ir.digits import whole_number
from ..ir.errors import OutOfMemoryError

T = TypeVar("T")

UNCHECKED = 1 << 30
"""Bytes up to which nobody is asked: reading what is available costs more than small memory is worth."""

HINT = "call with smaller sizes, or on a machine with more memory"


def allocate(size: int, what: Callable[[], str], make: Callable[[], T]) -> T:
    """What `make` gives, which takes `size` bytes for `what`; OutOfMemoryError where they are not there.

    Linux promises memory that it does not have and kills the process that touches it: large sizes are compared with
    what is available first.
    """
    if size > UNCHECKED:
        available = available_bytes()
        if available is not None and size > available:
            raise OutOfMemoryError(f"out of memory: {what()} needs {text(size)}, {text(available)} are available", hint=HINT)
    try:
        return make()
    except (MemoryError, ValueError, RuntimeError, OverflowError) as error:
        # numpy and torch have errors of their own for sizes that no address space holds.
        if size <= UNCHECKED and not isinstance(error, MemoryError):
            raise
        raise OutOfMemoryError(f"out of memory: {what()} needs {text(size)}", hint=HINT) from error


def available_bytes() -> int | None:
    """Bytes that can still be had: of the machine, or of this process's control group if that is less; None if unknown."""
    found = []
    try:
        match = re.search(r"^MemAvailable:\s+([0-9]+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        found += [int(match[1]) * 1024] if match else []
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if (most := whole_number(limit, 20)) is not None:
            found.append(max(most - int(Path("/sys/fs/cgroup/memory.current").read_text()), 0))
    except (OSError, ValueError):
        pass
    return min(found, default=None)


def text(size: int) -> str:
    """Bytes as people read them."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
