"""The bytes around the members of an engine file: a zip archive whose every header follows from its list of members.

Members are stored uncompressed, one after the other in a fixed order, their data at multiples of a page. Nothing in
the archive is free: a reader that knows the members computes every header itself and compares.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

PAGE = 4096
LOCAL_SIZE = 30
END_SIZE = 22
_LIMIT = 0xFFFFFFFF
_COUNT_LIMIT = 0xFFFF
_DATE = 0x0021  # 1980-01-01, the first day a zip can name
_MODE = 0o100644 << 16
_PADDING_FIELD = 0xD935  # the extra field that archives use to say "alignment, then padding"
_ZIP64_FIELD = 0x0001
LOCAL_MAGIC = b"PK\x03\x04"
END_MAGIC = b"PK\x05\x06"


@dataclass(frozen=True)
class Member:
    """A member of the archive: name, bytes, CRC-32."""

    name: str
    size: int
    crc: int


@dataclass(frozen=True)
class Placed:
    """A member and where its header and its data start."""

    member: Member
    header: int
    data: int

    @property
    def end(self) -> int:
        return self.data + self.member.size


def place(members: Sequence[Member]) -> tuple[Placed, ...]:
    """Positions of all members in the file."""
    placed: list[Placed] = []
    header = 0
    for member in members:
        least = header + LOCAL_SIZE + len(member.name.encode()) + (20 if member.size >= _LIMIT else 0) + 6
        data = -(-least // PAGE) * PAGE
        placed.append(Placed(member, header, data))
        header = data + member.size
    return tuple(placed)


def local_header(placed: Placed) -> bytes:
    """The bytes between the previous member's data and this one's."""
    member = placed.member
    name = member.name.encode()
    big = member.size >= _LIMIT
    extra = struct.pack("<HHQQ", _ZIP64_FIELD, 16, member.size, member.size) if big else b""
    rest = placed.data - placed.header - LOCAL_SIZE - len(name) - len(extra)
    extra += struct.pack("<HHH", _PADDING_FIELD, rest - 4, PAGE) + bytes(rest - 6)
    size = _LIMIT if big else member.size
    version = 45 if big else 10
    return struct.pack("<4s5H3L2H", LOCAL_MAGIC, version, 0, 0, 0, _DATE, member.crc, size, size, len(name), len(extra)) + name + extra


def directory(placed: Sequence[Placed], comment: bytes) -> bytes:
    """The central directory and the end records: everything behind the last member's data."""
    start = placed[-1].end if placed else 0
    entries = b"".join(_central_header(p) for p in placed)
    big = start >= _LIMIT or len(entries) >= _LIMIT or len(placed) >= _COUNT_LIMIT
    count = min(len(placed), _COUNT_LIMIT) if not big else _COUNT_LIMIT
    result = entries
    if big:
        result += struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45 | 3 << 8, 45, 0, 0, len(placed), len(placed), len(entries), start)
        result += struct.pack("<4sLQL", b"PK\x06\x07", 0, start + len(entries), 1)
    size, offset = (_LIMIT, _LIMIT) if big else (len(entries), start)
    return result + struct.pack("<4s4H2LH", END_MAGIC, 0, 0, count, count, size, offset, len(comment)) + comment


def _central_header(placed: Placed) -> bytes:
    member = placed.member
    name = member.name.encode()
    wide = [value for value in (member.size, member.size) if member.size >= _LIMIT] + ([placed.header] if placed.header >= _LIMIT else [])
    extra = struct.pack(f"<HH{len(wide)}Q", _ZIP64_FIELD, 8 * len(wide), *wide) if wide else b""
    version = 45 if wide else 10
    size = min(member.size, _LIMIT)
    offset = min(placed.header, _LIMIT)
    head = struct.pack("<4s6H", b"PK\x01\x02", version | 3 << 8, version, 0, 0, 0, _DATE)
    rest = struct.pack("<3L5H2L", member.crc, size, size, len(name), len(extra), 0, 0, 0, _MODE, offset)
    return head + rest + name + extra
