"""Reading the text of graph modules; nothing in the text is ever evaluated, sizes and depths are limited."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ParseError, Source, VerifyError
from ..literals import constant_array
from ..ops.table import OPS
from ..scan import Scanner
from ..types import TensorType
from .graph import ConstantData, Graph, Module, Op, State, Value

Array = np.ndarray[Any, Any]

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
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


def _missing(name: str, digest: str) -> Callable[[], Array]:
    def load() -> Array:
        hint = "give the arrays of large constants by digest when the text is read"
        raise ParseError(f"constant @{name} (sha256:{digest[:12]}) has no values here", hint=hint)

    return load


@dataclass
class _Returned:
    value: Value
    name: str


class _Parser(Scanner):
    """Recursive descent over the text of a module."""

    def __init__(self, text: str, constants: Mapping[str, Array] | Callable[[str, TensorType], Array] | None) -> None:
        super().__init__(text)
        self.constants = constants
        self.parsed = Module("")
        self.values: dict[str, Value] = {}

    # --- the module ---

    def module(self) -> Module:
        self.expect("module")
        self.expect("@")
        self.parsed.name = self.name()
        self.parsed.facts = self.facts()
        self.expect("{")
        while not self.accept("}"):
            if self.accept("const"):
                self.constant()
            elif self.accept("state"):
                self.state()
            elif self.accept("func"):
                self.function()
            else:
                self.fail(f"got {self.rest()}, expected 'const', 'state', 'func' or '}}'")
        self.end()
        return self.parsed

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

    def state(self) -> None:
        self.expect("@")
        start = self.position
        name = self.name()
        if name in self.parsed.states:
            self.fail(f"state @{name} is declared twice", start)
        self.expect(":")
        type = self.type()
        self.parsed.add_state(name, type, self.value() if self.accept("=") else None)

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
            return self.quoted()
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
                line = self.integer("a line number")
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
        if self.accept("state"):
            self.expect("@")
            held = self.name()
            if held not in self.parsed.states:
                self.fail(f"state @{held} is not declared before it is used", start)
            value = graph.add_state(State(held, type), self.source(), name)
        elif graph.states:
            self.fail(f"input %{name} stands after a state, expected states after all other inputs", start)
        else:
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
        count = len(returned) - len(graph.states)
        if count < 0:
            self.fail(f"function @{graph.name} returns {len(returned)} values and has {len(graph.states)} states, expected one for each")
        tied = dict(zip(graph.states, (item.value for item in returned[count:]), strict=True))
        graph.set_outputs([item.value for item in returned[:count]], [item.name for item in returned[:count]], tied)
