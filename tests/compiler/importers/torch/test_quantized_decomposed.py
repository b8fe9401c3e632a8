"""Graphs of torch's and torchao's quantizers: their operators give eager's codes, and products of codes are integer ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.ao.quantization.fx._decomposed
from torch import nn

import ourcc
from ourcc.compiler.importers.torch.context import QUANTIZED, find_rule
from ourcc.ir.errors import UnsupportedError

OPS = getattr(torch.ops, QUANTIZED)
WHOLE = {"require": ["no-fallback"]}


class Layer(nn.Module):
    """A convolution and a linear layer as PT2E leaves them: codes of weights, activations as codes and back."""

    def __init__(self, dtype: torch.dtype, axis: int | None = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.least, self.most = (0, 255) if dtype == torch.uint8 else (-128, 127)
        self.dtype, self.axis, self.zero = dtype, axis, 120 if dtype == torch.uint8 else -3
        self.register_buffer("conv", torch.randint(-127, 128, (16, 3, 3, 3), dtype=torch.int8))
        self.register_buffer("linear", torch.randint(-127, 128, (8, 16), dtype=torch.int8))
        self.register_buffer("conv_scale", torch.rand(16) * 0.01 + 1e-3)
        self.register_buffer("linear_scale", torch.rand(8) * 0.01 + 1e-3)

    def coded(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        codes = OPS.quantize_per_tensor.default(x, scale, self.zero, self.least, self.most, self.dtype)
        return OPS.dequantize_per_tensor.default(codes, scale, self.zero, self.least, self.most, self.dtype)

    def weight(self, name: str) -> torch.Tensor:
        codes, scales = getattr(self, name), getattr(self, f"{name}_scale")
        zeros = torch.zeros(len(scales), dtype=torch.int64)
        if self.axis is None:
            return OPS.dequantize_per_tensor.default(codes, 0.004, 0, -127, 127, torch.int8)
        return OPS.dequantize_per_channel.default(codes, scales, zeros, self.axis, -127, 127, torch.int8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(nn.functional.conv2d(self.coded(x, 0.02), self.weight("conv"), padding=1))
        return nn.functional.linear(self.coded(y.mean((2, 3)), 0.01), self.weight("linear"))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("axis", [0, None])
def test_layers_are_multiplied_as_integers(dtype: torch.dtype, axis: int | None, tmp_path: Path) -> None:
    model, x = Layer(dtype, axis).eval(), torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    program = torch.export.export(model, (x,))
    torch.export.save(program, tmp_path / "m.pt2")
    engine = ourcc.build(str(tmp_path / "m.pt2"))
    expected = model(x)
    torch.testing.assert_close(engine(x), expected, rtol=1e-5, atol=1e-5)
    assert sum(row["realised"].startswith("int8") for row in engine.contract.to_json()) == 2
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="ourcc", options=WHOLE)(x), expected, rtol=1e-5, atol=1e-5)


def dynamic(x: torch.Tensor) -> torch.Tensor:
    scale, zero = OPS.choose_qparams.tensor(x, 0, 255, 1e-5, torch.uint8)
    codes = OPS.quantize_per_tensor.tensor(x, scale, zero, 0, 255, torch.uint8)
    return OPS.dequantize_per_tensor.tensor(codes, scale, zero, 0, 255, torch.uint8)


def by_token(x: torch.Tensor) -> torch.Tensor:
    scale, zero = OPS.choose_qparams_per_token(x, torch.int8)
    codes = OPS.quantize_per_token(x, scale, zero, -128, 127, torch.int8)
    return OPS.dequantize_per_token(codes, scale, zero, -128, 127, torch.int8, torch.float32)


def by_channel(x: torch.Tensor) -> torch.Tensor:
    scales, zeros = torch.linspace(0.01, 0.03, 6), torch.arange(6) - 3
    return OPS.quantize_per_channel(x, scales, zeros, 1, -100, 90, torch.int8)


def by_group(x: torch.Tensor) -> torch.Tensor:
    codes = (x * 7).round().to(torch.int8)
    scales = torch.linspace(0.01, 0.03, 20).reshape(10, 2)
    return OPS.dequantize_per_channel_group(codes, scales, None, -8, 7, torch.int8, 3, torch.float32)


def narrow(x: torch.Tensor) -> torch.Tensor:
    return OPS.quantize_per_tensor.default(x, 0.02, 5, 0, 127, torch.uint8)


@pytest.mark.parametrize("function", [dynamic, by_token, by_channel, by_group, narrow], ids=lambda function: function.__name__)
def test_operators_give_eagers_codes(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """But for what lies beside a tie: torch multiplies by one over the scale, which one code in a thousand sees."""
    x = torch.randn(10, 6, generator=torch.Generator().manual_seed(2))
    ours, theirs = torch.compile(function, backend="ourcc", options=WHOLE)(x), function(x)
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    step = 1.0 if not theirs.is_floating_point() else 0.05
    distance = (ours.double() - theirs.double()).abs()
    assert distance.max() <= step and (distance > 1e-5).sum() <= 1


def test_codes_that_no_product_takes_are_refused_by_name(tmp_path: Path) -> None:
    class Wide(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return OPS.quantize_per_tensor.default(x, 0.02, 0, -(2**31), 2**31 - 1, torch.int32)

    torch.export.save(torch.export.export(Wide(), (torch.randn(3),)), tmp_path / "m.pt2")
    with pytest.raises(UnsupportedError, match="1 node is not supported: quantized_decomposed"):
        ourcc.build(str(tmp_path / "m.pt2"))


def test_products_of_bytes_are_sums_of_32_bits() -> None:
    """`torch._int_mm`, which torchao multiplies rounded activations with: exact, and an integer product in the contract."""
    random = torch.Generator().manual_seed(3)
    weight = torch.randint(-128, 128, (64, 32), dtype=torch.int8, generator=random)

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch._int_mm(x, self.weight)

    x = torch.randint(-128, 128, (32, 64), dtype=torch.int8, generator=random)
    engine = ourcc.build(torch.export.export(Product(), (x,)))
    assert torch.equal(engine(x), torch._int_mm(x, weight))
    assert [row["realised"] for row in engine.contract.to_json()] == ["int8"]


@pytest.mark.parametrize("name", ["quantize_per_tensor", "quantize_per_channel", "quantize_per_token", "dequantize_per_channel_group"])
def test_overloads_share_a_rule(name: str) -> None:
    """Of an operator's forms (scales as numbers or as tensors) each is found by its full name."""
    packet = getattr(OPS, name)
    rules = {find_rule(str(getattr(packet, overload))) for overload in packet.overloads()}
    assert len(rules) == 1 and None not in rules
