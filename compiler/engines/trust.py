"""Whom a command trusts and as whom it signs: keys from files, handed to whatever opens or writes what others made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..progress import SILENT, Progress
from .kinds import check_engine

if TYPE_CHECKING:
    from ...runtime.contents import EngineContents
    from ...runtime.digests import Watch

LONG = 1 << 28
"""Bytes: from so many on, checking weights is shown as a stage of its own."""


@dataclass(frozen=True)
class Trust:
    """Public keys of 32 bytes whose signatures are believed (None: no signature is asked for), and a private key to sign with."""

    keys: tuple[bytes, ...] | None = None
    signing_key: bytes | None = field(default=None, repr=False)

    @property
    def believed(self) -> frozenset[bytes] | None:
        """The trusted keys as a set."""
        return None if self.keys is None else frozenset(self.keys)

    @staticmethod
    def of(trusted: Sequence[Path], signing: Path | None = None) -> Trust:
        """Keys from files; no file for trusted keys asks for no signature."""
        from ...runtime import sign

        keys = tuple(sign.public_key(path.read_bytes(), path.name) for path in trusted)
        return Trust(keys or None, None if signing is None else sign.private_key(signing.read_bytes(), signing.name))


NOBODY_ASKED = Trust()
"""No signature is asked for, and none is made."""


def records_of_checks(directory: Path) -> str:
    """Where the records of checked files lie."""
    return str(directory / "checked")


def open_contents(
    path: str | os.PathLike[str], directory: Path, trust: Trust = NOBODY_ASKED, progress: Progress = SILENT
) -> EngineContents:
    """What is in an engine file, every byte of it checked; none of its code is loaded."""
    from ...runtime.reader import Reading, read_engine

    check_engine(path)
    return read_engine(path, Reading(trusted_keys=trust.keys, checked=records_of_checks(directory), watch=watch(progress)))


def watch(progress: Progress) -> Watch:
    """Shows how far checking weights is, where it takes long."""
    begun = [0]

    def told(done: int, total: int) -> None:
        if total < LONG:
            return
        if not begun[0]:
            progress.stage("check weights", total >> 20)
        progress.advance((done >> 20) - (begun[0] >> 20))
        begun[0] = done

    return told
