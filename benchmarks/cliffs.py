"""Small models that end, or bend, where fast loops used to stop: the engine beside ONNX Runtime, one thread.

A convolution whose result leaves the graph, one that is read twice, groups, pools, plain transposes, products of rows
that lie transposed: each is one ONNX file, timed in interleaved rounds. The answers are compared before.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from children import RESULTS, chosen, run_child, write_json
from machine_facts import machine_facts
from torch import nn

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Cliff:
    """A model, the shapes of its inputs, and the dimensions of them that are symbols."""

    make: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    symbols: tuple[dict[int, str], ...] = ()


class _Maps(nn.Module):
    """A chain of convolutions whose every stage is a result."""

    def __init__(self, channels: int, stages: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(stages))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for stage in self.stages:
            x = torch.relu(stage(x))
            found.append(x)
        return found


class _Steps(nn.Module):
    """A small U-Net: down, up, and the skipped image beside it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.down = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.last = nn.Conv2d(2 * channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skipped = torch.relu(self.first(x))
        risen = torch.relu(self.up(torch.relu(self.down(skipped))))
        return torch.relu(self.last(torch.cat([skipped, risen], dim=1)))


class _Positive(nn.Module):
    """A convolution whose positive places are looked up: a host step reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(64, 64, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(self.conv(x) > 2.5)


class _Permuted(nn.Module):
    """A plain transpose."""

    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(*self.order) * 2.0


def _conv(channels: int, outputs: int, size: int, groups: int = 1, **more: Any) -> Callable[[], nn.Module]:
    pad = more.pop("padding", size // 2)
    return lambda: nn.Sequential(nn.Conv2d(channels, outputs, size, padding=pad, groups=groups, **more), nn.ReLU())


def _pooled() -> nn.Module:
    return nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))


def _mobile() -> nn.Module:
    """An inverted bottleneck: narrow, wide by channel, narrow."""
    parts = [nn.Conv2d(32, 192, 1), nn.BatchNorm2d(192), nn.ReLU6(), nn.Conv2d(192, 192, 3, padding=1, groups=192), nn.BatchNorm2d(192)]
    return nn.Sequential(*parts, nn.ReLU6(), nn.Conv2d(192, 32, 1), nn.BatchNorm2d(32))


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


IMAGE = ((1, 64, 56, 56),)
CLIFFS: dict[str, Cliff] = {
    "conv-3x3": Cliff(_conv(64, 64, 3), IMAGE),
    "conv-1x1": Cliff(_conv(64, 64, 1), IMAGE),
    "conv-7x7-s2": Cliff(_conv(3, 64, 7, stride=2), ((1, 3, 224, 224),)),
    "conv-bn-28": Cliff(lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()), ((1, 64, 28, 28),)),
    "conv-1d": Cliff(lambda: nn.Sequential(nn.Conv1d(64, 64, 5, padding=2), nn.ReLU()), ((1, 64, 1000),)),
    "maps": Cliff(lambda: _Maps(64, 3), IMAGE),
    "unet": Cliff(lambda: _Steps(32), ((1, 3, 64, 64),)),
    "host-step": Cliff(_Positive, IMAGE),
    "conv-transpose": Cliff(lambda: nn.ConvTranspose2d(64, 32, 2, stride=2), ((1, 64, 28, 28),)),
    "resize": Cliff(lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.Upsample(scale_factor=2)), ((1, 64, 28, 28),)),
    "conv-pool": Cliff(_pooled, IMAGE),
    "max-pool": Cliff(lambda: nn.MaxPool2d(3, 2, 1), ((1, 64, 112, 112),)),
    "avg-pool": Cliff(lambda: nn.AvgPool2d(2), ((1, 64, 112, 112),)),
    "groups-4": Cliff(_conv(64, 64, 3, 4), IMAGE),
    "groups-32": Cliff(_conv(128, 128, 3, 32), ((1, 128, 28, 28),)),
    "depthwise": Cliff(_conv(64, 64, 3, 64), IMAGE),
    "mobile": Cliff(_mobile, ((1, 32, 56, 56),)),
    "channels-last": Cliff(lambda: _Permuted(0, 2, 3, 1), IMAGE),
    "channels-first": Cliff(lambda: _Permuted(0, 3, 1, 2), ((1, 56, 56, 64),)),
    "matrix-turned": Cliff(lambda: _Permuted(1, 0), ((1024, 1024),)),
    "encoder": Cliff(_encoder, ((8, 64, 64),), ({0: "B", 1: "S"},)),
}


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Both sides of one model: compared, then timed."""
    from ourcc.compiler.commands.build import build
    from ourcc.compiler.commands.measure import compare, rows
    from ourcc.compiler.commands.peers import make_peer
    from ourcc.compiler.options import build_options

    torch.set_num_threads(1)
    torch.manual_seed(0)
    cliff = CLIFFS[name]
    model, inputs = cliff.make().eval(), tuple(torch.randn(*shape) for shape in cliff.shapes)
    names = sorted({symbol for sizes in cliff.symbols for symbol in sizes.values()})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.onnx")
        sizes = [{place: torch.export.Dim(symbol, min=1, max=512) for place, symbol in given.items()} for given in cliff.symbols]
        torch.onnx.export(model, inputs, str(path), dynamo=True, dynamic_shapes=tuple(sizes) or None, verbose=False)
        ranges = [f"{symbol}=1..512" for symbol in names]
        engine = build(str(path), build_options({"targets": ["native"], "threads": 1, "shapes": ranges}))
        runtime = make_peer("onnxruntime", path)
    arrays = [x.numpy() for x in inputs]
    differs = _difference(_listed(engine(*arrays)), runtime(arrays))
    calls: dict[str, Callable[[], object]] = {"ourcc": partial(engine, *arrays), "onnxruntime": partial(runtime, arrays)}
    table = rows(compare(calls, rounds, inner=0.005))
    ours, theirs = table
    return {
        "ourcc_ms": {"minimum": ours[1], "median": ours[2]},
        "onnxruntime_ms": {"minimum": theirs[1], "median": theirs[2]},
        "ratio": {"minimum": round(ours[1] / theirs[1], 2), "median": round(ours[2] / theirs[2], 2)},
        "largest_difference": differs,
        "schedules": _schedules(engine),
    }


def _listed(answer: Any) -> list[Array]:
    return list(answer) if isinstance(answer, (list, tuple)) else list(answer.values()) if isinstance(answer, dict) else [answer]


def _difference(ours: list[Array], theirs: list[Array]) -> float:
    """How far the answers lie apart, in parts of the largest of theirs."""
    found = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if a.shape != b.shape:
            raise SystemExit(f"the answers have shapes {a.shape} and {b.shape}")
        found = max(found, float(np.abs(a - b).max(initial=0) / max(np.abs(b).max(initial=0), 1e-30)))
    return found


def _schedules(engine: Any) -> list[str]:
    """How each kernel is computed."""
    (rows,) = engine.contents.report["kernels"].values()
    return [f"{row['kernel']}: {row['strategy']}" for row in rows if "kernel" in row]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(CLIFFS), help="which ones, separated by commas")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of measuring")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = chosen(options.models, list(CLIFFS))
    if options.child is not None:
        write_json(options.child, measure(names[0], options.rounds))
        return 0
    found = {}
    for name in names:
        found[name] = run_child(__file__, ["--models", name, "--rounds", str(options.rounds)])
        if "error" in found[name]:
            print(f"{name:15s} {found[name]['error']}", flush=True)
            continue
        ours, theirs, ratio = found[name]["ourcc_ms"], found[name]["onnxruntime_ms"], found[name]["ratio"]["minimum"]
        print(f"{name:15s} {ours['minimum']:9.3f} ms, ONNX Runtime {theirs['minimum']:9.3f} ms: {ratio:6.2f} times as long", flush=True)
        for text in found[name]["schedules"]:
            print(f"{'':15s}   {text}", flush=True)
    write_json(options.output / "cliffs.json", {"threads": 1, "machine": machine_facts(), "models": found})
    return 1 if any("error" in result for result in found.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
