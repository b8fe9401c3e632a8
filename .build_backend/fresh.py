"""The build backend: setuptools, with its intermediate files in a new folder each time.

Setuptools copies modules into `build/lib` and makes the wheel of all that lies there, modules included that the tree no
longer has. What starts empty holds nothing stale.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = Mapping[str, Any] | None


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """A wheel of the modules that are in the tree now."""
    with _fresh_folder():
        return str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))


def build_editable(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """A wheel that leads to the tree."""
    with _fresh_folder():
        return str(build_meta.build_editable(wheel_directory, config_settings, metadata_directory))


@contextmanager
def _fresh_folder() -> Iterator[None]:
    """Distutils reads further settings from the file that DIST_EXTRA_CONFIG names: there the build folder is said."""
    before = os.environ.get("DIST_EXTRA_CONFIG")
    with tempfile.TemporaryDirectory(prefix="ourcc-build-") as folder:
        settings = Path(folder, "settings.cfg")
        theirs = Path(before).read_text(encoding="utf-8") if before and before != os.devnull else ""
        settings.write_text(f"{theirs}\n[build]\nbuild_base = {folder}/build\n", encoding="utf-8")
        os.environ["DIST_EXTRA_CONFIG"] = str(settings)
        try:
            yield
        finally:
            if before is None:
                del os.environ["DIST_EXTRA_CONFIG"]
            else:
                os.environ["DIST_EXTRA_CONFIG"] = before
