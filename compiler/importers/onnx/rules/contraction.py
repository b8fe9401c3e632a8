"""Rules of products: MatMul, Gemm, Einsum."""

from __future__ import annotations

import string

from .....ir import dims
from .....ir.dims import Dim
from .....ir.graph import Value
from .....ir.types import i64
from ..context import Node, cast, rule
from .movement import transpose
from .shape import unsqueeze


def product(n: Node, a: Value, b: Value) -> Value:
    """numpy's matmul: a vector on either side is a row or a column."""
    left, right = a.type.rank == 1, b.type.rank == 1
    if a.type.rank == 0 or b.type.rank == 0:
        raise n.fail(f"operands are {a.type} and {b.type}, expected rank 1 or more")
    a = unsqueeze(n, a, (0,)) if left else a
    b = unsqueeze(n, b, (1,)) if right else b
    result: Value = n.b.matmul(a, b)
    if not left and not right:
        return result
    shape = list(result.shape)
    if right:
        del shape[-1]
    if left:
        del shape[-1 if right else -2]
    reshaped: Value = n.b.reshape(result, shape=tuple(shape))
    return reshaped


@rule("MatMul")
def _matmul(n: Node) -> Value:
    return product(n, n.x(0), n.x(1))


def gemm(n: Node) -> Value:
    """alpha * a b + beta * c, with this node's attributes."""
    a, b = n.x(0), n.x(1)
    if a.type.rank != 2 or b.type.rank != 2:
        raise n.fail(f"operands are {a.type} and {b.type}, expected matrices")
    result: Value = n.b.matmul(a, b, transpose_a=n.attr_flag("transA"), transpose_b=n.attr_flag("transB"))
    result = cast(n, result, a.dtype)
    alpha, beta = n.attr_float("alpha", 1.0), n.attr_float("beta", 1.0)
    result = result if alpha == 1.0 else n.b.mul(result, alpha)
    if n.given(2) and beta != 0.0:
        bias = n.x(2) if beta == 1.0 else n.b.mul(n.x(2), beta)
        result = n.b.add(result, bias)
    return result


rule("Gemm")(gemm)


# --- einsum -----------------------------------------------------------------------------------------------------------


@rule("Einsum")
def _einsum(n: Node) -> Value:
    terms, result = _equation(n)
    values = [_diagonals(n, value, term) for value, term in zip(n.xs(), terms, strict=True)]
    value, letters = values[0]
    for position, (other, other_letters) in enumerate(values[1:], start=1):
        later = set(result).union(*(set(ls) for _, ls in values[position + 1 :]))
        value, letters = _contract(n, value, letters, other, other_letters, later)
    summed = tuple(axis for axis, letter in enumerate(letters) if letter not in result)
    if summed:
        value = n.b.sum(value, axes=summed, keepdims=False)
        letters = [letter for letter in letters if letter in result]
    if sorted(letters) != sorted(result):
        raise n.fail(f"result {''.join(result)!r} names an axis that no operand has")
    return transpose(n, value, tuple(letters.index(letter) for letter in result))


def _equation(n: Node) -> tuple[list[list[str]], list[str]]:
    """The letters of each operand and of the result, with those that an ellipsis stands for written out."""
    text = n.attr_string("equation").replace(" ", "")
    left, arrow, right = text.partition("->")
    operands = left.split(",")
    if len(operands) != len(n.inputs) or not set(text) <= set(string.ascii_letters + ".,->"):
        raise n.fail(f"equation {text[:80]!r} does not fit {len(n.inputs)} operands")
    spare = [letter for letter in string.ascii_letters if letter not in text]
    widest = max((n.rank(k) - len(part.replace("...", "")) for k, part in enumerate(operands) if "..." in part), default=0)
    if widest < 0 or widest > len(spare):
        raise n.fail(f"equation {text[:80]!r} has more letters than its operands have axes")
    shared = spare[:widest]
    terms: list[list[str]] = []
    for position, part in enumerate(operands):
        hidden = n.rank(position) - len(part.replace("...", ""))
        if hidden < 0 or (hidden and "..." not in part):
            raise n.fail(f"operand {position} has rank {n.rank(position)}, and its term is {part[:80]!r}")
        terms.append(list(part.replace("...", "".join(shared[widest - hidden :]))))
    if arrow:
        return terms, list(right.replace("...", "".join(shared)))
    everything = [letter for term in terms for letter in term]
    return terms, shared + sorted(letter for letter in set(everything) - set(shared) if everything.count(letter) == 1)


def _diagonals(n: Node, value: Value, letters: list[str]) -> tuple[Value, list[str]]:
    """A letter that stands twice in one term takes the diagonal."""
    for letter in dict.fromkeys(letters):
        while letters.count(letter) > 1:
            first = letters.index(letter)
            second = letters.index(letter, first + 1)
            order = [axis for axis in range(len(letters)) if axis not in (first, second)]
            moved = transpose(n, value, (first, second, *order))
            size = moved.shape[0]
            index = n.b.iota(shape=(size, 1), axis=0, dtype=i64)
            value = n.b.gather_nd(moved, n.b.concat(index, index, axis=1), batch_dims=0)
            letters = [letter, *(letters[axis] for axis in order)]
    return value, letters


def _contract(n: Node, a: Value, left: list[str], b: Value, right: list[str], later: set[str]) -> tuple[Value, list[str]]:
    """One product of two operands as a batched matrix product."""
    shared = [letter for letter in left if letter in right]
    batch = [letter for letter in shared if letter in later]
    inner = [letter for letter in shared if letter not in later]
    a, left = _sum_away(n, a, left, set(right) | later)
    b, right = _sum_away(n, b, right, set(left) | later)
    rows, columns = ([letter for letter in term if letter not in shared] for term in (left, right))
    sizes: dict[str, Dim] = {}
    for value, term in ((a, left), (b, right)):
        for letter, size in zip(term, value.shape, strict=True):
            sizes[letter] = size if sizes.get(letter, 1) == 1 else sizes[letter]
    a = _grouped(n, a, left, batch, rows, inner, sizes)
    b = _grouped(n, b, right, batch, inner, columns, sizes)
    shape = tuple(sizes[letter] for letter in (*batch, *rows, *columns))
    result: Value = n.b.reshape(cast(n, n.b.matmul(a, b), n.x(0).dtype), shape=shape)
    return result, [*batch, *rows, *columns]


def _sum_away(n: Node, value: Value, letters: list[str], needed: set[str]) -> tuple[Value, list[str]]:
    axes = tuple(axis for axis, letter in enumerate(letters) if letter not in needed)
    if not axes:
        return value, letters
    return n.b.sum(value, axes=axes, keepdims=False), [letter for letter in letters if letter in needed]


def _grouped(
    n: Node, value: Value, letters: list[str], batch: list[str], first: list[str], second: list[str], sizes: dict[str, Dim]
) -> Value:
    """The operand as [batch, first, second], each group one axis."""
    order = [*batch, *first, *second]
    value = transpose(n, value, tuple(letters.index(letter) for letter in order))
    full = tuple(sizes[letter] for letter in order)
    if value.shape != full:
        value = n.b.broadcast_to(value, shape=full)
    result: Value = n.b.reshape(value, shape=tuple(dims.product(sizes[letter] for letter in group) for group in (batch, first, second)))
    return result
