"""Mixtures of experts by `torch.compile` and `torch.export`: drawn routings, and what of torch's grouped products is taken."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import ourcc
from ourcc.compiler.importers.torch.export import import_exported
from ourcc.compiler.torch import backend
from ourcc.ir.errors import UnsupportedError
from ourcc.ir.graph.reference import interpret
from ourcc.ir.types import bf16

from ...groups import drawn_ends

pytestmark = pytest.mark.usefixtures("fresh")
F = nn.functional


class Experts(nn.Module):
    """Each token goes to its `k` best experts; rows are sorted by expert, multiplied group by group, and put back."""

    def __init__(self, width: int, hidden: int, experts: int, k: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * hidden).bfloat16() * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width).bfloat16() * hidden**-0.5)
        self.experts, self.k = experts, k

    def routed(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.topk(F.softmax(self.router(x.float()), -1), self.k)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.routed(x)
        flat = chosen.reshape(-1)
        order = torch.argsort(flat, stable=True)
        ends = (flat[:, None] == torch.arange(self.experts)).sum(0).cumsum(0).to(torch.int32)
        gate, value = F.grouped_mm(x[order // self.k], self.up, offs=ends).chunk(2, -1)
        rows = F.grouped_mm(F.silu(gate) * value, self.down, offs=ends)
        back = torch.zeros_like(rows).index_copy(0, order, rows)
        return (back.reshape(-1, self.k, x.shape[1]).float() * weights[..., None]).sum(1)

    def looped(self, x: torch.Tensor) -> torch.Tensor:
        """One token and one expert after the other, in float64."""
        weights, chosen = self.routed(x)
        result = torch.zeros(x.shape, dtype=torch.float64)
        for token, (own, experts) in enumerate(zip(weights, chosen, strict=True)):
            for weight, expert in zip(own, experts, strict=True):
                gate, value = (x[token].double() @ self.up[expert].double()).chunk(2, -1)
                result[token] += weight.double() * ((F.silu(gate) * value) @ self.down[expert].double())
        return result


@pytest.mark.parametrize("seed", range(3))
def test_experts_answer_as_a_loop_does(seed: int, graphs: list[backend.CompiledGraph]) -> None:
    torch.manual_seed(seed)
    model = Experts(32, 48, 6, 2).eval()
    compiled = torch.compile(model, backend="ourcc", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for tokens in (2, 7, 33):
            x = torch.randn(tokens, 32).bfloat16()
            torch.testing.assert_close(compiled(x).double(), model.looped(x), rtol=2**-6, atol=2**-6)
    assert [graph.build.imported.fallbacks for graph in graphs if graph.build] == [()] * len(graphs)


@pytest.mark.parametrize("most", [1, 2])
def test_all_tokens_may_go_to_the_same_experts(most: int) -> None:
    torch.manual_seed(most)
    model = Experts(32, 48, 6, most).eval()
    x = torch.rand(9, 32).bfloat16()
    with torch.no_grad():
        model.router.weight.copy_(torch.tensor([0.0, 0.0, 1.0, 0.0, 0.5, 0.0])[:, None].expand(6, 32))
        assert len(model.routed(x)[1].unique()) == most
        torch.testing.assert_close(torch.compile(model, backend="ourcc")(x).double(), model.looped(x), rtol=2**-6, atol=2**-6)


class Grouped(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(a, b, offs=ends)


@pytest.mark.parametrize("rows", [1, 24])
def test_an_exported_product_of_rows_in_groups(rows: int) -> None:
    random = np.random.default_rng(rows)
    a, b = torch.randn(rows, 16).bfloat16(), torch.randn(3, 16, 24).bfloat16()
    module = import_exported(torch.export.export(Grouped(), (a, b, torch.tensor([0, 0, rows], dtype=torch.int32))))
    for _ in range(4):
        ends = drawn_ends(random, rows, 3)
        (got,) = interpret(module, [a.float().numpy().astype(bf16.numpy), b.float().numpy().astype(bf16.numpy), ends])
        expected = Grouped()(a, b, torch.from_numpy(ends)).float().numpy()
        np.testing.assert_allclose(got[: ends[-1]].astype(np.float32), expected[: ends[-1]], rtol=2**-6, atol=2**-6)
        assert not got[ends[-1] :].any(), "rows of no group are 0"


def test_groups_of_columns_and_batches() -> None:
    """A product of a batch has no ends; groups of columns are groups of rows of what is turned."""
    a, b, ends = torch.randn(3, 8, 16).bfloat16(), torch.randn(16, 24).bfloat16(), torch.tensor([8, 8, 24], dtype=torch.int32)
    compiled = torch.compile(Grouped(), backend="ourcc", fullgraph=True)
    torch.testing.assert_close(compiled(a, b, ends), Grouped()(a, b, ends), rtol=2**-6, atol=2**-6)
    whole = torch.compile(lambda a, b: torch._grouped_mm(a, b), backend="ourcc", fullgraph=True)
    batch = torch.randn(3, 16, 24).bfloat16()
    torch.testing.assert_close(whole(a, batch), torch.bmm(a, batch), rtol=2**-6, atol=2**-6)


def test_groups_along_the_sum_are_refused() -> None:
    a, b, ends = torch.randn(8, 24).bfloat16(), torch.randn(24, 16).bfloat16(), torch.tensor([8, 24], dtype=torch.int32)
    with pytest.raises(UnsupportedError, match="expected groups of rows"):
        import_exported(torch.export.export(Grouped(), (a, b, ends)))


class Small(nn.Module):
    """Rows in groups by weights that lie [expert, column, row], as those of linear layers do."""

    def __init__(self, width: int, columns: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, columns, width).bfloat16())

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(x, self.w.transpose(1, 2), offs=ends)


@pytest.mark.parametrize(("rows", "width", "columns"), [(24, 16, 12), (7, 8, 1), (16, 40, 30)])
def test_weights_that_lie_the_other_way_round_need_no_whole_rows(rows: int, width: int, columns: int) -> None:
    """torch takes rows of 16 bytes as they lie in memory: what it is asked about lies as the model's weights do."""
    model, x = Small(width, columns).eval(), torch.randn(rows, width).bfloat16()
    ends = torch.tensor([rows // 3, rows // 3, rows], dtype=torch.int32)
    found = ourcc.build(torch.export.export(model, (x, ends)))(x, ends)
    expected = torch.cat([x.float() @ model.w[e].float().T for e, x in ((0, x[: rows // 3]), (2, x[rows // 3 :]))])
    torch.testing.assert_close(torch.as_tensor(found).float(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("asked", [{"quantize": "int4-weight"}, {"quantize": "fp8"}, {"sparsity": "2:4"}])
def test_what_is_not_done_to_weights_of_experts_is_said(asked: dict[str, str]) -> None:
    model, x = Small(64, 64).eval(), torch.randn(24, 64).bfloat16()
    engine = ourcc.build(torch.export.export(model, (x, torch.tensor([8, 8, 24], dtype=torch.int32))), **asked)
    (row,) = (row for row in engine.contents.report["contract"] if row["op"] == "grouped_matmul")
    assert row["realised"] == "bf16" and row["requested"] != "bf16"
    assert "weights of experts stay as they are" in row["why"]
