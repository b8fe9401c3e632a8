"""Files are mapped as they are, whatever the system makes of large pages, and brought into memory only as far as they are there."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from ourcc.runtime.mapping import bring, map_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(bytes(range(256)) * 40 * 1024)
    return tmp_path / "file"


def resident(memory: mmap.mmap) -> int:
    """Bytes of a mapping that are in the memory of this process."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith("/file")
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


def test_a_mapping_is_the_file(path: Path) -> None:
    with path.open("rb") as file:
        memory = map_file(file.fileno(), os.fstat(file.fileno()).st_size)
    assert memory[:] == path.read_bytes()


@pytest.mark.parametrize(("first", "size"), [(0, 1), (5, 4096), (4095, 2), (1 << 20, 3 << 20), (10_485_700, 60)])
def test_what_is_asked_for_is_brought(path: Path, first: int, size: int) -> None:
    with path.open("rb") as file:
        memory = map_file(file.fileno(), os.fstat(file.fileno()).st_size)
    assert resident(memory) == 0
    bring(memory, first, size)
    pages = -(-(first + size) // mmap.PAGESIZE) - first // mmap.PAGESIZE
    assert resident(memory) >= pages * mmap.PAGESIZE


@pytest.mark.parametrize(("first", "size"), [(0, 0), (10 << 20, 4096), (0, 1 << 30), (20 << 20, 1)])
def test_what_is_not_there_is_left_alone(path: Path, first: int, size: int) -> None:
    with path.open("rb") as file:
        memory = map_file(file.fileno(), os.fstat(file.fileno()).st_size)
    bring(memory, first, size)


def test_a_file_that_was_cut_off_before_is_told(path: Path) -> None:
    with path.open("rb") as file, pytest.raises(EOFError, match="the file has no 10485761 bytes"):
        map_file(file.fileno(), (10 << 20) + 1)


def test_a_file_that_was_cut_off_is_no_signal(path: Path) -> None:
    with path.open("rb") as file:
        memory = map_file(file.fileno(), os.fstat(file.fileno()).st_size)
    os.truncate(path, 4096)
    bring(memory, 0, 10 << 20)
    assert memory[0:4] == bytes(range(4))
