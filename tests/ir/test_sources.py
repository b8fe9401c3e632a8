"""A digest of our sources: of all that lies in the folders, and of none that may not be what runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ourcc.ir import sources
from ourcc.ir.sources import digest_of_sources


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of two folders, older than the process."""
    for name in ("one/a.py", "one/inner/b.py", "two/c.py", "two/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    monkeypatch.setattr(sources, "STARTED", (tmp_path / "two").stat().st_ctime_ns + 3600 * 10**9)
    digest_of_sources.cache_clear()
    yield tmp_path
    digest_of_sources.cache_clear()


def digest(*folders: str) -> str | None:
    digest_of_sources.cache_clear()
    return digest_of_sources(*folders)


def test_the_digest_is_of_every_module_and_its_name(root: Path) -> None:
    both = digest("one", "two")
    assert both is not None and both == digest("two", "one") and both != digest("one")
    (root / "two/notes.txt").write_text("other")
    assert digest("one", "two") == both
    found = {both}
    (root / "one/inner/b.py").write_text("other")
    found.add(digest("one", "two"))
    (root / "one/inner/b.py").rename(root / "one/inner/d.py")
    found.add(digest("one", "two"))
    (root / "one/inner/d.py").unlink()
    found.add(digest("one", "two"))
    assert len(found) == 4 and None not in found


def test_none_is_told_of_modules_that_changed_after_the_start(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "STARTED", (root / "one/a.py").stat().st_ctime_ns + sources.SETTLED // 2)
    assert digest("one") is None
    # Whatever time the file claims: it is when it was changed that counts.
    os.utime(root / "one/a.py", (1, 1))
    os.utime(root / "one/inner/b.py", (1, 1))
    assert digest("one") is None


def test_none_is_told_where_there_is_nothing_to_read(root: Path) -> None:
    assert digest("three") is None
    (root / "one/a.py").unlink()
    (root / "one/a.py").symlink_to(root / "gone.py")
    assert digest("one") is None


def test_the_digest_of_the_package_itself() -> None:
    digest_of_sources.cache_clear()
    assert digest_of_sources("no such folder") is None
    assert all((sources.ROOT / folder).is_dir() for folder in ("ir", "codegen/c"))
