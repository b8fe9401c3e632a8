"""Index expressions, addresses and masks as Triton text: 64 bits across tiles where needed, 32 bits within one."""

from __future__ import annotations

from ...ir import dims
from ...ir.dims import Atom, Dim, Expr, Function, Symbol
from ...ir.errors import UnsupportedError
from ...ir.tile import BoundsCheck, simplify, varies_over
from ...ir.tile.scope import Scope
from ...ir.types import i32, i64
from .emitter import Emitter, Tile, check_extent
from .words import bare

_LOW, _HIGH = -(2**31), 2**31 - 1


def resolve(emitter: Emitter, scope: Scope, dim: Dim) -> Dim:
    """`dim` with every tile axis written as start plus lane, and starts that are known expressions put in."""
    for axis in reversed(tuple(scope.axes.values())):
        names = dims.symbols(dim)
        if axis.kind != "tile":
            continue
        if axis.name in names:
            dim = dims.substitute(dim, {axis.name: dims.symbol(axis.first) + dims.symbol(axis.lane)})
        # A start of its own variable (a base that names a value, which may be rebound later) stays a name.
        if axis.modulus == 0 and axis.name not in emitter.starts:
            dim = dims.substitute(dim, {axis.first: axis.base})
    dim = dims.substitute(dim, emitter.fixed) if emitter.fixed else dim
    return simplify(scope, dim)


def index(emitter: Emitter, scope: Scope, dim: Dim, axes: tuple[str, ...]) -> Tile:
    """An index expression with the axes it varies over, in the order of `axes`."""
    dim = resolve(emitter, scope, dim)
    used = tuple(axis for axis in axes if axis in varies(scope, dim))
    return Tile(_expression(emitter, scope, dim, used), used, i32 if fits(scope, dim) else i64)


def scalar(emitter: Emitter, scope: Scope, dim: Dim) -> str:
    """An index expression that is the same for all lanes."""
    dim = resolve(emitter, scope, dim)
    over = varies(scope, dim)
    if over:
        raise UnsupportedError(f"launch {emitter.launch.name}: {dim} varies over {', '.join(over)}, expected one number")
    return bare(_expression(emitter, scope, dim, ()))


def varies(scope: Scope, *expressions: Dim) -> tuple[str, ...]:
    """The tile axes over which expressions vary."""
    return varies_over(scope, *expressions)


def pointer(emitter: Emitter, scope: Scope, name: str, address: Dim, axes: tuple[str, ...]) -> str:
    """Pointer plus scalar base plus offsets of the lanes."""
    address = resolve(emitter, scope, address)
    base, lanes = _split(scope, address)
    parts = [f"{name}_ptr"]
    if base != 0:
        parts.append(_expression(emitter, scope, base, ()))
    if lanes != 0:
        parts.append(_expression(emitter, scope, lanes, axes))
    return " + ".join(parts)


def mask(emitter: Emitter, scope: Scope, checks: tuple[BoundsCheck, ...], axes: tuple[str, ...]) -> str | None:
    """All checks as one condition over `axes`; None if there is none."""
    block: list[str] = []
    single: list[str] = []
    for check in checks:
        value = resolve(emitter, scope, check.index)
        for limit, relation in ((check.low, ">="), (check.high, "<")):
            if limit is None:
                continue
            bound = resolve(emitter, scope, limit)
            left, right = (_expression(emitter, scope, part, axes) for part in (value, bound))
            (block if varies(scope, value, bound) else single).append(f"({bare(left)} {relation} {bare(right)})")
    if not block:
        return " & ".join(single) or None
    condition = " & ".join(block)
    # Triton's interpreter cannot combine a tile of booleans with a scalar one by `&`.
    return f"tl.where({' & '.join(single)}, {condition}, False)" if single else condition


def lane(emitter: Emitter, scope: Scope, name: str, axes: tuple[str, ...]) -> str:
    """0..extent-1 of an axis, placed among `axes`."""
    extent = scope.extent(name)
    check_extent(emitter.launch, name, extent)
    emitter.lanes.add(extent)
    return emitter.aligned(Tile(f"lane_{extent}", (name,), i32), axes)


def _split(scope: Scope, address: Dim) -> tuple[Dim, Dim]:
    """(terms that are the same for all lanes, the rest)."""
    if isinstance(address, int):
        return address, 0
    base: Dim = 0
    rest: Dim = 0
    for monomial, factor in address.terms:
        term: Dim = Expr(((monomial, factor),)) if monomial else factor
        if varies(scope, term):
            rest = rest + term
        else:
            base = base + term
    return base, rest


def _expression(emitter: Emitter, scope: Scope, dim: Dim, axes: tuple[str, ...]) -> str:
    if isinstance(dim, int):
        return str(dim)
    wide = not fits(scope, dim)
    parts: list[str] = []
    for monomial, factor in dim.terms:
        words = [_atom(emitter, scope, atom, axes) for atom in monomial]
        if wide and words and not _is_wide(scope, monomial[0]):
            words[0] = f"tl.cast({bare(words[0])}, tl.int64)"
        if abs(factor) != 1 or not words:
            words.append(str(abs(factor)))
        sign = "-" if factor < 0 else "+"
        parts.append((f"{sign} " if parts else sign.replace("+", "")) + " * ".join(words))
    text = " ".join(parts)
    return text if bare(text) != text or not (" " in text or text.startswith("-")) else f"({text})"


def _atom(emitter: Emitter, scope: Scope, atom: Atom, axes: tuple[str, ...]) -> str:
    if isinstance(atom, Symbol):
        return _symbol(emitter, scope, atom.name, axes)
    left, right = (_expression(emitter, scope, part, axes) for part in (atom.left, atom.right))
    if atom.kind in ("max", "min"):
        return f"tl.{atom.kind}imum({bare(left)}, {bare(right)})"
    low = dims.range_of(atom.left, scope.facts).low
    if low is None or low < 0:
        helper = f"floor_{atom.kind}_index"
        emitter.helpers.add(helper)
        return f"{helper}({bare(left)}, {bare(right)})"
    return f"({left} {'//' if atom.kind == 'div' else '%'} {right})"


def _symbol(emitter: Emitter, scope: Scope, name: str, axes: tuple[str, ...]) -> str:
    if name.startswith("%"):
        if name[1:] not in emitter.values:
            raise UnsupportedError(f"launch {emitter.launch.name}: value {name} is not known here", hint="name it before it is used")
        known = emitter.values[name[1:]]
        text = emitter.aligned(known, axes)
        return f"{text}.to(tl.int32)" if known.dtype.bits < 32 else text
    for axis in scope.axes.values():
        if axis.kind == "tile" and name == axis.lane:
            return lane(emitter, scope, axis.name, axes)
        if name == axis.first:
            return emitter.starts[axis.name]
    return f"size_{name}"


def fits(scope: Scope, dim: Dim) -> bool:
    """Whether i32 holds every product and every partial sum, in the order of printing."""
    if isinstance(dim, int):
        return _inside(dims.Range(dim, dim))
    total: Dim = 0
    for monomial, factor in dim.terms:
        product: Dim = 1
        for atom in monomial:
            product = product * Expr((((atom,), 1),))
            if not _inside(dims.range_of(product, scope.facts)) or (isinstance(atom, Function) and not _fits_atom(scope, atom)):
                return False
        product = product * factor
        total = total + product
        if not _inside(dims.range_of(product, scope.facts)) or not _inside(dims.range_of(total, scope.facts)):
            return False
    return True


def _is_wide(scope: Scope, atom: Atom) -> bool:
    """Whether an atom's text is 64 bits wide already."""
    return isinstance(atom, Function) and not _fits_atom(scope, atom)


def _fits_atom(scope: Scope, atom: Function) -> bool:
    return fits(scope, atom.left) and fits(scope, atom.right)


def _inside(bounds: dims.Range) -> bool:
    return bounds.low is not None and bounds.high is not None and bounds.low >= _LOW and bounds.high <= _HIGH
