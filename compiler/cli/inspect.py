"""`ourcc inspect`: what is in an engine or a model."""

from __future__ import annotations

from pathlib import Path

import click

from ..options import InspectOptions
from ..trust import Trust
from .frame import READABLE
from .frame import command as frame
from .output import print_report
from .trust import trusted_key_option


@frame("inspect")
@click.argument("subject", type=READABLE, metavar="ENGINE|MODEL")
@click.option("--ir", metavar="STAGE", help="Print the program as it is after this stage of the pipeline.")
@click.option("--kernels", is_flag=True, help="One row a kernel: sources, strategy, registers, memory, predicted time.")
@click.option("--source", metavar="KERNEL", help="Print the source of one kernel.")
@click.option("--memory", is_flag=True, help="Arena slots, constants and their layouts.")
@click.option("--precision", is_flag=True, help="The contract: requested, realised and why, per source op.")
@click.option("--target", metavar="NAME", help="Show this target only.")
@trusted_key_option
def command(
    subject: Path,
    ir: str | None,
    kernels: bool,
    source: str | None,
    memory: bool,
    precision: bool,
    target: str | None,
    trust: Trust,
    as_json: bool,
) -> None:
    """Show what is in an engine or a model."""
    options = InspectOptions(subject, ir, kernels, source, memory, precision, target, trust=trust)
    from .. import driver

    print_report(driver.inspect(options), as_json=as_json)
