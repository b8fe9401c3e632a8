"""The contract: for every op of the user's model what was requested, what was realised and why; and what was promised."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..ir.dims import Facts
from ..ir.errors import ContractError, Source, UnsupportedError
from ..ir.graph import Module, Op
from ..ir.ops.structure import region_of
from ..ir.ops.table import OPS
from ..ir.plan import Host, Plan, is_native
from ..ir.region import Reduce
from ..ir.spelling import nearest
from ..ir.target import CPU_LEVELS, GPU_TARGETS
from ..passes.checks.place_index_checks import CheckOf
from ..passes.quantize import CODES, INTEGER, QUANTIZATIONS, SCORES, STORABLE, STORED, activation_name
from ..passes.quantize.words import (
    FLOATS,
    HALVES,
    MOVED,
    TF32,
    computed_in,
    implied,
    is_narrowed,
    is_of_codes,
    is_served_by,
    multiplied_as,
    only_moves,
    precision_name,
    promised,
    read_as,
    scored_as,
    stored_as,
    why_not_integer,
    why_not_narrowed,
    why_not_quantized,
    why_not_scored,
    why_not_sparse,
)
from ..passes.regions.facts import has_kernel
from ..passes.weights.weights import Weight, weight_of
from ..runtime.contents import Contract, ContractRow
from .options import BuildOptions
from .requests import Requirement

KERNEL, HOST, FALLBACK = "kernel", "host step", "aten call"
"""What an op runs as."""
PROMISED_OF = {"no-fallback": FALLBACK, "no-host": HOST}
"""Promises that no op of the model runs as this."""
NO_KERNEL = "computed by the host, in Python: no kernel does it"
OWN = f"{INTEGER} is the model's own precision"
"""What is said of products whose factors come as codes of 8 bits."""
MERGED = "merged into other ops, or computed while building"
_WEIGHTED = ("linear", "conv", "conv_transpose")
"""Ops whose products have a weight."""
EXPERTS = "weights of experts stay as they are: each call would decode those of all, whichever its rows go to"
REASONS = 3
"""Reasons that are told of what was not done, those of most weights first."""
_LEADING = (*_WEIGHTED, "matmul", "grouped_matmul", "attention")
"""Kinds that name a source op made of several ops, the first one that is there; otherwise the last op does."""


@dataclass(frozen=True)
class Remedies:
    """What to do about a broken promise of ops, and about one of targets (whose names are `{}`), on one road to an engine."""

    ops: str
    targets: str


BUILT = Remedies(
    "build without the requirement, then ourcc inspect ENGINE --precision shows the whole contract",
    "build for {} as well, with --target (targets=[...] in Python)",
)
TRACED = Remedies(
    "ourcc.explain(model, *inputs) shows what is compiled and what falls back, and why; or leave the requirement out",
    "name {} in options={{'targets': [...]}} too; without it torch.compile builds for the device that the inputs are on",
)
"""The same under torch.compile, where no engine file is written."""


@dataclass(frozen=True)
class SourceOp:
    """An op of the user's model: its kind, and the precision that it came with, which of products of codes is theirs."""

    kind: str
    precision: str


def source_ops(module: Module) -> dict[Source, SourceOp]:
    """The source ops of a module in order; asked before any pass runs."""
    found: dict[Source, SourceOp] = {}
    for source, ops in _by_source(module).items():
        leading = _leading(ops)
        found[source] = SourceOp(kind_of(leading), INTEGER if is_of_codes(leading) else computed_in(leading))
    return found


def refuse_unsupported(options: BuildOptions, asked: Mapping[Source, SourceOp]) -> None:
    """UnsupportedError for a request that no pass serves yet: it must not be passed over in silence."""
    for source, op in asked.items():
        precision = _asked(op, options)
        if not is_narrowed(op.precision, precision):
            hint = (
                f"leave it at {op.precision}" if precision == TF32 else f"convert the model to {precision}, or leave it at {op.precision}"
            )
            raise UnsupportedError(f"{op.kind} at {op.precision} is not converted to {precision} yet", source=source, hint=hint)


def _asked(op: SourceOp, options: BuildOptions) -> str:
    """The precision that was asked of an op: products take the option's, all else keeps the model's."""
    return options.precision if options.precision is not None and op.kind in _LEADING and op.precision in FLOATS else op.precision


def _is_python(step: Host, target: str) -> bool:
    """Whether Python computes a routine: one that is written in C too is native code on a CPU."""
    return target in GPU_TARGETS or not is_native(step)


def kind_of(op: Op) -> str:
    """What users call an op: linear (a matmul with a weight), the ATen operator of a call, else the op's own name."""
    if op.name == "aten_call":
        return str(op.attrs["target"])
    return "linear" if op.name == "matmul" and weight_of(op) is not None else op.name


def contract_of(
    asked: Mapping[Source, SourceOp], module: Module, options: BuildOptions, plans: Iterable[Plan] = (), in_tf32: Collection[str] = ()
) -> Contract:
    """One row for every source op, from the ops that are left of it after all passes, and what the plans run them as.

    `in_tf32` are those whose factors the kernels of some GPU round to tf32.
    """
    left = _by_source(module)
    hosts = {
        name for plan in plans for step in plan.steps if isinstance(step, Host) and _is_python(step, plan.target) for name in step.sources
    }
    rows = []
    for source, original in asked.items():
        precision = _asked(original, options)
        if source not in left:
            rows.append(ContractRow(source.name, original.kind, precision, precision, MERGED))
            continue
        op = _whole(left[source], original.kind)
        became = kind_of(op)
        is_part = became in _LEADING and original.kind not in _LEADING
        if is_part:
            precision = _asked(replace(original, kind=became), options)  # of what it became, as a norm does of the product before it
        if computed_in(op) == options.precision and only_moves(op, module.facts):
            precision = options.precision  # it moves what a product reads or gives, in the precision asked of that
        row = _row(source, op, precision, options, module.facts)
        if _asks_tf32(row):
            row = _with_tf32(row, _is_in_tf32(source, op, in_tf32), {target.has_tf32 for target in options.targets})
        if is_part:
            row = replace(row, why="; ".join(filter(None, (row.why, f"{original.kind} became a part of it"))))
        rows.append(_on_host(row) if str(source) in hosts else row)
    return Contract(tuple(rows))


def unmet(contract: Contract, options: BuildOptions, *, is_whole: bool = True) -> Iterator[str]:
    """What to tell of requests that not all ops met whole: for how many weights which part was done, and why most lack the rest. Of a
    graph that is not the whole model, nothing where it has no op that is asked.
    """
    for name, words, parts in _formats(options):
        rows = [row for row in contract if set(words) & set(row.requested.split(", "))]
        found = [implied(row.realised.split(", "), has_weight=True) for row in rows]
        if not rows and is_whole:
            yield f"{name} changes nothing: no product of the model has a constant weight"
        elif not all(set(words) <= realised for realised in found):
            why = Counter(reason for row in rows for word, reason in _reasons(row) if word in words).most_common()
            said = [reason if len(why) == 1 else f"{reason} ({count})" for reason, count in why[:REASONS]]
            said += [f"and {len(why) - REASONS} other reason{'s' * (len(why) - REASONS != 1)}"] if len(why) > REASONS else []
            yield f"{name} {_done(parts, found)}" + (f": {'; '.join(said)}" if said else "")
    if options.precision is not None:
        yield from _not_narrowed(contract, options.precision, is_whole=is_whole)


def _formats(options: BuildOptions) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """The formats that are asked for: each with what it promises, and the parts that it is done in."""
    if options.quantize is not None:
        asked = QUANTIZATIONS[options.quantize]
        yield asked.name, asked.promises, asked.parts
    if options.sparsity is not None:
        yield options.sparsity, (options.sparsity,), (options.sparsity,)


def _not_narrowed(contract: Contract, precision: str, *, is_whole: bool) -> Iterator[str]:
    rows = [row for row in contract if precision in row.requested.split(", ")]
    if not rows and is_whole:
        yield f"{precision} changes nothing: the model has no product of floats"
    elif rows and not any(is_served_by(precision, row.realised.split(", ")[0]) for row in rows):
        why = Counter(reason for row in rows for word, reason in _reasons(row) if word == precision).most_common(1)
        yield f"{precision} changes {_no(len(rows), 'product')}" + (f": {why[0][0]}" if why else "")


def _no(count: int, what: str) -> str:
    return f"none of {count} {what}s" if count > 1 else f"not the one {what}"


def unchecked_in_vain(module: Module, options: BuildOptions) -> Iterator[str]:
    """What to tell of indices that are not to be checked, where a model as it is imported has none."""
    if options.unchecked_indices and not any(op.name in CheckOf.ops for graph in module.functions.values() for op in graph):
        yield "unchecked indices change nothing: the model has no index to check"


def widened_again(contract: Contract, names: Sequence[str], options: BuildOptions) -> Iterator[str]:
    """What to tell of a precision that all of these parts, which are levels of a CPU, multiply in float32."""
    met = [row for row in contract if options.precision in row.requested.split(", ") and row.realised.split(", ")[0] == options.precision]
    dtype = HALVES.get(options.precision or "") if met else None
    levels = [level for level in CPU_LEVELS if level.name in names]
    if dtype is None or not levels or len(levels) < len(names):
        return
    if all(row.op in _WEIGHTED and row.stored != options.precision for row in met):
        yield (
            f"{options.precision} saves memory here and may take more time than float32: weights that are stored in codes or 2:4 sparse"
            " become float32 on a CPU, and what they multiply is widened to it"
        )
    elif not any(level.dot(dtype, dtype, "f32") or level.matrix(dtype, dtype, "f32") for level in levels):
        lacking = f"{levels[0].name} has" if len(levels) == 1 else f"{', '.join(level.name for level in levels)} have"
        yield (
            f"{options.precision} saves memory here and may take more time than float32: {lacking} no instruction that multiplies it,"
            " so that numbers are widened each time they are"
        )


LITTLE = 0.05
"""The share of a prediction that nobody will notice."""


def saves_memory_alone(options: BuildOptions, reading: Mapping[str, float], seconds: Mapping[str, float]) -> Iterator[str]:
    """What to tell of a format of weights that floats are made of again, where all of these parts are levels of a CPU and none is faster.

    `reading` is how long the bytes that it saves would take to read, by part, `seconds` what is predicted: more cannot be gained.
    """
    name = options.quantize
    if name is None or QUANTIZATIONS[name].activations is not None or seconds.keys() != reading.keys():
        return
    gains = [reading[part] / seconds[part] for part in seconds if seconds[part] > 0]
    if gains and 0 < max(gains) < LITTLE:
        yield (
            f"{name} saves memory here and may take more time than float32: weights become floats where they are multiplied, and to"
            f" read them takes less than {LITTLE:.0%} of the predicted time"
        )


def slower_decoded(contract: Contract, options: BuildOptions, parts: Iterable[tuple[str, float, float, Sequence[str]]]) -> Iterator[str]:
    """What to tell of formats of weights that make products slower on a GPU, as the prices of their schedules have it; nothing of
    those that no product has, as where a model's own weights are coded.

    A part is its name, the predicted seconds of its products of coded weights, and those of the same products of weights that lie in
    the dtypes that follow.
    """
    done = set().union(*(implied(row.realised.split(", "), has_weight=True) for row in contract))
    told = {word for row in contract for word in row.requested.split(", ")}
    asked = " with ".join(name for name, _, words in _formats(options) if done & {*words} or not told & {*words})
    for name, coded, plain, dtypes in parts:
        if asked and coded > (1 + LITTLE) * plain:
            yield (
                f"{asked} is predicted to take {coded / plain:.1f} times as long on {name} as products of the same weights in"
                f" {' and '.join(dtypes)}: memory is saved, and time is not"
            )


def untaken(module: Module, options: BuildOptions) -> Iterator[str]:
    """What to tell of quantizations that the model itself permits, as it was imported, where nothing is asked for."""
    for name, count in module.allowed.items() if options.quantize is None else ():
        said = "one product of the model" if count == 1 else f"{count} products of the model"
        yield f"{said} may round activations to int8 (accuracy_level) and do not: --quantize {name} rounds them, which is faster"


def stored_for_all(options: BuildOptions) -> Iterator[str]:
    """What to tell of activations that are stored as all targets take them, where some would take them as weights are stored."""
    asked = QUANTIZATIONS.get(options.quantize or "")
    if asked is None or asked.activations not in STORABLE or stored_by_all(options) == CODES:
        return
    others = [target.name for target in options.targets if target.stored == CODES]
    if others:
        yield (
            f"activations in {asked.activations} are stored as all targets take them: {', '.join(others)}"
            f" would be faster in an engine without the others, by instructions that scale blocks"
        )


def stored_by_all(options: BuildOptions) -> str:
    """What of activations is stored as of weights: the least of what the targets take."""
    return min((target.stored for target in options.targets), key=STORED.index)


def _done(parts: Sequence[str], found: Sequence[set[str]]) -> str:
    """How many weights each part of a request was done to."""
    counts = {part: sum(part in realised for realised in found) for part in parts}
    if not any(counts.values()):
        return f"changes {_no(len(found), 'weight')}"
    return "is done in part: " + ", ".join(f"{part} for {count or 'none'} of {len(found)} weights" for part, count in counts.items())


def refuse_unknown(asked: Mapping[Source, SourceOp], requirements: Sequence[Requirement], remedies: Remedies = BUILT) -> None:
    """ContractError for a promise of ops that no pass can make of the model's: their name is no op's, before any pass runs."""
    rows = Contract(tuple(ContractRow(source.name, op.kind, op.precision, op.precision) for source, op in asked.items()))
    unknown = [each for each in requirements if each.value is not None and each.subject not in {"target", *_LEADING, *OPS}]
    enforce(rows, [each for each in unknown if not _rows_of(rows, each)], (), remedies)


def enforce_early(contract: Contract, requirements: Sequence[Requirement], remedies: Remedies = BUILT) -> None:
    """ContractError if a promise does not hold whatever kernels are made: those of targets, hosts and tf32 are judged by kernels."""
    settled = [each for each in requirements if each.subject not in ("target", "no-host") and each.value != TF32]
    enforce(contract, settled, (), remedies)


def enforce(contract: Contract, requirements: Sequence[Requirement], targets: Sequence[str], remedies: Remedies = BUILT) -> None:
    """ContractError if a promise does not hold, with the rows that break it."""
    broken = {requirement: lines for requirement in requirements if (lines := violations(contract, requirement, targets))}
    if broken:
        count = len(broken)
        lines = [f"{requirement}: {line}" for requirement, found in broken.items() for line in found]
        missing = [str(requirement.value) for requirement in broken if requirement.subject == "target"]
        hints = [remedies.targets.format(" and ".join(missing))] if missing else []
        hints += [remedies.ops] if len(missing) < count else []
        raise ContractError(
            f"{count} {'promise does' if count == 1 else 'promises do'} not hold: {', '.join(map(str, broken))}",
            note="\n".join(lines),
            hint="; ".join(hints),
        )


def violations(contract: Contract, requirement: Requirement, targets: Sequence[str]) -> list[str]:
    """What breaks a promise, one line each."""
    if requirement.subject in PROMISED_OF:
        return [_line(row) for row in contract if row.runs == PROMISED_OF[requirement.subject]]
    if requirement.subject == "target":
        return [] if requirement.value in targets else [f"got the targets {', '.join(targets)}"]
    rows = _rows_of(contract, requirement)
    if not rows:
        kinds = list(dict.fromkeys(row.op for row in contract))
        close = nearest(requirement.subject, [*kinds, *(row.source for row in contract)])
        said = f"no op of the model is called {requirement.subject}, its ops are {', '.join(kinds) or 'none'}"
        return [said if close is None else f"{said}; {close}"]
    return [_line(row) for row in rows if not promised(requirement.value) <= implied(row.realised.split(", "), row.op in _WEIGHTED)]


def _rows_of(contract: Contract, requirement: Requirement) -> list[ContractRow]:
    """The rows of the ops, or of the one op of the model, that a promise names."""
    return [row for row in contract if requirement.subject in (row.op, row.source)]


def is_notable(row: ContractRow) -> bool:
    """Whether a row says more than that an op keeps the model's own precision."""
    return ", " in row.requested or row.realised != row.requested


def moves(row: ContractRow) -> bool:
    """Whether a row is of an op that moves what products read, and says no more than that it lies as they read it."""
    return MOVED in row.why


FP32 = "fp32"
IN_PARTS = "matrix instructions of GPUs multiply numbers of float32 as three products of tf32 (tf32x3)"
"""What fp32 is there."""


def products_of(contract: Contract) -> str | None:
    """How many products compute in which precision, the most first; None where there are none. Those whose activations are rounded
    are called by what these are rounded to.
    """
    rows = [row.realised.split(", ") for row in contract if row.op in _LEADING and row.why != MERGED]
    end = activation_name("")
    counts = Counter(next((word.removesuffix(end) for word in words if word.endswith(end)), words[0]) for words in rows)
    return ", ".join(f"{count} in {precision}" for precision, count in counts.most_common()) or None


# --- rows -------------------------------------------------------------------------------------------------------------


def _row(source: Source, op: Op, precision: str, options: BuildOptions, facts: Facts) -> ContractRow:
    if op.name == "aten_call":
        return _fallback(source.name, op, precision)
    requested, realised, why = [precision], [computed_in(op)], list[tuple[str, str]]()
    weight = weight_of(op)
    stored = [] if weight is None else list(stored_as(weight))
    if weight is not None:
        realised += [*stored, *multiplied_as(weight)]
        for wanted, reason in _wanted(weight, options):
            requested.append(wanted)
            if wanted not in implied(realised, has_weight=True):
                why.append((wanted, reason))
    elif _has_experts(op):
        asked = [] if options.quantize is None else [*QUANTIZATIONS[options.quantize].promises]
        asked += [] if options.sparsity is None else [options.sparsity]
        requested += asked
        why += [(wanted, EXPERTS) for wanted in asked]
    lacks = why_not_integer(op)
    if precision == INTEGER and realised[0] != INTEGER:
        why = [(INTEGER, lacks or f"the op computes in {realised[0]}"), *(each for each in why if each[0] != INTEGER)]
    elif weight is not None and lacks is not None and not why:
        why.append((INTEGER, lacks))
    scores = scored_as(op)
    realised += [scores] if scores else []
    if op.name == "attention" and options.quantize is not None and QUANTIZATIONS[options.quantize].scores:
        requested.append(SCORES)
        why += [] if scores else [(SCORES, why_not_scored(op) or "the pass did not reach it")]
    if precision not in (TF32, INTEGER) and not is_served_by(precision, realised[0]):
        why.append((precision, why_not_narrowed(op, facts) or f"the op computes in {realised[0]}"))
    held = read_as(op) if weight is None else ", ".join(stored) or precision_name(weight.stored.dtype)
    own = [OWN] if precision == INTEGER else []
    reasons = "; ".join([*own, *(f"{word}: {reason}" for word, reason in why)])
    said = (", ".join(dict.fromkeys(requested)), ", ".join(realised), reasons)
    return ContractRow(source.name, kind_of(op), *said, runs=KERNEL, stored=held, summed=_summed(op))


def _has_experts(op: Op) -> bool:
    """Whether an op multiplies rows in groups by constants, one for each."""
    factors = op.operands[1] if op.name == "grouped_matmul" else None
    return factors is not None and factors.constant is not None


def _reasons(row: ContractRow) -> Iterator[tuple[str, str]]:
    """What a row says why it lacks, and why, as `_row` wrote it: reasons may hold semicolons, but none before a word of the request."""
    words = "|".join(map(re.escape, row.requested.split(", ")))
    for said in re.split(f"; (?=(?:{words}): )", row.why):
        word, _, reason = said.partition(": ")
        yield word, reason


def _summed(op: Op) -> str:
    """The precision that an op adds up in; nothing where it adds nothing up."""
    may_fold = has_kernel(op) and op.definition.kind != "pointwise"
    region = region_of(op.definition, op.types, op.attrs) if may_fold else None
    sums = [] if region is None else [each.dtype for each in region.body if isinstance(each, Reduce) and each.kind == "sum"]
    return ", ".join(dict.fromkeys(precision_name(dtype) for dtype in sums))


def contract_again(contract: Contract, module: Module, in_tf32: Collection[str], has_tf32: Collection[bool]) -> Contract:
    """The contract of an engine that has other parts than before: what is in tf32 no program shows, the rest holds for all parts."""
    left = {source.name: (source, ops) for source, ops in _by_source(module).items()}
    rows = []
    for row in contract:
        if _asks_tf32(row) and row.source in left:
            source, ops = left[row.source]
            first, *others = row.realised.split(", ")
            why = "; ".join(f"{word}: {reason}" for word, reason in _reasons(row) if reason and word != TF32)
            plain = replace(row, realised=", ".join(["fp32" if first == TF32 else first, *others]), why=why)
            row = _with_tf32(plain, _is_in_tf32(source, _whole(ops, row.op), in_tf32), has_tf32)
        rows.append(row)
    return Contract(tuple(rows))


def _asks_tf32(row: ContractRow) -> bool:
    return row.requested.split(", ")[0] == TF32


def _is_in_tf32(source: Source, op: Op, in_tf32: Collection[str]) -> bool:
    """Whether a product is among these: one that became a part of another is made as that is."""
    return not {str(source), str(op.source)}.isdisjoint(in_tf32)


NO_TF32 = "a CPU multiplies in float32, which has more digits"
NO_INSTRUCTION = "no matrix instruction multiplies it: it is multiplied in float32"


def _with_tf32(row: ContractRow, is_narrow: bool, has_tf32: Collection[bool]) -> ContractRow:
    """The row of a product that was asked for in tf32, which some kernels make so and the program does not show."""
    first, *others = row.realised.split(", ")
    if first not in ("fp32", TF32):
        return row if is_served_by(TF32, first) else _because(row, f"the op computes in {first}")
    reasons = [NO_TF32] if False in has_tf32 else []
    reasons += [NO_INSTRUCTION] if True in has_tf32 and not is_narrow else []
    told = replace(row, realised=", ".join([TF32 if is_narrow else first, *others]))
    return _because(told, "; on a GPU ".join(reasons)) if reasons else told


def _because(row: ContractRow, why: str) -> ContractRow:
    """The row with why its product is not in tf32, in some part or at all."""
    return replace(row, why="; ".join(filter(None, (row.why, f"{TF32}: {why}"))))


def _on_host(row: ContractRow) -> ContractRow:
    """The row of an op that Python computes between kernels."""
    return replace(row, realised=f"{row.realised}, {HOST}", why="; ".join(filter(None, (row.why, NO_KERNEL))), runs=HOST, summed="")


def _fallback(name: str, op: Op, requested: str) -> ContractRow:
    return fallback_row(name, kind_of(op), requested, str(op.attrs["why"]))


def fallback_row(name: str, kind: str, requested: str, why: str) -> ContractRow:
    """The row of an op that the framework computes."""
    return ContractRow(name, kind, requested, FALLBACK, why, runs=FALLBACK)


def _wanted(weight: Weight, options: BuildOptions) -> Iterator[tuple[str, str]]:
    """What was asked of a weight, with why it would not be done."""
    if options.quantize is not None:
        for promise in QUANTIZATIONS[options.quantize].promises:
            yield promise, why_not_quantized(weight, options.quantize, promise) or "the pass did not reach it"
    if options.sparsity is not None:
        yield options.sparsity, why_not_sparse(weight) or "the pass did not reach it"


def _line(row: ContractRow) -> str:
    return f"{row.source} ({row.op}) is {row.realised}" + (f": {row.why}" if row.why else "")


# --- source ops -------------------------------------------------------------------------------------------------------


def _by_source(module: Module) -> dict[Source, list[Op]]:
    """Ops by what they were in the user's model, function by function."""
    found: dict[Source, list[Op]] = {}
    for graph in module.functions.values():
        for op in graph:
            if op.source is not None:
                found.setdefault(op.source, []).append(op)
    return found


def _leading(ops: Sequence[Op]) -> Op:
    """The op that a source op is known by: a call back, a contraction, else the last one."""
    call = next((op for op in ops if op.name == "aten_call"), None)
    kinds = {kind_of(op): op for op in reversed(ops)}
    return call or next((kinds[kind] for kind in _LEADING if kind in kinds), ops[-1])


def _whole(ops: Sequence[Op], kind: str) -> Op:
    """The op that a source op is known by, or the one of its kind that it is a slice of, since several became one (Q, K and V)."""
    leading = _leading(ops)
    if kind not in _LEADING or kind_of(leading) in _LEADING:
        return leading
    pending = [op for op in ops if op.name == "slice"]
    for part in pending:
        if kind_of(part) == kind:
            return part
        if part in ops or part.definition.kind == "pointwise":
            pending += [value.op for value in part.operands if value is not None and value.op is not None]
    return leading
