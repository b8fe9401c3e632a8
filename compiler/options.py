"""What a user may ask for: frozen options, read from text once."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ..ir.digits import integer
from ..ir.dims import Facts
from ..ir.errors import UsageError
from ..ir.spelling import nearest
from ..ir.target import CPU_LEVELS
from ..ir.workload import Point, Workload, nearest_size, parse_workload
from ..runtime.kinds import PAGE
from .engines.outputs import check_output
from .engines.trust import NOBODY_ASKED, Trust
from .environment import Environment, environment, parse_threads
from .requests import (
    BUDGET,
    SPARSITIES,
    UNTUNED,
    Measuring,
    Requirement,
    ShapeRequest,
    parse_batch,
    parse_cache,
    parse_choice,
    parse_context,
    parse_measuring,
    parse_precision,
    parse_quantize,
    parse_requirement,
    parse_shape,
)
from .targets.registry import TARGETS, emulating, parse_targets
from .targets.target import Target

if TYPE_CHECKING:
    from ..ir.graph import Module

PEERS = ("onnxruntime", "eager", "inductor", "openvino", "ourcc")


@dataclass(frozen=True)
class BuildOptions:
    """How to build an engine: the options of `ourcc build`, `ourcc.build` and `torch.compile(options=...)`."""

    targets: tuple[Target, ...] = (TARGETS["native"],)
    precision: str | None = None  # None: the model's own
    quantize: str | None = None
    sparsity: str | None = None
    shapes: tuple[ShapeRequest, ...] = ()
    workload: Workload | None = None  # None: what `default_workload` says
    require: tuple[Requirement, ...] = ()
    tune: Measuring = UNTUNED
    locked: Path | None = None
    report: Path | None = None
    freeze: bool = True  # torch.compile: fold and pack parameters while gradients are off
    unchecked_indices: bool = False  # an index out of range is no error but undefined (never outside the tensor)
    trust_pickle: bool = False
    context: int | None = None  # tokens that a session of a language model holds; None: what the model allows, up to 4096
    cache: str = "f32"  # what a language model keeps keys and values in
    batch: int = 1  # sequences that a call of a language model reads at most
    threads: int | None = None
    emulate: str | None = None  # a CPU level: its programs for this machine, by models of the instructions that it lacks
    graphs: bool = True  # runs of launches that come again may be replayed as CUDA graphs
    environment: Environment = field(default_factory=environment)
    trust: Trust = NOBODY_ASKED  # for an engine that is built again or holds the lock, and for stores of others

    def workload_for(self, facts: Facts) -> Workload | None:
        """The workload with sizes for all symbols of a model, if one is given; UsageError where it does not fit them."""
        return None if self.workload is None else self.workload.of(facts)

    def reckoned(self, module: Module) -> BuildOptions:
        """These options where the workload says what a module does: a batch is 1 though it is the only symbol, and sizes that only the
        data decide are typical ones of what can be found in the rest.
        """
        from ..ir.graph.batch import lone_batch
        from ..ir.graph.found import most_found

        most, batch, workload = most_found(module), lone_batch(module), self.workload
        if workload is None and batch is not None:
            workload = Workload((Point(((batch, nearest_size(1, batch, module.facts)),)),))
        return replace(self, workload=(workload or ANY_SIZES).of(module.facts, most) if most else workload)

    def within(self, facts: Facts) -> BuildOptions:
        """These options for one of several graphs: of the workload what its symbols can be."""
        return self if self.workload is None else replace(self, workload=self.workload.within(facts))


ANY_SIZES = Workload((Point(()),))
"""The workload of which nothing is said."""


def _path(value: Any) -> Path:
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"got {type(value).__name__} for a path, expected text or a path")
    return Path(value)


def _file(option: str, value: Any) -> Path:
    """A file to read, which is there."""
    path = _path(value)
    if not path.is_file():
        raise UsageError(f"{option}: there is no file {str(path)!r}")
    return path


def _named(option: str, read: Callable[[Any], Any], value: Any) -> Any:
    """What a reader gives; its error begins with the option."""
    try:
        return read(value)
    except UsageError as error:
        raise UsageError(f"{option}: {error.message}", hint=error.hint) from error


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"got {value!r} for a flag, expected True or False")
    return value


def _several(value: Any) -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    wrong = [each for each in found if not isinstance(each, str)]
    if wrong:
        raise UsageError(f"got {wrong[0]!r}, expected text, or a list of texts")
    return found


def _shapes(value: Any) -> tuple[ShapeRequest, ...]:
    if isinstance(value, Mapping):
        value = [f"{name}={','.join(_axes(name, axes))}" for name, axes in value.items()]
    return tuple(parse_shape(text) for text in _named("shapes", _several, value))


def _axes(name: str, axes: Any) -> list[str]:
    """The axes of an input, or the size of a symbol, as text."""
    found = list(axes) if isinstance(axes, Sequence) and not isinstance(axes, str) else [axes]
    if any(not isinstance(axis, str) and integer(axis) is None for axis in found):
        hint = "a size is a number or text like 'B:1..64'; every axis is given"
        raise UsageError(f"shapes: got {axes!r} for {name}, expected a size, or a list of sizes", hint=hint)
    return [str(axis) for axis in found]


def _workload(value: Any) -> Workload:
    points = [value] if isinstance(value, (str, Mapping)) else value
    if not isinstance(points, (list, tuple)) or not all(isinstance(point, (str, Mapping)) for point in points):
        raise UsageError(f"workload: got {value!r}, expected points", hint='like "B=8,S=512:0.2" or {"B": 8, "S": 512}, or a list of them')
    return parse_workload([p if isinstance(p, str) else ",".join(f"{name}={size}" for name, size in p.items()) for p in points])


def _targets(names: tuple[str, ...]) -> tuple[Target, ...]:
    if not names:
        raise UsageError(f"targets: got none, expected one or more of {', '.join(TARGETS)}", hint="leave targets out for this machine")
    return parse_targets(names)


_READERS: dict[str, Any] = {
    "targets": lambda value: _targets(_named("targets", _several, value)),
    "precision": parse_precision,
    "quantize": parse_quantize,
    "sparsity": lambda value: parse_choice(value, SPARSITIES, "sparsity"),
    "shapes": _shapes,
    "workload": _workload,
    "require": lambda value: tuple(parse_requirement(text) for text in _named("require", _several, value)),
    "tune": parse_measuring,
    "locked": lambda value: _file("locked", value),
    "report": lambda value: _named("report", lambda path: check_output(path, PAGE), _path(value)),
    "freeze": _flag,
    "unchecked_indices": _flag,
    "trust_pickle": _flag,
    "context": parse_context,
    "cache": parse_cache,
    "batch": parse_batch,
    "threads": parse_threads,
    "graphs": _flag,
    "emulate": lambda value: parse_choice(value, [level.name for level in CPU_LEVELS], "cpu level"),
}


Quantize = Literal[
    "int8",
    "int8-weight",
    "int4-weight",
    "int4-weight-g64",
    "int4-weight-g128",
    "int3-weight",
    "int2-weight",
    "fp8-weight",
    "fp8-block-weight",
    "mxfp8-weight",
    "mxfp6-weight",
    "mxfp4-weight",
    "nvfp4-weight",
    "fp8",
    "fp8-block",
    "mxfp8",
    "mxfp4",
    "nvfp4",
    "int4-a8",
    "int4-g64-a8",
    "int4-g128-a8",
    "int3-a8",
    "int2-a8",
    "mxfp6-a8",
    "mxfp4-a8",
    "nvfp4-a8",
    "a8",
]
"""The names of passes.quantize.QUANTIZATIONS."""


class Options(TypedDict, total=False):
    """The options of `ourcc.build`, `ourcc.explain` and `torch.compile(options=...)`, for type checkers."""

    target: str | Sequence[str]
    targets: str | Sequence[str]
    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None
    quantize: Quantize | None
    sparsity: Literal["2:4"] | None
    shape: str | Sequence[str] | Mapping[str, str | Sequence[str | int]]
    shapes: str | Sequence[str] | Mapping[str, str | Sequence[str | int]]
    workload: str | Mapping[str, int] | Sequence[str | Mapping[str, int]] | None
    require: str | Sequence[str]
    tune: str | int | None
    locked: str | os.PathLike[str] | None
    report: str | os.PathLike[str] | None
    freeze: bool
    trust_pickle: bool
    unchecked_indices: bool
    context: int | None
    cache: Literal["f32", "bf16", "f16", "int8", "fp8"]
    batch: int
    threads: int | None
    graphs: bool
    emulate: str | None


# The command line repeats an option and names it in the singular; both spellings are read everywhere.
_SPELLINGS = {"target": "targets", "shape": "shapes"}
_OTHER = {name: spelling for spelling, name in _SPELLINGS.items()}


Road = Literal["the command line", "ourcc.build", "ourcc.explain", "torch.compile"]
"""Where options come from."""

OF_SESSIONS = dict.fromkeys(("context", "cache", "batch"), "only a language model that is built has sessions")
WITHOUT_EFFECT: Mapping[Road, Mapping[str, str]] = {
    "the command line": {},
    "ourcc.build": {"freeze": "a program that is built holds its parameters as constants"},
    "ourcc.explain": {
        "graphs": "nothing is run",
        **OF_SESSIONS,
        "report": "nothing is built: print what ourcc.explain returns, or give report to ourcc.build",
    },
    "torch.compile": {
        "shapes": "torch says which sizes vary: torch.compile(dynamic=True), or torch._dynamo.mark_dynamic(x, axis, min=1, max=64)",
        "report": "a model becomes any number of graphs: ourcc.explain(model, x) says what becomes of them",
        "trust_pickle": "no file is read",
        **OF_SESSIONS,
    },
}
"""Options that ask a road for what it does not do, and what to do instead."""


def known_options(road: Road) -> list[str]:
    """The options of `ourcc.Options` that have an effect on a road, in both spellings."""
    return [name for name in Options.__annotations__ if _SPELLINGS.get(name, name) not in WITHOUT_EFFECT[road]]


def build_options(values: Mapping[str, Any], road: Road = "the command line") -> BuildOptions:
    """Options by name as Python or the command line gives them; None means not given.

    One that would change nothing on this road is an error, unless it asks for what is done anyway.
    """
    defaults = {option.name: option.default for option in fields(BuildOptions) if option.name not in ("environment", "trust")}
    read: dict[str, Any] = {}
    for given, value in values.items():
        name = _SPELLINGS.get(given, given).replace("-", "_")
        if name not in defaults:
            known = known_options(road)
            raise UsageError(f"unknown option: got {given!r}, expected one of {', '.join(known)}", hint=nearest(given, known))
        # What the command line may repeat is an empty tuple where it is not given.
        if value is None or (isinstance(value, tuple) and not value and (name != "targets" or road == "the command line")):
            continue
        if name in read:
            raise UsageError(f"got both {_OTHER[name]!r} and {name!r}, expected one of them", hint="they are two spellings of one option")
        if name in WITHOUT_EFFECT[road] and value != defaults[name]:
            raise UsageError(f"option {given!r} has no effect on {road}", hint=WITHOUT_EFFECT[road][name])
        with _in_words_of(road):
            read[name] = _READERS[name](value)
    if "locked" in read and "tune" in read and read["tune"].mode in ("count", "budget"):
        hint = "leave one of them out: a lock has every choice, and nothing is measured"
        raise UsageError("got tune with locked, expected one of them", hint=hint)
    if "emulate" in read:
        if "tune" in read and read["tune"].mode in ("count", "budget"):
            raise UsageError("got tune with emulate, expected one of them", hint="the times of models of instructions say nothing")
        read["targets"] = (_emulating(read["emulate"], read.get("targets", defaults["targets"])),)
    return BuildOptions(**read)


_ASKED = re.compile(r"--([a-z]+) \S+(?: --\1 \S+)*")


@contextlib.contextmanager
def _in_words_of(road: Road) -> Iterator[None]:
    """Readers hint at options as the command line has them: say them as they are given on this road."""
    try:
        yield
    except UsageError as error:
        if error.hint is not None:
            error.hint = _ASKED.sub(lambda found: _spelled(found[1], found[0].split()[1::2], road), error.hint)
        raise


def _spelled(name: str, values: Sequence[str], road: Road) -> str:
    """How an option is given on a road; what the command line repeats is a list in Python."""
    if road == "the command line":
        return " ".join(f"--{name} {value}" for value in values)
    name = _SPELLINGS.get(name, name)
    value = json.dumps(values if len(values) > 1 else values[0])
    return f'options={{"{name}": {value}}}' if road == "torch.compile" else f"{name}={value}"


def _emulating(level: str, targets: tuple[Target, ...]) -> Target:
    """The target of this machine with the programs of another level."""
    if targets != (TARGETS["native"],):
        names = ", ".join(target.name for target in targets)
        raise UsageError(f"got emulate with target {names}, expected native alone", hint="models of instructions run on this machine")
    return emulating(level)


@dataclass(frozen=True)
class BenchOptions:
    """What `ourcc bench` compares and how."""

    subject: Path
    against: tuple[str, ...] = ()
    threads: int = 1
    rounds: int = 20
    inputs: Path | None = None
    build: BuildOptions = field(default_factory=BuildOptions)
    trust: Trust = NOBODY_ASKED
    kernels: bool = False
    trace: Path | None = None
    picture: Path | None = None
    target: str | None = None
    function: str | None = None  # None: the entry


@dataclass(frozen=True)
class VerifyOptions:
    """What `ourcc verify` compares; without a tolerance the project's judge decides."""

    engine: Path
    model: Path
    inputs: Path | None = None
    tolerance: float | None = None
    target: str | None = None
    trust_pickle: bool = False
    trust: Trust = NOBODY_ASKED
    function: str | None = None  # None: the entry
    shapes: tuple[ShapeRequest, ...] = ()


@dataclass(frozen=True)
class InspectOptions:
    """What `ourcc inspect` shows of an engine or a model; nothing chosen shows the summary."""

    subject: Path
    ir: str | None = None
    kernels: bool = False
    source: str | None = None
    memory: bool = False
    precision: bool = False
    target: str | None = None
    build: BuildOptions = field(default_factory=BuildOptions)
    """How a model is built to be looked at, for `target` if one is named."""
    trust: Trust = NOBODY_ASKED
    fusion: bool = False
    graph: Path | None = None
    """The picture to draw."""
    diff: Path | None = None
    """The model or engine to compare with."""
    explain: bool = False
    """What would become of a model, with no kernel compiled."""


@dataclass(frozen=True)
class OptimizeOptions:
    """What `ourcc opt` does with a program: text, the program that an engine keeps, or a model."""

    program: Path
    pipeline: str
    print_changes: bool = False
    limit: int | None = None
    build: BuildOptions = field(default_factory=BuildOptions)
    trust: Trust = NOBODY_ASKED


@dataclass(frozen=True)
class TuneOptions:
    """What `ourcc tune` may spend and where its engine goes."""

    engine: Path
    budget: Measuring = BUDGET
    output: Path | None = None
    environment: Environment = field(default_factory=environment)
    trust: Trust = NOBODY_ASKED


@dataclass(frozen=True)
class CacheOptions:
    """One action on the tuning stores, and its arguments in order."""

    action: str
    arguments: tuple[str, ...] = ()
    environment: Environment = field(default_factory=environment)
    trust: Trust = NOBODY_ASKED
