"""Small torch models, and the judge on what torch.compile makes of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

from ourcc.compiler.torch import backend
from ourcc.ir.graph.reference import judge

F = nn.functional


def compiled(function: Any, *, dynamic: bool | None = None, **options: Any) -> Any:
    return torch.compile(function, backend=backend.ourcc, dynamic=dynamic, options=options)


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[backend.CompiledGraph]:
    """A list that every graph joins which torch hands over."""
    made: list[backend.CompiledGraph] = []

    class Recorded(backend.CompiledGraph):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr(backend, "CompiledGraph", Recorded)
    return made


def flat(answer: Any) -> list[Any]:
    return [part for item in answer for part in flat(item)] if isinstance(answer, (tuple, list)) else [answer]


def wider(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor's values; numpy knows bfloat16 by another package."""
    tensor = tensor.detach()
    return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def agree(got: Any, eager: Any, wide: Any) -> None:
    """The judge on every tensor; everything else must be equal."""
    for ours, theirs, exact in zip(flat(got), flat(eager), flat(wide), strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert type(ours) is type(theirs) and ours == theirs
            continue
        assert ours.dtype == theirs.dtype and ours.stride() == theirs.stride()
        verdict = judge(*map(array, (ours, theirs, exact)), factor=4, floor=4)
        assert verdict.passed, verdict.reason


def check(function: Any, *inputs: Any, fast: Any = None, **options: Any) -> Any:
    """The compiled function against eager and float64; gives the compiled one."""
    fast = compiled(function, **options) if fast is None else fast
    wide = copy.deepcopy(function).double() if isinstance(function, nn.Module) else function
    with torch.no_grad():
        agree(fast(*inputs), function(*inputs), wide(*map(wider, inputs)))
    return fast


# --- models -----------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Self-attention with a residual, heads of 8."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.read = nn.Linear(width, 3 * width)
        self.write = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.read(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + self.write(mixed.transpose(1, 2).flatten(2))


class Rotary(nn.Module):
    """Grouped-query attention on rotated queries and keys: 4 heads read 2."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(32, 32, bias=False), nn.Linear(32, 16, bias=False), nn.Linear(32, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[1], dtype=torch.float32).to(x.dtype)
        angle = place[:, None] * 10000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float32).to(x.dtype) / 8)
        cos, sin = (f(angle).repeat(1, 2) for f in (torch.cos, torch.sin))
        q, k, v = (part(x).unflatten(-1, (-1, 8)).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = (t * cos + torch.cat((-t[..., 4:], t[..., :4]), -1) * sin for t in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return mixed.transpose(1, 2).flatten(2)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 40), nn.GELU(), nn.Linear(40, 5)).eval()


def conv_net() -> nn.Sequential:
    layers = (nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 3))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (7, 12)),
    "attention": (Attention, (2, 9, 32)),
    "convolution": (conv_net, (2, 3, 17, 17)),
    "rotary": (Rotary, (2, 6, 32)),
}


def load(model: nn.Linear) -> None:
    model.load_state_dict({name: torch.randn_like(value) for name, value in model.state_dict().items()})
