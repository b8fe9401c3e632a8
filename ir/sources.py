"""Which of our own modules are running, as a digest: part of the key of what is kept between processes and made by them."""

from __future__ import annotations

import functools
import hashlib
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STARTED = time.time_ns()
SETTLED = 2_000_000_000
"""Nanoseconds: what changed so shortly before the start may have been read before it changed."""


@functools.cache
def digest_of_sources(*folders: str) -> str | None:
    """The digest of all modules in folders of the package, in hexadecimal; None where it is not told which of them run: one was
    changed after this process began, or cannot be read.
    """
    total = hashlib.sha256()
    try:
        files = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
        for path in files:
            if path.stat().st_ctime_ns > STARTED - SETTLED:
                return None
            data = path.read_bytes()
            total.update(f"{path.relative_to(ROOT)} {len(data)}\n".encode() + data)
    except OSError:
        return None
    return total.hexdigest() if files else None
