"""Integers that vary from call to call and scalars captured from data: drawn programs against eager, each compiled once."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

Program = Callable[..., Any]
INTEGERS = (-(2**33), -300, -50, -7, -3, -2, -1, 0, 1, 2, 3, 4, 5, 8, 16, 31, 64, 124, 177, 1000, 2**33)
SMALL = (0, 1, 2, 3, 5, 8)
POSITIVE = (1, 2, 3, 4, 7, 9)


BINARY: tuple[Callable[[Any, Any], Any], ...] = (
    *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, max, min),
    *(operator.and_, operator.or_, operator.xor, operator.and_, operator.or_),
    *(lambda x, y: x << (y & 7), lambda x, y: x >> (y & 7), lambda x, y: x if y > 0 else -x, lambda x, y: int(x / (y * y + 1))),
)
UNARY: tuple[Callable[[Any], Any], ...] = (operator.neg, abs, operator.invert, int, lambda x: x % 5, lambda x: x**2)
COMPARISONS: tuple[Callable[[Any, Any], Any], ...] = (operator.lt, operator.ge, operator.eq, operator.ne)


def expression(generator: random.Random, depth: int) -> Program:
    """Python's arithmetic on the integers a and b, and on the size n, drawn."""
    if depth == 0 or generator.random() < 0.1:
        constant = generator.choice((-7, -1, 0, 1, 2, 3, 6, 8))
        return generator.choice((lambda a, b, n: a, lambda a, b, n: b, lambda a, b, n: n, lambda a, b, n: constant))
    if generator.random() < 0.25:
        function, inner = generator.choice(UNARY), expression(generator, depth - 1)
        return lambda a, b, n: function(inner(a, b, n))
    both, left, right = generator.choice(BINARY), expression(generator, depth - 1), expression(generator, depth - 1)
    return lambda a, b, n: both(left(a, b, n), right(a, b, n))


def condition(generator: random.Random, depth: int) -> Program:
    """A truth about the same integers; torch computes with truths by `&`, `|` and `not` alone."""
    if depth == 0 or generator.random() < 0.3:
        compared, left, right = generator.choice(COMPARISONS), expression(generator, 1), expression(generator, 1)
        return lambda a, b, n: compared(left(a, b, n), right(a, b, n))
    joined = generator.choice((operator.and_, operator.or_))
    one, other = condition(generator, depth - 1), condition(generator, depth - 1)
    return lambda a, b, n: joined(one(a, b, n), other(a, b, n))


@dataclass(frozen=True)
class Template:
    """A program over a matrix and integers, with what each integer may be."""

    name: str
    run: Program
    draws: tuple[tuple[int, ...], ...]


pad = torch.nn.functional.pad
TEMPLATES = (
    Template("slice", lambda x, a, b, c: x[:, a:b:c], (INTEGERS, INTEGERS, POSITIVE)),
    Template("slice_computed", lambda x, a, b, c: x.sin()[:, a:b:c] + 1, (INTEGERS, INTEGERS, POSITIVE)),
    Template("slice_rows", lambda x, a, b: (x * 2)[a:, :b], (INTEGERS, INTEGERS)),
    Template("slice_shifted", lambda x, a, b: x[:, a + b : a * 2 + 30].exp(), ((-9, -1, 0, 3, 10), (-5, 0, 2, 7))),
    Template("select", lambda x, a: x.select(1, a) + x[:, a], (tuple(range(-200, 200, 23)),)),
    Template("narrow", lambda x, a, b: x.narrow(1, a, b) * 3, (SMALL, SMALL)),
    Template("pad", lambda x, a, b, v: pad(x, (a, b), value=float(v)), ((-9, -2, 0, 1, 3, 20), (-7, -1, 0, 2, 9), INTEGERS)),
    Template("pad_integer_value", lambda x, a, v: pad(x.long(), (a, 1), value=v), ((-9, 0, 1, 3, 20), INTEGERS)),
    Template("pad_edge", lambda x, a, b: pad(x[None], (a, b), mode="replicate"), (SMALL, SMALL)),
    Template("pad_reflect", lambda x, a, b: pad(x[None], (a, b), mode="reflect"), (SMALL, SMALL)),
    Template("repeat", lambda x, a, b: x[:, :5].repeat(a, b), (SMALL, SMALL)),
    Template("expand", lambda x, a: x[:1].expand(a, -1) + 1, (SMALL,)),
    Template("roll", lambda x, a, b: x.roll((a, b), (0, 1)), (INTEGERS, INTEGERS)),
    Template("roll_flat", lambda x, a: x.roll(a), (INTEGERS,)),
    Template("arange", lambda x, a, c: torch.arange(a, a + 20, c) + x[:1, :1].long(), ((-300, -3, 0, 5, 2**33), POSITIVE)),
    Template("arange_to", lambda x, a: torch.arange(a) * 2 + a, ((0, 1, 2, 5, 177),)),
    Template("full", lambda x, a, v: torch.full((a, 3), v) + torch.full((a, 1), v * 0.5), (SMALL, INTEGERS)),
    Template("fill", lambda x, v: torch.full_like(x, v) + x.new_full((2, 1), v), (INTEGERS,)),
    Template("arithmetic", lambda x, k: (x * k, x + k, x - k, k - x, x / (k * 2 + 1)), (INTEGERS,)),
    Template("halves", lambda x, k: (x + k / 2, x + k // 3, x + k % 5, x * float(k)), (INTEGERS,)),
    Template("divided", lambda x, a, b: x.double() + a // b + a % b + a / b, (INTEGERS, (-7, -2, -1, 1, 3, 64))),
    Template("of_integers", lambda x, a, b: (x.long() * a + b, x.long() // (b * b + 1), x.long() > a), (INTEGERS, INTEGERS[1:-1])),
    Template("compared", lambda x, k: torch.where(x > k, x, k * 1.0) + (x == k) + x.clamp(min=k), (INTEGERS,)),
    Template("branches", lambda x, k: x * 2 if k < 0 else x + max(k, 3) + min(k, 1) + abs(k), (INTEGERS,)),
    Template("bits", lambda x, a, b: (x * (a & b), x.long() + (a | 6), (x > 0) * (a ^ b), x + (a & (a - 1)) + ~b), (INTEGERS, INTEGERS)),
    Template("truths", lambda x, a, b: x * ((a > 2) & (b < 6)) + ((a > b) | (b == 1)) + ((a > 0) & b), (INTEGERS, INTEGERS)),
    Template("sizes_bits", lambda x, a: x[:, : (a & 7)].sin() * (x[:, :a].shape[1] & 6), (SMALL,)),
    Template("powers", lambda x, k: x.abs() ** (k % 3) + (k * k) + x.double() * k**2, (INTEGERS[1:-1],)),
    Template("square_view", lambda x, a: x[:, : a * 2].reshape(2, a, 2).sum(1), (POSITIVE,)),
    Template("view", lambda x, a: x[:, : a * 4].sin().view(a, 8), (POSITIVE,)),
    Template("returned", lambda x, a, b: (x + a, a * b, a // 2, b - a, a % 7), (INTEGERS[1:-1], INTEGERS[1:-1])),
    Template("index", lambda x, a, b: x[:, torch.arange(5) * a + b], (SMALL, SMALL)),
    Template("masked", lambda x, v: x.masked_fill(x > 0, v) + torch.where(x > 1, v, x), (INTEGERS,)),
    Template("split", lambda x, a: [part * 2 for part in x[:, :30].split(a, 1)], (POSITIVE,)),
    Template("topk", lambda x, a: x.topk(a, 1)[0], (POSITIVE,)),
    Template("eye", lambda x, a, b: torch.ones(a, b).triu(1) + torch.zeros(a, 1), (SMALL, SMALL)),
    Template("unfold", lambda x, a, b: x.unfold(1, a, b) + 1, (POSITIVE, POSITIVE)),
    Template("cumulated", lambda x, a, b: x[:, a:b].cumsum(1) + x[:, a:b].sum(1, keepdim=True), (INTEGERS, INTEGERS)),
    Template("softmax", lambda x, a: (x / (abs(a) + 1))[:, : a % 30 + 1].softmax(-1), (INTEGERS,)),
)


def count(x: Any, high: int = 40) -> Any:
    """An integer in 0..high that the data decide."""
    k = x.abs().max().long().item()
    torch._check(k >= 0)
    torch._check(k <= high)
    return k


def signed(x: Any) -> Any:
    """Any integer that the data decide."""
    return x.flatten()[0].long().item()


CAPTURED: dict[str, Program] = {
    "data": lambda x: (torch.arange(8) + count(x), x * count(x)),
    "signed": lambda x: (x + signed(x), x.long() * signed(x), x - signed(x) // 3, x + signed(x) % 5),
    "several": lambda x: x * signed(x) + signed(-x) * 2 + signed(x) * signed(-x),
    "bits": lambda x: (x * (signed(x) & 6), x.long() | (count(x) | 3), x * ((count(x) & (count(x) + 1)) ^ 5)),
    "floats": lambda x: (x * x.mean().item(), x + x.double().sum().item() / 2, torch.full((3,), x.max().item())),
    "float_of_integer": lambda x: x / (count(x) + 1) + signed(x) * 0.5,
    "fill": lambda x: torch.full((2, 3), signed(x)) + torch.full_like(x[:, :3].long(), signed(x)),
    "arange": lambda x: torch.arange(count(x)) * 2,
    "arange_from": lambda x: torch.arange(signed(x), signed(x) + 9),
    "full": lambda x: torch.full((count(x),), 1.5),
    "full_of_itself": lambda x: (lambda k: torch.full((k, 2), k))(count(x)),
    "zeros": lambda x: torch.zeros(count(x), 3).exp() + x[:, :3].sum(0),
    "sliced": lambda x: x.sin()[:, : count(x, 40)] + 1,
    "narrowed": lambda x: x.narrow(1, 0, count(x)) * 2,
    "expanded": lambda x: x[:1, :4].expand(count(x), 4) + 1,
    "repeated": lambda x: x[:1, :4].repeat(count(x), 2),
    "padded": lambda x: pad(x, (count(x), 1)) + 1,
    "summed": lambda x: (torch.arange(count(x)) + 1).double().sum() + torch.ones(count(x), 5).sum(0),
    "nonzero": lambda x: x.nonzero() + 1,
    "nonzero_sum": lambda x: (x > 1).nonzero().double().sum(0),
    "masked": lambda x: x[x > 0] * 2,
    "clamped": lambda x: x.clamp(max=signed(x) * 1.0) + x.masked_fill(x > 1, x.min().item()),
    "compared": lambda x: (x > signed(x), x == signed(x), torch.where(x > 0, x, x.mean().item())),
    "returned": lambda x: (x + 1, signed(x) * 2),
}


def inputs(generator: random.Random, calls: int) -> Iterator[Any]:
    """Matrices whose largest magnitudes differ."""
    for _ in range(calls):
        x = torch.from_numpy(np.random.default_rng(generator.randrange(1 << 30)).standard_normal((2, 40)).astype(np.float32))
        yield (x.clamp(-3, 3) * generator.choice((0.1, 0.4, 1.0, 5.0, 12.0))).clone()


def same(got: Any, expected: Any) -> bool:
    """Whether results are the same: exactly where they are integers, shapes and dtypes always."""
    if isinstance(expected, (tuple, list)):
        return len(got) == len(expected) and all(same(a, b) for a, b in zip(got, expected, strict=True))
    if not isinstance(expected, torch.Tensor):
        return type(got) is type(expected) and got == expected
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    return (
        torch.allclose(got, expected, rtol=2e-5, atol=1e-5, equal_nan=True) if expected.is_floating_point() else torch.equal(got, expected)
    )


def outcome(function: Program, arguments: tuple[Any, ...]) -> Any:
    """The results, or the error that eager ends in."""
    try:
        return function(*arguments)
    except (RuntimeError, ValueError, IndexError, ZeroDivisionError) as error:
        return error


def calls_of(template: Template, generator: random.Random, calls: int) -> Iterator[tuple[Any, ...]]:
    """Arguments that eager takes."""
    found = 0
    for _ in range(40 * calls):
        if found == calls:
            return
        width = generator.choice((200, 200, 200, 64))
        arguments = (torch.randn(2, width) * 3, *(generator.choice(draw) for draw in template.draws))
        if not isinstance(outcome(template.run, arguments), Exception):
            found += 1
            yield arguments


def differs(compiled: Program, eager: Program, arguments: tuple[Any, ...]) -> str | None:
    """What is wrong with one call; None if nothing is."""
    expected = eager(*arguments)
    try:
        got = compiled(*arguments)
    except Exception as error:  # noqa: BLE001 - any error is a finding here
        return f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
    return None if same(got, expected) else "wrong answer"


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=64):
        yield
    torch._dynamo.reset()


def chosen(names: list[Any], request: pytest.FixtureRequest, share: int) -> tuple[list[Any], random.Random]:
    """As many of the names as --cases allows, by --seed."""
    generator = random.Random(request.config.getoption("--seed"))
    number = max(1, request.config.getoption("--cases") // share)
    return (names if number >= len(names) else generator.sample(names, number)), generator


@pytest.mark.parametrize("dynamic", [None, True])
def test_integers_that_vary(dynamic: bool | None, request: pytest.FixtureRequest) -> None:
    templates, generator = chosen(list(TEMPLATES), request, 60)
    torch.manual_seed(request.config.getoption("--seed"))
    wrong = []
    for template in templates:
        torch._dynamo.reset()
        compiled = torch.compile(template.run, backend="ourcc", dynamic=dynamic)
        for arguments in calls_of(template, generator, 5):
            why = differs(compiled, template.run, arguments)
            if why is not None:
                wrong.append((template.name, arguments[0].shape[1], arguments[1:], why))
    assert wrong == []


def test_expressions_of_integers(request: pytest.FixtureRequest) -> None:
    """Whatever Python computes of integers and sizes: as a factor, as a scalar that is captured from data, as a result."""
    generator = random.Random(request.config.getoption("--seed"))
    torch.manual_seed(request.config.getoption("--seed"))
    wrong = []
    for number in range(max(1, request.config.getoption("--cases") // 16)):
        made = condition(generator, 2) if generator.random() < 0.2 else expression(generator, 3)

        def run(x: Any, a: int, b: int, made: Program = made) -> Any:
            found = made(a, b, x.shape[1])
            return x.long() * found, found

        torch._dynamo.reset()
        compiled = torch.compile(run, backend="ourcc", dynamic=True)
        for arguments in calls_of(Template("", run, ((-9, -4, -1, 0, 2, 3, 4, 6, 50), (-6, -2, 0, 1, 4, 5, 12))), generator, 4):
            why = differs(compiled, run, arguments)
            if why is not None:
                wrong.append((number, arguments[0].shape[1], arguments[1:], why))
    assert wrong == []


def test_captured_scalars_under_compile(request: pytest.FixtureRequest) -> None:
    names, generator = chosen(list(CAPTURED), request, 60)
    wrong = []
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        for name in names:
            torch._dynamo.reset()
            compiled = torch.compile(CAPTURED[name], backend="ourcc")
            for x in inputs(generator, 3):
                why = differs(compiled, CAPTURED[name], (x,))
                if why is not None:
                    wrong.append((name, why))
    assert wrong == []


class Wrapped(torch.nn.Module):
    """A function as a module, whose numbers come back as tensors."""

    def __init__(self, function: Program) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        found = self.function(x)
        parts = found if isinstance(found, tuple) else (found,)
        return tuple(part if isinstance(part, torch.Tensor) else torch.full((), part) for part in parts)


UNSUPPORTED = {"masked"}
"""What an exported program may say is not supported; all else must build."""


def test_captured_scalars_exported(request: pytest.FixtureRequest, tmp_path) -> None:
    import ourcc

    names, generator = chosen(list(CAPTURED), request, 60)
    wrong = []
    for name in names:
        module = Wrapped(CAPTURED[name])
        examples = list(inputs(generator, 3))
        program = torch.export.export(module, (examples[0],), strict=False)
        path = tmp_path / f"{name}.pt2"
        torch.export.save(program, path)
        for source in (program, path):
            try:
                engine = ourcc.build(source)
            except ourcc.UnsupportedError as error:
                if name not in UNSUPPORTED:
                    wrong.append((name, str(source)[-4:], f"refused: {error}"))
                continue

            def run(x: Any, engine: Any = engine) -> Any:
                found = engine(x)
                return found if isinstance(found, tuple) else (found,)

            for x in examples:
                why = differs(run, module, (x,))
                if why is not None:
                    wrong.append((name, str(source)[-4:], why))
    assert wrong == []
