"""What every test starts from: no width that the caller's shell exports, and caches that share their object files."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Whether drawing is quick depends on what else the machine does: no test fails for time.
settings.register_profile("ourcc", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ourcc")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """What 17,000 tests are is kept to the end: nothing looks through it for garbage, neither while it grows nor afterwards."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(autouse=True)
def no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def log_levels_kept() -> Iterator[None]:
    """A test that turns warnings off for its whole process fails itself, not the next one that listens for a warning."""
    loggers = (logging.getLogger(), logging.getLogger("ourcc"))
    before = [logger.level for logger in loggers]
    yield
    assert [logger.level for logger in loggers] == before


class _Kept(logging.Handler):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.fixture(autouse=True)
def faults(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """The mistakes of strategies and printers that another choice hid: a test that is marked `faults` may, no other."""
    from ourcc.passes.faults import LOG

    kept, level = _Kept(), LOG.level
    LOG.addHandler(kept)
    LOG.setLevel(logging.INFO)
    yield kept.said
    LOG.removeHandler(kept)
    LOG.setLevel(level)
    assert request.node.get_closest_marker("faults") is not None or kept.said == []


@pytest.fixture(scope="session")
def object_files() -> Path:
    """The folder of object files of whoever runs the tests."""
    from ourcc.compiler.environment import environment

    folder = environment().objects
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def cache_at(object_files: Path) -> Callable[[Path], str]:
    """A build cache at a path, with records and all else of its own. Object files are by content: what one test has compiled no
    other compiles again.
    """

    def make(path: Path) -> str:
        path.mkdir(parents=True, exist_ok=True)
        if not (path / "objects").exists():
            (path / "objects").symlink_to(object_files)
        return str(path)

    return make
