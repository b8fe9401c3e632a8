"""Reading the text of plans; ParseError carries line and column. What must hold of a plan besides is the verifier's."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .. import layout as layouts
from ..dims import Dim
from ..errors import VerifyError
from ..layout import Layout
from ..making import Making, making
from ..pairing import Pairing
from ..scan import Scanner
from ..winograd import Filtering
from . import storage
from .plan import Plan
from .steps import VALUE, Call, Check, CheckPlace, Copy, Guard, Host, Launch, Step, Variant, Zero
from .storage import Buffer, Slot, StateDeclaration, Storage

_LAYOUT = re.compile(r"[ \t]*([\w/% \t]*?)[ \t]*(?=\bof[ \t]*\[|\bover[ \t]*\()")


def parse_plan(text: str) -> Plan:
    """Read what `print_plan` prints; ParseError with line and column otherwise."""
    return _Parser(text).plan()


@dataclass(frozen=True)
class _Condition:
    """One condition of a guard: the field of `Guard` that it belongs to, and what stands there."""

    field: str
    value: Any


class _Parser(Scanner):
    """Recursive descent over the text of one plan; each statement begins with its word."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.buffers: list[Buffer] = []
        self.slots: list[Slot] = []
        self.numbers: list[tuple[str, str]] = []
        self.states: list[StateDeclaration] = []
        self.ties: list[tuple[str, str]] = []
        self.storages: dict[str, Callable[[], Storage]] = {
            "input": storage.Input,
            "output": storage.Output,
            "constant": self.constant,
            "arena": self.arena,
            "dynamic": storage.Dynamic,
            "state": self.state,
            "alias": self.alias,
            "verdict": storage.Verdict,
        }
        self.others: dict[str, Callable[[], None]] = {
            "slot": lambda: self.slots.append(self.slot()),
            "number": lambda: self.numbers.append(self.number()),
            "session": lambda: self.states.append(self.session()),
            "tie": lambda: self.ties.append(self.tie()),
        }
        self.statements: dict[str, Callable[[], Step]] = {
            "launch": self.launch,
            "host": self.host,
            "call": self.call,
            "copy": self.copy,
            "zero": lambda: Zero(self.buffer()),
            "check": self.check,
            "check_place": self.check_place,
        }

    # --- words ---

    def keyword(self, word: str) -> bool:
        """Take the next word if it is this one."""
        self.skip()
        end = self.position + len(word)
        found = self.text.startswith(word, self.position) and not re.match(r"\w", self.text[end : end + 1])
        self.position = end if found else self.position
        return found

    def require(self, word: str) -> None:
        if not self.keyword(word):
            self.fail(f"got {self.rest()}, expected {word!r}")

    def buffer(self) -> str:
        self.expect("%")
        return self.name()

    def operand(self) -> str:
        return "" if self.keyword("_") else self.buffer()

    def operands(self) -> tuple[str, ...]:
        self.expect("(")
        return self.listed(")", self.operand)

    def sizes(self) -> tuple[Dim, ...]:
        self.expect("(")
        return self.listed(")", lambda: self.dim(",)"))

    def sources(self) -> tuple[str, ...]:
        return self.listed(")", self.string) if self.keyword("loc") and self.accept("(") else ()

    def between(self, steps: Callable[[], Any]) -> None:
        """Statements in braces."""
        self.expect("{")
        while not self.accept("}"):
            steps()

    # --- the plan ---

    def plan(self) -> Plan:
        self.require("plan")
        target = self.name()
        inputs = self.ports()
        self.expect("->")
        outputs = self.ports()
        facts = self.facts()
        steps: list[Step] = []
        self.between(lambda: self.statement(steps))
        self.end()
        numbers, states, ties = tuple(self.numbers), tuple(self.states), tuple(self.ties)
        return Plan(target, facts, inputs, outputs, tuple(self.buffers), tuple(self.slots), tuple(steps), numbers, states, ties)

    def ports(self) -> tuple[tuple[str, str], ...]:
        self.expect("(")
        return self.listed(")", self.port)

    def port(self) -> tuple[str, str]:
        name = self.name()
        self.expect(":")
        return name, self.buffer()

    def statement(self, steps: list[Step]) -> None:
        self.skip()
        start = self.position
        word = self.word("a statement or '}'")
        if word in self.storages:
            self.declaration(word)
        elif word in self.statements:
            steps.append(self.statements[word]())
        elif word in self.others:
            self.others[word]()
        else:
            known = ", ".join((*self.storages, *self.others, *self.statements))
            self.fail(f"got {word!r}, expected one of the statements {known}", start)

    def declaration(self, word: str) -> None:
        name = self.buffer()
        self.expect(":")
        type = self.type()
        self.buffers.append(Buffer(name, type, self.storages[word]()))

    def constant(self) -> Storage:
        self.expect("=")
        self.expect("@")
        value = self.name()
        if self.keyword("as"):
            return self.packed(value)
        return storage.Constant(value, None, self.shape() if self.keyword("of") else ())

    def packed(self, value: str) -> Storage:
        self.skip()
        start = self.position
        factors = self.take(_LAYOUT, "a layout such as d1/16 d0 d1%16 and 'of [sizes]'")[1]
        axes: tuple[str, ...] | None = None
        if self.keyword("over"):
            self.expect("(")
            axes = self.listed(")", lambda: self.word("an axis"))
        self.require("of")
        shape = self.shape()
        try:
            making = next((self.making(word) for word in (Filtering.word, Pairing.word) if self.keyword(word)), None)
            return storage.Constant(value, _layout(factors, axes, len(shape)), shape, making)
        except VerifyError as error:
            self.fail(error.message, start)

    def making(self, word: str) -> Making:
        sizes = [self.integer()]
        if word == Pairing.word:
            self.require("by")
            sizes.append(self.integer())
        self.require("along")
        self.expect("(")
        return making(word, sizes, self.listed(")", self.integer))

    def shape(self) -> tuple[int, ...]:
        self.expect("[")
        return self.listed("]", self.integer)

    def arena(self) -> Storage:
        self.require("in")
        return storage.Arena(self.name())

    def state(self) -> Storage:
        self.require("of")
        return storage.State(self.name())

    def alias(self) -> Storage:
        self.require("of")
        root = self.buffer()
        self.require("at")
        self.expect("(")
        offset = self.dim(")")
        self.expect(")")
        self.require("strides")
        return storage.Alias(root, offset, self.sizes())

    def session(self) -> StateDeclaration:
        name = self.name()
        self.expect(":")
        type, initial = self.type(), ""
        if self.accept("="):
            self.expect("@")
            initial = self.name()
        return StateDeclaration(name, type, initial)

    def tie(self) -> tuple[str, str]:
        state = self.name()
        self.expect("=")
        return state, self.buffer()

    def slot(self) -> Slot:
        name = self.name()
        above = self.several(self.name) if self.keyword("above") else ()
        self.expect(">=")
        return Slot(name, self.several(lambda: self.dim(",")), above)

    def number(self) -> tuple[str, str]:
        symbol = self.word("a symbol")
        self.expect("=")
        return symbol, self.buffer()

    # --- steps ---

    def launch(self) -> Launch:
        name, reads = self.name(), self.operands()
        self.expect("->")
        writes = self.operands()
        symbols: tuple[tuple[str, Dim], ...] = ()
        if self.keyword("where"):
            self.expect("(")
            symbols = self.listed(")", self.binding)
        step = Launch(name, (), reads, writes, (), symbols)
        variants: list[Variant] = []
        if self.at("{"):
            self.between(lambda: variants.append(self.variant(step)))
        else:
            variants.append(self.variant(step))
        return replace(step, variants=tuple(variants), sources=self.sources())

    def binding(self) -> tuple[str, Dim]:
        """A symbol of the kernel, and what it is."""
        symbol = self.word("a symbol")
        self.expect("=")
        return symbol, self.dim(",)")

    def variant(self, step: Launch) -> Variant:
        kernel = self.name() if self.keyword("kernel") else step.name
        self.require("over")
        grid = self.sizes()
        arguments = self.operands() if self.keyword("with") else (*step.reads, *step.writes)
        scalars = self.sizes() if self.keyword("sizes") else ()
        warps, shared, scratch = (self.integer() if self.keyword(word) else 0 for word in ("warps", "shared", "scratch"))
        return Variant(kernel, self.guard() if self.keyword("if") else Guard(), grid, arguments, scalars, warps, shared, scratch)

    def guard(self) -> Guard:
        found = [self.condition()]
        while self.keyword("and"):
            found.append(self.condition())
        fields = ("zero", "positive", "aligned", "contiguous")
        return Guard(**{field: tuple(one.value for one in found if one.field == field) for field in fields})

    def condition(self) -> _Condition:
        for word in ("aligned", "contiguous"):
            if self.keyword(word):
                return _Condition(word, self.buffer())
        size = self.dim("=>")
        field = "zero" if self.accept("==") else "positive"
        if field == "positive":
            self.expect(">=")
        self.expect("0")
        return _Condition(field, size)

    def host(self) -> Host:
        routine = self.name()
        reads, writes = self.results()
        attrs = self.attributes() if self.at("{") else {}
        return Host(routine, attrs, reads, writes, self.binds(), self.sources())

    def call(self) -> Call:
        target = self.name()
        self.require("key")
        key = self.integer()
        reads, writes = self.results()
        return Call(target, key, reads, writes, self.binds(), self.sources())

    def results(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        reads = self.operands()
        self.expect("->")
        return reads, self.operands()

    def binds(self) -> tuple[tuple[str, int, int], ...]:
        if not self.keyword("binds"):
            return ()
        self.expect("(")
        return self.listed(")", self.bind)

    def bind(self) -> tuple[str, int, int]:
        symbol = self.word("a symbol")
        self.expect("=")
        axis = VALUE
        if not self.keyword("value"):
            self.require("size")
            axis = self.integer()
        self.require("of")
        return symbol, self.integer(), axis

    def copy(self) -> Copy:
        target = self.buffer()
        self.expect("=")
        return Copy(self.buffer(), target)

    def check(self) -> Check:
        worst = self.buffer()
        self.require("of")
        subject = self.string()
        size = self.number_between() if self.keyword("size") else None
        return Check(worst, size, self.keyword("negative"), subject, self.sources())

    def check_place(self) -> CheckPlace:
        place = self.number_between()
        self.require("of")
        subject = self.string()
        self.require("size")
        return CheckPlace(place, self.number_between(), self.keyword("negative"), subject, self.sources())

    def number_between(self) -> Dim:
        """A number in parentheses."""
        self.expect("(")
        found = self.dim(")")
        self.expect(")")
        return found


def _layout(factors: str, axes: tuple[str, ...] | None, rank: int) -> Layout:
    return layouts.parse(factors, axes if axes is not None else tuple(f"d{n}" for n in range(rank)))
