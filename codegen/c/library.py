"""The C functions that kernels may call, written out on demand for a lane count and an instruction-set level.

A function is called `name_dtype_lanes` (`exp_f32_16`); its text is a template over `@N` (lanes). One lane is a plain C
scalar, more lanes are a compiler vector type `f32x16`. Bools in registers are masks: `i32xN` of 0 and -1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...ir.target import CpuLevel

ELEMENTS: dict[str, tuple[str, int]] = {
    "f32": ("float", 4),
    "f64": ("double", 8),
    "i8": ("int8_t", 1),
    "i16": ("int16_t", 2),
    "i32": ("int32_t", 4),
    "i64": ("int64_t", 8),
    "u8": ("uint8_t", 1),
    "u16": ("uint16_t", 2),
    "u32": ("uint32_t", 4),
    "u64": ("uint64_t", 8),
}

WRITTEN_OUT = "inline __attribute__((always_inline))"
CALLED = "__attribute__((noinline))"
RARE = "__attribute__((noinline, cold))"
_TYPE = re.compile(r"\b([fiu][0-9]+)x([0-9]+)(u?)\b")
_CALL = re.compile(r"\b([a-z0-9_]+?)_([0-9]+)\(")
_LANE_CALL = re.compile(r"\b(ourcc_\w+)\(")


def horner(variable: str, result: str, *coefficients: str, dtype: str = "f32") -> str:
    """Statements that evaluate a polynomial, highest coefficient first, by fused multiply-adds."""
    lines = [f"{dtype}x@N {result} = splat_{dtype}_@N({coefficients[0]});"]
    lines += [f"{result} = fma_{dtype}_@N({result}, {variable}, splat_{dtype}_@N({c}));" for c in coefficients[1:]]
    return "\n".join(lines)


@dataclass(frozen=True)
class LibraryFunction:
    """One library function; exactly one of `body`, `lane` and `raw` says what it computes.

    `args` are C declarations with types `f32x@N`, `const float *`, `int64_t`; `body` are statements over vectors (or a
    function of the lane count that gives them), `lane` an expression for one element (named like the arguments),
    `scalar` the body for one lane where `body` does not fit it, `fast` maps (lanes, feature) to an intrinsic
    expression. `raw` is C as it stands (whole functions, a macro), `native` what is in its place where there is a feature.
    With `halves`, vectors wider than a register are taken in two halves: gcc splits their arithmetic by registers, but
    their comparisons by elements. A `rare` function is called, not written out where it is called.
    """

    result: str
    args: tuple[str, ...]
    body: str | Callable[[int], str] = ""
    lane: str = ""
    scalar: str = ""
    fast: Mapping[tuple[int, str], str] = field(default_factory=dict)
    raw: str = ""
    native: Mapping[str, str] = field(default_factory=dict)
    halves: bool = False
    rare: bool = False


class Library:
    """The functions that one C file has asked for; `text` writes them and the types they need, in order."""

    def __init__(self, level: CpuLevel, functions: Mapping[str, LibraryFunction]) -> None:
        self.level = level
        self.functions = functions
        self._written: dict[str, str] = {}
        self._types: dict[str, str] = {}
        self._features: dict[str, set[str]] = {}  # those that a function that is written uses, by its key
        self._used: set[str] = set()
        self.places: dict[str, str] = {}  # of those that are no text as it stands: where gcc may put them
        self.includes: set[str] = set()

    def call(self, name: str, lanes: int, *args: str) -> str:
        """The text of a call; the function is written out once."""
        self.need(name, lanes)
        return f"{name}_{lanes}({', '.join(args)})"

    @contextmanager
    def noting(self) -> Iterator[set[str]]:
        """The CPU features whose instructions what is asked for inside uses: whole when the block ends."""
        outer, self._used = self._used, set()
        try:
            yield self._used
        finally:
            outer |= self._used
            self._used = outer

    def vector(self, dtype: str, lanes: int) -> str:
        """The C type of `lanes` elements."""
        return self._type(dtype, lanes, "")

    def scan(self, text: str) -> str:
        """Ask for everything that `text` uses, and give it back."""
        for match in _TYPE.finditer(text):
            self._type(match[1], int(match[2]), match[3])
        for match in _CALL.finditer(text):
            if match[1] in self.functions:
                self.need(match[1], int(match[2]))
        for match in _LANE_CALL.finditer(text):
            if match[1] in self.functions:
                self._raw(match[1])
        if "_mm" in text:
            self.includes.add("immintrin.h")
        if "memcpy" in text or "memset" in text:
            self.includes.add("string.h")
        return text

    def need(self, name: str, lanes: int) -> None:
        self._write(f"{name}_{lanes}", lambda: self._define(self.functions[name], name, lanes))

    def _write(self, key: str, define: Callable[[], str]) -> None:
        """Write a function once, and note the features that it uses each time."""
        if key not in self._written:
            self._written[key] = ""  # stands while its own needs are written, which come before it
            with self.noting() as self._features[key]:
                text = self.scan(define())
            del self._written[key]
            self._written[key] = text
        self._used |= self._features[key]

    def text(self, called: Container[str] = ()) -> str:
        """Types, then functions, each after what it calls; those of `called` are not written out where they are called."""
        lines = [f"#include <{name}>" for name in sorted(self.includes | {"stdint.h", "math.h"})]
        functions = (self._placed(name, CALLED if name in called else self.places.get(name, "")) for name in self._written)
        return "\n".join([*lines, "", *self._types.values(), "", *functions])

    def _placed(self, name: str, place: str) -> str:
        return f"static {place} {self._written[name]}" if place else self._written[name]

    def written(self) -> Iterable[tuple[str, str]]:
        """The functions by name, each after what it calls."""
        return self._written.items()

    def _raw(self, name: str) -> None:
        self._write(name, lambda: self._as_it_stands(self.functions[name]).strip() + "\n")

    def _as_it_stands(self, function: LibraryFunction) -> str:
        for feature, text in function.native.items():
            if self.level.has(feature):
                self._used.add(feature)
                return text
        return function.raw

    def _type(self, dtype: str, lanes: int, unaligned: str) -> str:
        name = f"{dtype}x{lanes}{unaligned}"
        if name not in self._types:
            element, size = ELEMENTS[dtype]
            attributes = f"vector_size({size * lanes})" + (f", aligned({size}), may_alias" if unaligned else "")
            one = " __attribute__((may_alias))" if unaligned else ""
            self._types[name] = f"typedef {element} {name}" + (f" __attribute__(({attributes}));" if lanes > 1 else f"{one};")
        return name

    def _define(self, function: LibraryFunction, name: str, lanes: int) -> str:
        result, args = self._fill(function.result, lanes), [self._fill(arg, lanes) for arg in function.args]
        body = self._body(function, name, lanes, result)
        self.places[f"{name}_{lanes}"] = RARE if function.rare else WRITTEN_OUT
        head = f"{result} {name}_{lanes}({', '.join(args)})"
        return head + " {\n" + "\n".join(f"    {line}" for line in body.strip().splitlines()) + "\n}\n"

    def _body(self, function: LibraryFunction, name: str, lanes: int, result: str) -> str:
        names = [re.split(r"[ *]", arg)[-1] for arg in function.args]
        for (width, feature), expression in function.fast.items():
            if width == lanes and self.level.has(feature):
                self._used.add(feature)
                text = self._fill(expression, lanes)
                return text if "return" in text else f"return {text};"
        if lanes == 1 and function.scalar:
            return function.scalar
        if function.lane:
            if lanes == 1:
                return f"return {self._fill(function.lane, 1)};"
            vectors = [arg for arg, text in zip(names, function.args, strict=True) if "x@N" in text]
            expression = re.sub(rf"(?<![\w.])({'|'.join(vectors)})\b", r"\1[l]", self._fill(function.lane, 1)) if vectors else function.lane
            return f"{result} r;\nfor (int l = 0; l < {lanes}; ++l) r[l] = {expression};\nreturn r;"
        if lanes == 1:
            wide = [
                f"({text.split()[0].replace('@N', '4')}){{{arg}}}" if "x@N" in text else arg
                for arg, text in zip(names, function.args, strict=True)
            ]
            return f"return {name}_4({', '.join(wide)})[0];"
        if function.halves and any(self._bits(arg, lanes) > self.level.vector_bits for arg in function.args):
            return self._halved(function, name, lanes, names)
        return self._fill(function.body if isinstance(function.body, str) else function.body(lanes), lanes)

    def _halved(self, function: LibraryFunction, name: str, lanes: int, names: list[str]) -> str:
        """A body over vectors that calls the function of half as many lanes twice; never by way of memory, which is slow to join them."""
        first, second = (", ".join(str(n) for n in range(start, start + lanes // 2)) for start in (0, lanes // 2))
        lines = []
        for half, order in (("low", first), ("high", second)):
            given = (
                f"__builtin_shufflevector({value}, {value}, {order})" if self._bits(arg, lanes) else value
                for arg, value in zip(function.args, names, strict=True)
            )
            lines.append(f"const {self._fill(function.result, lanes // 2)} {half} = {name}_{lanes // 2}({', '.join(given)});")
        return "\n".join([*lines, f"return __builtin_shufflevector(low, high, {first}, {second});"])

    @staticmethod
    def _bits(arg: str, lanes: int) -> int:
        """The bits of a vector argument."""
        dtype, vector, _ = arg.partition("x@N")
        return 8 * ELEMENTS[dtype][1] * lanes if vector else 0

    @staticmethod
    def _fill(text: str, lanes: int) -> str:
        return text.replace("@N", str(lanes))
