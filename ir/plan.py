"""Plans: the host program of an engine. Buffers with their storage, arena slots, and a tree of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from . import dims
from .dims import Dim
from .dims_text import parse_dim
from .types import DTYPES, TensorType


@dataclass(frozen=True)
class Buffer:
    """A tensor of the plan. `storage`: input, output, constant (`key` is its name), arena (`key` is its slot), or
    dynamic (allocated by a step whose result size is known only then).
    """

    name: str
    type: TensorType
    storage: str
    key: str = ""


@dataclass(frozen=True)
class Slot:
    """A piece of the arena; its size is the maximum of its members' sizes in bytes, its offset a prefix sum."""

    name: str
    sizes: tuple[Dim, ...]


@dataclass(frozen=True)
class Guard:
    """Conditions of a variant: `zero` expressions must be 0, `positive` ones >= 0 (over symbols), `aligned` buffers
    must start at a multiple of 16 bytes, `contiguous` ones must be dense. No condition: always.
    """

    zero: tuple[Dim, ...] = ()
    positive: tuple[Dim, ...] = ()
    aligned: tuple[str, ...] = ()
    contiguous: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variant:
    """A kernel that may serve a launch: its guard, and the number of grid points (CPU) or the grid (GPU).

    On a GPU the kernel takes its arguments (pointers), its scalars (i32) and two scratch pointers; the first points to
    `scratch` bytes for each program of the grid, the second is null.
    """

    kernel: str
    guard: Guard
    grid: tuple[Dim, ...]
    arguments: tuple[str, ...]
    scalars: tuple[Dim, ...] = ()
    warps: int = 0
    shared: int = 0
    scratch: int = 0


@dataclass(frozen=True)
class Launch:
    """Run the first variant whose guard holds; the last one is unguarded. `sources` name the user's ops."""

    name: str
    variants: tuple[Variant, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Host:
    """A routine of the host table (an opaque op's body) on buffers; `binds` gives new symbols their values: (symbol,
    result, axis) is the size of a result, and with VALUE for the axis the integer that the result itself is.
    """

    routine: str
    attrs: Mapping[str, Any]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    binds: tuple[tuple[str, int, int], ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Call:
    """An ATen call through the caller's callback; only under torch."""

    target: str
    key: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    binds: tuple[tuple[str, int, int], ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Copy:
    """target = source, the same type."""

    source: str
    target: str


@dataclass(frozen=True)
class Zero:
    """Fill a buffer with zero bytes (counters)."""

    target: str


@dataclass(frozen=True)
class Check:
    """An error if the buffer `worst` (i64[]) holds an index out of range, or without `size` if integers are divided by 0.

    See `ir/ops/check.py` for the numbers.

    On a CPU it is read where it stands; on a GPU, whose kernels never read outside an operand either, at the end of the
    call. `subject` says what the indices are, `sources` whose op reads by them.
    """

    worst: str
    size: Dim | None
    negative: bool
    subject: str
    sources: tuple[str, ...] = ()


Step: TypeAlias = Launch | Host | Call | Copy | Zero | Check


@dataclass(frozen=True)
class Plan:
    """The whole host program for one target. `inputs` and `outputs` are (user's name, buffer name); `numbers` are
    (symbol, buffer name): symbols that are the value of an input, an i64 scalar.
    """

    target: str
    symbols: dims.Facts
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    buffers: tuple[Buffer, ...]
    slots: tuple[Slot, ...]
    steps: tuple[Step, ...]
    numbers: tuple[tuple[str, str], ...] = ()

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name."""
        return {b.name: b for b in self.buffers}[name]


VALUE = -1
"""In the place of an axis: the symbol is not a size of a result but its value."""
SLOT_ALIGNMENT = 64
"""Bytes: every slot of the arena starts at a multiple of this, and so does the arena."""


def slot_offsets(slots: tuple[Slot, ...], values: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Where each slot starts for these symbol values, and the bytes of the whole arena."""
    offsets: dict[str, int] = {}
    total = 0
    for slot in slots:
        offsets[slot.name] = total
        size = max((dims.evaluate(size, values) for size in slot.sizes), default=0)
        total += -(-size // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
    return offsets, total


def segments(steps: tuple[Step, ...]) -> Iterator[tuple[bool, tuple[Step, ...]]]:
    """Maximal runs of steps that need no Python (True) and the single steps that do (False), in order."""
    run: list[Step] = []
    for step in steps:
        if isinstance(step, (Host, Call)):
            if run:
                yield True, tuple(run)
                run = []
            yield False, (step,)
        else:
            run.append(step)
    if run:
        yield True, tuple(run)


# --- JSON -------------------------------------------------------------------------------------------------------------

_STEPS: dict[str, Any] = {"launch": Launch, "host": Host, "call": Call, "copy": Copy, "zero": Zero, "check": Check}


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain JSON values; dimensions as text."""
    return {
        "target": plan.target,
        # A list, not an object: the order of the symbols is part of the native interface.
        "symbols": [[name, r.low, r.high, plan.symbols.divisors.get(name, 1)] for name, r in plan.symbols.ranges.items()],
        "broadcasts": [[_dim(left), _dim(right)] for left, right in plan.symbols.broadcasts],
        "inputs": [list(pair) for pair in plan.inputs],
        "outputs": [list(pair) for pair in plan.outputs],
        "buffers": [[b.name, b.type.dtype.name, [_dim(d) for d in b.type.shape], b.storage, b.key] for b in plan.buffers],
        "slots": [[s.name, [_dim(d) for d in s.sizes]] for s in plan.slots],
        "steps": [_step_to_json(step) for step in plan.steps],
        "numbers": [list(pair) for pair in plan.numbers],
    }


def from_json(data: Mapping[str, Any]) -> Plan:
    """Read what `to_json` gave; KeyError, ValueError or ParseError where it is damaged."""
    ranges = {name: dims.Range(low, high) for name, low, high, _ in data["symbols"]}
    divisors = {name: divisor for name, _, _, divisor in data["symbols"] if divisor != 1}
    buffers = tuple(
        Buffer(n, TensorType(DTYPES[t], tuple(_undim(d) for d in shape)), storage, key) for n, t, shape, storage, key in data["buffers"]
    )
    return Plan(
        data["target"],
        dims.Facts(ranges, divisors, broadcasts=tuple((_undim(left), _undim(right)) for left, right in data.get("broadcasts", ()))),
        tuple((a, b) for a, b in data["inputs"]),
        tuple((a, b) for a, b in data["outputs"]),
        buffers,
        tuple(Slot(n, tuple(_undim(d) for d in sizes)) for n, sizes in data["slots"]),
        tuple(_step_from_json(step) for step in data["steps"]),
        tuple((a, b) for a, b in data["numbers"]),
    )


def _dim(dim: Dim) -> int | str:
    return dim if isinstance(dim, int) else str(dim)


def _undim(value: int | str) -> Dim:
    return value if isinstance(value, int) else parse_dim(value)


def _step_to_json(step: Step) -> dict[str, Any]:
    kind = next(name for name, cls in _STEPS.items() if isinstance(step, cls))
    if isinstance(step, Launch):
        variants = [
            {
                "kernel": v.kernel,
                "guard": {
                    "zero": [_dim(d) for d in v.guard.zero],
                    "positive": [_dim(d) for d in v.guard.positive],
                    "aligned": list(v.guard.aligned),
                    "contiguous": list(v.guard.contiguous),
                },
                "grid": [_dim(d) for d in v.grid],
                "arguments": list(v.arguments),
                "scalars": [_dim(d) for d in v.scalars],
                "warps": v.warps,
                "shared": v.shared,
                "scratch": v.scratch,
            }
            for v in step.variants
        ]
        return {
            "kind": kind,
            "name": step.name,
            "variants": variants,
            "reads": list(step.reads),
            "writes": list(step.writes),
            "sources": list(step.sources),
        }
    if isinstance(step, Host):
        common = {
            "reads": list(step.reads),
            "writes": list(step.writes),
            "binds": [list(b) for b in step.binds],
            "sources": list(step.sources),
        }
        return {"kind": kind, "routine": step.routine, "attrs": {k: attribute_to_json(v) for k, v in step.attrs.items()}, **common}
    if isinstance(step, Call):
        common = {
            "reads": list(step.reads),
            "writes": list(step.writes),
            "binds": [list(b) for b in step.binds],
            "sources": list(step.sources),
        }
        return {"kind": kind, "target": step.target, "key": step.key, **common}
    if isinstance(step, Copy):
        return {"kind": kind, "source": step.source, "target": step.target}
    if isinstance(step, Check):
        common = {
            "size": None if step.size is None else _dim(step.size),
            "negative": step.negative,
            "subject": step.subject,
            "sources": list(step.sources),
        }
        return {"kind": kind, "worst": step.worst, **common}
    return {"kind": kind, "target": step.target}


def _step_from_json(data: Mapping[str, Any]) -> Step:
    kind = data["kind"]
    if kind == "launch":
        variants = tuple(
            Variant(
                v["kernel"],
                Guard(
                    tuple(_undim(d) for d in v["guard"]["zero"]),
                    tuple(_undim(d) for d in v["guard"]["positive"]),
                    tuple(v["guard"]["aligned"]),
                    tuple(v["guard"]["contiguous"]),
                ),
                tuple(_undim(d) for d in v["grid"]),
                tuple(v["arguments"]),
                tuple(_undim(d) for d in v["scalars"]),
                v["warps"],
                v["shared"],
                v["scratch"],
            )
            for v in data["variants"]
        )
        return Launch(data["name"], variants, tuple(data["reads"]), tuple(data["writes"]), tuple(data["sources"]))
    if kind in ("host", "call"):
        binds = tuple((s, n, d) for s, n, d in data["binds"])
        common = (tuple(data["reads"]), tuple(data["writes"]), binds, tuple(data["sources"]))
        if kind == "host":
            return Host(data["routine"], {k: attribute_from_json(v) for k, v in data["attrs"].items()}, *common)
        return Call(data["target"], data["key"], *common)
    if kind == "copy":
        return Copy(data["source"], data["target"])
    if kind == "zero":
        return Zero(data["target"])
    if kind == "check":
        return Check(
            data["worst"],
            None if data["size"] is None else _undim(data["size"]),
            bool(data["negative"]),
            str(data["subject"]),
            tuple(data["sources"]),
        )
    raise ValueError(f"unknown step kind {kind!r}")


def attribute_to_json(value: Any) -> Any:
    """An op attribute as JSON; dtypes, dimensions and non-finite floats are tagged."""
    from .types import DType

    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, dims.Expr):
        return {"dim": str(value)}
    if isinstance(value, tuple):
        return [attribute_to_json(part) for part in value]
    if isinstance(value, float):
        return {"float": value.hex()}
    return value


def attribute_from_json(value: Any) -> Any:
    """Read what `attribute_to_json` gave."""
    if isinstance(value, dict):
        (tag, text), *_ = value.items()
        readers: dict[str, Callable[[str], Any]] = {"dtype": DTYPES.__getitem__, "dim": parse_dim, "float": float.fromhex}
        return readers[tag](text)
    if isinstance(value, list):
        return tuple(attribute_from_json(part) for part in value)
    return value
