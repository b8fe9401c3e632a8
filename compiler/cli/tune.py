"""`ourcc tune`: measure on this machine, write records, improve the engine."""

from __future__ import annotations

from pathlib import Path

import click

from ...ir.errors import UsageError
from ...runtime.kinds import ENGINE
from ..engines.trust import Trust
from ..options import TuneOptions
from ..requests import UNTUNED, parse_measuring
from .frame import READABLE, Writable
from .frame import command as frame
from .output import print_report, show_progress
from .trust import key_options


@frame("tune")
@click.argument("engine", type=READABLE)
@click.option("--budget", default="5m", show_default=True, metavar="N|5m", help="Schedules measured a problem, or time in all.")
@click.option("-o", "--output", type=Writable(ENGINE), metavar="OUT.ourcc", help="Write the better engine here (default: in place).")
@key_options
def command(engine: Path, budget: str, output: Path | None, trust: Trust, as_json: bool) -> None:
    """Measure schedules on this machine's CPU and improve an engine.

    Kernels for GPUs stay as they are: their schedules are chosen by prediction when an engine is built.
    """
    try:
        measuring = parse_measuring(budget)
    except UsageError:
        measuring = UNTUNED  # which is no budget either
    if measuring.mode not in ("count", "budget"):
        raise UsageError(f"budget: got {budget!r}, expected a number of schedules, or a duration like 5m")
    options = TuneOptions(engine, measuring, output, trust=trust)
    from ..commands import tune as command

    with show_progress(as_json=as_json) as progress:
        report = command.tune(options, progress)
    print_report(report, as_json=as_json, written=(output,))
