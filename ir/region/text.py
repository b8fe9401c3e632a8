"""The text of regions: printed and parsed without loss.

    region @name(%x0: f32[i B, k 384], %x1: f32[j 1536, k 384]) -> %y0: f32[i B, j 1536] {
      axes i: B, j: 1536, k: 384
      %t0 = sum k: mul(%x0[i, k], %x1[j, k]) : f32[i, j]
      %y0[i, j] = max(%t0, f32(0.0))
    }

A size may be preceded by the axis that always reads it (a label: for people, not read back). `%x[i] else 0.0` gives
the value outside, `%x[%g0] with (%g0 = ...)` a loaded index, `index(i + 1)` an index expression as data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from ..dims import Dim
from ..dims_text import parse_dim
from ..errors import ParseError
from ..expression import Apply, Constant, Index, literal, parse_literal
from ..scalar import PRIMITIVES
from ..types import DTYPES, DType, TensorType, i64
from .region import REDUCTIONS, SCANS, Axis, Let, Load, Operand, Reduce, Ref, Region, Scalar, Scan, Statement, Store, walk

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
LITERAL = re.compile(r"true|false|nan|-?inf|\([^()]*j\)|-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?j?")
LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_.]* +(?=[A-Za-z0-9_(])")
DEPTH = 200


# --- printing ---------------------------------------------------------------------------------------------------------


def print_region(region: Region) -> str:
    """The region as text; `parse_region` reads it back to an equal value."""
    labels = _labels(region)
    inputs = ", ".join(_operand(operand, labels) for operand in region.inputs)
    outputs = ", ".join(_operand(operand, labels) for operand in region.outputs)
    outputs = outputs if len(region.outputs) == 1 else f"({outputs})"
    lines = [f"region @{_name(region.name)}({inputs}) -> {outputs} {{"]
    if region.axes:
        lines.append("  axes " + ", ".join(f"{axis.name}: {axis.extent}" for axis in region.axes))
    lines += [f"  {print_statement(statement, region)}" for statement in region.body]
    return "\n".join([*lines, "}"]) + "\n"


def _name(name: str) -> str:
    return name if NAME.fullmatch(name) else json.dumps(name)


def _operand(operand: Operand, labels: dict[tuple[str, int], str]) -> str:
    sizes = [f"{labels[operand.name, n]} {size}" if (operand.name, n) in labels else str(size) for n, size in enumerate(operand.type.shape)]
    return f"%{_name(operand.name)}: {operand.type.dtype}[{', '.join(sizes)}]"


def _labels(region: Region) -> dict[tuple[str, int], str]:
    """The axis of each operand dimension that is always read or written by exactly that axis."""
    seen: dict[tuple[str, int], set[str]] = {}
    axes = region.extents.keys()
    for statement in region.body:
        accesses = [(part.operand, part.subscripts) for part in walk(statement.value) if isinstance(part, Load)]
        if isinstance(statement, Store):
            accesses.append((statement.output, statement.subscripts))
        for operand, subscripts in accesses:
            for n, subscript in enumerate(subscripts):
                seen.setdefault((operand, n), set()).add(str(subscript))
    return {place: next(iter(texts)) for place, texts in seen.items() if len(texts) == 1 and texts <= axes}


def print_statement(statement: Statement, region: Region) -> str:
    """One statement as text."""
    value = _scalar(statement.value)
    if isinstance(statement, Store):
        return f"{_store_target(statement, region)} = {value}"
    dtype = statement.value.dtype if isinstance(statement, Let) else statement.dtype
    suffix = f" : {dtype}[{', '.join(statement.axes)}]"
    if isinstance(statement, Reduce):
        value = f"{statement.kind} {', '.join(statement.over)}: {value}"
    elif isinstance(statement, Scan):
        flags = " exclusive" * statement.exclusive + " reverse" * statement.reverse
        value = f"{statement.kind} {statement.along}{flags}: {value}"
    return f"%{_name(statement.name)} = {value}{suffix}"


def _store_target(store: Store, region: Region) -> str:
    text = f"%{_name(store.output)}[{', '.join(map(str, store.subscripts))}]{_gathers(store.gathers)}"
    text += f" combine {store.combine}" if store.combine else ""
    plain = _plain_axes(store.subscripts, region.extents.keys())
    return text if plain == store.axes else f"{text} over ({', '.join(store.axes)})"


def _plain_axes(subscripts: Sequence[Dim], axes: Iterable[str]) -> tuple[str, ...] | None:
    """The axes that a store's subscripts are, where each is an axis or a number; None otherwise."""
    known = set(axes)
    names = tuple(str(subscript) for subscript in subscripts if not isinstance(subscript, int))
    return names if all(name in known for name in names) else None


def _gathers(gathers: tuple[tuple[str, Scalar], ...]) -> str:
    return f" with ({', '.join(f'{name} = {_scalar(value)}' for name, value in gathers)})" if gathers else ""


def _scalar(value: Scalar) -> str:
    if isinstance(value, Constant):
        return f"{value.dtype}({literal(value.value)})"
    if isinstance(value, Index):
        return f"index({value.value})" if value.dtype == i64 else f"index({value.value}, {value.dtype})"
    if isinstance(value, Ref):
        return f"%{_name(value.name)}"
    if isinstance(value, Load):
        other = f" else {literal(value.other.value)}" if value.other is not None else ""
        return f"%{_name(value.operand)}[{', '.join(map(str, value.subscripts))}]{other}{_gathers(value.gathers)}"
    args = [_scalar(arg) for arg in value.args]
    if value.primitive in ("cast", "round", "bitcast"):
        args.append(str(value.dtype))
    return f"{value.primitive}({', '.join(args)})"


# --- parsing ----------------------------------------------------------------------------------------------------------


def parse_region(text: str) -> Region:
    """Read what `print_region` prints; ParseError with line and column otherwise."""
    parser = _Parser(text)
    region = parser.region()
    parser.skip()
    if parser.at < len(text):
        raise parser.error("the end")
    return region


class _Parser:
    """Recursive descent over the text of one region; knows the dtypes of what was named so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.operands: dict[str, TensorType] = {}
        self.values: dict[str, DType] = {}
        self.axes: dict[str, Axis] = {}

    # words

    def error(self, expected: str) -> ParseError:
        """What was found here, with line and column."""
        line = self.text.count("\n", 0, self.at) + 1
        column = self.at - self.text.rfind("\n", 0, self.at)
        found = NAME.match(self.text, self.at)
        got = found.group() if found else self.text[self.at : self.at + 1]
        return ParseError(f"line {line}, column {column}: got {got.strip() or 'the end of the line'!r}, expected {expected}")

    def skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def accept(self, word: str) -> bool:
        self.skip()
        ends = self.at + len(word)
        # A word must not be the beginning of a longer name.
        if not self.text.startswith(word, self.at) or (word[-1].isalnum() and NAME.match(self.text[ends : ends + 1] or " ")):
            return False
        self.at = ends
        return True

    def expect(self, word: str) -> None:
        if not self.accept(word):
            raise self.error(repr(word))

    def match(self, pattern: re.Pattern[str], expected: str) -> str:
        self.skip()
        found = pattern.match(self.text, self.at)
        if not found or not found.group():
            raise self.error(expected)
        self.at = found.end()
        return found.group()

    def name(self, expected: str = "a name") -> str:
        self.skip()
        if not self.text.startswith('"', self.at):
            return self.match(NAME, expected)
        try:
            value, length = json.JSONDecoder().raw_decode(self.text[self.at :])
        except ValueError as error:
            raise self.error(expected) from error
        self.at += length
        return str(value)

    def names(self, close: str) -> tuple[str, ...]:
        found: list[str] = []
        while not self.accept(close):
            if found:
                self.expect(",")
            found.append(self.name())
        return tuple(found)

    def dtype(self) -> DType:
        self.skip()
        start = self.at
        name = self.match(NAME, "a dtype")
        if name not in DTYPES:
            self.at = start
            raise self.error(f"one of the dtypes {', '.join(DTYPES)}")
        return DTYPES[name]

    def dim(self, stops: str) -> Dim:
        """A dimension up to one of the characters `stops` outside parentheses."""
        self.skip()
        start, depth = self.at, 0
        while self.at < len(self.text) and (depth or self.text[self.at] not in stops):
            depth += {"(": 1, ")": -1}.get(self.text[self.at], 0)
            if depth < 0 or self.text[self.at] == "\n":
                break
            self.at += 1
        return parse_dim(self.text[start : self.at])

    def dims(self, labelled: bool = False) -> tuple[Dim, ...]:
        """Dimensions up to the closing bracket."""
        found: list[Dim] = []
        while not self.accept("]"):
            if found:
                self.expect(",")
            self.skip()
            label = LABEL.match(self.text, self.at) if labelled else None
            self.at = label.end() if label else self.at
            found.append(self.dim(",]"))
        return tuple(found)

    # the region

    def region(self) -> Region:
        self.expect("region")
        self.expect("@")
        name = self.name()
        self.expect("(")
        inputs = self.operand_list(")")
        self.expect("->")
        outputs = self.operand_list(")") if self.accept("(") else (self.operand(),)
        self.expect("{")
        if self.accept("axes"):
            self.axis_list()
        body: list[Statement] = []
        while not self.accept("}"):
            body.append(self.statement())
        return Region(name, inputs, outputs, tuple(self.axes.values()), tuple(body))

    def operand_list(self, close: str) -> tuple[Operand, ...]:
        found: list[Operand] = []
        while not self.accept(close):
            if found:
                self.expect(",")
            found.append(self.operand())
        return tuple(found)

    def operand(self) -> Operand:
        self.expect("%")
        name = self.name()
        self.expect(":")
        dtype = self.dtype()
        self.expect("[")
        self.operands[name] = TensorType(dtype, self.dims(labelled=True))
        return Operand(name, self.operands[name])

    def axis_list(self) -> None:
        while True:
            name = self.name()
            self.expect(":")
            self.axes[name] = Axis(name, self.dim(",\n"))
            if not self.accept(","):
                return

    def statement(self) -> Statement:
        self.expect("%")
        start = self.at
        name = self.name()
        if self.accept("["):
            return self.store(name)
        self.expect("=")
        statement = self.definition(name)
        if name in self.values or name in self.operands:
            self.at = start
            raise self.error("a name that is not taken")
        self.values[name] = statement.value.dtype if isinstance(statement, Let) else statement.dtype
        return statement

    def definition(self, name: str) -> Let | Reduce | Scan:
        start = self.at
        self.skip()
        word = NAME.match(self.text, self.at)
        kind = word.group() if word else ""
        self.at = word.end() if word else self.at
        if kind not in (*REDUCTIONS, *SCANS) or self.accept("("):
            self.at = start
            value = self.scalar(0)
            return Let(name, self.suffix(value.dtype)[1], value)
        if kind in SCANS:
            along, exclusive, reverse = self.name(), self.accept("exclusive"), self.accept("reverse")
            self.expect(":")
            value = self.scalar(0)
            dtype, axes = self.suffix(None)
            return Scan(name, axes, kind, along, value, dtype, exclusive, reverse)
        over = self.names(":")
        value = self.scalar(0)
        dtype, axes = self.suffix(None)
        return Reduce(name, axes, kind, over, value, dtype)

    def suffix(self, expected: DType | None) -> tuple[DType, tuple[str, ...]]:
        """`: dtype[axes]`."""
        self.expect(":")
        self.skip()
        start = self.at
        dtype = self.dtype()
        if expected is not None and dtype != expected:
            self.at = start
            raise self.error(f"the dtype of the value, {expected}")
        self.expect("[")
        return dtype, self.names("]")

    def store(self, output: str) -> Store:
        subscripts = self.dims()
        gathers = self.gathers(0)
        combine = self.name() if self.accept("combine") else None
        axes = self.names(")") if self.accept("over") and self.accept("(") else _plain_axes(subscripts, self.axes)
        if axes is None:
            raise self.error("'over (axes)' where subscripts are not plain axes")
        self.expect("=")
        return Store(output, axes, subscripts, self.scalar(0), gathers, combine)

    # values

    def gathers(self, depth: int) -> tuple[tuple[str, Scalar], ...]:
        found: list[tuple[str, Scalar]] = []
        if not self.accept("with"):
            return ()
        self.expect("(")
        while not self.accept(")"):
            if found:
                self.expect(",")
            self.expect("%")
            placeholder = f"%{self.name()}"
            self.expect("=")
            found.append((placeholder, self.scalar(depth + 1)))
        return tuple(found)

    def scalar(self, depth: int) -> Scalar:
        if depth > DEPTH:
            raise self.error(f"values nested at most {DEPTH} deep")
        if self.accept("%"):
            return self.named(depth)
        self.skip()
        start = self.at
        word = self.match(NAME, "a value")
        self.expect("(")
        if word in DTYPES:
            return self.constant(DTYPES[word], ")")
        if word == "index":
            value = self.dim(",)")
            dtype = self.dtype() if self.accept(",") else i64
            self.expect(")")
            return Index(value, dtype)
        if word not in PRIMITIVES:
            self.at = start
            raise self.error("a scalar primitive")
        return self.apply(word, depth)

    def named(self, depth: int) -> Scalar:
        start = self.at
        name = self.name()
        if not self.accept("["):
            if name not in self.values:
                self.at = start
                raise self.error("a value named before")
            return Ref(name, self.values[name])
        if name not in self.operands:
            self.at = start
            raise self.error("an operand")
        dtype = self.operands[name].dtype
        subscripts = self.dims()
        other = self.constant(dtype, "") if self.accept("else") else None
        return Load(name, subscripts, dtype, other, self.gathers(depth))

    def constant(self, dtype: DType, close: str) -> Constant:
        value = parse_literal(self.match(LITERAL, "a number"))
        if close:
            self.expect(close)
        return Constant(value, dtype)

    def apply(self, primitive: str, depth: int) -> Scalar:
        entry = PRIMITIVES[primitive]
        args: list[Scalar] = []
        for n in range(entry.arity if entry.result != "given" else 1):
            if n:
                self.expect(",")
            args.append(self.scalar(depth + 1))
        if entry.result == "given":
            self.expect(",")
            dtype = self.dtype()
        else:
            dtype = entry.result_of(args[1 if primitive == "where" else 0].dtype)
        self.expect(")")
        return Apply(primitive, tuple(args), dtype)
