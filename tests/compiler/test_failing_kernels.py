"""Engines whose kernels fail: one clear error, later calls as before, and states that may have been written are of no use."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ourcc.compiler.backends import cpu
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_again, compile_module
from ourcc.ir.errors import EngineError, OutOfMemoryError
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.target import AVX2, CpuInstruction
from ourcc.ir.types import TensorType, f32
from ourcc.passes.tile.cpu import STRATEGIES
from ourcc.passes.tile.cpu.nest import Nest
from ourcc.runtime import Engine
from ourcc.runtime.native import cpu_flags

pytestmark = pytest.mark.skipif(not cpu_flags().issuperset(AVX2.features), reason="needs a CPU with AVX2")

MATRIX = TensorType(f32, (64, 16))
X = np.random.default_rng(0).standard_normal((64, 16), np.float32)
SWITCH = "OURCC_TEST_KERNELS_FAIL"
# A level's instruction that a thread can use only while the switch is not set.
ENTER = f'extern char *getenv(const char *);\nif (getenv("{SWITCH}")) return atoi(getenv("{SWITCH}"));'


def counting() -> Module:
    """`step`: the state becomes tanh(x) + 2 * state, and what it was is returned; `pure` keeps nothing."""
    module = Module("counting")
    state = module.add_state("total", MATRIX)
    step, pure = Graph("step"), Graph("pure")
    module.functions |= {"step": step, "pure": pure}
    x, before, b = step.add_input("x", MATRIX), step.add_state(state), Builder(module, step)
    step.set_outputs([b.exp(before)], ["before"], {"total": b.add(b.tanh(x), b.mul(before, 2.0))})
    x, b = pure.add_input("x", MATRIX), Builder(module, pure)
    pure.set_outputs([b.exp(x)], ["y"])
    return module


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Engine]]:
    monkeypatch.delenv(SWITCH, raising=False)
    switched = CpuInstruction("switched", 8, 1, "f32", "f32", "f32", "fma", ENTER)
    monkeypatch.setattr(cpu, "levels_for", lambda target, module: [replace(AVX2, instructions=(*AVX2.instructions, switched))])
    contents = compile_module(counting(), build_options({"targets": ["native"], "tune": "off"}))
    yield lambda threads: Engine(contents, threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_failing_kernel_is_one_clear_error(make: Any, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pure = make(threads).functions["pure"]
    np.testing.assert_allclose(pure(X), np.exp(X), rtol=1e-6)
    monkeypatch.setenv(SWITCH, "9")
    with pytest.raises(EngineError, match=r"a kernel of the engine failed with status 9, in steps 0 to \d+ of its plan\n  help: "):
        pure(X)
    monkeypatch.delenv(SWITCH)
    np.testing.assert_allclose(pure(X), np.exp(X), rtol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_kernel_without_memory_for_its_arrays_says_so(make: Any, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pure = make(threads).functions["pure"]
    monkeypatch.setenv(SWITCH, str(errno.ENOMEM))
    with pytest.raises(OutOfMemoryError, match=r"out of memory: a kernel found none for its arrays"):
        pure(X)
    monkeypatch.delenv(SWITCH)
    np.testing.assert_allclose(pure(X), np.exp(X), rtol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
def test_states_are_of_no_use_after_a_kernel_that_may_have_written_them(make: Any, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    session = make(threads).session()
    step, pure = session.functions["step"], session.functions["pure"]
    step(X)
    monkeypatch.setenv(SWITCH, "9")
    with pytest.raises(EngineError, match="a kernel of the engine failed with status 9"):
        pure(X)
    monkeypatch.delenv(SWITCH)
    np.testing.assert_allclose(step(X), np.exp(np.tanh(X)), rtol=1e-5)
    monkeypatch.setenv(SWITCH, "9")
    with pytest.raises(EngineError, match="a kernel of the engine failed with status 9"):
        step(X)
    monkeypatch.delenv(SWITCH)
    with pytest.raises(EngineError, match=r"the session's states are of no use since a call failed\n  note: .*status 9"):
        step(X)
    session.reset()
    np.testing.assert_array_equal(step(X), np.ones_like(X))


class Mistaken(Nest):
    """Offers what it cannot tell the price of."""

    def __init__(self) -> None:
        super().__init__(name="mistaken")

    def cost(self, *_: Any) -> Any:
        raise KeyError("lost")


@pytest.mark.faults
def test_a_mistake_that_another_strategy_hides_is_a_note_of_the_build(monkeypatch: pytest.MonkeyPatch, faults: list[str]) -> None:
    options = build_options({"targets": ["x86-64-v3"], "tune": "off"})
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "STRATEGIES", [Mistaken(), *STRATEGIES])
        contents = compile_module(counting(), options)
    notes = contents.report["notes"]
    assert notes == [f"{part}: {fault}" for part in contents.parts for fault in faults] and len(notes) >= 2
    for note in notes:
        assert "internal error: strategy mistaken, the price of " in note and ", for region " in note
        assert note.endswith("failed, and another choice was taken: KeyError: 'lost'")
    assert "notes" not in compile_again(contents, options).report
