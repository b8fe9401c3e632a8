"""`ourcc verify`: an engine's answers against a peer's and a float64 reference, by the one judge."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ir import dims
from ..ir.errors import InputError
from ..ir.graph import Module
from ..ir.reference import Verdict, bind_symbols, interpret, judge
from ..runtime.engine import Engine
from .driver import import_model, load
from .inputs import Array, read_inputs, seeded_inputs, seeded_sizes
from .options import VerifyOptions, build_options
from .peers import Run, make_peer
from .progress import SILENT, Progress
from .report.table import Report, Table

SETS = 8
FACTORS = {"f32": 4.0, "f64": 4.0, "f16": 2.0, "bf16": 2.0}
FLOOR = 4.0
"""Units in the last place of the output's largest magnitude that whole models are allowed beyond the peer's error."""


def verify(options: VerifyOptions, progress: Progress = SILENT) -> Report:
    """Compare the engine with its model on 8 seeded input sets, or on the user's; violations fail the command."""
    engine = load(options.engine, target=options.target, trusted_keys=options.trust.keys, progress=progress)
    module = import_model(options.model, build_options({"trust_pickle": options.trust_pickle}), progress)
    _check_ports(engine, module)
    peer_name = "onnxruntime" if options.model.suffix == ".onnx" else "eager"
    peer = make_peer(peer_name, options.model)
    sets = _input_sets(options, engine, module)
    progress.stage("verify", len(sets))
    rows, violations = [], []
    for number, arrays in enumerate(sets):
        for name, verdict in compare_once(engine, module, peer, arrays, options.tolerance):
            rows.append((number, _sizes(arrays), name, verdict.error, verdict.allowed, "yes" if verdict.passed else "no"))
            if not verdict.passed:
                violations.append(f"set {number}: {name}: {verdict.reason}")
        progress.advance()
    table = Table("outputs", ("set", "sizes", "output", "error", "allowed", "passed"), tuple(rows))
    return Report(
        {"engine": str(options.engine), "model": str(options.model), "against": f"{peer_name} and float64"},
        (table,),
        violations=tuple(violations),
    )


def compare_once(
    engine: Engine, module: Module, peer: Run, arrays: Sequence[Array], tolerance: float | None = None
) -> list[tuple[str, Verdict]]:
    """The verdict on each output for one set of inputs."""
    answers = engine.run({port.name: array for port, array in zip(engine.inputs, arrays, strict=True)})
    expected, wide = peer(arrays), interpret(module, arrays, wide=True)
    verdicts = []
    for port, theirs, exact in zip(engine.outputs, expected, wide, strict=True):
        ours = np.asarray(answers[port.name])
        if tolerance is None:
            verdicts.append((port.name, judge(ours, theirs, exact, factor=FACTORS.get(port.type.dtype.name, 4.0), floor=FLOOR)))
        else:
            verdicts.append((port.name, _within(ours, exact, tolerance)))
    return verdicts


def _within(ours: Array, exact: Array, tolerance: float) -> Verdict:
    error = float(np.abs(ours.astype(np.float64) - exact).max(initial=0.0))
    allowed = tolerance * float(np.abs(exact).max(initial=0.0))
    passed = error <= allowed
    return Verdict(passed, "within bounds" if passed else f"error {error:.3g}, allowed {allowed:.3g}", error, allowed)


def _check_ports(engine: Engine, module: Module) -> None:
    ours, theirs = [p.name for p in engine.inputs], [v.name for v in module.main.inputs]
    if ours != theirs:
        raise InputError(
            f"the engine's inputs are {', '.join(ours)}, the model's {', '.join(theirs)}", hint="is this the engine of that model?"
        )


def _input_sets(options: VerifyOptions, engine: Engine, module: Module) -> list[list[Array]]:
    if options.inputs is not None:
        return list(read_inputs(options.inputs, [port.name for port in engine.inputs]))
    return [_drawn(engine, module, seed) for seed in range(SETS)]


def _drawn(engine: Engine, module: Module, seed: int) -> list[Array]:
    """Inputs of sizes that the engine takes: its symbols may be narrower than the model's, and have other names."""
    sizes = seeded_sizes(engine.contents.symbols, np.random.default_rng(seed))
    shapes = [tuple(dims.evaluate(size, sizes) for size in port.type.shape) for port in engine.inputs]
    # Nothing but their shapes is read.
    stand_ins = [np.broadcast_to(np.zeros((), value.dtype.numpy), shape) for value, shape in zip(module.main.inputs, shapes, strict=True)]
    return seeded_inputs(module, seed, bind_symbols(module.main.inputs, stand_ins))


def _sizes(arrays: Sequence[Array]) -> str:
    return " ".join("x".join(str(n) for n in array.shape) or "scalar" for array in arrays)
