"""Products of float32 on matrix instructions as one product of tf32, where three of them give what float32 gives."""

from __future__ import annotations

from dataclasses import replace

from ...ir.tile.program import Dot, For, If, Launch, Let, Statement, Store, TileProgram, Value, parts, statements, walk, with_parts

WHOLE, ONE = "tf32x3", "tf32"
"""How a dot of float32 is computed as a rule, and where tf32 is asked for."""


def in_tf32(program: TileProgram) -> TileProgram:
    """The program with one product for three: factors are rounded to 10 fraction bits, sums stay in float32."""
    return replace(program, launches=tuple(replace(launch, body=_body(launch.body)) for launch in program.launches))


def multiplies_in_tf32(launch: Launch) -> bool:
    """Whether a kernel rounds the factors of a product to tf32."""
    held = (s.condition if isinstance(s, If) else s.value for s in statements(launch.body) if isinstance(s, (If, Let, Store)))
    return any(isinstance(part, Dot) and part.precision == ONE for value in held for part in walk(value))


def _body(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    return tuple(_statement(statement) for statement in body)


def _statement(statement: Statement) -> Statement:
    if isinstance(statement, For):
        return replace(statement, body=_body(statement.body))
    if isinstance(statement, If):
        return replace(statement, condition=_value(statement.condition), body=_body(statement.body), otherwise=_body(statement.otherwise))
    return replace(statement, value=_value(statement.value)) if isinstance(statement, (Let, Store)) else statement


def _value(value: Value) -> Value:
    """A value with its dots, and those of its operands, in tf32."""
    inner = with_parts(value, tuple(map(_value, parts(value))))
    return replace(inner, precision=ONE) if isinstance(inner, Dot) and inner.precision == WHOLE else inner
