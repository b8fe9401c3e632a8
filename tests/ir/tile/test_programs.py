"""The twelve programs written by hand: text, verifier, interpreter at sizes that divide no tile, and mutations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ourcc.ir import types
from ourcc.ir.dims import NO_FACTS, Facts
from ourcc.ir.errors import InternalError, VerifyError
from ourcc.ir.graph import reference
from ourcc.ir.tile.bounds import BoundsCheck, checks_of
from ourcc.ir.tile.interpret import run
from ourcc.ir.tile.parse import parse
from ourcc.ir.tile.program import Load, Store, TileProgram
from ourcc.ir.tile.scope import Scope
from ourcc.ir.tile.text import statement_lines, text, untyped
from ourcc.ir.tile.verify import verify

FOLDER = Path(__file__).parent / "programs"
Array = Any
Arrays = dict[str, Array]


@dataclass
class Case:
    """Inputs of one program, the packing of its operands, and what it computes, in a float type of one's choice."""

    symbols: dict[str, int]
    inputs: Arrays
    reference: Callable[[Arrays, type], Arrays]
    facts: Facts = NO_FACTS
    exact: bool = False
    # Checks that only damaged data (a bad table, a bad bound) would fail, by what they test.
    safety: tuple[str, ...] = ()
    damage: tuple[Arrays, ...] = ()
    # A further size, where one size cannot make every condition fail.
    other: Case | None = None

    def packed(self, program: TileProgram, changed: Arrays | None = None) -> Arrays:
        arrays = {**self.inputs, **(changed or {})}
        for param in (p for launch in program.launches for p in launch.params):
            if param.layout is not None and param.name in arrays:
                arrays[param.name] = param.layout.pack(arrays[param.name])
        return arrays


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def small(seed: int, *shape: int, low: int = -3, high: int = 4) -> Array:
    return np.random.default_rng(seed).integers(low, high, shape)


def product(a: Arrays, to: type) -> Array:
    return a["x"].astype(to) @ a["w"].astype(to).T


def matmul_relu(a: Arrays, to: type) -> Arrays:
    return {"y": np.maximum(product(a, to) + a["bias"].astype(to), 0)}


def dequantized(a: Arrays, to: type) -> Arrays:
    codes = np.stack([a["w"] & 15, a["w"] >> 4], axis=-1).reshape(37, 80).astype(to)
    weight = (codes - np.repeat(a["zero"], 16, axis=1).astype(to)) * np.repeat(a["scale"], 16, axis=1).astype(to)
    return {"y": a["x"].astype(to) @ weight.T}


def sparse(a: Arrays, to: type) -> Arrays:
    dense = np.zeros((37, 72), to)
    for j in range(37):
        for h in range(36):
            position = (int(a["positions"][j, h // 4]) >> (2 * (h % 4))) & 3
            dense[j, 4 * (h // 2) + position] = a["values"][j, h]
    return {"y": a["x"].astype(to) @ dense.T}


def sparse_positions() -> Array:
    pairs = np.array([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])
    chosen = pairs[small(3, 37, 18, low=0, high=6)].reshape(37, 9, 4)
    return (chosen << np.array([0, 2, 4, 6])).sum(axis=-1).astype(np.uint8)


def quantized(a: Arrays, to: type) -> Arrays:
    # The inputs are small integers: sums are exact, so both outputs are, in f32.
    y = product(a, np.float32)
    scale = np.maximum(np.abs(y).max(axis=1), np.float32(1e-30)) / np.float32(127)
    return {"y": np.round(y / scale[:, None]).astype(np.int8), "scale": scale}


def ragged(a: Arrays, to: type) -> Arrays:
    y = np.zeros((int(a["starts"][-1]), 37), to)
    for g, (begin, end) in enumerate(zip(a["starts"], a["starts"][1:], strict=False)):
        y[begin:end] = a["x"][begin:end].astype(to) @ a["w"][g].astype(to).T
    return {"y": y}


def attend(q: Array, k: Array, v: Array, mask: Array) -> Array:
    x = np.where(mask, q @ k.T * q.dtype.type(0.25), -np.inf)
    p = np.exp(x - x.max(axis=-1, keepdims=True))
    return (p @ v) / p.sum(axis=-1, keepdims=True)


def causal_attention(a: Arrays, to: type) -> Arrays:
    q, k, v = (a[name].astype(to) for name in "qkv")
    mask = np.tril(np.ones((q.shape[2], q.shape[2]), bool))
    heads = [[attend(q[b, h], k[b, h // 2], v[b, h // 2], mask) for h in range(4)] for b in range(q.shape[0])]
    return {"o": np.array(heads)}


def paged_attention(a: Arrays, to: type) -> Arrays:
    q, k, v = (a[name].astype(to) for name in "qkv")
    out = np.zeros(q.shape, to)
    for b, length in enumerate(a["lengths"]):
        pages = [a["table"][b, t // 8] for t in range(length)]
        for h in range(4):
            keys, values = (np.array([x[page, t % 8, h // 2] for t, page in enumerate(pages)]) for x in (k, v))
            out[b, h] = attend(q[b, h], keys, values, np.ones(length, bool))
    return {"o": out}


def convolution(a: Arrays, to: type) -> Arrays:
    x = np.pad(a["x"].astype(to), ((0, 0), (1, 1), (1, 1), (0, 0)))
    n, height, width = a["x"].shape[:3]
    y = np.zeros((n, (height + 1) // 2, (width + 1) // 2, 20), to)
    for kh in range(3):
        for kw in range(3):
            window = x[:, kh : kh + 2 * y.shape[1] - 1 : 2, kw : kw + 2 * y.shape[2] - 1 : 2]
            y += window @ a["w"][:, kh, kw].astype(to).T
    return {"y": y}


def at_least_one(*names: str) -> Facts:
    facts = NO_FACTS
    for name in names:
        facts = facts.with_range(name, 1, None)
    return facts


TABLE = np.array([[4, 1, 6, -1, -1], [0, 5, 2, 3, 7]], np.int32)
STARTS = np.array([0, 5, 5, 18, 29], np.int32)

CASES = {
    "packed_gemm": Case({"B": 37}, {"x": normal(1, 37, 45), "w": normal(2, 75, 45), "bias": normal(3, 75)}, matmul_relu),
    "amx_gemm": Case(
        {"M": 37},
        {"x": normal(1, 37, 45).astype(types.bf16.numpy), "w": normal(2, 75, 45).astype(types.bf16.numpy)},
        lambda a, to: {"y": np.tanh(product(a, to))},
    ),
    "split_k": Case(
        {"M": 19},
        {"x": normal(1, 19, 45), "w": normal(2, 37, 45), "bias": normal(3, 37)},
        lambda a, to: {"y": product(a, to) + a["bias"].astype(to)},
    ),
    "stream_k": Case({}, {"x": normal(1, 45, 46), "w": normal(2, 37, 46)}, lambda a, to: {"y": product(a, to)}),
    "persistent_grouped": Case(
        {"M": 75, "N": 45},
        {"x": normal(1, 75, 40).astype(np.float16), "w": normal(2, 45, 40).astype(np.float16)},
        lambda a, to: {"y": product(a, to).astype(np.float16 if to is np.float32 else to)},
        at_least_one("M", "N"),
    ),
    "ragged_grouped": Case(
        {"T": 29},
        {"x": normal(1, 29, 45), "w": normal(2, 4, 37, 45), "starts": STARTS},
        ragged,
        safety=("0 <= r < T",),
        damage=({"starts": STARTS + np.array([0, 0, 0, 0, 3], np.int32)}, {"starts": STARTS - np.array([2, 0, 0, 0, 0], np.int32)}),
    ),
    "int4_dequantize": Case(
        {"M": 19},
        {
            "x": normal(1, 19, 80),
            "w": small(2, 37, 40, low=0, high=256).astype(np.uint8),
            "scale": np.abs(normal(3, 37, 5)),
            "zero": small(4, 37, 5, low=0, high=16).astype(np.uint8),
        },
        dequantized,
    ),
    "sparse_2to4": Case({"M": 19}, {"x": normal(1, 19, 72), "values": normal(2, 37, 36), "positions": sparse_positions()}, sparse),
    "absmax_quantize": Case(
        {"M": 19}, {"x": small(1, 19, 45).astype(np.float32), "w": small(2, 75, 45).astype(np.float32)}, quantized, exact=True
    ),
    "gqa_attention": Case(
        {"B": 2, "S": 21},
        {"q": normal(1, 2, 4, 21, 24), "k": normal(2, 2, 2, 21, 24), "v": normal(3, 2, 2, 21, 24)},
        causal_attention,
        at_least_one("B", "S"),
    ),
    "paged_decode": Case(
        {"B": 2, "P": 8},
        {
            **{"q": normal(1, 2, 4, 16), "k": normal(2, 8, 8, 2, 16), "v": normal(3, 8, 8, 2, 16)},
            **{"table": TABLE, "lengths": np.array([21, 37], np.int32)},
        },
        paged_attention,
        safety=("0 <= %page < P", "(t // 8) < 5"),
        damage=(
            {"table": TABLE + np.array([[5], [0]], np.int32)},
            {"table": TABLE - np.array([[0], [3]], np.int32)},
            {"lengths": np.array([21, 45], np.int32)},
        ),
    ),
    # On an odd width the last window leaves the input, on an even one lanes outside the output stay inside it.
    "convolution": Case(
        {"N": 2, "H": 7, "W": 9},
        {"x": normal(1, 2, 7, 9, 5), "w": normal(2, 20, 3, 3, 5)},
        convolution,
        at_least_one("N", "H", "W"),
        other=Case(
            {"N": 1, "H": 6, "W": 10},
            {"x": normal(1, 1, 6, 10, 5), "w": normal(2, 20, 3, 3, 5)},
            convolution,
            at_least_one("N", "H", "W"),
        ),
    ),
}

every_program = pytest.mark.parametrize("name", CASES)


def program(name: str) -> TileProgram:
    return parse((FOLDER / f"{name}.tile").read_text())


def judge(case: Case, outputs: Arrays) -> None:
    wide, stepwise = case.reference(case.inputs, np.float64), case.reference(case.inputs, np.float32)
    assert outputs.keys() == wide.keys()
    for name, result in outputs.items():
        if case.exact:
            assert np.array_equal(result, stepwise[name])
        verdict = reference.judge(result, stepwise[name].astype(result.dtype), wide[name])
        assert verdict.passed, f"{name}: {verdict}"


def sizes(name: str) -> list[Case]:
    case = CASES[name]
    return [case] if case.other is None else [case, case.other]


def test_every_program_has_a_case() -> None:
    assert {path.stem for path in FOLDER.glob("*.tile")} == set(CASES)
    assert len(CASES) == 12


@every_program
def test_text_reads_back_to_the_same_program(name: str) -> None:
    first = program(name)
    assert parse(text(first)) == first


@every_program
def test_program_is_well_formed(name: str) -> None:
    verify(program(name), CASES[name].facts)


@every_program
def test_interpreter_agrees_with_numpy(name: str) -> None:
    tile = program(name)
    for case in sizes(name):
        judge(case, run(tile, case.packed(tile), case.symbols, case.facts))


def describe(check: BoundsCheck) -> str:
    low = "" if check.low is None else f"{check.low} <= "
    high = "" if check.high is None else f" < {check.high}"
    return f"{low}{check.index}{high}"


def halves(check: BoundsCheck) -> Iterator[BoundsCheck | None]:
    """What is left of a check when one of its conditions is dropped."""
    if check.low is not None and check.high is not None:
        yield dataclasses.replace(check, low=None)
        yield dataclasses.replace(check, high=None)
    yield None


class Dropper:
    """The bounds analysis with one condition of one access missing; `seen` collects all there are."""

    def __init__(self, access: str = "", check: BoundsCheck | None = None, rest: BoundsCheck | None = None) -> None:
        self.access, self.check, self.rest = access, check, rest
        self.seen: dict[tuple[str, BoundsCheck], None] = {}

    def __call__(self, scope: Scope, access: Load | Store) -> tuple[BoundsCheck, ...]:
        shown = untyped(access) if isinstance(access, Load) else statement_lines(access)[0]
        found = checks_of(scope, access)
        self.seen.update({(shown, check): None for check in found})
        if shown != self.access:
            return found
        changed = [self.rest if check == self.check else check for check in found]
        return tuple(check for check in changed if check is not None)


@every_program
def test_every_mask_that_is_dropped_is_caught(name: str) -> None:
    tile, cases = program(name), sizes(name)
    collector = Dropper()
    for case in cases:
        run(tile, case.packed(tile), case.symbols, case.facts, collector)
    assert collector.seen
    for access, check in collector.seen:
        if describe(check) in cases[0].safety:
            continue
        for rest in halves(check):
            caught = [fails_inside(tile, case.packed(tile), case, Dropper(access, check, rest)) for case in cases]
            assert any(caught), f"{access}: {describe(check)} may be dropped to {rest}"


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.safety])
def test_checks_of_loaded_indices_hold_off_damaged_data(name: str) -> None:
    case, tile = CASES[name], program(name)
    arrays = [case.packed(tile, changed) for changed in case.damage]
    collector = Dropper()
    for damaged in arrays:
        with pytest.raises(VerifyError, match=r"poison|outside the operand"):
            run(tile, damaged, case.symbols, case.facts, collector)
    guarded = [(access, check) for access, check in collector.seen if describe(check) in case.safety]
    assert {describe(check) for _, check in guarded} == set(case.safety)
    for access, check in guarded:
        for rest in halves(check):
            caught = [fails_inside(tile, damaged, case, Dropper(access, check, rest)) for damaged in arrays]
            assert any(caught), f"{access}: {describe(check)} may be dropped to {rest}"


def fails_inside(tile: TileProgram, arrays: Arrays, case: Case, checks: Dropper) -> bool:
    """Whether a lane got past the analysis, which is worse than a refused store."""
    try:
        run(tile, arrays, case.symbols, case.facts, checks)
    except InternalError as error:
        assert "lanes pass its checks and need a mask" in str(error)
        return True
    except VerifyError:
        return False
    return False


def without_else(value: Any, wanted: Load) -> Any:
    """The program, or a part of it, with the `else` of one load missing."""
    if value == wanted:
        return dataclasses.replace(wanted, other=None)
    if isinstance(value, tuple):
        return tuple(without_else(part, wanted) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        changed = {name: without_else(part, wanted) for name, part in parts.items() if not isinstance(part, (str, int))}
        return dataclasses.replace(value, **changed) if any(changed[name] != parts[name] for name in changed) else value
    return value


def loads_with_else(value: Any) -> Iterator[Load]:
    if isinstance(value, Load) and value.other is not None:
        yield value
    if isinstance(value, tuple):
        for part in value:
            yield from loads_with_else(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for f in dataclasses.fields(value):
            part = getattr(value, f.name)
            if not isinstance(part, (str, int)):
                yield from loads_with_else(part)


@every_program
def test_every_else_that_is_dropped_is_caught(name: str) -> None:
    case, tile = CASES[name], program(name)
    arrays = case.packed(tile)
    for load in dict.fromkeys(loads_with_else(tile)):
        with pytest.raises(VerifyError, match="poison"):
            run(without_else(tile, load), arrays, case.symbols, case.facts)


def test_most_programs_have_an_else_to_drop() -> None:
    assert sum(any(loads_with_else(program(name))) for name in CASES) >= 9
