"""`ourcc plan`: what a language model takes before it is built."""

from __future__ import annotations

from pathlib import Path

import click

from ...ir.formats import format_of
from ...passes.quantize import QUANTIZATIONS
from ..language.footprint import PLAIN
from ..requests import CACHES
from .frame import READABLE_DATA
from .frame import command as frame
from .output import print_report


def _format_help() -> str:
    """Every name of --format and what it is; those of quantizations are those of `ourcc build`."""
    stored = {
        name: [each.name for each in QUANTIZATIONS.values() if each.format == name]
        for name in dict.fromkeys(each.format for each in QUANTIZATIONS.values())
        if name is not None
    }
    coded = "; ".join(f"{', '.join(names)}: {format_of(name).bits:.3g} bits a number" for name, names in stored.items())
    return (
        f"{', '.join(PLAIN)}: all weights in this dtype. Weights of products as --quantize of ourcc build stores them, with or without"
        f" -weight: {coded}. In what they are multiplied is the target's, and is said. Default: as stored."
    )


@frame("plan")
@click.argument("model", type=READABLE_DATA)
@click.option("--target", default="cpu", show_default=True, metavar="NAME", help="What it is to run on: cpu, sm_90a, sm_100a, ...")
@click.option("--format", metavar="FORMAT", help=_format_help())
@click.option("--cache", default="f32", show_default=True, metavar="|".join(CACHES), help="Keep keys and values in this.")
@click.option("--batch", type=int, default=1, show_default=True, metavar="N", help="Sequences that are decoded together.")
@click.option("--context", type=int, metavar="N", help="Tokens of each sequence (default: the model's, up to 4096).")
@click.option("--prompt", type=int, metavar="N", help="Tokens of the prompt whose time is told (default: 512).")
def command(
    model: Path, target: str, format: str | None, cache: str, batch: int, context: int | None, prompt: int | None, as_json: bool
) -> None:
    """Tell what a language model takes before it is built.

    MODEL is a folder with a config.json, which may hold nothing else, or a .gguf file; no weight is read. Shows parameters, bytes of
    weights, keys and values, whether one device holds them, and the least time of a step and of a prompt by the device's rates.
    """
    from ..commands.plan import plan

    report = plan(model, target=target, format=format, cache=cache, batch=batch, context=context, prompt=prompt)
    print_report(report, as_json=as_json)
