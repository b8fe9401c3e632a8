"""What the environment says of us: the only place that reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..ir.digits import integer, whole_number
from ..ir.errors import UsageError


@dataclass(frozen=True)
class Environment:
    """Everything of ours that the environment can say."""

    cache: tuple[str, ...] = ()  # tuning stores, the first is local
    cache_dir: str | None = None  # build cache
    threads: int | None = None
    compiler: str | None = None  # the C compiler
    no_color: bool = False
    graphs: bool = True  # CUDA graphs

    @property
    def directory(self) -> Path:
        """The build cache: OURCC_CACHE_DIR, else the user's cache folder."""
        if self.cache_dir is not None:
            return Path(self.cache_dir).expanduser()
        import platformdirs

        return Path(platformdirs.user_cache_dir("ourcc", appauthor=False))

    @property
    def objects(self) -> Path:
        """The folder of object files that kernels were compiled to."""
        return self.directory / "objects"

    @property
    def stores(self) -> tuple[str, ...]:
        """The tuning stores: OURCC_CACHE, else a folder in the build cache."""
        return self.cache or (str(self.directory / "records"),)


def environment(variables: Mapping[str, str] | None = None) -> Environment:
    """Read OURCC_CACHE, OURCC_CACHE_DIR, OURCC_NUM_THREADS, OURCC_CUDA_GRAPHS, CC and NO_COLOR; empty means unset."""
    given = os.environ if variables is None else variables
    threads = given.get("OURCC_NUM_THREADS", "")
    return Environment(
        cache=_stores(given.get("OURCC_CACHE", "")),
        cache_dir=given.get("OURCC_CACHE_DIR") or None,
        threads=parse_threads(threads, "OURCC_NUM_THREADS") if threads else None,
        compiler=given.get("CC") or None,
        no_color=bool(given.get("NO_COLOR")),
        graphs=_switch(given.get("OURCC_CUDA_GRAPHS") or "1", "OURCC_CUDA_GRAPHS"),
    )


def _switch(text: str, what: str) -> bool:
    if text not in ("0", "1"):
        raise UsageError(f"{what}: got {text!r}, expected 0 or 1")
    return text == "1"


def _stores(text: str) -> tuple[str, ...]:
    """Stores by commas, of which one may stand at the end; UsageError for an empty name, which a variable that is not set leaves."""
    *names, last = (name.strip() for name in text.split(","))
    names += [last] if last else []
    if not all(names) or (text and not names):
        raise UsageError(f"OURCC_CACHE: got {text!r}, expected names of stores separated by commas", hint="a variable in it may not be set")
    return tuple(names)


def said_columns(variables: Mapping[str, str] | None = None) -> int | None:
    """The width that COLUMNS says a terminal has; None where it says no number (errors are printed by it, so it raises none)."""
    said = (os.environ if variables is None else variables).get("COLUMNS", "")
    return whole_number(said, 5) or None


def parse_threads(text: str | int, what: str = "threads") -> int:
    """A number of threads, from 1 to 4096."""
    number = integer(text, 5) or 0
    if not 1 <= number <= 4096:
        raise UsageError(f"{what}: got {text!r}, expected a whole number from 1 to 4096")
    return number
