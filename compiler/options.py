"""What a user may ask for: frozen options, read from text once, and the only place that reads the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

from ..ir.digits import whole_number
from ..ir.dims import Dim, Facts, symbols
from ..ir.dims_text import parse_dim
from ..ir.errors import CompilerError, UsageError
from ..ir.workload import Workload, parse_workload
from ..passes.quantize import QUANTIZATIONS
from .engines.outputs import check_output
from .engines.trust import NOBODY_ASKED, Trust
from .spelling import nearest
from .targets.registry import TARGETS, parse_targets
from .targets.target import Target

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
QUANTIZE_SERVED = tuple(QUANTIZATIONS)
"""The formats that a pass serves: helps and types name these, the others are refused as not supported yet."""
QUANTIZE_FORMATS = ("fp8", "fp8-block", "mxfp8", "mxfp4", "nvfp4", *QUANTIZE_SERVED)
SPARSITIES = ("2:4",)
PEERS = ("onnxruntime", "eager", "inductor", "openvino")

# --- the environment --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Environment:
    """Everything of ours that the environment can say."""

    cache: tuple[str, ...] = ()  # tuning stores, the first is local
    cache_dir: str | None = None  # build cache
    threads: int | None = None
    compiler: str | None = None  # the C compiler
    no_color: bool = False

    @property
    def directory(self) -> Path:
        """The build cache: OURCC_CACHE_DIR, else the user's cache folder."""
        if self.cache_dir is not None:
            return Path(self.cache_dir).expanduser()
        import platformdirs

        return Path(platformdirs.user_cache_dir("ourcc", appauthor=False))

    @property
    def objects(self) -> Path:
        """The folder of object files that kernels were compiled to."""
        return self.directory / "objects"

    @property
    def stores(self) -> tuple[str, ...]:
        """The tuning stores: OURCC_CACHE, else a folder in the build cache."""
        return self.cache or (str(self.directory / "records"),)


def environment(variables: Mapping[str, str] | None = None) -> Environment:
    """Read OURCC_CACHE, OURCC_CACHE_DIR, OURCC_NUM_THREADS, CC and NO_COLOR; empty means unset."""
    given = os.environ if variables is None else variables
    threads = given.get("OURCC_NUM_THREADS", "")
    return Environment(
        cache=tuple(store.strip() for store in given.get("OURCC_CACHE", "").split(",") if store.strip()),
        cache_dir=given.get("OURCC_CACHE_DIR") or None,
        threads=parse_threads(threads, "OURCC_NUM_THREADS") if threads else None,
        compiler=given.get("CC") or None,
        no_color=bool(given.get("NO_COLOR")),
    )


def said_columns(variables: Mapping[str, str] | None = None) -> int | None:
    """The width that COLUMNS says a terminal has; None where it says no number (errors are printed by it, so it raises none)."""
    said = (os.environ if variables is None else variables).get("COLUMNS", "")
    return whole_number(said, 5) or None


def parse_threads(text: str | int, what: str = "threads") -> int:
    """A number of threads, from 1 to 4096."""
    number = text if isinstance(text, int) else whole_number(text, 5) or 0
    if not 1 <= number <= 4096:
        raise UsageError(f"{what}: got {text!r}, expected a whole number from 1 to 4096")
    return number


def parse_context(text: str | int) -> int:
    """A number of tokens, from 1 to 2^24."""
    number = text if isinstance(text, int) else whole_number(text, 9) or 0
    if not 1 <= number <= 1 << 24:
        raise UsageError(f"context: got {text!r}, expected a whole number of tokens from 1 on")
    return number


# --- values with a spelling of their own ------------------------------------------------------------------------------


@dataclass(frozen=True)
class AxisSize:
    """What one axis may be: a size or expression over symbols, a range, or one of some buckets."""

    size: Dim | None = None
    low: int | None = None
    high: int | None = None
    buckets: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.buckets:
            return "|".join(str(bucket) for bucket in self.buckets)
        bounds = "" if self.low is None else f"{self.low}..{'' if self.high is None else self.high}"
        return ":".join(part for part in ("" if self.size is None else str(self.size), bounds) if part)


@dataclass(frozen=True)
class ShapeRequest:
    """The axes wanted for one input, or the range of one symbol of the model (then a single axis)."""

    name: str
    axes: tuple[AxisSize, ...]

    def __str__(self) -> str:
        return f"{self.name}={','.join(str(axis) for axis in self.axes)}"


_AXIS_HELP = "a size (128), a range (1..64), a symbol (B) or a symbol with its range (B:1..64)"
_RANGE = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})?")
_BUCKETS = re.compile(r"[0-9]{1,18}(\|[0-9]{1,18})+")
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_shape(text: str) -> ShapeRequest:
    """Read NAME=AXIS,AXIS...; commas inside parentheses belong to an expression."""
    name, equals, sizes = text.partition("=")
    if not equals or not name.strip() or not sizes.strip():
        raise UsageError(f"shape: got {text!r}, expected NAME=AXIS,AXIS...", hint=f"an axis is {_AXIS_HELP}")
    return ShapeRequest(name.strip(), tuple(_parse_axis(axis.strip(), text) for axis in _split_axes(sizes)))


def _split_axes(text: str) -> list[str]:
    axes, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            axes.append("")
        else:
            axes[-1] += character
    return axes


def _parse_axis(text: str, whole: str) -> AxisSize:
    if _BUCKETS.fullmatch(text):
        buckets = tuple(sorted({int(bucket) for bucket in text.split("|")}))
        return AxisSize(buckets=buckets)
    if match := _RANGE.fullmatch(text):
        return _ranged(None, match, whole)
    name, colon, bounds = text.partition(":")
    if colon:
        match = _RANGE.fullmatch(bounds.strip())
        if match is None or not _SYMBOL.fullmatch(name.strip()):
            raise UsageError(f"shape {whole!r}: got axis {text!r}, expected SYMBOL:LOW..HIGH")
        return _ranged(parse_dim(name.strip()), match, whole)
    try:
        size = parse_dim(text)
    except CompilerError as error:
        raise UsageError(f"shape {whole!r}: {error.message}", hint=f"an axis is {_AXIS_HELP}") from error
    if isinstance(size, int) and size < 0:
        raise UsageError(f"shape {whole!r}: got size {size}, expected at least 0")
    if any(not _SYMBOL.fullmatch(name) for name in symbols(size)):
        raise UsageError(f"shape {whole!r}: got axis {text!r}, expected symbols of letters, digits and underscores")
    return AxisSize(size)


def _ranged(size: Dim | None, match: re.Match[str], whole: str) -> AxisSize:
    low, high = int(match[1]), int(match[2]) if match[2] else None
    if high is not None and high < low:
        raise UsageError(f"shape {whole!r}: got the range {low}..{high}, expected its end to be at least {low}")
    return AxisSize(size, low, high)


@dataclass(frozen=True)
class Requirement:
    """One promise of the contract: `no-fallback`, `no-host`, `target:NAME`, or `OP:FORMAT` for every source op of that name."""

    subject: str
    value: str | None = None

    def __str__(self) -> str:
        return self.subject if self.value is None else f"{self.subject}:{self.value}"


def parse_requirement(text: str) -> Requirement:
    """Read no-fallback, no-host, target:NAME or OP:FORMAT."""
    subject, colon, value = text.strip().partition(":")
    if subject in ("no-fallback", "no-host") and not colon:
        return Requirement(subject)
    known = tuple(TARGETS) if subject == "target" else (*PRECISIONS, *QUANTIZE_SERVED, "int8-activation", *SPARSITIES)
    if colon and subject and (value in known or (subject != "target" and value in QUANTIZE_FORMATS)):
        return Requirement(subject, value)
    if colon and subject:
        kind = "target" if subject == "target" else "format"
        raise UsageError(f"require {text!r}: unknown {kind}: got {value!r}, expected one of {', '.join(known)}", hint=nearest(value, known))
    raise UsageError(
        f"require: got {text!r}, expected no-fallback, no-host, target:NAME or OP:FORMAT",
        hint=nearest(text, ("no-fallback", "no-host", "target:cpu", "linear:int8-weight")),
    )


@dataclass(frozen=True)
class Tuning:
    """How much measuring: none, what stores hold, the best `count` schedules a problem, or `seconds` in all."""

    mode: Literal["off", "cached", "count", "budget"] = "cached"
    count: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return {"count": str(self.count), "budget": f"{self.seconds:g}s"}.get(self.mode, self.mode)


_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds of 500ms, 90s, 5m or 1h."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"duration: got {text!r}, expected a positive number with ms, s, m or h, like 5m")
    return float(match[1]) * _SECONDS[match[2]]


def parse_tuning(text: str | int) -> Tuning:
    """Read off, cached, a number of schedules, or a duration."""
    word = str(text).strip()
    if word in ("off", "cached"):
        return Tuning("off" if word == "off" else "cached")
    if count := whole_number(word, 8):
        return Tuning("count", count=count)
    if _DURATION.fullmatch(word):
        return Tuning("budget", seconds=parse_duration(word))
    raise UsageError(
        f"tune: got {word!r}, expected off, cached, a number of schedules, or a duration like 5m", hint=nearest(word, ("off", "cached"))
    )


def parse_choice(text: str, known: Sequence[str], what: str) -> str:
    """`text` if it is one of the known words; a UsageError names the nearest."""
    if text not in known:
        hint = nearest(text, known) if isinstance(text, str) else None
        raise UsageError(f"unknown {what}: got {text!r}, expected one of {', '.join(known)}", hint=hint)
    return text


# --- options of the commands ------------------------------------------------------------------------------------------


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
    tune: Tuning = Tuning()
    locked: Path | None = None
    report: Path | None = None
    freeze: bool = True  # torch.compile: fold and pack parameters while gradients are off
    unchecked_indices: bool = False  # an index out of range is no error but undefined (never outside the tensor)
    trust_pickle: bool = False
    context: int | None = None  # tokens that a session of a language model holds; None: what the model allows, up to 4096
    threads: int | None = None
    environment: Environment = field(default_factory=environment)
    trust: Trust = NOBODY_ASKED  # for an engine that is built again or holds the lock, and for stores of others

    def workload_for(self, facts: Facts) -> Workload | None:
        """The workload with sizes for all symbols of a model, if one is given; UsageError where it does not fit them."""
        return None if self.workload is None else self.workload.of(facts)

    def within(self, facts: Facts) -> BuildOptions:
        """These options for one of several graphs: of the workload what its symbols can be."""
        return self if self.workload is None else replace(self, workload=self.workload.within(facts))


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
    return (value,) if isinstance(value, str) else tuple(value)


def _shapes(value: Any) -> tuple[ShapeRequest, ...]:
    if isinstance(value, Mapping):
        value = [f"{name}={axes if isinstance(axes, str) else ','.join(map(str, axes))}" for name, axes in value.items()]
    return tuple(parse_shape(text) for text in _several(value))


def _workload(value: Any) -> Workload:
    points = [value] if isinstance(value, (str, Mapping)) else value
    if not isinstance(points, (list, tuple)) or not all(isinstance(point, (str, Mapping)) for point in points):
        raise UsageError(f"workload: got {value!r}, expected points", hint='like "B=8,S=512:0.2" or {"B": 8, "S": 512}, or a list of them')
    return parse_workload([p if isinstance(p, str) else ",".join(f"{name}={size}" for name, size in p.items()) for p in points])


_READERS: dict[str, Any] = {
    "targets": lambda value: parse_targets(_several(value)),
    "precision": lambda value: parse_choice(value, PRECISIONS, "precision"),
    "quantize": lambda value: value if value in QUANTIZE_FORMATS else parse_choice(value, QUANTIZE_SERVED, "quantize format"),
    "sparsity": lambda value: parse_choice(value, SPARSITIES, "sparsity"),
    "shapes": _shapes,
    "workload": _workload,
    "require": lambda value: tuple(parse_requirement(text) for text in _several(value)),
    "tune": parse_tuning,
    "locked": lambda value: _file("locked", value),
    "report": lambda value: _named("report", check_output, _path(value)),
    "freeze": _flag,
    "unchecked_indices": _flag,
    "trust_pickle": _flag,
    "context": parse_context,
    "threads": parse_threads,
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
    threads: int | None


# The command line repeats an option and names it in the singular; both spellings are read everywhere.
_SPELLINGS = {"target": "targets", "shape": "shapes"}


Road = Literal["the command line", "ourcc.build", "ourcc.explain", "torch.compile"]
"""Where options come from."""

WITHOUT_EFFECT: Mapping[Road, Mapping[str, str]] = {
    "the command line": {},
    "ourcc.build": {"freeze": "a program that is built holds its parameters as constants"},
    "ourcc.explain": {
        "context": "only a language model that is built has sessions",
        "report": "nothing is built: print what ourcc.explain returns, or give report to ourcc.build",
    },
    "torch.compile": {
        "shapes": "torch says which sizes vary: torch.compile(dynamic=True), or torch._dynamo.mark_dynamic(x, axis, min=1, max=64)",
        "report": "a model becomes any number of graphs: ourcc.explain(model, x) says what becomes of them",
        "trust_pickle": "no file is read",
        "context": "only a language model that is built has sessions",
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
        if value is None or value == ():
            continue
        if name in WITHOUT_EFFECT[road] and value != defaults[name]:
            raise UsageError(f"option {given!r} has no effect on {road}", hint=WITHOUT_EFFECT[road][name])
        read[name] = _READERS[name](value)
    return BuildOptions(**read)


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
    budget: Tuning = Tuning("budget", seconds=300.0)
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
