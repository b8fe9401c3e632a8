"""`ourcc build`: a model file to an engine file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ...ir.errors import UsageError
from ...runtime.kinds import ENGINE, PAGE
from ..engines.outputs import check_places, is_same
from ..engines.trust import Trust
from ..options import build_options
from ..requests import CACHES, PRECISIONS, QUANTIZE_FORMATS, SPARSITIES
from .frame import READABLE, READABLE_DATA, Writable, shape_option, target_option, trust_option, workload_option
from .frame import command as frame
from .output import print_report, show_progress
from .trust import key_options

# What makes the program, which an engine already has.
SETTLED = {
    **{f"--{name}": name for name in ("precision", "quantize", "sparsity", "require", "context", "cache", "batch")},
    **{"--unchecked-indices": "unchecked_indices", "--shape": "shapes", "--trust-pickle": "trust_pickle"},
}


PROMISE = (
    "A promise: no-fallback (no call into torch), no-host (no step in Python), target:NAME or OP:FORMAT; OP is ourcc's name"
    " (linear, conv, ...) or a node's (repeatable)."
)


WEIGHTS_AND_ACTIVATIONS = (
    "weights (NAME-weight), and activations while the engine runs: to int8 (int8, NAME-a8; a8: weights as they come)"
    " or as weights are (fp8, mxfp4, ...)"
)
PRECISION_HELP = (
    "Multiply as the model says (fp32), in 16 bits, or in tf32 (GPUs; float32 on CPUs), and add up, normalise and exponentiate in 32."
    " Matrix instructions of GPUs make a product of fp32 of three of tf32."
)
UNCALIBRATED = "Scales of activations are found while the engine runs; calibrated models come from a quantizer, as QDQ files."
QUANTIZE_HELP = f"Quantize {WEIGHTS_AND_ACTIVATIONS}: {', '.join(QUANTIZE_FORMATS)}. {UNCALIBRATED}"


@frame("build")
@click.argument("model", type=READABLE_DATA)
@click.option(
    "-o", "--output", type=Writable(ENGINE), metavar="OUT.ourcc", help="The engine to write (with --rebuild: default, the same file)."
)
@click.option("--rebuild", is_flag=True, help="MODEL is an engine: make its program's kernels for --target, keep its other targets.")
@target_option
@click.option("--precision", metavar="|".join(PRECISIONS), help=PRECISION_HELP)
@click.option("--quantize", metavar="FORMAT", help=QUANTIZE_HELP)
@click.option("--sparsity", metavar="|".join(SPARSITIES), help="Prune constants to this structure.")
@shape_option
@workload_option
@click.option(
    "--require",
    multiple=True,
    metavar="EXPR",
    help=PROMISE,
)
@click.option("--tune", metavar="off|cached|N|5m", help="How much measuring on this CPU (default: cached, only what the stores hold).")
@click.option(
    "--locked",
    type=READABLE,
    metavar="LOCK",
    help="Take every choice of schedules from an earlier build of the same model and options: its engine, which holds an ourcc.lock, or"
    " that file by itself.",
)
@click.option("--report", type=Writable(PAGE), metavar="OUT.html", help="Write a report of what was done and why.")
@click.option(
    "--context", type=int, metavar="N", help="Tokens that a session of a language model holds (default: the model's, up to 4096)."
)
@click.option("--cache", metavar="|".join(CACHES), help="What a language model keeps keys and values in (default: f32).")
@click.option("--batch", type=int, metavar="N", help="Sequences that a call of a language model reads at most (default: 1).")
@click.option("--unchecked-indices", is_flag=True, help="Let an index out of range give an undefined value instead of an error.")
@click.option("--threads", type=int, metavar="N", help="Threads used while building and tuning.")
@click.option(
    "--emulate",
    metavar="LEVEL",
    help="Programs of this CPU level (x86-64-v4-amx, ...), run here by models of the instructions that this machine lacks: the same"
    " bits, slowly.",
)
@trust_option
@key_options
def command(model: Path, output: Path | None, rebuild: bool, as_json: bool, trust: Trust, **given: Any) -> None:
    """Compile a model into an engine.

    MODEL is an .onnx file, a .pt2 file of torch.export, or a language model: a .gguf file, or a folder with config.json and
    .safetensors files.
    """
    output = _output(model, output, given if rebuild else None)
    options = replace(build_options(given), trust=trust)
    places = {"-o": output, "--report": options.report}
    # An engine that is made again may take its own place.
    again = rebuild and is_same(output, model)
    check_places(places, {"--locked": options.locked}, trust)
    check_places({"--report": options.report} if again else places, {"ENGINE" if rebuild else "MODEL": model}, trust)
    from ..commands import build as command
    from ..report.engine import describe_engine

    with show_progress(as_json=as_json) as progress:
        engine = (command.rebuild if rebuild else command.build)(model, options, progress)
        progress.stage(f"saving {output}")
        engine.save(output, signing_key=trust.signing_key)
    print_report(describe_engine(engine.contents, output), as_json=as_json, written=places.values())


def _output(model: Path, output: Path | None, rebuilt: dict[str, Any] | None) -> Path:
    """Where the engine goes; UsageError for options that an engine, whose program is settled, cannot take."""
    if rebuilt is None and output is None:
        raise UsageError("got no output, expected -o OUT.ourcc")
    settled = [flag for flag, name in SETTLED.items() if (rebuilt or {}).get(name) not in (None, (), False)]
    if settled:
        got = ", ".join(settled)
        raise UsageError(f"got {got} with --rebuild, expected none: the engine's program is settled", hint="build it from the model")
    return output or model
