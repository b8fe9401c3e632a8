"""The parser of tile programs: reads what `text.py` prints; `#` starts a comment."""

from __future__ import annotations

from collections.abc import Callable

from ..dims import Dim
from ..errors import ParseError, VerifyError
from ..layout import Factor, Layout
from ..making import making
from ..pairing import Pairing
from ..winograd import Filtering
from .parse_value import parse_named, parse_value
from .program import (
    AxisDecl,
    Copy,
    Counter,
    For,
    GridAxis,
    If,
    Launch,
    Let,
    Local,
    Made,
    Param,
    Signal,
    Statement,
    Store,
    TileProgram,
    TileType,
    Wait,
)
from .reader import Reader, Token, tokens


def parse(text: str) -> TileProgram:
    """Read a tile program; ParseError names line and column."""
    return _ProgramParser(tokens(text)).program()


class _ProgramParser(Reader):
    """Programs, launches and statements; values are read by `parse_value.py`."""

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__(tokens)
        self.types: dict[str, TileType] = {}

    def program(self) -> TileProgram:
        self.expect("program")
        name = self.take("title", "a program name such as @main")[1:]
        symbols: list[str] = []
        if self.accept("symbols"):
            self.expect("{")
            while not self.accept("}"):
                if symbols:
                    self.expect(",")
                symbols.append(self.name("a symbol"))
        self.expect("{")
        workspaces: list[Param] = []
        while self.accept("workspace"):
            workspaces.append(self.param())
        launches: list[Launch] = []
        while not self.accept("}"):
            launches.append(self.launch())
        if self.token.kind != "end":
            raise self.error("the end")
        return TileProgram(name, tuple(launches), tuple(workspaces), tuple(symbols))

    def launch(self) -> Launch:
        self.expect("launch")
        name = self.take("title", "a launch name such as @main")[1:]
        self.expect("(")
        params: list[Param] = []
        while not self.accept(")"):
            if params:
                self.expect(",")
            params.append(self.param())
        self.expect("{")
        counters: list[Counter] = []
        while self.accept("counter"):
            counters.append(self.counter())
        self.expect("grid")
        grid = self.grid()
        hints: list[tuple[str, str | int]] = []
        while not self.at("{"):
            hint = self.name("a hint or '{'")
            hints.append((hint, self.hint_value()))
        self.types = {}
        body = self.block()
        self.expect("}")
        return Launch(name, tuple(params), grid, body, tuple(counters), tuple(hints))

    def counter(self) -> Counter:
        name = self.value_name()
        for word in (":", "i32", "["):
            self.expect(word)
        extent = self.dim()
        for word in ("]", "=", "0"):
            self.expect(word)
        return Counter(name, extent)

    def grid(self) -> tuple[GridAxis, ...]:
        self.expect("(")
        axes: list[GridAxis] = []
        while not self.accept(")"):
            if axes:
                self.expect(",")
            name = self.name("an axis")
            self.expect(":")
            low, high = self.range()
            axes.append(GridAxis(name, low, high, self.integer() if self.accept("step") else None))
        return tuple(axes)

    def hint_value(self) -> str | int:
        if self.token.kind == "number":
            return self.integer()
        word = self.name("a hint's value")
        if self.accept("("):
            number = self.integer()
            self.expect(")")
            return f"{word}({number})"
        return word

    def range(self) -> tuple[Dim, Dim]:
        low = self.dim()
        self.expect("..")
        return low, self.dim()

    def param(self) -> Param:
        name = self.value_name()
        self.expect(":")
        role = self.token.text if self.at("in", "out", "inout") else "in"
        self.accept(role)
        dtype = self.dtype()
        labelled = self.labelled()
        layout = self.layout(tuple(label for label, _ in labelled)) if self.accept("as") else None
        strides = None
        if self.accept("strides"):
            self.expect("(")
            strides = self.dims(")")
        return Param(name, dtype, labelled, role, layout, strides, self.made() if self.accept("from") else None)

    def made(self) -> Made:
        operand = self.value_name()
        is_paired = self.accept(Pairing.word)
        if not is_paired:
            self.expect(Filtering.word)
        sizes = [self.integer()]
        if is_paired:
            self.expect("by")
            sizes.append(self.integer())
        self.expect("along")
        self.expect("(")
        along = [self.integer()]
        while self.accept(","):
            along.append(self.integer())
        self.expect(")")
        try:
            return Made(operand, making(Pairing.word if is_paired else Filtering.word, sizes, along))
        except VerifyError as error:
            raise ParseError(f"line {self.token.line}: {error.message}") from error

    def layout(self, axes: tuple[str, ...]) -> Layout:
        factors: list[Factor] = []
        while self.token.kind == "name" and self.token.text in axes:
            axis = self.name()
            divisor = self.integer() if self.accept("/") else 1
            factors.append(Factor(axis, divisor, self.integer() if self.accept("%") else None))
        if not factors:
            raise self.error(f"a layout over the axes {', '.join(axes)}")
        try:
            return Layout(axes, tuple(factors))
        except VerifyError as error:
            raise ParseError(f"line {self.token.line}: {error.message}") from error

    # --- statements ---------------------------------------------------------------------------------------------------

    def block(self) -> tuple[Statement, ...]:
        """`{ .. }`; names defined in it are forgotten at its end, rebound ones keep their type."""
        self.expect("{")
        self.enter()
        outer = dict(self.types)
        result: list[Statement] = []
        while not self.accept("}"):
            result.append(self.statement())
        self.types = outer
        self.leave()
        return tuple(result)

    def statement(self) -> Statement:
        if self.token.kind == "value":
            return self.let()
        forms: dict[str, Callable[[], Statement]] = {
            "store": self.store,
            "atomic": self.store,
            "local": self.local,
            "copy": self.copy,
            "axis": self.axis,
            "for": self.loop,
            "if": self.condition,
            "signal": self.signal,
            "wait": self.wait,
        }
        if self.token.text not in forms:
            raise self.error("a statement")
        self.position += 1
        return forms[self.tokens[self.position - 1].text]()

    def let(self) -> Let:
        name = self.value_name()
        self.expect("=")
        value = parse_named(self, self.types)
        self.types[name] = value.type
        return Let(name, value)

    def store(self) -> Store:
        atomic = self.name("add, max or min") if self.tokens[self.position - 1].text == "atomic" else None
        operand = self.value_name()
        self.expect("[")
        subscripts = self.dims("]")
        hints = self.words()
        self.expect("=")
        return Store(operand, subscripts, parse_value(self, self.types), atomic, hints)

    def local(self) -> Local:
        name = self.value_name()
        self.expect(":")
        dtype = self.dtype()
        labelled = self.labelled()
        self.expect("in")
        space = self.name("register, shared, tensor, cache or workspace")
        layout = self.layout(tuple(label for label, _ in labelled)) if self.accept("as") else None
        return Local(name, dtype, labelled, space, layout)

    def copy(self) -> Copy:
        target = self.value_name()
        self.expect("=")
        return Copy(target, self.value_name())

    def axis(self) -> AxisDecl:
        name = self.name("an axis")
        self.expect("in")
        low, high = self.range()
        self.expect("extent")
        return AxisDecl(name, low, high, self.integer())

    def loop(self) -> For:
        name = self.name("an axis")
        self.expect("in")
        kind, low, high, step, parent = self.loop_range()
        tail: list[int] = []
        if self.accept("tail"):
            self.expect("(")
            while not self.accept(")"):
                if tail:
                    self.expect(",")
                tail.append(self.integer())
        carries = self.carries()
        hints: list[tuple[str, int]] = []
        while not self.at("{"):
            hint = self.name("a hint or '{'")
            hints.append((hint, self.integer()))
        return For(name, kind, low, high, step, self.block(), parent, tuple(tail), carries, tuple(hints))

    def loop_range(self) -> tuple[str, Dim, Dim, int, str | None]:
        if self.token.kind == "name" and self.tokens[self.position + 1].text == "step":
            parent = self.name()
            self.expect("step")
            return "walk", 0, 0, self.integer(), parent
        low, high = self.range()
        if self.accept("step"):
            return "tile", low, high, self.integer(), None
        return "scalar", low, high, self.integer() if self.accept("by") else 1, None

    def condition(self) -> If:
        self.expect("(")
        condition = parse_value(self, self.types)
        self.expect(")")
        seldom = self.accept("seldom")
        carries = self.carries()
        body = self.block()
        return If(condition, body, self.block() if self.accept("else") else (), carries, seldom)

    def carries(self) -> tuple[str, ...]:
        names: list[str] = []
        if self.accept("carry"):
            self.expect("(")
            while not self.accept(")"):
                if names:
                    self.expect(",")
                names.append(self.value_name())
        return tuple(names)

    def signal(self) -> Signal:
        counter = self.value_name()
        self.expect("[")
        return Signal(counter, self.dims("]"))

    def wait(self) -> Wait:
        counter = self.value_name()
        self.expect("[")
        subscripts = self.dims("]")
        self.expect(">=")
        return Wait(counter, subscripts, self.dim())
