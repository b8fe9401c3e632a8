"""Writing C text in nested blocks: index expressions, hoisted to the outermost block where their symbols are known."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...ir import dims
from ...ir.dims import Atom, Dim, Expr, Facts, Monomial, Symbol
from ...ir.errors import InternalError
from .library import Library

LANE = "@lane"
"""The symbol of a lane within one vector: 0 .. lanes - 1."""
_MADE = re.compile(r"\b[a-z][0-9]+\b")
"""Names that `fresh` makes."""
LOADED = "@loaded."
"""What the symbols of index vectors begin with: their value differs from lane to lane."""


@dataclass
class TextBlock:
    """One pair of braces being written: its lines, and what was computed in it (index expressions, tile values).

    `is_tile` says that it is a loop over a tile, which runs at least once, and whose steps do not read what others write.
    """

    head: str
    lines: list[str] = field(default_factory=list)
    indices: dict[Dim, str] = field(default_factory=dict)
    values: dict[object, object] = field(default_factory=dict)
    is_tile: bool = False


@dataclass
class _Known:
    """Facts of a scope together with those of printed loops, by lanes and number of loops."""

    facts: Facts
    by_key: dict[tuple[int, int], Facts] = field(default_factory=dict)


class Writer:
    """The text of one kernel; `facts` are those of the tile program's scope, kept up to date by the printer."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.blocks: list[TextBlock] = [TextBlock("")]
        self.facts = Facts()
        self.vectors: dict[str, str] = {}
        self._known = _Known(self.facts)
        self._names: dict[str, tuple[str, int]] = {}
        self._made_at: dict[str, int] = {}
        """The depths of blocks in which constants and loop variables were made."""
        self._position_facts: dict[str, tuple[int | None, int | None]] = {}
        self._count = 0

    # --- blocks and lines -------------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        return len(self.blocks) - 1

    def line(self, text: str, depth: int | None = None) -> None:
        """A line of the innermost block; at a `depth` it is one of that block, before what is open in it."""
        self.blocks[-1 if depth is None else depth].lines.append(self.library.scan(text))

    def once(self, text: str) -> None:
        """A line of the function's own block, before all that is open; written the first time that it is asked for."""
        if text not in self.blocks[1].lines:
            self.blocks[1].lines.append(self.library.scan(text))

    def begin(self, lines: Iterable[str]) -> None:
        """Lines before all others of the innermost block."""
        self.blocks[-1].lines[:0] = [self.library.scan(line) for line in lines]

    def open(self, head: str, is_tile: bool = False) -> None:
        """Begin a block; what is hoisted goes to the lines of the enclosing one, before this head."""
        self.blocks.append(TextBlock(self.library.scan(head), is_tile=is_tile))

    def close(self) -> None:
        block = self.blocks.pop()
        self.blocks[-1].lines += [f"{block.head} {{", *(f"    {line}" for line in block.lines), "}"]

    def drop(self) -> None:
        """End a block and leave it out."""
        self.blocks.pop()

    def fresh(self, stem: str = "t") -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def define(self, ctype: str, expression: str, stem: str = "t") -> str:
        """A new constant in the current block."""
        name = self.fresh(stem)
        depth = self._steady_at(expression)
        self._made_at[name] = depth
        self.line(f"const {ctype} {name} = {expression};", depth)
        return name

    def _steady_at(self, expression: str) -> int:
        """The outermost block where an expression has its value: outside of loops over a tile in which it stays as it is."""
        depth, names = self.depth, _MADE.findall(expression)
        needed = max((self._made_at.get(name, depth) for name in names), default=0)
        while depth > needed and self.blocks[depth].is_tile:
            depth -= 1
        return depth

    def forget_values(self) -> None:
        """Drop remembered tile values: memory may change after a statement."""
        self.vectors.clear()
        for block in self.blocks:
            block.values.clear()

    def remember(self, key: object, value: object) -> None:
        self.blocks[-1].values[key] = value

    def recall(self, key: object) -> object | None:
        for block in reversed(self.blocks):
            if key in block.values:
                return block.values[key]
        return None

    # --- index expressions ------------------------------------------------------------------------------------------

    def bind(self, symbol: str, text: str) -> None:
        """A symbol of index expressions is this C text, from the current block on."""
        self._names[symbol] = (text, self.depth)
        self._made_at.setdefault(text, self.depth)

    def rebind(self, symbol: str, text: str) -> None:
        """The symbol changed its value here: nothing computed from it before is reused."""
        self.bind(symbol, text)
        for block in self.blocks:
            block.indices = {dim: name for dim, name in block.indices.items() if symbol not in dims.symbols(dim)}

    def position(self, low: int, high: int | None) -> tuple[str, Dim]:
        """A new loop variable of the printed text and its symbol, ranging over low..high (included)."""
        name = self.fresh("p")
        symbol = f"@{name}"
        self._position_facts[symbol] = (low, high)
        return name, dims.symbol(symbol)

    def known(self, lanes: int = 1) -> Facts:
        """The facts of the scope and of the printed loops."""
        key = (lanes, len(self._position_facts))
        if self._known.facts is not self.facts:
            self._known = _Known(self.facts)
        if key not in self._known.by_key:
            ranges = {name: dims.Range(low, high) for name, (low, high) in self._position_facts.items()}
            ranges[LANE] = dims.Range(0, lanes - 1)
            self._known.by_key[key] = Facts({**self.facts.ranges, **ranges}, self.facts.divisors)
        return self._known.by_key[key]

    def step_of(self, dim: Dim) -> int | None:
        """How much an expression grows with each step of the current block's loop; None if that is no number, or there is none."""
        names = [name for name in dims.symbols(dim) if self._named(name)[1] == self.depth]
        grown = dims.substitute(dim, {name: dims.symbol(name) + 1 for name in names}) - dim if len(names) == 1 else None
        return grown if isinstance(grown, int) else None

    def index(self, dim: Dim) -> str:
        """C text of an int64 expression; parts that do not change in inner blocks are computed outside of them."""
        if isinstance(dim, int):
            return str(dim)
        groups: dict[int, list[tuple[Monomial, int]]] = {}
        constant = 0
        for monomial, factor in dim.terms:
            if not monomial:
                constant += factor
                continue
            depth = max(self._depth(atom) for atom in monomial)
            groups.setdefault(depth, []).append((monomial, factor))
        text = ""
        so_far: Dim = 0
        for depth in sorted(groups):
            group = Expr(tuple(groups[depth]))
            so_far = so_far + group
            terms = self._terms(group)
            text = f"{text} + {terms}" if text else terms
            if depth < self.depth and not _is_name(text):
                text = self._hoist(depth, so_far, text)
        if constant:
            text = f"{text} {'+' if constant > 0 else '-'} {abs(constant)}"
        return f"({text})" if " " in text else text

    def _hoist(self, depth: int, dim: Dim, text: str) -> str:
        known = self.blocks[depth].indices
        if dim not in known:
            known[dim] = self.fresh("o")
            self._made_at[known[dim]] = depth
            self.blocks[depth].lines.append(f"const int64_t {known[dim]} = {self.library.scan(text)};")
        return known[dim]

    def _depth(self, atom: Atom) -> int:
        return max((self._named(name)[1] for name in _symbols(atom)), default=0)

    def _named(self, symbol: str) -> tuple[str, int]:
        if symbol not in self._names:
            raise InternalError(f"index symbol {symbol} has no value here")
        return self._names[symbol]

    def _terms(self, dim: Expr) -> str:
        texts = []
        for monomial, factor in dim.terms:
            texts.append("*".join(([str(factor)] if factor != 1 else []) + [self._atom(atom) for atom in monomial]))
        return " + ".join(texts)

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Symbol):
            return self._named(atom.name)[0]
        left, right = self.index(atom.left), self.index(atom.right)
        if atom.kind in ("max", "min"):
            return f"({left} {'>' if atom.kind == 'max' else '<'} {right} ? {left} : {right})"
        operator = "/" if atom.kind == "div" else "%"
        low = dims.range_of(atom.left, self.known()).low
        positive = dims.range_of(atom.right, self.known()).low
        if low is not None and low >= 0 and positive is not None and positive > 0:
            return f"({left} {operator} {right})"
        name = "floor_div" if atom.kind == "div" else "floor_mod"
        return f"ourcc_{name}_i64({left}, {right})"


def _symbols(atom: Atom) -> frozenset[str]:
    monomial: Monomial = (atom,)
    return dims.symbols(Expr(((monomial, 1),)))


def _is_name(text: str) -> bool:
    return text.isidentifier()


def lane_stride(dim: Dim) -> Dim | None:
    """The coefficient of the lane in an expression: 0 where it has none, None where it is not affine."""
    if isinstance(dim, int):
        return 0
    result: Dim = 0
    for monomial, factor in dim.terms:
        plain = [atom for atom in monomial if atom == Symbol(LANE)]
        others = tuple(atom for atom in monomial if atom != Symbol(LANE))
        if any(_varies(atom) for atom in others) or len(plain) > 1:
            return None
        if plain:
            result = result + (Expr(((others, factor),)) if others else factor)
    return result


def _varies(atom: Atom) -> bool:
    return any(name == LANE or name.startswith(LOADED) for name in _symbols(atom))


def at_lane(dim: Dim, lane: Dim) -> Dim:
    """The expression for one lane."""
    return dims.substitute(dim, {LANE: lane})
