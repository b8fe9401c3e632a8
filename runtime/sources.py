"""The C runtime as a user finds it: its header and sources, which lie beside this module, and how they are compiled."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from .kinds import SOURCE_MARK

FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra")
LIBRARIES = ("-pthread", "-ldl")
"""Both are parts of libc, in files of their own before glibc 2.34."""

HEADER = "ourcc.h"


def sources() -> Mapping[str, bytes]:
    """The files by name: the public header, the header that the sources share, and the sources."""
    folder = files(__package__).joinpath("c")
    return {
        file.name: SOURCE_MARK.encode() + file.read_bytes()
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith((".h", ".c"))
    }
