"""What users write for one option and how it is read: shapes, requirements, times for tuning, choices of words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..ir.digits import integer, whole_number
from ..ir.dims import Dim, symbols
from ..ir.dims_text import parse_dim
from ..ir.errors import CompilerError, UsageError
from ..ir.spelling import nearest
from ..passes.quantize import ACTIVATIONS, QUANTIZATIONS, SCORES
from .targets.registry import TARGETS

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
QUANTIZE_FORMATS = tuple(QUANTIZATIONS)
SPARSITIES = ("2:4",)
CACHES = ("f32", "bf16", "f16", "int8", "fp8")
"""What the cache of a language model may be kept in; `compiler/language/caches.py` says how."""
MOST_SEQUENCES = 4096


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
_DASHED = re.compile(r"[0-9]+ *- *[0-9]+")
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
    if "=" in text:
        each = " ".join(f"--shape {part}" for part in re.split(r",(?=[^,=]*=)", whole))
        raise UsageError(f"shape {whole!r}: got {text!r} for an axis", hint=f"one input or symbol in each: {each}")
    try:
        size = parse_dim(text)
    except CompilerError as error:
        raise UsageError(f"shape {whole!r}: {error.message}", hint=f"an axis is {_AXIS_HELP}") from error
    if isinstance(size, int) and size < 0:
        hint = f"a range is {text.replace('-', '..')}" if _DASHED.fullmatch(text) else None
        raise UsageError(f"shape {whole!r}: got size {size}, expected at least 0", hint=hint)
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
    known = tuple(TARGETS) if subject == "target" else (*PRECISIONS, *QUANTIZE_FORMATS, *ACTIVATIONS, SCORES, *SPARSITIES)
    if colon and subject and value in known:
        return Requirement(subject, value)
    if colon and subject:
        kind = "target" if subject == "target" else "format"
        raise UsageError(f"require {text!r}: unknown {kind}: got {value!r}, expected one of {', '.join(known)}", hint=nearest(value, known))
    raise UsageError(
        f"require: got {text!r}, expected no-fallback, no-host, target:NAME or OP:FORMAT",
        hint=nearest(text, ("no-fallback", "no-host", "target:cpu", "linear:int8-weight")),
    )


@dataclass(frozen=True)
class Measuring:
    """How much measuring: none, what stores hold, the best `count` schedules a problem, or `seconds` in all."""

    mode: Literal["off", "cached", "count", "budget"] = "cached"
    count: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return {"count": str(self.count), "budget": f"{self.seconds:g}s"}.get(self.mode, self.mode)


UNTUNED = Measuring()
BUDGET = Measuring("budget", seconds=300.0)
"""The time that `ourcc tune` takes where nobody says one."""

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds of 500ms, 90s, 5m or 1h."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"duration: got {text!r}, expected a positive number with ms, s, m or h, like 5m")
    return float(match[1]) * _SECONDS[match[2]]


def parse_measuring(text: str | int) -> Measuring:
    """Read off, cached, a number of schedules, or a duration."""
    word = str(text).strip()
    if word in ("off", "cached"):
        return Measuring("off" if word == "off" else "cached")
    if count := whole_number(word, 8):
        return Measuring("count", count=count)
    if _DURATION.fullmatch(word):
        return Measuring("budget", seconds=parse_duration(word))
    raise UsageError(
        f"tune: got {word!r}, expected off, cached, a number of schedules, or a duration like 5m", hint=nearest(word, ("off", "cached"))
    )


_FLOATS = {"f32": "fp32", "float32": "fp32", "float": "fp32", "f16": "fp16", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"}
_GGUF_TYPE = re.compile(r"i?q([1-8])(_[0-9a-z]+)*")
"""What llama.cpp calls formats of weights and caches: q8_0, q4_k_m, iq3_xxs."""


def _spelled(text: Any) -> str:
    """A name in small letters, without torch's own; nothing for what is no text."""
    return text.lower().removeprefix("torch.") if isinstance(text, str) else ""


def parse_quantize(text: str) -> str:
    """A name of QUANTIZE_FORMATS; a UsageError says what comes nearest to a type of GGUF files."""
    return parse_choice(text, QUANTIZE_FORMATS, "quantize format", hint_of_format(text))


_BITS = re.compile(r"w([1-8])a(4|8|16|32)")
"""What papers and other programs call weights and activations by their bits: w4a16, w8a8."""


def hint_of_format(text: str) -> str | None:
    """What comes nearest to a format's name in other programs: a type of GGUF files, or bits; None for any other word."""
    bits = _BITS.fullmatch(_spelled(text))
    if bits is None:
        return _hint_of_gguf(text)
    weights, activations = bits[1], bits[2]
    near = {"4": "nvfp4", "8": "int8" if weights == "8" else f"int{weights}-a8"}.get(activations, f"int{weights}-weight")
    return f"did you mean {near!r}?" if near in QUANTIZE_FORMATS else None


def _hint_of_gguf(text: str) -> str | None:
    """What to do about a type of GGUF files that was named in place of a format; None for any other word."""
    found = _GGUF_TYPE.fullmatch(_spelled(text))
    if found is None:
        return None
    bits = max(int(found[1]), 2)
    near = "int8-weight" if bits > 4 else f"int{bits}-a8"
    return f"weights of a .gguf file stay as they are in it; of other models, {near} comes nearest"


def parse_cache(text: str) -> str:
    """A name of CACHES; a UsageError names the one that other programs' name of it means."""
    spelled = _spelled(text)
    meant = {name: other.replace("fp", "f") for name, other in _FLOATS.items()}
    meant |= {"fp32": "f32", "fp16": "f16", "i8": "int8", "f8": "fp8", "fp8_e4m3": "fp8", "float8_e4m3fn": "fp8"}
    near = meant.get(spelled) or ("int8" if _GGUF_TYPE.fullmatch(spelled) else None)
    return parse_choice(text, CACHES, "cache", near and f"did you mean {near!r}?")


def parse_precision(text: str) -> str:
    """A name of PRECISIONS, or of the dtype; a UsageError names the one that other programs' name of it means."""
    if text in ("f32", "f16"):
        return _FLOATS[text]
    spelled = _spelled(text)
    meant = _FLOATS.get(spelled)
    hint = f"that is a number format: --quantize {spelled}" if spelled in QUANTIZE_FORMATS else meant and f"did you mean {meant!r}?"
    return parse_choice(text, PRECISIONS, "precision", hint)


def parse_choice(text: str, known: Sequence[str], what: str, hint: str | None = None) -> str:
    """`text` if it is one of the known words; a UsageError gives the hint, else names the nearest."""
    if text not in known:
        hint = hint or (nearest(text, known) if isinstance(text, str) else None)
        raise UsageError(f"unknown {what}: got {text!r}, expected one of {', '.join(known)}", hint=hint)
    return text


def parse_batch(text: str | int) -> int:
    """A number of sequences, from 1 to 4,096."""
    number = integer(text, 9) or 0
    if not 1 <= number <= MOST_SEQUENCES:
        raise UsageError(f"batch: got {text!r}, expected a whole number of sequences from 1 to {MOST_SEQUENCES}")
    return number


def parse_context(text: str | int) -> int:
    """A number of tokens, from 1 to 2^24."""
    number = integer(text, 9) or 0
    if not 1 <= number <= 1 << 24:
        raise UsageError(f"context: got {text!r}, expected a whole number of tokens from 1 to {1 << 24}")
    return number
