"""Sizes that vary in files of torch.export: what a file declares is what the program in memory has, and holds at other sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ourcc
from ourcc.compiler.importers.torch.export import import_exported
from ourcc.compiler.importers.torch.pt2.program import import_pt2
from ourcc.ir.errors import UnsupportedError
from ourcc.ir.graph import Module

BATCH, LENGTH = (1, 16), (4, 20)
IMAGE, VOLUME, SEQUENCE, STEPS = (2, 4, 8, 8), (2, 3, 4, 4, 4), (2, 6, 8), (2, 3, 8)


class Applied(nn.Module):
    """A function of one tensor, with the modules that it uses."""

    def __init__(self, function: Callable[..., Any], *modules: nn.Module) -> None:
        super().__init__()
        self.function, self.used = function, nn.ModuleList(modules)

    def forward(self, x: torch.Tensor) -> Any:
        found = self.function(*self.used, x)
        return tuple(found) if isinstance(found, (tuple, list)) else found


Case = tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...]]


def exported(model: nn.Module, shape: tuple[int, ...], bounds: Mapping[int, tuple[int, int]]) -> Any:
    """The program of a model whose axes have these ranges."""
    axes = {axis: torch.export.Dim(f"d{axis}", min=low, max=high) for axis, (low, high) in bounds.items()}
    with torch.no_grad():
        return torch.export.export(model.eval(), (torch.randn(shape),), dynamic_shapes=(axes,))


def function(of: Callable[..., Any]) -> Callable[[], nn.Module]:
    return lambda: Applied(of)


def layer(kind: Callable[[], nn.Module], call: Callable[..., Any] = lambda module, x: module(x)) -> Callable[[], nn.Module]:
    return lambda: Applied(call, kind())


def resized(mode: str, **sizes: Any) -> Callable[[], nn.Module]:
    return function(lambda x: F.interpolate(x, mode=mode, **sizes))


def cases() -> Iterator[tuple[str, Case]]:
    """What is exported, the shape of its input, and which of its axes vary: the first, or a length as well."""
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area"):
        yield f"{mode} twice", (resized(mode, scale_factor=2.0), IMAGE, (0,))
        yield f"{mode} to 5 by 7", (resized(mode, size=(5, 7)), IMAGE, (0,))
        yield f"{mode} twice, of any height", (resized(mode, scale_factor=2.0), IMAGE, (0, 2))
    for mode in ("nearest", "linear", "area"):
        yield f"{mode} of a sequence", (resized(mode, scale_factor=2.0), SEQUENCE, (0,))
    for mode in ("nearest", "trilinear"):
        yield f"{mode} of a volume", (resized(mode, scale_factor=2.0), VOLUME, (0,))
    for mode in ("nearest", "bilinear"):
        yield f"{mode} half, of any height", (resized(mode, scale_factor=0.5), IMAGE, (0, 2))
    yield "area by a half more, of any height", (resized("area", scale_factor=1.5), IMAGE, (0, 2))
    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        yield f"{kind.__name__}", (layer(lambda kind=kind: kind(8, 5, 2, batch_first=True)), STEPS, (0,))
        yield f"{kind.__name__}, both ways, length first", (layer(lambda kind=kind: kind(8, 5, bidirectional=True)), STEPS, (1,))
    for name, module in IMAGES.items():
        yield name, (layer(module), IMAGE, (0,))
    for name, module in SEQUENCES.items():
        yield name, (module, SEQUENCE, (0, 1))


IMAGES: Mapping[str, Callable[[], nn.Module]] = {
    "unfold": lambda: nn.Unfold(3, padding=1),
    "fold": lambda: nn.Sequential(nn.Unfold(2, stride=2), nn.Fold((8, 8), 2, stride=2)),
    "adaptive average": lambda: nn.AdaptiveAvgPool2d(3),
    "adaptive average to one": lambda: nn.AdaptiveAvgPool2d(1),
    "adaptive maximum": lambda: nn.AdaptiveMaxPool2d(1),
    "average pool": lambda: nn.AvgPool2d(2),
    "maximum pool": lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    "zero pad": lambda: nn.ZeroPad2d(1),
    "reflected pad": lambda: nn.ReflectionPad2d(1),
    "replicated pad": lambda: nn.ReplicationPad2d(1),
    "circular pad": lambda: nn.CircularPad2d(1),
    "pixel shuffle": lambda: nn.PixelShuffle(2),
    "pixel unshuffle": lambda: nn.PixelUnshuffle(2),
    "channel shuffle": lambda: nn.ChannelShuffle(2),
    "convolution": lambda: nn.Conv2d(4, 4, 3, padding="same", padding_mode="reflect"),
    "transposed convolution": lambda: nn.ConvTranspose2d(4, 5, 3, stride=2),
    "group norm": lambda: nn.GroupNorm(2, 4),
    "instance norm": lambda: nn.InstanceNorm2d(4),
    "local response norm": lambda: nn.LocalResponseNorm(2),
}
SEQUENCES: Mapping[str, Callable[[], nn.Module]] = {
    "embedding": layer(lambda: nn.Embedding(9, 4), lambda table, x: table(x.argmax(-1))),
    "attention": layer(lambda: nn.MultiheadAttention(8, 2, batch_first=True), lambda module, x: module(x, x, x, need_weights=False)[0]),
    "encoder": layer(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)),
    "causal attention": function(lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True)),
    "bilinear": layer(lambda: nn.Bilinear(8, 8, 3), lambda module, x: module(x, x)),
    "roll": function(lambda x: x.roll(2, 1)),
    "cumsum": function(lambda x: x.cumsum(1)),
    "topk": function(lambda x: x.topk(2, -1)),
    "sort": function(lambda x: x.sort(-1)),
    "flip": function(lambda x: x.flip(1)),
    "unfold of a tensor": function(lambda x: x.unfold(1, 2, 1)),
    "pad of the length": function(lambda x: F.pad(x, (0, 0, 1, 2))),
    "diff": function(lambda x: x.diff(dim=1)),
    "repeat": function(lambda x: x.repeat_interleave(2, 1)),
    "gather": function(lambda x: x.gather(1, x.argsort(-1).clamp(max=2))),
    "einsum": function(lambda x: torch.einsum("bld,bmd->blm", x, x)),
    "normalized": function(lambda x: F.normalize(x, dim=1)),
    "one hot": function(lambda x: F.one_hot(x.argmax(-1), 8)),
    "cosine similarity": function(lambda x: F.cosine_similarity(x, x[:, :1], dim=-1)),
}
CASES = dict(cases())


def signature(module: Module) -> Any:
    """What a module takes and gives, and the ranges of its symbols."""
    main = module.main
    return (
        [str(v.type) for v in main.inputs],
        [str(v.type) for v in main.outputs],
        {name: str(r) for name, r in module.facts.ranges.items()},
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_file_says_what_the_program_in_memory_does(tmp_path: Path, same: Any, case: Case) -> None:
    make, shape, axes = case
    model = make()
    program = exported(model, shape, dict(zip(axes, (BATCH, LENGTH), strict=False)))
    torch.export.save(program, tmp_path / "model.pt2")
    module = import_pt2(tmp_path / "model.pt2")
    assert signature(module) == signature(import_exported(program))
    assert [axis for axis, size in enumerate(module.main.inputs[0].type.shape) if not isinstance(size, int)] == list(axes)
    for sizes in ((1, 7), (5, 4)):
        other = [dict(zip(axes, sizes, strict=False)).get(axis, size) for axis, size in enumerate(shape)]
        same(module, model, (torch.randn(other),))


def test_symbols_that_only_a_call_decides_are_refused_by_their_op(saved: Any) -> None:
    path = saved(Applied(lambda x: x.argmax(-1).unique()), (torch.randn(SEQUENCE),), ({0: torch.export.Dim("b", max=16)},))
    with pytest.raises(UnsupportedError, match=r"aten\._unique2\.default has no rule"):
        import_pt2(path)


def test_transforms_without_a_rule_are_named_and_torch_prints_nothing(saved: Any, capfd: Any) -> None:
    path = saved(Applied(lambda x: torch.fft.rfft(x).abs()), (torch.randn(SEQUENCE),), ({0: torch.export.Dim("b", max=16)},))
    capfd.readouterr()
    with pytest.raises(UnsupportedError, match=r"aten\._fft_r2c\.default has no rule"):
        import_pt2(path)
    assert capfd.readouterr() == ("", "")


def test_a_size_that_floats_round_is_refused_in_memory_and_from_a_file(tmp_path: Path) -> None:
    """Three tenths of a size are not what floats compute of it: their product is rounded before it is cut."""
    program = exported(Applied(lambda x: F.interpolate(x, scale_factor=0.3)), (2, 4, 20, 8), {2: (10, 30)})
    torch.export.save(program, tmp_path / "model.pt2")
    for module in (lambda: import_pt2(tmp_path / "model.pt2"), lambda: import_exported(program)):
        with pytest.raises(UnsupportedError, match=r"the size .*0\.3.* has no form here: got TruncToInt"):
            module()


def test_a_range_for_a_size_of_a_file(saved: Any) -> None:
    """The axis keeps its symbol, so that a build may narrow and name it."""
    path = saved(Applied(lambda x: F.interpolate(x, scale_factor=2.0)), (torch.randn(IMAGE),), ({0: torch.export.Dim("b", max=16)},))
    engine = ourcc.build(path, targets=["native"], shapes={"x": "B:1..8,4,8,8"})
    x = torch.randn(7, *IMAGE[1:])
    torch.testing.assert_close(engine(x), F.interpolate(x, scale_factor=2.0))


# --- a size that torch fixes ------------------------------------------------------------------------------------------


def test_an_op_that_fixes_a_size_of_a_file_is_an_error(saved: Any, monkeypatch: Any) -> None:
    """Torch's compiled rules make numbers of sizes: here they stand for any op that does."""
    path = saved(Applied(lambda x: F.interpolate(x, scale_factor=2.0)), (torch.randn(IMAGE),), ({0: torch.export.Dim("b", max=16)},))
    monkeypatch.setattr("torch._dispatch.python.enable_python_dispatcher", nullcontext)
    message = r"upsample_nearest2d\.vec takes the size s\d+ \(axis 0 of x\) for 2, and the program declares 1?\d\.\.16"
    with pytest.raises(UnsupportedError, match=message) as caught:
        import_pt2(path)
    assert "at model.pt2" in str(caught.value) and "test_pt2_dynamic.py" in str(caught.value)
