"""Digests of members: weights are hashed in pieces, on all threads, as they are written and as they are read."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from .pieces import regroup

T = TypeVar("T")
PIECE = 4 << 20
Watch = Callable[[int, int], None]
"""Told how many bytes of how many have been checked."""
Heard = Callable[[int], None] | None
"""Told how many bytes were checked each time, if anybody is."""


def digest_of(pieces: Sequence[bytes]) -> str:
    """The digest of a member from those of its pieces of 4 MiB, in order."""
    return hashlib.sha256(b"".join(pieces)).hexdigest()


def digest_parts(parts: Iterable[bytes | memoryview]) -> str:
    """The digest of bytes that lie in several parts."""
    return digest_of(_on_threads(_hash, list(regroup(parts, PIECE))))


def _hash(parts: Sequence[memoryview]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def digest_file(
    handle: int,
    first: int,
    size: int,
    into: memoryview | None = None,
    watch: Heard = None,
    ahead: Callable[[int, int], None] | None = None,
) -> str:
    """The digest of bytes of a file, which are also put `into` memory if it is given; EOFError if they are not there.

    They are read and not mapped: a file that is cut off meanwhile is an error and no signal. `ahead` is told of each piece before, where
    it begins and how long it is.
    """
    scratch = threading.local()

    def read(start: int) -> bytes:
        count = min(PIECE, size - start)
        if ahead is not None:
            ahead(first + start, count)
        if into is not None:
            target = into[start : start + count]
        else:
            if not hasattr(scratch, "memory"):
                scratch.memory = memoryview(bytearray(min(PIECE, size)))
            target = scratch.memory[:count]
        read_into(handle, first + start, target)
        return hashlib.sha256(target).digest()

    return digest_of(_on_threads(read, list(range(0, size, PIECE)), watch))


def read_into(handle: int, first: int, target: memoryview) -> None:
    """Fill memory from a file; EOFError if the file ends before."""
    while target:
        count = os.preadv(handle, [target], first)
        if count == 0:
            raise EOFError
        first += count
        target = target[count:]


def _on_threads(function: Callable[[T], bytes], items: Sequence[T], watch: Heard = None) -> list[bytes]:
    """The function of each item, in order; `watch` hears of each that is done."""
    threads = min(len(items), len(os.sched_getaffinity(0)))
    if threads <= 1:
        return [_heard(function(item), watch) for item in items]
    pool = ThreadPoolExecutor(threads)
    try:
        return [_heard(digest, watch) for digest in pool.map(function, items)]
    finally:
        pool.shutdown(cancel_futures=True)


def _heard(digest: bytes, watch: Heard) -> bytes:
    if watch is not None:
        watch(PIECE)
    return digest
