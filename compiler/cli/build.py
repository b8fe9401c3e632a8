"""`ourcc build`: a model file to an engine file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..options import PRECISIONS, QUANTIZE_FORMATS, SPARSITIES, build_options
from .frame import READABLE, READABLE_DATA, WRITABLE, shape_option, target_option, trust_option
from .frame import command as frame
from .output import print_report, show_progress


@frame("build")
@click.argument("model", type=READABLE)
@click.option("-o", "--output", type=WRITABLE, required=True, metavar="OUT.ourcc", help="The engine to write.")
@target_option
@click.option("--precision", metavar="|".join(PRECISIONS), help="Compute precision of floating ops (default: the model's own).")
@click.option("--quantize", metavar="FORMAT", help=f"Quantize to {', '.join(QUANTIZE_FORMATS)}.")
@click.option("--sparsity", metavar="|".join(SPARSITIES), help="Prune constants to this structure.")
@click.option("--calibrate", type=READABLE_DATA, metavar="DATA", help="Inputs (.npz or a folder of them) that show value ranges.")
@click.option("--eval", "eval_", type=READABLE_DATA, metavar="DATA", help="Inputs with expected outputs for --max-accuracy-drop.")
@click.option("--max-accuracy-drop", type=float, metavar="X", help="Accuracy that may be lost on --eval before the build fails.")
@shape_option
@click.option("--require", multiple=True, metavar="EXPR", help="A promise: no-fallback, target:NAME or OP:FORMAT (repeatable).")
@click.option("--tune", metavar="off|cached|N|5m", help="How much measuring (default: cached, only what the stores hold).")
@click.option("--locked", type=READABLE, metavar="LOCK", help="Take every choice from this ourcc.lock.")
@click.option("--report", type=WRITABLE, metavar="OUT.html", help="Write a report of what was done and why.")
@click.option("--emulate", metavar="LEVEL", help="Also print kernels for an instruction level that this machine lacks.")
@click.option("--threads", type=int, metavar="N", help="Threads used while building and tuning.")
@trust_option
def command(model: Path, output: Path, as_json: bool, eval_: Path | None, **given: Any) -> None:
    """Compile a model into an engine.

    MODEL is an .onnx file or a .pt2 file of torch.export.
    """
    options = build_options({**given, "eval": eval_})
    from .. import driver
    from ..report.engine import describe_engine

    with show_progress(as_json=as_json) as progress:
        engine = driver.build(model, options, progress)
        progress.stage(f"saving {output}")
        engine.save(output)
    print_report(describe_engine(engine, output), as_json=as_json)
