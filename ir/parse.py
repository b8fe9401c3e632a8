"""Reading the text of graph modules; nothing in the text is ever evaluated, sizes and depths are limited."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from .dims_text import parse_dim
from .errors import CompilerError, ParseError, Source, VerifyError
from .expression import parse_literal
from .graph import ConstantData, Graph, Module, Op, Value
from .literals import LITERAL, constant_array, unquote
from .ops.table import OPS
from .types import DTYPES, TensorType

Array = np.ndarray[Any, Any]
MAXIMUM_DEPTH = 32

_BLANK = re.compile(r"(?:\s+|#[^\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./]*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_TYPE = re.compile(r"([a-z][a-z0-9]*)\[([^\]\n]*)\]")
_PAIR = re.compile(r"\[([^\]\n]*)\]")
_RANGE = re.compile(r"(-?\d{1,18})?\.\.(-?\d{1,18})?")
_INTEGER = re.compile(r"-?\d{1,18}")
_NUMBER = re.compile(r"[-+A-Za-z0-9_.]+")
_EQUALS = re.compile(r"[ \t]*=")
_SOURCE = re.compile(r"[ \t]*loc\(")
_DIGEST = re.compile(r"[ \t]*#[ \t]*sha256:([0-9a-f]{64})")


def parse_module(text: str, constants: Mapping[str, Array] | Callable[[str, TensorType], Array] | None = None) -> Module:
    """Read one module. `constants` has the arrays of large constants by digest, or is asked for them.

    A constant whose values are not given keeps its digest; asking for its values is an error. ParseError carries line
    and column.
    """
    return _Parser(text, constants).module()


def parse_type(text: str) -> TensorType:
    """Read a type as `str` prints it: f32[B, 384]."""
    match = _TYPE.fullmatch(text.strip())
    if match is None or match[1] not in DTYPES:
        raise ParseError(f"cannot read type {text[:80]!r}", hint="a type is a dtype and sizes, such as f32[B, 384]")
    inside = match[2].strip()
    return TensorType(DTYPES[match[1]], tuple(parse_dim(part) for part in _split(inside)) if inside else ())


def _split(text: str) -> list[str]:
    """`text` cut at the commas outside parentheses."""
    if "(" not in text:
        return text.split(",")
    parts, depth, start = [], 0, 0
    for position, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def _missing(name: str, digest: str) -> Callable[[], Array]:
    def load() -> Array:
        hint = "give the arrays of large constants by digest when the text is read"
        raise ParseError(f"constant @{name} (sha256:{digest[:12]}) has no values here", hint=hint)

    return load


@dataclass
class _Returned:
    value: Value
    name: str


class _Parser:
    """Recursive descent over the text; positions become line and column only in an error."""

    def __init__(self, text: str, constants: Mapping[str, Array] | Callable[[str, TensorType], Array] | None) -> None:
        self.text = text
        self.position = 0
        self.constants = constants
        self.types: dict[str, TensorType] = {}
        self.parsed = Module("")
        self.values: dict[str, Value] = {}

    # --- scanning ---

    def fail(self, message: str, position: int | None = None) -> NoReturn:
        at = self.position if position is None else position
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        end = self.text.find("\n", at)
        shown = self.text[at - column + 1 : end if end >= 0 else len(self.text)].strip()[:160]
        raise ParseError(f"line {line}, column {column}: {message}", note=shown or None)

    def skip(self) -> None:
        match = _BLANK.match(self.text, self.position)
        self.position = match.end() if match else self.position

    def at(self, literal: str) -> bool:
        self.skip()
        return self.text.startswith(literal, self.position)

    def accept(self, literal: str) -> bool:
        if not self.at(literal):
            return False
        self.position += len(literal)
        return True

    def expect(self, literal: str) -> None:
        if not self.accept(literal):
            self.fail(f"got {self.rest()}, expected {literal!r}")

    def rest(self) -> str:
        found = self.text[self.position : self.position + 20].split("\n")[0]
        return repr(found) if found else "the end" if self.position >= len(self.text) else "the end of the line"

    def take(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        self.skip()
        match = pattern.match(self.text, self.position)
        if match is None:
            self.fail(f"got {self.rest()}, expected {what}")
        self.position = match.end()
        return match

    def string(self) -> str:
        start = self.position
        match = self.take(_STRING, "a quoted string")
        try:
            return unquote(match[0])
        except ParseError as error:
            self.fail(error.message, start)

    def name(self) -> str:
        return self.string() if self.at('"') else self.take(_NAME, "a name")[0]

    def type(self) -> TensorType:
        self.skip()
        start = self.position
        match = self.take(_TYPE, "a type such as f32[B, 384]")
        known = self.types.get(match[0])
        if known is None:
            try:
                known = self.types[match[0]] = parse_type(match[0])
            except ParseError as error:
                self.fail(error.message, start)
        return known

    # --- the module ---

    def module(self) -> Module:
        self.expect("module")
        self.expect("@")
        self.parsed.name = self.name()
        if self.accept("symbols"):
            self.symbols()
        if self.accept("broadcasts"):
            self.broadcasts()
        self.expect("{")
        while not self.accept("}"):
            if self.accept("const"):
                self.constant()
            elif self.accept("func"):
                self.function()
            else:
                self.fail(f"got {self.rest()}, expected 'const', 'func' or '}}'")
        self.skip()
        if self.position != len(self.text):
            self.fail(f"got {self.rest()}, expected the end")
        return self.parsed

    def symbols(self) -> None:
        self.expect("{")
        while not self.accept("}"):
            name = self.take(_SYMBOL, "a symbol's name")[0]
            if name in self.parsed.facts.ranges:
                self.fail(f"symbol {name} is declared twice")
            self.expect("in")
            bounds = self.take(_RANGE, "a range such as 1..32")
            low, high = (None if part is None else int(part) for part in (bounds[1], bounds[2]))
            divisor = int(self.take(_INTEGER, "a divisor")[0]) if self.accept("divisor") else 1
            self.parsed.declare(name, low, high, divisor)
            if not self.accept(","):
                self.expect("}")
                return

    def broadcasts(self) -> None:
        self.expect("{")
        pairs = []
        while not self.accept("}"):
            start = self.position
            text = self.take(_PAIR, "two sizes such as [A, B]")[1]
            try:
                pair = [parse_dim(part) for part in _split(text)]
            except ParseError as error:
                self.fail(error.message, start)
            if len(pair) != 2:
                self.fail(f"got {len(pair)} sizes, expected two that broadcast", start)
            pairs.append((pair[0], pair[1]))
            if not self.accept(","):
                self.expect("}")
                break
        self.parsed.facts = replace(self.parsed.facts, broadcasts=tuple(pairs))

    def constant(self) -> None:
        self.expect("@")
        start = self.position
        name = self.name()
        if name in self.parsed.constants:
            self.fail(f"constant @{name} is declared twice", start)
        self.expect(":")
        type = self.type()
        equals = _EQUALS.match(self.text, self.position)
        self.position = equals.end() if equals else self.position
        texts = self.elements() if equals else None
        source = self.source()
        digest = _DIGEST.match(self.text, self.position)
        if texts is not None:
            try:
                data = ConstantData(constant_array(texts, type))
            except ParseError as error:
                self.fail(f"@{name}: {error.message}", start)
        elif digest is not None:
            self.position = digest.end()
            data = self.large(name, digest[1], type)
        else:
            self.fail(f"constant @{name} has neither values ('= [...]') nor a digest ('# sha256:...')", start)
        self.parsed.add_constant(name, data, source, type)

    def large(self, name: str, digest: str, type: TensorType) -> ConstantData:
        if callable(self.constants):
            find = self.constants
            return ConstantData(load=lambda: find(digest, type), digest=digest)
        if self.constants is not None and digest in self.constants:
            return ConstantData(self.constants[digest], digest=digest)
        return ConstantData(load=_missing(name, digest), digest=digest, available=False)

    def elements(self) -> list[str]:
        if not self.accept("["):
            return [self.element()]
        found: list[str] = []
        while not self.accept("]"):
            found.append(self.element())
            if not self.accept(","):
                self.expect("]")
                break
        return found

    def element(self) -> str:
        if self.at('"'):
            return self.take(_STRING, "a quoted string")[0]
        return self.take(_NUMBER, "a number")[0]

    def source(self) -> Source | None:
        # Only blanks are skipped: a digest comment may follow on the same line.
        match = _SOURCE.match(self.text, self.position)
        if match is None:
            return None
        self.position = match.end()
        name, file, line = self.string(), None, None
        while self.accept(","):
            if self.at('"') and file is None:
                file = self.string()
            else:
                line = int(self.take(_INTEGER, "a line number")[0])
        self.expect(")")
        return Source(name, file, line)

    # --- functions ---

    def function(self) -> None:
        self.expect("@")
        name = self.name()
        if name in self.parsed.functions:
            self.fail(f"function @{name} is defined twice")
        graph = Graph(name)
        self.values = {}
        self.expect("(")
        while not self.accept(")"):
            self.input(graph)
            if not self.accept(","):
                self.expect(")")
                break
        self.expect("->")
        types = self.result_types()
        self.expect("{")
        while not self.accept("return"):
            if self.at("}") or self.position >= len(self.text):
                self.fail(f"function @{name} ends without a return")
            self.op(graph)
        self.returns(graph, types)
        self.expect("}")
        self.parsed.functions[name] = graph

    def input(self, graph: Graph) -> None:
        self.expect("%")
        start = self.position
        name = self.name()
        self.expect(":")
        type = self.type()
        value = graph.add_input(name, type, self.source())
        self.define(name, value, start)

    def define(self, name: str, value: Value, position: int) -> None:
        if name in self.values:
            self.fail(f"%{name} is defined twice", position)
        self.values[name] = value

    def result_types(self) -> list[TensorType]:
        if not self.accept("("):
            return [self.type()]
        types: list[TensorType] = []
        while not self.accept(")"):
            types.append(self.type())
            if not self.accept(","):
                self.expect(")")
                break
        return types

    def op(self, graph: Graph) -> None:
        start = self.position
        names = self.result_names()
        word = self.take(_WORD, "an op's name")[0]
        definition = OPS.get(word)
        if definition is None:
            self.fail(f"there is no op {word!r}", start)
        operands = self.operands()
        attrs = self.attributes() if self.at("{") else {}
        types: list[TensorType] = []
        if names:
            self.expect(":")
            types = [self.type()]
            while self.accept(","):
                types.append(self.type())
        if len(types) != len(names):
            self.fail(f"{word} has {len(names)} results and {len(types)} types", start)
        source = self.source()
        try:
            attrs = definition.complete(attrs)
        except VerifyError as error:
            self.fail(error.message, start)
        op = Op(definition, tuple(operands), attrs, source)
        op.results = tuple(Value(graph.unique(name), type, op=op, source=source) for name, type in zip(names, types, strict=True))
        for name, value in zip(names, op.results, strict=True):
            self.define(name, value, start)
        graph.insert(op)

    def result_names(self) -> list[str]:
        names: list[str] = []
        while self.accept("%"):
            names.append(self.name())
            if not self.accept(","):
                self.expect("=")
                break
        return names

    def operands(self) -> list[Value | None]:
        self.expect("(")
        found: list[Value | None] = []
        while not self.accept(")"):
            found.append(self.operand())
            if not self.accept(","):
                self.expect(")")
                break
        return found

    def operand(self) -> Value | None:
        if self.accept("_"):
            return None
        return self.value()

    def value(self) -> Value:
        self.skip()
        start = self.position
        kind = "@" if self.accept("@") else "%"
        if kind == "%":
            self.expect("%")
        name = self.name()
        found = (self.parsed.constants if kind == "@" else self.values).get(name)
        if found is None:
            self.fail(f"{kind}{name} is not defined before it is read", start)
        return found

    def attributes(self) -> dict[str, Any]:
        self.expect("{")
        found: dict[str, Any] = {}
        while not self.accept("}"):
            name = self.take(_WORD, "an attribute's name")[0]
            if name in found:
                self.fail(f"attribute {name!r} is given twice")
            self.expect("=")
            found[name] = self.attribute(0)
            if not self.accept(","):
                self.expect("}")
                break
        return found

    def attribute(self, depth: int) -> Any:
        if depth > MAXIMUM_DEPTH:
            self.fail(f"attribute is nested more than {MAXIMUM_DEPTH} deep")
        if self.at('"'):
            return self.string()
        if not self.accept("["):
            return self.scalar()
        parts: list[Any] = []
        while not self.accept("]"):
            parts.append(self.attribute(depth + 1))
            if not self.accept(","):
                self.expect("]")
                break
        return tuple(parts)

    def scalar(self) -> Any:
        self.skip()
        start = self.position
        depth = 0
        while self.position < len(self.text):
            char = self.text[self.position]
            if char in "\n[]{}" or (depth == 0 and char == ","):
                break
            depth += (char == "(") - (char == ")")
            self.position += 1
        text = self.text[start : self.position].strip()
        if text == "none":
            return None
        if text in DTYPES:
            return DTYPES[text]
        try:
            if text.startswith("complex("):
                return self.complex(text)
            return parse_literal(text) if LITERAL.fullmatch(text) else parse_dim(text)
        except ValueError:
            self.fail(f"got {text[:40]!r}, expected a number", start)
        except CompilerError as error:
            self.fail(error.message, start)

    def complex(self, text: str) -> complex:
        parts = text.removeprefix("complex(").removesuffix(")").split(",")
        if len(parts) != 2:
            raise ValueError(text)
        return complex(float(parts[0]), float(parts[1]))

    def returns(self, graph: Graph, types: list[TensorType]) -> None:
        returned: list[_Returned] = []
        while self.at("%") or self.at("@"):
            value = self.value()
            returned.append(_Returned(value, self.string() if self.accept("as") else value.name))
            if not self.accept(","):
                break
        if [item.value.type for item in returned] != types:
            got, expected = (", ".join(str(t) for t in ts) for ts in ([item.value.type for item in returned], types))
            self.fail(f"function @{graph.name} returns ({got}), expected ({expected})")
        graph.set_outputs([item.value for item in returned], [item.name for item in returned])
