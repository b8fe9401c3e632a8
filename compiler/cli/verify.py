"""`ourcc verify`: an engine's answers against its model's."""

from __future__ import annotations

from pathlib import Path

import click

from ...ir.errors import UsageError
from ..engines.trust import Trust
from ..options import VerifyOptions
from ..requests import parse_shape
from .frame import READABLE, READABLE_DATA, shape_option, trust_option
from .frame import command as frame
from .output import print_report, show_progress
from .trust import trusted_key_option


@frame("verify")
@click.argument("engine", type=READABLE)
@click.argument("model", type=READABLE_DATA)
@click.option(
    "--inputs",
    type=READABLE_DATA,
    metavar="DATA.npz",
    help="Inputs to compare on (default: 8 seeded sets, of the least sizes, those that it was built for, and drawn ones).",
)
@click.option("--tolerance", type=float, metavar="X", help="Allowed error relative to the largest value, instead of the judge's bound.")
@click.option("--target", metavar="NAME", help="Verify this target or level of the engine (default: the best here).")
@shape_option
@click.option("--function", metavar="NAME", help="Compare this function of the engine with MODEL (default: the first one).")
@trust_option
@trusted_key_option
def command(
    engine: Path,
    model: Path,
    inputs: Path | None,
    tolerance: float | None,
    target: str | None,
    shapes: tuple[str, ...],
    function: str | None,
    trust_pickle: bool,
    trust: Trust,
    as_json: bool,
) -> None:
    """Compare an engine's answers with its model's.

    MODEL runs in ONNX Runtime or eager PyTorch, and in a float64 reference; the engine may be as far from the
    reference as a correct engine of its precision can be. Exit status 3 says that it is not.
    Sizes are drawn, small ones of a large model, of those that both take; --shape says them.
    """
    if tolerance is not None and not 0 <= tolerance < float("inf"):
        raise UsageError(f"tolerance: got {tolerance:g}, expected a number of at least 0")
    options = VerifyOptions(
        engine, model, inputs, tolerance, target, trust_pickle, trust, function, tuple(parse_shape(text) for text in shapes)
    )
    from ..commands import verify as command

    with show_progress(as_json=as_json) as progress:
        report = command.verify(options, progress)
    print_report(report, as_json=as_json)
