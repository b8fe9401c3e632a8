"""Bytes that lie in several parts, in pieces of one size: as they are hashed, and as they are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def regroup(parts: Iterable[bytes | memoryview], size: int) -> Iterator[list[memoryview]]:
    """The same bytes in pieces of `size`, the last one of what is left; each as the parts that it lies in, which are not copied."""
    piece: list[memoryview] = []
    room = size
    for part in parts:
        view = memoryview(part).cast("B")
        while view:
            piece.append(view[:room])
            room -= len(piece[-1])
            view = view[len(piece[-1]) :]
            if not room:
                yield piece
                piece, room = [], size
    if piece:
        yield piece
