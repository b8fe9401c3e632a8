"""`ourcc verify`: an engine's answers against a peer's and a float64 reference, by the one judge."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ir import dims
from ..ir.errors import InputError
from ..ir.graph import Module, Value
from ..ir.parse import parse_module
from ..ir.reference import DIGITS, Verdict, bind_symbols, interpret, judge
from ..ir.types import DType
from ..runtime.contents import Contract
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
PEER_DIGITS = DIGITS["f32"]
"""Peers compute with at least so many digits, whatever a model says: ONNX Runtime widens f16 on a CPU."""


def verify(options: VerifyOptions, progress: Progress = SILENT) -> Report:
    """Compare the engine with its model on 8 seeded input sets, or on the user's; violations fail the command."""
    engine = load(options.engine, target=options.target, trusted_keys=options.trust.keys, progress=progress)
    module = import_model(options.model, build_options({"trust_pickle": options.trust_pickle}), progress)
    _check_ports(engine, module)
    precisions = precisions_of(engine, module)
    peer_name = "onnxruntime" if options.model.suffix == ".onnx" else "eager"
    peer = make_peer(peer_name, options.model)
    sets = _input_sets(options, engine, module)
    compared = Compared(engine, module, peer)
    progress.stage("verify", len(sets))
    rows, violations = [], []
    for number, arrays in enumerate(sets):
        for precision, (name, verdict) in zip(precisions, compared.once(arrays, options.tolerance), strict=True):
            passed = "yes" if verdict.passed else "no"
            rows.append((number, _sizes(arrays), name, precision.name, verdict.error, verdict.allowed, passed))
            if not verdict.passed:
                violations.append(f"set {number}: {name}: {verdict.reason}")
        progress.advance()
    columns = ("set", "sizes", "output", "precision", "error", "allowed", "passed")
    note = "precision: the coarsest that an output is computed with; its digits decide what is allowed"
    table = Table("outputs", columns, tuple(rows), () if options.tolerance is not None else (note,))
    lossy = lossy_formats(engine)
    return Report(
        {
            "engine": str(options.engine),
            "model": str(options.model),
            "against": f"{peer_name} and float64",
            "precision": ", ".join(dict.fromkeys(precision.name for precision in precisions)),
        },
        (table,),
        violations=tuple(violations),
        hint=None
        if not lossy or options.tolerance is not None
        else f"the engine was made with {', '.join(lossy)}, which changes answers: say with --tolerance how far they may be off",
    )


def lossy_formats(engine: Engine) -> list[str]:
    """What an engine was asked to do to its weights, and did, that its model does not do: quantize or prune them."""
    rows = Contract.from_json(engine.contents.report.get("contract", []))
    asked = [(word, row) for row in rows for word in row.requested.split(", ")[1:]]
    return list(dict.fromkeys(word for word, row in asked if word in row.realised.split(", ")))


class Compared:
    """An engine, its model and a peer, called side by side; where the model keeps state, all three go on from call to call."""

    def __init__(self, engine: Engine, module: Module, peer: Run) -> None:
        self.engine = engine
        self.module = module
        self.peer = peer
        self.entry = next(iter(engine.session().functions.values()))
        self.stepwise: dict[str, Array] = {}
        self.wide: dict[str, Array] = {}

    def once(self, arrays: Sequence[Array], tolerance: float | None = None) -> list[tuple[str, Verdict]]:
        """The verdict on each output for one set of inputs.

        An output that is computed with fewer digits than peers use is also held against the model computed step by step in
        its own precision: the worse of the two errors is what a correct engine may have.
        """
        engine, module = self.engine, self.module
        answers = self.entry.run({port.name: array for port, array in zip(engine.inputs, arrays, strict=True)})
        expected, wide = self.peer(arrays), interpret(module, arrays, wide=True, states=self.wide)
        precisions = precisions_of(engine, module)
        narrow = any(digits(precision) < PEER_DIGITS for precision in precisions)
        stepwise = interpret(module, arrays, states=self.stepwise) if narrow else expected
        verdicts = []
        for port, precision, theirs, steps, exact in zip(engine.outputs, precisions, expected, stepwise, wide, strict=True):
            ours = np.asarray(answers[port.name])
            if tolerance is not None:
                verdicts.append((port.name, _within(ours, exact, tolerance)))
                continue
            guide = _farther(theirs, steps, exact) if digits(precision) < PEER_DIGITS else theirs
            factor = FACTORS.get(precision.name, 2.0)
            verdicts.append((port.name, judge(ours, guide, exact, factor=factor, floor=FLOOR, digits=digits(precision))))
        return verdicts


def _farther(left: Array, right: Array, exact: Array) -> Array:
    """Of two answers the one whose worst error is larger: the room that rounding takes."""
    if left.shape != right.shape or left.dtype != right.dtype or not np.issubdtype(np.asarray(exact).dtype, np.floating):
        return left
    errors = []
    for answer in (left, right):
        with np.errstate(invalid="ignore"):
            distance = np.abs(np.asarray(answer, dtype=np.float64) - exact)
        errors.append(float(distance[np.isfinite(distance)].max(initial=0.0)))
    return left if errors[0] >= errors[1] else right


# --- the precision inside ---------------------------------------------------------------------------------------------


def digits(dtype: DType) -> int:
    """Significant binary digits of a dtype that real numbers are held in; an integer's are its bits."""
    return DIGITS.get(dtype.name, dtype.bits) if not dtype.is_float else DIGITS.get(dtype.name, 3)


def precisions_of(engine: Engine, module: Module) -> list[DType]:
    """For each output the coarsest dtype that its floats pass through, in the model or in the engine's own program."""
    programs = [_precisions(module), _precisions(parse_module(engine.contents.graph))]
    return [min(pair, key=digits) for pair in zip(*programs, strict=True)]


def _precisions(module: Module) -> list[DType]:
    """For each output the dtype with fewest digits among the floats, and the integers quantized to, that it rests on.

    A constant or an input of few digits rounds nothing; an op whose result has few does. Weights of narrow integers
    that are scaled to floats were rounded when they were quantized.
    """
    coarsest: dict[Value, DType | None] = {}
    for op in module.main:
        seen = [coarsest.get(operand) for operand in op.operands if operand is not None]
        narrow = [dtype for dtype in seen if dtype is not None]
        if op.name == "dequantize" and op.operands[0] is not None:
            narrow.append(op.operands[0].dtype)
        for result in op.results:
            own = [result.dtype] if result.dtype.is_float else []
            coarsest[result] = min([*narrow, *own], key=digits, default=None)
    return [coarsest.get(output) or output.dtype for output in module.main.results]


# --- inputs -----------------------------------------------------------------------------------------------------------


def _within(ours: Array, exact: Array, tolerance: float) -> Verdict:
    error = float(np.abs(ours.astype(np.float64) - exact).max(initial=0.0))
    allowed = tolerance * float(np.abs(exact).max(initial=0.0))
    passed = error <= allowed
    return Verdict(passed, "within bounds" if passed else f"error {error:.3g}, allowed {allowed:.3g}", error, allowed)


def _check_ports(engine: Engine, module: Module) -> None:
    ours, theirs = [p.name for p in engine.inputs], [v.name for v in module.main.arguments]
    if ours != theirs:
        raise InputError(
            f"the engine's inputs are {', '.join(ours)}, the model's {', '.join(theirs)}", hint="is this the engine of that model?"
        )
    for port, value in zip(engine.inputs, module.main.arguments, strict=True):
        if (port.type.dtype, port.type.rank) != (value.dtype, value.type.rank):
            raise InputError(
                f"the engine's input {port.name} is {port.type}, the model's {value.type}", hint="is this the engine of that model?"
            )
    ours, theirs = [p.name for p in engine.outputs], module.main.result_names
    if len(ours) != len(theirs):
        raise InputError(
            f"the engine's outputs are {', '.join(ours)}, the model's {', '.join(theirs)}", hint="is this the engine of that model?"
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
    stand_ins = [
        np.broadcast_to(np.zeros((), value.dtype.numpy), shape) for value, shape in zip(module.main.arguments, shapes, strict=True)
    ]
    return seeded_inputs(module, seed, bind_symbols(module.main.arguments, stand_ins))


def _sizes(arrays: Sequence[Array]) -> str:
    return " ".join("x".join(str(n) for n in array.shape) or "scalar" for array in arrays)
