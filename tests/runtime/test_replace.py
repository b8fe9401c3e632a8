"""Files are replaced whole; links stay; pipes and devices are written into, never replaced."""

from __future__ import annotations

import os
import random
import socket
import stat
import threading
from pathlib import Path

import pytest

from ourcc.compiler.options import check_output
from ourcc.ir.errors import UsageError
from ourcc.runtime import replace
from ourcc.runtime.replace import replace_file


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "real").write_bytes(b"old")
    held = (tmp_path / "far" / "real").open("rb")
    for link, target in (("near", "far/real"), ("chain", "near")):
        os.symlink(target, tmp_path / link)
    for link in ("near", "chain"):
        replace_file(tmp_path / link, [b"new ", link.encode()])
        assert (tmp_path / link).is_symlink() and (tmp_path / "far" / "real").read_bytes() == b"new " + link.encode()
    with held:
        assert held.read() == b"old"  # what had it open keeps it
    assert sorted(os.listdir(tmp_path / "far")) == ["real"] and sorted(os.listdir(tmp_path)) == ["chain", "far", "near"]


def test_a_link_to_nothing_makes_its_file_and_a_circle_is_told(tmp_path: Path) -> None:
    os.symlink("absent", tmp_path / "link")
    replace_file(tmp_path / "link", [b"data"])
    assert (tmp_path / "link").is_symlink() and (tmp_path / "absent").read_bytes() == b"data"
    os.symlink("circle", tmp_path / "circle")
    with pytest.raises(OSError, match="symbolic links"):
        replace_file(tmp_path / "circle", [b"data"])
    with pytest.raises(UsageError, match="cannot be written: too many levels of symbolic links"):
        check_output(tmp_path / "circle")
    os.symlink(tmp_path / "gone" / "file", tmp_path / "dangling")
    with pytest.raises(UsageError, match="there is no folder"):
        check_output(tmp_path / "dangling")


def test_pieces_are_written_in_blocks_from_multiples_of_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replace, "BLOCK", 64)
    written: list[int] = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: written.append(len(data)) or real(handle, data))
    rng = random.Random(0)
    for case in range(50):
        sizes = [rng.choice((0, 1, 7, 63, 64, 65, 128, 200, rng.randrange(300))) for _ in range(rng.randrange(8))]
        pieces = [rng.randbytes(size) for size in sizes]
        written.clear()
        replace_file(tmp_path / "file", [memoryview(p) if case % 2 else p for p in pieces])
        assert (tmp_path / "file").read_bytes() == b"".join(pieces)
        assert written == [64] * (sum(sizes) // 64) + [sum(sizes) % 64] * (sum(sizes) % 64 > 0)


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_pipe_is_written_into(is_linked: bool, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "pipe"
    if is_linked:
        path = tmp_path / "link"
        os.symlink("pipe", path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    assert check_output(path) == path
    replace_file(path, [b"x" * 200_000, b"end"])
    reader.join(30)
    assert read == [b"x" * 200_000 + b"end"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode) and path.is_symlink() == is_linked


def test_a_device_is_written_into_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No device is touched: a plain file is taken for one."""
    device = tmp_path / "device"
    device.write_bytes(b"")
    number = device.stat().st_ino
    monkeypatch.setattr(replace.stat, "S_ISCHR", lambda mode: stat.S_ISREG(mode))
    replace_file(device, [b"data"])
    assert device.read_bytes() == b"data" and device.stat().st_ino == number and os.listdir(tmp_path) == ["device"]


def test_a_socket_and_a_disk_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        monkeypatch.chdir(tmp_path)
        made.bind("socket")
        with pytest.raises(OSError, match="Neither a file nor a pipe"):
            replace_file("socket", [b"data"])
        with pytest.raises(UsageError, match="output 'socket' cannot be written: neither a file nor a pipe"):
            check_output(Path("socket"))
        assert stat.S_ISSOCK(os.stat("socket").st_mode)
    (tmp_path / "disk").write_bytes(b"precious")
    monkeypatch.setattr(replace.stat, "S_ISBLK", lambda mode: stat.S_ISREG(mode))
    with pytest.raises(OSError, match="Neither a file nor a pipe"):
        replace_file(tmp_path / "disk", [b"data"])
    assert (tmp_path / "disk").read_bytes() == b"precious"
