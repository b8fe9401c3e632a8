"""`ourcc runtime`: the C runtime as files, for programs that run engines without Python."""

from __future__ import annotations

from pathlib import Path

import click

from .frame import command as frame
from .output import print_report


@frame("runtime")
@click.option("-o", "--output", required=True, type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER", help="Where to write.")
def command(output: Path, as_json: bool) -> None:
    """Write the C runtime, which runs engines without Python.

    The folder gets ourcc.h, which says what there is, and the sources. They need a C11 compiler and libc; engines need libm as well.
    """
    from ..commands import runtime as command

    print_report(command.write_runtime(output), as_json=as_json)
