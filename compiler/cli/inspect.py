"""`ourcc inspect`: what is in an engine or a model."""

from __future__ import annotations

from pathlib import Path

import click

from ...runtime.kinds import PAGE, PICTURE
from ..engines.idle import refuse_idle
from ..engines.outputs import check_places
from ..engines.trust import Trust
from ..options import InspectOptions, build_options
from .frame import READABLE_DATA, Writable, shape_option, trust_option, workload_option
from .frame import command as frame
from .output import print_report, show_progress
from .trust import trusted_key_option


@frame("inspect")
@click.argument("subject", type=READABLE_DATA, metavar="ENGINE|MODEL")
@click.option("--ir", metavar="STAGE", help="The program after a stage: import (of a MODEL), simplify, regions, tiles, plan, c, triton.")
@click.option("--kernels", is_flag=True, help="One row a kernel or host step: sources, strategy, registers, predicted time.")
@click.option("--source", metavar="KERNEL", help="Print the source of one kernel.")
@click.option("--memory", is_flag=True, help="Arena slots, constants and their layouts.")
@click.option("--fusion", is_flag=True, help="Where each value is computed or kept, why, and what is at stake; patterns that were missed.")
@click.option("--explain", is_flag=True, help="What would become of a MODEL: ops, kernels, launches, fusion; nothing is compiled.")
@click.option("--precision", is_flag=True, help="The contract: requested, realised and why, per source op.")
@click.option(
    "--graph",
    type=Writable(PICTURE, PAGE),
    metavar="OUT.svg|html",
    help="Draw a MODEL's ops or an ENGINE's kernels; the page can be searched. --ir simplify or plan chooses.",
)
@click.option(
    "--diff",
    type=READABLE_DATA,
    metavar="ENGINE|MODEL",
    help="Which ops only one of the two has, and what is changed in others; both simplified, or with --ir import as they come.",
)
@click.option(
    "--target", metavar="NAME", help="Show this target or level (default: the best here); a MODEL is compiled for it (default: native)."
)
@shape_option
@workload_option
@trust_option
@trusted_key_option
def command(
    subject: Path,
    ir: str | None,
    kernels: bool,
    source: str | None,
    memory: bool,
    fusion: bool,
    explain: bool,
    precision: bool,
    graph: Path | None,
    diff: Path | None,
    target: str | None,
    shapes: tuple[str, ...],
    workload: tuple[str, ...],
    trust_pickle: bool,
    trust: Trust,
    as_json: bool,
) -> None:
    """Show what is in an engine or a model.

    A MODEL is an .onnx, .pt2 or .gguf file, or the folder of a language model. It is compiled in memory for
    --kernels, --source, --memory, --fusion and --precision; nothing is written.
    """
    if diff is None:
        refuse_idle(subject, {"--trust-pickle": trust_pickle, "--trusted-key": trust.keys})
    given = {"targets": [target] if target else None, "shapes": shapes, "workload": workload, "trust_pickle": trust_pickle}
    options = InspectOptions(
        subject, ir, kernels, source, memory, precision, target, build_options(given), trust, fusion, graph, diff, explain
    )
    check_places({"--graph": graph}, {"the subject": subject, "--diff": diff})
    from ..commands import inspect as command

    with show_progress(as_json=as_json) as progress:
        report = command.inspect(options, progress)
    print_report(report, as_json=as_json, written=(graph,))
