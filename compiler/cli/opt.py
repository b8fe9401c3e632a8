"""`ourcc opt`: passes on a program."""

from __future__ import annotations

from pathlib import Path

import click

from ..engines.idle import refuse_idle
from ..engines.trust import Trust
from ..options import OptimizeOptions, build_options
from .frame import READABLE_DATA, shape_option, trust_option
from .frame import command as frame
from .output import print_report, show_progress
from .trust import trusted_key_option


@frame("opt", has_tables=False)
@click.argument("program", type=READABLE_DATA, metavar="FILE.ir|MODEL|ENGINE")
@click.option("--pipeline", required=True, metavar="PASSES", help="Passes in order, like 'canonicalize, fold_constants{limit=4096}'.")
@click.option("--print-changes", is_flag=True, help="Print the program after every pass that changed it.")
@click.option("--limit", type=click.IntRange(0), metavar="N", help="Stop after N passes.")
@shape_option
@trust_option
@trusted_key_option
def command(
    program: Path,
    pipeline: str,
    print_changes: bool,
    limit: int | None,
    shapes: tuple[str, ...],
    trust_pickle: bool,
    trust: Trust,
    as_json: bool,
) -> None:
    """Run passes on a program.

    The program is read from text, taken from an engine, or imported from an .onnx or .pt2 file or from a language model: a .gguf
    file, or a folder with config.json and .safetensors files.
    """
    given = {"--shape": shapes, "--trust-pickle": trust_pickle, "--trusted-key": trust.keys}
    refuse_idle(program, given, otherwise="a program in text")
    build = build_options({"shapes": shapes, "trust_pickle": trust_pickle or None})
    options = OptimizeOptions(program, pipeline, print_changes, limit, build, trust)
    from ..commands import optimize as command

    with show_progress(as_json=as_json) as progress:
        report = command.optimize(options, progress)
    print_report(report, as_json=as_json)
