"""States of sessions are as they were after a call that is refused: what refuses stands before what writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ourcc
from ourcc.compiler.backends.built import pack
from ourcc.compiler.backends.cuda import CudaBackend
from ourcc.compiler.importers.torch.export import import_exported
from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import simplify
from ourcc.ir.errors import EngineError, IndexRangeError, InputError
from ourcc.ir.plan import Check, CheckPlace, Host, Plan
from ourcc.ir.plan.interpret import run_plan
from ourcc.ir.target import gpu_target

F = torch.nn.functional


class Kept(torch.nn.Module):
    """A body over three buffers that the call may write, and one that it only reads."""

    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("rows", torch.arange(128.0).reshape(16, 8))
        self.register_buffer("total", torch.zeros(8))
        self.register_buffer("pages", torch.arange(6) * 3)
        self.register_buffer("table", torch.arange(400.0).reshape(50, 8) / 7)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.body(self, *inputs)


def write_then_read(s: Any, i: torch.Tensor, j: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    s.rows.index_copy_(0, i, x)
    return s.rows[j]


def read_then_write(s: Any, i: torch.Tensor, j: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = s.rows[j]
    s.rows.index_copy_(0, i, x)
    return y


def write_then_look_up(s: Any, i: torch.Tensor, j: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    s.rows[i] = x
    s.total.copy_(s.rows.sum(0))
    return F.embedding(j, s.table).sum(1)


def two_writes(s: Any, i: torch.Tensor, j: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    s.rows.index_copy_(0, i, x)
    s.pages.index_copy_(0, j, i * 0 + 1)
    return s.rows.sum(0) + s.pages.sum()


def indices_of_a_state(s: Any, i: torch.Tensor, j: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = s.table[s.pages[j]]
    s.pages.index_copy_(0, i, i * 0 + 1)
    return y


def a_place(s: Any, i: torch.Tensor, j: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    s.rows.index_copy_(0, i, x)
    return s.table[j[0].item()] * 2


def computed_indices(s: Any, i: torch.Tensor, j: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    s.rows.index_copy_(0, i, x)
    s.total.add_(x.sum(0))
    z = torch.softmax(s.table[i + 1], -1)
    return F.embedding(j, z) + s.total


def a_size(s: Any, i: torch.Tensor, j: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    s.rows.index_copy_(0, i, x)
    places = torch.nonzero(j)[:, 0]
    torch._check(places.shape[0] <= 3)
    return s.table[places].sum(0)


BODIES = [write_then_read, read_then_write, write_then_look_up, two_writes, indices_of_a_state, a_place, a_size, computed_indices]
EXAMPLES = torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64), torch.zeros(4, 8)
FIRST = [[0, 1, 2, 3], [3, 2, 5, 15], [3, 2, 5, 16], [0, 1, 2, -17], [1, 4, 3, 60], [0, 4, 5, 2**33]]
SECOND = [[0, 1, 2, 2], [0, 3, 1, 6], [-1, 1, 2, 1], [1, 16, 1, 1], [60, 1, 2, 2], [-51, 0, 0, 0], [3, 2, 1, -7]]


def refusing_late(plan: Plan) -> list[int]:
    """Steps that look at data behind the first one that writes a state."""
    return [
        number
        for number, step in enumerate(plan.steps)
        if number > plan.first_write
        and (isinstance(step, Check | CheckPlace) or (isinstance(step, Host) and step.routine in ("item", "require", "nonzero")))
    ]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_a_refused_call_leaves_states_as_they_were(body: Callable[..., Any]) -> None:
    program = torch.export.export(Kept(body), EXAMPLES)
    options = build_options({"targets": ["sm_90a"]})
    module = import_exported(program, options)
    simplify(module, options)
    found = CudaBackend().lower(module, gpu_target("sm_90a"))
    engine = ourcc.build(program, targets=["native"], tune="off")
    for plan in (found.plan, engine.contents.best.plan):
        assert refusing_late(plan) == []
    constants = {name: pack(how, module) for name, how in found.plan.constants.items()}
    session, refused = engine.session(), 0
    for first in FIRST:
        for second in SECOND:
            i, j = np.array(first), np.array(second)
            x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
            eager = Kept(body)
            before = {name: buffer.numpy().copy() for name, buffer in eager.named_buffers()}
            try:
                wanted = eager(*map(torch.from_numpy, (i, j, x))).numpy()
            except (IndexError, RuntimeError):
                wanted = None
            refused += wanted is None
            session.reset()
            states = {state.name: before[state.name.split(".")[-1]].copy() for state in found.plan.states}
            calls: list[Callable[[], Any]] = [
                lambda: run_plan(found.plan, found.kernels, constants, [i, j, x], states)[0],  # noqa: B023
                lambda: session(i, j, x),  # noqa: B023
            ]
            for call in calls:
                if wanted is None:
                    with pytest.raises((IndexRangeError, InputError)):
                        call()
                else:
                    np.testing.assert_allclose(call(), wanted, rtol=1e-4, atol=1e-4)
            after = before if wanted is None else {name: buffer.numpy() for name, buffer in eager.named_buffers()}
            for name in states:
                short = name.split(".")[-1]
                np.testing.assert_allclose(states[name], after[short], atol=1e-4)
                np.testing.assert_allclose(session.state(name), after[short], atol=1e-4)
    assert refused


def test_what_rests_on_what_the_call_wrote_stays_and_the_session_says_so() -> None:
    def body(s: Any, i: torch.Tensor, j: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        s.pages.index_copy_(0, i, j)
        y = s.table[s.pages[:4] * 4]
        s.rows.index_add_(0, j, x)
        return y

    engine = ourcc.build(torch.export.export(Kept(body), EXAMPLES), targets=["native"], tune="off")
    session, x = engine.session(), np.ones((4, 8), np.float32)
    for wrong in ([0, 1, 2, 16], [0, 1, 2, 60]):
        with pytest.raises(IndexRangeError, match="index_add"):
            session(np.arange(4), np.array(wrong), x)
        assert np.array_equal(session.state("pages"), np.arange(6) * 3)
    assert len(refusing_late(engine.contents.best.plan)) == 1
    with pytest.raises(IndexRangeError, match=r"index 52 of computed value '\w+' is out of range, expected -50\.\.49"):
        session(np.arange(4), np.array([0, 1, 2, 13]), x)
    with pytest.raises(EngineError, match="reset"):
        session(np.arange(4), np.arange(4), x)
    session.reset()
    session(np.arange(4), np.arange(4), x)
