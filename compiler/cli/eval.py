"""`ourcc eval`: how well a language model's engine predicts a text."""

from __future__ import annotations

from pathlib import Path

import click

from ..engines.trust import Trust
from .frame import READABLE
from .frame import command as frame
from .generation import machine_options
from .output import print_report, show_progress
from .trust import trusted_key_option


@frame("eval")
@click.argument("engine", type=READABLE)
@click.argument("text", type=READABLE, metavar="TEXT.txt")
@click.option("--against", type=READABLE, metavar="OTHER", help="Compare with this engine, which must have the same tokenizer.")
@click.option("--window", type=int, metavar="N", help="Tokens that are read in one go (default: all that a session holds).")
@click.option("--stride", type=int, metavar="N", help="Tokens from the begin of a window to that of the next (default: half a window).")
@machine_options
@trusted_key_option
def command(
    engine: Path,
    text: Path,
    against: Path | None,
    window: int | None,
    stride: int | None,
    threads: int | None,
    target: str | None,
    trust: Trust,
    as_json: bool,
) -> None:
    """Score a text with a language model, alone or beside another one.

    Shows perplexity, bits per byte and how often the likeliest token is the text's. TEXT.txt is read as it stands, in windows; in
    each only tokens that no window before held are scored, so that all but the first count once. With --against also the mean and
    the greatest Kullback-Leibler divergence, and how often both engines find the same token the likeliest.
    """
    from ..commands.eval import evaluate

    with show_progress(as_json=as_json) as progress:
        report = evaluate(
            engine,
            text,
            against=against,
            window=window,
            stride=stride,
            target=target,
            threads=threads,
            trusted_keys=trust.keys,
            progress=progress,
        )
    print_report(report, as_json=as_json)
