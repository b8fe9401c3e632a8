"""Files in memory: mapped, in large pages where the system has them.

What is read once for every token waits for memory, and for where its pages lie: 4 KiB at a time they take a fifth longer than 2 MiB
at a time. A file system that can keeps what it reads or writes in one go in one page, if that begins where one may.
"""

from __future__ import annotations

import contextlib
import mmap
import sys

BLOCK = 4 << 20
"""Bytes that are written in one go, from multiples of it on: two large pages of x86-64."""
_POPULATE_READ = 22
"""Linux's MADV_POPULATE_READ, which mmap does not name."""


def map_file(handle: int, size: int) -> mmap.mmap:
    """A whole file in memory, to read; EOFError where it is shorter by now, OSError as of mmap."""
    try:
        memory = mmap.mmap(handle, size, access=mmap.ACCESS_READ)
    except ValueError as error:
        raise EOFError(f"the file has no {size} bytes") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def bring(memory: mmap.mmap, first: int, size: int) -> None:
    """Have bytes of a mapped file in memory before they are read otherwise, which would choose small pages; what fails is left to that."""
    start = first - first % mmap.PAGESIZE
    if sys.platform == "linux" and size > 0:
        with contextlib.suppress(OSError, ValueError):
            memory.madvise(_POPULATE_READ, start, min(first + size, len(memory)) - start)
