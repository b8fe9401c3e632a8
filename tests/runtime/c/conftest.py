"""The C runtime compiled for tests: as a shared object, and as a program that looks at its own memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from library import Library, compile_c, write_sources


@pytest.fixture(scope="session")
def runtime_files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The sources in a folder of their own, as a user has them."""
    return write_sources(tmp_path_factory.mktemp("runtime") / "c")


@pytest.fixture(scope="session")
def shared_object(runtime_files: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("library") / "libourcc.so", runtime_files, "-shared", "-fPIC", "-fvisibility=hidden")


@pytest.fixture(scope="session")
def library(shared_object: Path) -> Library:
    return Library(shared_object)


@pytest.fixture(scope="session")
def sanitized(runtime_files: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of `program.c` with checks of addresses and of undefined behaviour."""
    output = tmp_path_factory.mktemp("sanitized") / "program"
    program = str(Path(__file__).with_name("program.c"))
    flags = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
    folder = str(Path(runtime_files[0]).parent)
    try:
        return compile_c(output, [*runtime_files, program], *flags, f"-I{folder}")
    except AssertionError as error:
        if "sanitize" in str(error) or "asan" in str(error):
            pytest.skip(f"the compiler has no sanitizers: {error}")
        raise
