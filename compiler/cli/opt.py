"""`ourcc opt`: passes on a program in text."""

from __future__ import annotations

from pathlib import Path

import click

from ..options import OptimizeOptions
from .frame import READABLE
from .frame import command as frame
from .output import print_report


@frame("opt")
@click.argument("program", type=READABLE, metavar="FILE.ir")
@click.option("--pipeline", required=True, metavar="PASSES", help="Passes in order, like 'canonicalize, fold_constants{limit=4096}'.")
@click.option("--print-changes", is_flag=True, help="Print the program after every pass that changed it.")
@click.option("--limit", type=click.IntRange(0), metavar="N", help="Stop after N passes.")
def command(program: Path, pipeline: str, print_changes: bool, limit: int | None, as_json: bool) -> None:
    """Run passes on a program in text."""
    options = OptimizeOptions(program, pipeline, print_changes, limit)
    from .. import driver

    print_report(driver.optimize(options), as_json=as_json)
