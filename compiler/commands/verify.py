"""`ourcc verify`: an engine's answers against a peer's and a float64 reference, by the one judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ...ir import dims
from ...ir.errors import InputError, UsageError
from ...ir.graph import Graph, Module
from ...ir.graph.parse import parse_module
from ...ir.graph.reference import DIGITS, WHOLE, Verdict, bind_symbols, interpret, judge
from ...ir.spelling import function_of
from ...ir.types import from_numpy
from ...runtime.contents import Contract, Ports
from ...runtime.engine import Engine
from ..backends.reopen import module_of
from ..engines.kinds import check_engine, check_order, is_checkpoint
from ..engines.recorded import kept_precision, recorded_changes, simplified_for, workload_of
from ..models.importing import declared_shapes, import_model
from ..models.inputs import Array, read_inputs, seeded_inputs, seeded_sizes
from ..models.precision import TF32, Precision, precisions
from ..models.shapes import fixed_sizes, wanted_sizes
from ..options import BuildOptions, VerifyOptions, build_options
from ..pipeline import simplify
from ..progress import SILENT, Progress
from ..report.table import Report, Table
from ..requests import SPARSITIES
from .agreeing import fixed_notes, of_calls, of_engine, of_model, within
from .load import load
from .peers import Run, make_peer
from .pruning import PrunedModel

SETS = 8
WIDE = 0.25
"""The share of an output's largest element from which on a bound is told to be wide."""
FACTORS = {"f32": 4.0, "f64": 4.0, "f16": 2.0, "bf16": 2.0}
FLOOR = 4.0
"""Units in the last place of the output's largest magnitude that whole models are allowed beyond the peer's error."""
CODED_FLOOR = 1.0
"""The same where what codes beside ties make of an answer is known."""
MOST = 1 << 26
"""Numbers that a program computes for a set whose sizes are drawn, at most, where smaller sizes are there: each a few times, in float64."""
SPANS = (32, 16, 8, 4, 2, 1, 0)
LOSSY_FLOOR = 16.0
"""The same for a program that rounds what its model does not."""
NUDGE = 2.0**-18
"""What numbers are off by, as a share of themselves, that were computed in f32 in another order: beside a tie their codes are others."""
WRONG = 2.0
"""How much farther off than the model op by op a peer may be to be asked: ONNX Runtime's products of codes saturate on some CPUs."""
PEER_DIGITS = DIGITS["f32"]
"""Peers compute with at least so many digits, whatever a model says: ONNX Runtime widens f16 on a CPU."""


def verify(options: VerifyOptions, progress: Progress = SILENT) -> Report:
    """Compare the engine with its model on 8 seeded input sets, or on the user's; violations fail the command.

    A pruned engine is compared with the pruned model, unless a tolerance says how far it may be from the whole one.
    """
    check_order(options.engine, options.model, "ourcc verify {} {}")
    check_engine(options.engine)
    if options.shapes and options.inputs is not None:
        raise UsageError("got --shape and --inputs, expected one of them: each says the sizes to compare at")
    if is_checkpoint(options.model):
        hint = f"ourcc eval {options.engine} TEXT.txt tells how well it predicts a text, --against another engine how far they lie apart"
        raise UsageError(f"{str(options.model)!r} is a language model, which neither ONNX Runtime nor eager PyTorch runs", hint=hint)
    engine = load(options.engine, target=options.target, trusted_keys=options.trust.keys, progress=progress)
    name = function_of(engine.functions, options.function)
    built = build_options({"trust_pickle": options.trust_pickle})
    ports, program = engine.contents.functions[name], parse_module(engine.contents.graph)
    declared = declared_shapes(options.model, built)
    options = replace(options, shapes=of_engine(options.shapes, ports, declared))
    said = fixed_sizes(options.shapes, program, workload_of(engine.contents).sizes)
    built = replace(built, shapes=of_model(ports, said, declared))
    module = import_model(options.model, built, progress)
    _check_ports(ports, module)
    facts = of_calls(ports, module, program.facts)
    peer_name = "onnxruntime" if options.model.suffix == ".onnx" else "eager"
    lossy, others = lossy_formats(engine), [other for other in engine.functions if other != name]
    sparsity = next((word for word in lossy if word in SPARSITIES), None) if options.tolerance is None else None
    pruned = None if sparsity is None else PrunedModel(options.model, replace(built, sparsity=sparsity))
    # Where a model allows coarser activations the peer rounds them, and its errors would excuse those of others.
    by_ops = partial(interpret, module) if module.allowed else None
    compared = Compared(engine, name, module, by_ops or make_peer(peer_name, options.model) if pruned is None else pruned.answers, pruned)
    if compared.program is not None:
        compared.alike = _changed_alike(options.model, built, engine, progress)
    narrowed = replace(program, facts=facts)
    sets = _input_sets(options, engine, narrowed, name, module)
    progress.stage("verify", len(sets))
    rows, shapes, violations, wide = [], [], [], 0
    for number, arrays in enumerate(sets):
        for precision, (output, verdict, change, moved) in zip(compared.precisions, compared.once(arrays, options.tolerance), strict=True):
            rows.append((number, _sizes(arrays), output, precision.name, *_shown(verdict), change, moved))
            shapes.append([list(array.shape) for array in arrays])
            is_judged = verdict.passed and verdict.largest > 0 and options.tolerance is None
            wide += is_judged and verdict.allowed > WIDE * verdict.largest
            if not verdict.passed:
                violations.append(f"set {number}: {output}: {verdict.reason}")
        progress.advance()
    what = "the model" if sparsity is None else f"the model pruned {sparsity}"
    columns = ("set", "sizes", "output", "precision", "error", "allowed", "passed", "pruning", "moved")
    table = Table(
        "outputs",
        columns,
        tuple(rows),
        (
            *_notes(options, compared, sparsity),
            *fixed_notes(program.facts, facts, said),
            *_doubts(peer_name, compared.wrong, wide, len(rows)),
        ),
        numbers={"sizes": tuple(shapes)},
    )
    return Report(
        {
            "engine": str(options.engine),
            **({"function": name, "not_checked": f"{', '.join(others)} (--function NAME checks one)"} if others else {}),
            "model": str(options.model),
            "against": f"{peer_name} and float64" if by_ops is None and sparsity is None else f"{what}, op by op and in float64",
            "precision": ", ".join(dict.fromkeys(precision.name for precision in compared.precisions)),
        },
        (table,),
        violations=tuple(violations),
        failure=f"{len(violations)} of {len(rows)} answers are farther off than allowed",
        hint=_hint(options, lossy, sparsity),
    )


def _hint(options: VerifyOptions, lossy: Sequence[str], sparsity: str | None) -> str | None:
    """What to do about answers of an engine that was made to differ from its model; a pruned model is no reason to differ from it."""
    if not lossy or (sparsity is not None and len(lossy) == 1):
        return None
    made = f"the engine was made with {', '.join(lossy)}, which changes answers"
    if options.tolerance is not None:
        return f"{made}: without --tolerance it is judged by what it should compute"
    return f"{made}: say with --tolerance how far they may be off"


def _notes(options: VerifyOptions, compared: Compared, sparsity: str | None) -> Iterator[str]:
    """What was compared with what, and why answers may differ."""
    yield (
        "error, allowed"
        + (", pruning" if sparsity is not None else "")
        + ": absolute, in the numbers of the outputs; --tolerance is relative"
    )
    if compared.changes_answers:
        yield "moved: how far answers lie from the model's in float64, as a share of these (root mean square): what the formats cost"
    if options.tolerance is not None:
        yield "error: from the model in float64; allowed: the tolerance times its largest value"
        return
    yield "precision: the coarsest that an output is computed with; its digits decide what is allowed"
    if sparsity is not None:
        yield f"error: from the model with its weights pruned {sparsity} as the engine's are, since pruning changes what it computes"
        yield "pruning: how far the pruned model's answers lie from the whole model's; --tolerance X judges the engine by the whole model"
    if compared.program is not None:
        to = ", ".join(dict.fromkeys(precision.name for precision in compared.precisions))
        yield (
            f"the engine rounds to {to}, which its model does not: error is from its own program in float64, which is compared with the"
            " model quantized anew by the same options; --tolerance X shows how far that moves answers from the model's"
        )


def _doubts(peer: str, wrong: int, wide: int, count: int) -> Iterator[str]:
    """What a pass does not show, and what was not taken for right."""
    if wrong:
        yield (
            f"{peer} is more than {WRONG:g} times as far off as the model op by op in {wrong} of {count} answers, which decide nothing: its"
            " products of codes may saturate on this CPU"
        )
    if wide:
        share = f"in {wide} of {count} answers more was allowed than {WIDE:.0%} of their largest element"
        yield f"{share}: so much hangs on which of two near codes a number is rounded to, and a pass says little; measure accuracy on data"


def _changed_alike(model: Path, options: BuildOptions, engine: Engine, progress: Progress) -> Module | None:
    """The model as a build makes it smaller that is asked what the engine's was: what the engine's own program must be. None where an
    engine does not say what was asked, or has several functions.
    """
    asked = recorded_changes(engine.contents)
    if asked is None or len(engine.functions) > 1:
        return None
    same = {"trust_pickle": options.trust_pickle, "targets": simplified_for(engine.contents), **asked}
    options = replace(build_options(same), shapes=options.shapes)
    module = import_model(model, options, progress)
    simplify(module, options)
    return module


def factors_of(engine: Engine) -> Precision | None:
    """What the part that runs rounds factors of float32 to in an instruction, if to anything: its program does not say it."""
    rounds = engine.part is not None and not engine.contents.parts[engine.part].is_level
    return TF32 if rounds and kept_precision(engine.contents) is not None else None


def lossy_formats(engine: Engine) -> list[str]:
    """What an engine was asked to do to its weights, and did, that its model does not do: quantize or prune them."""
    rows = Contract.from_json(engine.contents.report.get("contract", []))
    asked = [(word, row) for row in rows for word in row.requested.split(", ")[1:]]
    return list(dict.fromkeys(word for word, row in asked if word in row.realised.split(", ")))


class Compared:
    """A function of an engine, its model and a peer, called side by side; where the model keeps state, all go on from call to call."""

    def __init__(self, engine: Engine, function: str, module: Module, peer: Run, pruned: PrunedModel | None = None) -> None:
        self.function = engine.session().functions[function]
        self.name = function
        self.whole = module
        self.pruned = pruned
        self.module = module if pruned is None else pruned.module
        """What the engine must compute."""
        self.peer = peer
        program = parse_module(engine.contents.graph)
        theirs, ours = precisions(self.module.main), precisions(program.functions[function])
        is_coarser = any(own.digits < min(said.digits, PEER_DIGITS) for own, said in zip(ours, theirs, strict=True))
        # Codes of weights that the model has too round nothing of the engine's.
        multiplied = precisions(program.functions[function], factors_of(engine), weights=is_coarser)
        theirs = precisions(self.module.main, weights=is_coarser)
        self.precisions = [min(pair) for pair in zip(theirs, multiplied, strict=True)]
        """For each output the coarsest numbers that it rests on: in the model, in the engine's own program or in its machine's products."""
        self.program = module_of(engine.contents) if is_coarser else None
        """The engine's own program, where it rounds what its model does not."""
        self.wrong = 0
        """Answers of the peer that excuse nobody's."""
        self.alike: Module | None = None
        """The model with what was asked of the engine's done to it, where that is known."""
        self.states: dict[str, dict[str, Array]] = {"stepwise": {}, "wide": {}, "own": {}, "whole": {}, "alike": {}}

    @property
    def changes_answers(self) -> bool:
        """Whether the engine was made to answer otherwise than its model."""
        return self.program is not None or self.pruned is not None

    def once(self, arrays: Sequence[Array], tolerance: float | None = None) -> list[tuple[str, Verdict, float | None, float | None]]:
        """The verdict on each output for one set of inputs, how far pruning took it from the whole model's, and how far it lies from
        that as a share of it, where an engine was made to.

        An output that is computed with fewer digits than peers use is also held against the model computed step by step in
        its own precision: the worse of the two errors is what a correct engine may have. An engine that rounds what its model
        does not is held against its own program.
        """
        module, states = self.module, self.states
        answers = self.function.run({port.name: array for port, array in zip(self.function.inputs, arrays, strict=True)})
        expected, wide = self.peer(arrays), interpret(module, arrays, wide=True, states=states["wide"])
        is_narrow, is_guided = any(precision.digits < PEER_DIGITS for precision in self.precisions), tolerance is None
        # One of the two guides: the engine's own program, or the model in its own precision.
        owns = [] if self.program is None or not is_guided else _guides(self.program, arrays, states["own"], self.name)
        steps = _guides(module, arrays, states["stepwise"]) if is_narrow and is_guided and self.program is None else []
        alike = None if self.alike is None else interpret(self.alike, arrays, states=self.states["alike"])
        changes, whole = None, wide
        if self.pruned is not None:
            whole = interpret(self.whole, arrays, wide=True, states=states["whole"])
            changes = self.pruned.changes(arrays, expected, whole)
        verdicts = []
        for number, (port, precision) in enumerate(zip(self.function.outputs, self.precisions, strict=True)):
            ours, theirs, exact = np.asarray(answers[port.name]), expected[number], wide[number]
            if tolerance is not None:
                verdict = _within(ours, exact, tolerance)
            elif owns:
                verdict = _judge_lossy(ours, _farthest([each[number] for each in owns], exact), exact, precision)
                if alike is not None and verdict.passed:
                    verdict = _judge_program(owns[0][number], alike[number], verdict)
            else:
                others = steps if precision.digits < PEER_DIGITS else []
                own = [each[number] for each in others]
                is_wrong = bool(own) and _is_wrong(theirs, own, exact, precision)
                self.wrong += is_wrong
                guide = _farthest(own if is_wrong else [theirs, *own], exact)
                floor = CODED_FLOOR if len(steps) > 1 else FLOOR
                verdict = judge(ours, guide, exact, factor=FACTORS.get(precision.name, 2.0), floor=floor, digits=precision.digits)
            change, simplified = (None, verdict) if changes is None else changes[number]
            moved = _moved(ours, whole[number]) if self.changes_answers else None
            judged = verdict if simplified.passed else simplified
            verdicts.append((port.name, judged, None if change is None else float(f"{change:.2g}"), moved))
        return verdicts


def _moved(ours: Array, exact: Array) -> float | None:
    """The root mean square of what answers are off by over that of the model's answers; None where these are no finite floats or 0."""
    if not exact.size or not np.issubdtype(exact.dtype, np.floating):
        return None
    wide = exact.astype(np.float64)
    size, off = (np.sqrt(np.mean(np.square(each))) for each in (wide, ours.astype(np.float64) - wide))
    return float(f"{off / size:.2g}") if size and np.isfinite(size) else None


def _judge_lossy(ours: Array, own: Array, exact: Array, precision: Precision) -> Verdict:
    """The stricter of two: not much farther off than the engine's own program, which itself may not be off by more than its digits."""
    said = min(PEER_DIGITS, Precision.of(from_numpy(ours.dtype)).digits)
    near = judge(ours, own, exact, factor=FACTORS.get(precision.name, 2.0), floor=FLOOR, digits=said)
    # With few digits the bound is the largest magnitude: farther off is an answer of zeros.
    right = judge(ours, own, exact, factor=0, floor=LOSSY_FLOOR, digits=max(precision.digits, int(LOSSY_FLOOR).bit_length()))
    return min(near, right, key=lambda verdict: (verdict.passed, verdict.allowed))


def _judge_program(own: Array, alike: Array, verdict: Verdict) -> Verdict:
    """The verdict on an engine whose own program answers as the model does that is made smaller alike; else that it does not."""
    wide = alike.astype(np.float64) if np.issubdtype(alike.dtype, np.floating) else alike
    found = judge(own, alike, wide, digits=PEER_DIGITS, floor=FLOOR)
    if found.passed:
        return verdict
    what = f"the engine was made of another model: made smaller alike, this one answers otherwise ({found.reason})"
    return replace(verdict, passed=False, reason=what, error=found.error, allowed=found.allowed)


def _guides(module: Module, arrays: Sequence[Array], states: MutableMapping[str, Array], function: str | None = None) -> list[list[Array]]:
    """A program's answers, and behind them those with codes beside ties, all from the states before, which go on."""
    nudged = beside_ties(module, arrays, states, function)
    return [interpret(module, arrays, function=function, states=states), *nudged]


def beside_ties(module: Module, arrays: Sequence[Array], states: Mapping[str, Array], function: str | None = None) -> list[list[Array]]:
    """A program's answers where what lies between two codes, as near as f32 tells, became the other one, up or down: an engine that adds
    up in another order may give these as well. None of a program that makes no codes.
    """
    graph = module.main if function is None else module.functions[function]
    if not any(op.name in WHOLE for op in graph):
        return []
    return [interpret(module, arrays, function=function, states=dict(states), nudged=by) for by in (NUDGE, -NUDGE)]


def _farthest(answers: Sequence[Array], exact: Array) -> Array:
    """Of several answers the one whose worst error is largest: the room that rounding takes."""
    first, *others = answers
    alike = [first, *(each for each in others if each.shape == first.shape and each.dtype == first.dtype)]
    return max(alike, key=lambda answer: _error(answer, exact))


def _is_wrong(theirs: Array, own: Sequence[Array], exact: Array, precision: Precision) -> bool:
    """Whether a peer is much farther off than a model's own precision takes it, by a number of so few digits at least."""
    if not np.issubdtype(np.asarray(exact).dtype, np.floating):
        return False
    numbers = np.abs(np.asarray(exact, dtype=np.float64))
    least = float(numbers[np.isfinite(numbers)].max(initial=0.0)) * 2.0**-precision.digits
    return _error(theirs, exact) > WRONG * max(least, _error(_farthest(own, exact), exact))


def _error(answer: Array, exact: Array) -> float:
    """The largest error of floats; 0 of whole numbers, which are compared as they are."""
    if not np.issubdtype(np.asarray(exact).dtype, np.floating) or answer.shape != exact.shape:
        return 0.0
    with np.errstate(invalid="ignore"):
        distance = np.abs(np.asarray(answer, dtype=np.float64) - exact)
    return float(distance[np.isfinite(distance)].max(initial=0.0))


# --- inputs -----------------------------------------------------------------------------------------------------------


def _within(ours: Array, exact: Array, tolerance: float) -> Verdict:
    error = float(np.abs(ours.astype(np.float64) - exact).max(initial=0.0))
    allowed = tolerance * float(np.abs(exact).max(initial=0.0))
    passed = error <= allowed
    return Verdict(passed, "within bounds" if passed else f"error {error:.3g}, allowed {allowed:.3g}", error, allowed)


def _check_ports(engine: Ports, module: Module) -> None:
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


def _input_sets(options: VerifyOptions, engine: Engine, program: Module, function: str, module: Module) -> list[list[Array]]:
    if options.inputs is not None:
        return list(read_inputs(options.inputs, [port.name for port in engine.functions[function].inputs]))
    return [_drawn(options, engine, program, function, module, seed) for seed in range(SETS)]


def _drawn(options: VerifyOptions, engine: Engine, program: Module, function: str, module: Module, seed: int) -> list[Array]:
    """Inputs of sizes that the engine takes: its symbols may be narrower than the model's, and have other names."""
    sizes: dict[str, int] = {}
    for sizes in _sizes_to_try(engine, program, seed):
        sizes = {**sizes, **wanted_sizes(options.shapes, program, sizes, "the engine takes that size, the model does not")}
        if _computed(program.functions[function], sizes) <= MOST:
            break
    shapes = [tuple(dims.evaluate(size, sizes) for size in port.type.shape) for port in engine.functions[function].inputs]
    # Nothing but their shapes is read.
    stand_ins = [
        np.broadcast_to(np.zeros((), value.dtype.numpy), shape) for value, shape in zip(module.main.arguments, shapes, strict=True)
    ]
    # A size that is the value of an integer has no shape that tells it, and the engine's name.
    return seeded_inputs(module, seed, {**sizes, **bind_symbols(module.main.arguments, stand_ins)})


def _sizes_to_try(engine: Engine, program: Module, seed: int) -> Iterator[dict[str, int]]:
    """The least sizes for the first set, as of one text or one picture, those that the engine was built for for the second, drawn ones
    for the others: smaller ones until a set is small enough.
    """
    if seed == 1:
        yield within(program.facts, workload_of(engine.contents).sizes)
    for span in SPANS if seed else (0,):
        yield seeded_sizes(program.facts, np.random.default_rng(seed), span)


def _computed(graph: Graph, sizes: Mapping[str, int]) -> int:
    """How many numbers ops compute at these sizes, but for those whose sizes only the data decide."""
    counts = (result.type.elements for op in graph for result in op.results)
    return sum(dims.evaluate(count, sizes) for count in counts if dims.symbols(count) <= sizes.keys())


def _shown(verdict: Verdict) -> tuple[float, float, bool]:
    """Error and bound as people compare them, two digits each, and the outcome."""
    return float(f"{verdict.error:.2g}"), float(f"{verdict.allowed:.2g}"), verdict.passed


def _sizes(arrays: Sequence[Array]) -> str:
    return " ".join("x".join(str(n) for n in array.shape) or "scalar" for array in arrays)
