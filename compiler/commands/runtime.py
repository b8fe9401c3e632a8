"""`ourcc runtime`: header and sources of the C runtime, written to a folder, and the line that compiles a program with them."""

from __future__ import annotations

import shlex
from pathlib import Path

from ...ir.errors import UsageError
from ...runtime.kinds import SOURCE, SOURCE_MARK
from ...runtime.replace import replace_file
from ...runtime.sources import FLAGS, HEADER, LIBRARIES, sources
from ..engines.outputs import check_output
from ..report.table import Report, Table


def write_runtime(folder: Path) -> Report:
    """Write the files, each all or nothing; UsageError where the folder cannot be written or holds others of their names."""
    files = sources()
    try:
        folder.mkdir(exist_ok=True)
        for name in files:
            check_output(folder / name, SOURCE)
        for name, data in files.items():
            replace_file(folder / name, [data])
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"-o: folder {str(folder)!r} cannot be written: {why}", hint="name another folder") from error
    rows = tuple((name, _sentence(data)) for name, data in files.items())
    return Report({"header": str(folder / HEADER), "compile": compile_line(folder)}, (Table("files", ("name", "owns"), rows),))


def compile_line(folder: Path) -> str:
    """The shell line that compiles PROGRAM.c with the runtime; most programs want libm, which the runtime does not need."""
    quoted = shlex.quote(str(folder))
    return " ".join(["cc", *FLAGS, f"-I{quoted}", "PROGRAM.c", f"{quoted}/*.c", "-o", "PROGRAM", *LIBRARIES, "-lm"])


def _sentence(data: bytes) -> str:
    """What a file says that it owns."""
    return data.decode().removeprefix(SOURCE_MARK).partition("/* ")[2].partition(" *")[0].partition("\n")[0].strip()
