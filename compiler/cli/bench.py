"""`ourcc bench`: times of an engine or a model, alone or against others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...runtime.kinds import PICTURE, TRACE
from ..engines.idle import refuse_idle
from ..engines.trust import Trust
from ..environment import parse_threads
from ..options import PEERS, BenchOptions, build_options
from ..requests import parse_choice
from .frame import READABLE_DATA, Writable, shape_option, trust_option, workload_option
from .frame import command as frame
from .output import print_report, show_progress
from .trust import trusted_key_option


@frame("bench")
@click.argument("subject", type=READABLE_DATA, metavar="ENGINE|MODEL")
@click.option(
    "--against",
    metavar="PEER[=FILE],...",
    help=f"Compare with {', '.join(PEERS)}; FILE is what the peer runs, if not the model: for ourcc another engine.",
)
@click.option("--threads", type=int, default=1, show_default=True, metavar="N", help="Threads of everything compared.")
@click.option("--rounds", type=click.IntRange(1, 100_000), default=20, show_default=True, help="Interleaved rounds.")
@click.option("--inputs", type=READABLE_DATA, metavar="DATA.npz", help="Inputs to measure on (default: seeded ones).")
@click.option("--kernels", is_flag=True, help="Time every launch: where the time goes, against what this machine can do.")
@click.option("--trace", type=Writable(TRACE), metavar="OUT.json", help="Write the launches as a trace for Perfetto (with --kernels).")
@click.option(
    "--picture", type=Writable(PICTURE), metavar="OUT.svg", help="Draw the launches under the machine's roofline (with --kernels)."
)
@click.option(
    "--target", metavar="NAME", help="Measure this target or level of an ENGINE (default: the best here); a MODEL is built for it."
)
@click.option("--function", metavar="NAME", help="Call this function of an ENGINE (default: the first one).")
@shape_option
@workload_option
@trust_option
@trusted_key_option
def command(
    subject: Path,
    against: str | None,
    threads: int,
    rounds: int,
    inputs: Path | None,
    kernels: bool,
    trace: Path | None,
    picture: Path | None,
    target: str | None,
    function: str | None,
    as_json: bool,
    trust: Trust,
    **build: Any,
) -> None:
    """Measure an engine or a model, alone or against others.

    A MODEL is an .onnx, .pt2 or .gguf file, or the folder of a language model. Everything compared runs
    in one process in interleaved rounds; minimum, median and ratios are shown. --shape builds
    a MODEL for these sizes, and calls an ENGINE with them. Without it calls have the sizes of the workload.
    """
    peers = tuple(dict.fromkeys(_peer(word.strip()) for word in (against or "").split(",") if word.strip()))
    refuse_idle(subject, {"--trust-pickle": build["trust_pickle"], "--trusted-key": trust.keys})
    made = build_options({**build, "target": target})
    options = BenchOptions(subject, peers, parse_threads(threads), rounds, inputs, made, trust, kernels, trace, picture, target, function)
    from ..commands import bench as command

    with show_progress(as_json=as_json) as progress:
        report = command.bench(options, progress)
    print_report(report, as_json=as_json, written=(trace, picture))


def _peer(word: str) -> str:
    name, equals, file = word.partition("=")
    return parse_choice(name, PEERS, "peer") + equals + file
