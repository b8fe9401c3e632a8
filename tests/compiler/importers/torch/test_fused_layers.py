"""Layers of eager torch's fast path: taken apart they are compiled whole, and give eager's answers; with masks torch runs them."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from ourcc.compiler.torch import telling

WHOLE = {"require": ["no-fallback"]}


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layers_are_compiled_whole(norm_first: bool, activation: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, norm_first=norm_first, activation=activation).eval()
    compiled = torch.compile(layer, backend="ourcc", options=WHOLE)
    with torch.no_grad():
        for batch, length in ((2, 7), (1, 1)):
            x = torch.randn(batch, length, 32)
            torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("average", [True, False])
def test_attention_layers_give_their_weights_too(average: bool) -> None:
    torch.manual_seed(1)
    layer, x = nn.MultiheadAttention(32, 4, batch_first=True).eval(), torch.randn(2, 5, 32)
    compiled = torch.compile(layer, backend="ourcc", options=WHOLE)
    with torch.no_grad():
        got = compiled(x, x, x, average_attn_weights=average)
        for ours, theirs in zip(got, layer(x, x, x, average_attn_weights=average), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_what_torch_runs_is_told_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "_TOLD", set())
    with caplog.at_level(logging.WARNING, "ourcc.backend"):
        for size in (3, 4):
            x = torch.eye(size) * 2
            torch.testing.assert_close(torch.compile(lambda x: torch.linalg.inv(x) + 1, backend="ourcc")(x), torch.linalg.inv(x) + 1)
    said = [record.getMessage() for record in caplog.records if "outside of kernels" in record.getMessage()]
    assert len(said) == 1 and "aten.linalg_inv_ex.default: has no rule" in said[0]
