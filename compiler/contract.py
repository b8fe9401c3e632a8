"""The contract: for every op of the user's model what was requested, what was realised and why; and what was promised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..ir.errors import ContractError, Source, UnsupportedError
from ..ir.graph import Module, Op
from ..ir.types import DType, i8
from ..passes.match import operand
from ..passes.quantize import QUANTIZATIONS, activations, encode_weights, name_of
from ..passes.sparsify import two_four
from ..passes.weights import Weight, weight_of, why_not_coded
from ..runtime.contents import Contract, ContractRow
from .options import BuildOptions, Requirement

FALLBACK = "aten call"
INTEGER = "int8"
"""A product of codes, added up in 32 bits."""
ACTIVATION = "int8-activation"
"""What a weight is multiplied by is codes of 8 bits, with a scale for each block of them."""
MERGED = "merged into other ops, or computed while building"
_PRECISIONS = {"f64": "fp64", "f32": "fp32", "f16": "fp16"}
_FLOATS = ("fp64", "fp32", "fp16", "bf16")
_LEADING = ("linear", "conv", "conv_transpose", "matmul", "attention")
"""Kinds that name a source op made of several ops, the first one that is there; otherwise the last op does."""


@dataclass(frozen=True)
class SourceOp:
    """An op of the user's model: its kind, and the precision that it came with."""

    kind: str
    precision: str


def source_ops(module: Module) -> dict[Source, SourceOp]:
    """The source ops of a module in order; asked before any pass runs."""
    found: dict[Source, SourceOp] = {}
    for source, ops in _by_source(module).items():
        leading = _leading(ops)
        found[source] = SourceOp(kind_of(leading), _precision(leading))
    return found


def refuse_unsupported(options: BuildOptions, asked: Mapping[Source, SourceOp]) -> None:
    """UnsupportedError for a request that no pass serves yet: it must not be passed over in silence."""
    if options.eval is not None:
        raise UnsupportedError("a bound on the accuracy drop is not supported yet", hint="compare the engine with ourcc verify")
    if options.calibrate is not None:
        raise UnsupportedError("calibration is not supported yet", hint="int8-weight needs no calibration data")
    for source, op in asked.items():
        if options.precision is not None and op.precision in _FLOATS and op.precision != options.precision:
            hint = f"convert the model to {options.precision}, or leave it at {op.precision}"
            raise UnsupportedError(f"{op.kind} at {op.precision} is not converted to {options.precision} yet", source=source, hint=hint)


def kind_of(op: Op) -> str:
    """What users call an op: linear (a matmul with a weight), the ATen operator of a call, else the op's own name."""
    if op.name == "aten_call":
        return str(op.attrs["target"])
    return "linear" if op.name == "matmul" and weight_of(op) is not None else op.name


def contract_of(asked: Mapping[Source, SourceOp], module: Module, options: BuildOptions) -> Contract:
    """One row for every source op, from the ops that are left of it after all passes."""
    left = _by_source(module)
    rows = []
    for source, original in asked.items():
        precision = options.precision or original.precision
        if source not in left:
            rows.append(ContractRow(source.name, original.kind, precision, precision, MERGED))
            continue
        rows.append(_row(source, _whole(_leading(left[source]), original.kind), precision, options))
    return Contract(tuple(rows))


def fallback_rows(module: Module) -> list[ContractRow]:
    """One row for each op that runs as a call back into the framework."""
    calls = [op for graph in module.functions.values() for op in graph if op.name == "aten_call"]
    return [_fallback(op.source.name if op.source else kind_of(op), op, "compiled") for op in calls]


def enforce(contract: Contract, requirements: Sequence[Requirement], targets: Sequence[str]) -> None:
    """ContractError if a promise does not hold, with the rows that break it."""
    broken = {str(requirement): lines for requirement in requirements if (lines := violations(contract, requirement, targets))}
    if broken:
        count = len(broken)
        lines = [f"{name}: {line}" for name, found in broken.items() for line in found]
        raise ContractError(
            f"{count} {'promise does' if count == 1 else 'promises do'} not hold: {', '.join(broken)}",
            note="\n".join(lines),
            hint="build without the requirement, then ourcc inspect ENGINE --precision shows the whole contract",
        )


def violations(contract: Contract, requirement: Requirement, targets: Sequence[str]) -> list[str]:
    """What breaks a promise, one line each."""
    if requirement.subject == "no-fallback":
        return [_line(row) for row in contract if row.realised == FALLBACK]
    if requirement.subject == "target":
        return [] if requirement.value in targets else [f"got the targets {', '.join(targets)}"]
    rows = [row for row in contract if requirement.subject in (row.op, row.source)]
    if not rows:
        kinds = ", ".join(dict.fromkeys(row.op for row in contract))
        return [f"no op of the model is called {requirement.subject}, its ops are {kinds or 'none'}"]
    return [_line(row) for row in rows if not _promised(requirement.value) <= _said(row.realised.split(", "))]


def _promised(value: str | None) -> set[str | None]:
    """What a promise says in the contract's words: int4-a8 is int4-weight and int8-activation."""
    return set(QUANTIZATIONS[value].promises) if value in QUANTIZATIONS else {value}


def _said(realised: Sequence[str]) -> set[str]:
    """What a row's words say, and imply: an integer product is one of integer activations."""
    return {*realised, *([ACTIVATION] if realised[0] == INTEGER else [])}


def is_notable(row: ContractRow) -> bool:
    """Whether a row says more than that an op keeps the model's own precision."""
    return ", " in row.requested or row.realised != row.requested


# --- rows -------------------------------------------------------------------------------------------------------------


def _row(source: Source, op: Op, precision: str, options: BuildOptions) -> ContractRow:
    if op.name == "aten_call":
        return _fallback(source.name, op, precision)
    requested, realised, why = [precision], [_precision(op)], []
    weight = weight_of(op)
    if weight is not None:
        realised += _stored_as(weight)
        read = op.operands[1 - weight.position]
        if read is not None and read.op is not None and read.op.name == "dequantize" and operand(read.op, 0).dtype == i8:
            realised.append(ACTIVATION)
        for wanted, reason in _wanted(weight, options):
            requested.append(wanted)
            if wanted not in _said(realised):
                why.append(f"{wanted}: {reason}")
    if realised[0] not in (precision, INTEGER):
        why.append(f"{precision}: the op computes in {realised[0]}")
    return ContractRow(source.name, kind_of(op), ", ".join(requested), ", ".join(realised), "; ".join(why))


def _fallback(name: str, op: Op, requested: str) -> ContractRow:
    return ContractRow(name, kind_of(op), requested, FALLBACK, str(op.attrs["why"]))


def _wanted(weight: Weight, options: BuildOptions) -> Iterator[tuple[str, str]]:
    """What was asked of a weight, with why it would not be done."""
    if options.quantize is not None:
        why_not = _why_not_quantized(weight, options.quantize) or "the pass did not reach it"
        yield from ((promise, why_not) for promise in QUANTIZATIONS[options.quantize].promises)
    if options.sparsity is not None:
        yield options.sparsity, two_four.why_not(weight) or "the pass did not reach it"


def _why_not_quantized(weight: Weight, name: str) -> str | None:
    known = QUANTIZATIONS[name]
    if known.format is None or (known.activations and (weight.expanded_by("dequantize") or weight.expanded_by("decode")) is not None):
        return activations.why_not(weight)
    return encode_weights.why_not(weight, known.format) if known.is_coded else why_not_coded(weight)


def _stored_as(weight: Weight) -> list[str]:
    """How a weight lies in memory, in the words of the options."""
    found = []
    if weight.expanded_by("dequantize") is not None:
        found.append(f"{_storage(weight.stored.dtype)}-weight")
    coded = weight.expanded_by("decode")
    if coded is not None:
        found.append(name_of(coded.attrs["format"]))
    if weight.expanded_by("decompress_2to4") is not None:
        found.append("2:4")
    return found


def _storage(dtype: DType) -> str:
    return f"int{dtype.bits}" if dtype.is_integer else dtype.name


def _precision(op: Op) -> str:
    """The precision that an op computes in, in the words of the options: that of its result, or of the codes that it multiplies."""
    if op.name in ("matmul", "conv") and all(v is not None and v.dtype.is_integer and v.dtype.bits == 8 for v in op.operands[:2]):
        return INTEGER
    dtype = op.results[0].dtype.name if op.results else ""
    return _PRECISIONS.get(dtype, dtype)


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


def _whole(op: Op, kind: str) -> Op:
    """The op of this kind that a source op is a slice of, since several became one (Q, K and V); else the op itself."""
    pending = [op] if op.name == "slice" else []
    for part in pending:
        if kind_of(part) == kind:
            return part
        if part is op or part.definition.kind == "pointwise":
            pending += [value.op for value in part.operands if value is not None and value.op is not None]
    return op
