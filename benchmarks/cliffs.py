"""Small models that end, or bend, where fast loops used to stop: the engine beside ONNX Runtime, one thread.

A convolution whose result leaves the graph, one that is read twice, groups, pools, plain transposes, products of rows
that lie transposed: each is one ONNX file, timed in interleaved rounds. The answers are compared before. `MODEL.FORM` is the file
that one of ONNX Runtime's quantizers makes of a model: both sides run the same file, and what it is made of beside the float model
(`float_ratio`: our time for the model in float32 over ours for the file).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
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


def _bottleneck(groups: int, stride: int = 1) -> Callable[[], nn.Module]:
    """A bottleneck of a ResNeXt: narrow, in groups, wide."""
    return lambda: nn.Sequential(
        *(nn.Conv2d(256, 128, 1), nn.BatchNorm2d(128), nn.ReLU()),
        *(nn.Conv2d(128, 128, 3, stride=stride, padding=1, groups=groups), nn.BatchNorm2d(128), nn.ReLU()),
        nn.Conv2d(128, 256, 1),
    )


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class _Recurrent(nn.Module):
    """The sequence of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x)[0]
        return result


def _linear(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, inputs))


class _Attended(nn.Module):
    """A layer of a transformer of products alone, as exporters write it: nothing of it is one op."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = torch.softmax(q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5, dim=-1)
        x = self.first(x + self.out((scores @ v).transpose(1, 2).reshape(batch, length, width)))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))


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
    "conv-transpose-3": Cliff(lambda: nn.ConvTranspose2d(64, 32, 3, stride=2, padding=1, output_padding=1), ((1, 64, 28, 28),)),
    "resize": Cliff(lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.Upsample(scale_factor=2)), ((1, 64, 28, 28),)),
    "conv-pool": Cliff(_pooled, IMAGE),
    "max-pool": Cliff(lambda: nn.MaxPool2d(3, 2, 1), ((1, 64, 112, 112),)),
    "avg-pool": Cliff(lambda: nn.AvgPool2d(2), ((1, 64, 112, 112),)),
    "groups-4": Cliff(_conv(64, 64, 3, 4), IMAGE),
    "groups-32": Cliff(_conv(128, 128, 3, 32), ((1, 128, 28, 28),)),
    "depthwise": Cliff(_conv(64, 64, 3, 64), IMAGE),
    "mobile": Cliff(_mobile, ((1, 32, 56, 56),)),
    "bottleneck-4": Cliff(_bottleneck(32), ((1, 256, 56, 56),)),
    "bottleneck-8-s2": Cliff(_bottleneck(16, 2), ((1, 256, 56, 56),)),
    "channels-last": Cliff(lambda: _Permuted(0, 2, 3, 1), IMAGE),
    "channels-first": Cliff(lambda: _Permuted(0, 3, 1, 2), ((1, 56, 56, 64),)),
    "matrix-turned": Cliff(lambda: _Permuted(1, 0), ((1024, 1024),)),
    "encoder": Cliff(_encoder, ((8, 64, 64),), ({0: "B", 1: "S"},)),
    "linear": Cliff(lambda: _linear(1024, 4096), ((64, 1024),)),
    "linear-row": Cliff(lambda: _linear(1024, 4096), ((1, 1024),)),
    "attended": Cliff(lambda: _Attended(256, 4), ((1, 128, 256),)),
    "gru": Cliff(lambda: _Recurrent(nn.GRU(128, 128, batch_first=True)), ((1, 32, 128),)),
    "lstm": Cliff(lambda: _Recurrent(nn.LSTM(128, 128, batch_first=True)), ((1, 32, 128),)),
}
FORMS = ("qdq", "qdq-channel", "qdq-u8", "qoperator", "dynamic", "dynamic-u8", "nbits4", "nbits4-a8", "nbits8", "qdq-int4", "f16")
"""What is made of a model: see `_formed`."""
IMAGES = (
    *("conv-3x3", "conv-1x1", "conv-1d", "unet", "conv-pool", "groups-4", "groups-32", "depthwise", "mobile"),
    *("conv-transpose", "conv-transpose-3", "bottleneck-4", "bottleneck-8-s2"),
)
PRODUCTS = ("linear", "linear-row", "attended")
FORMED = (
    *(f"{name}.{form}" for name in IMAGES for form in ("qdq", "qdq-u8", "qoperator", "dynamic-u8", "f16")),
    *(f"{name}.{form}" for name in PRODUCTS for form in FORMS),
    *(f"{name}.{form}" for name in ("gru", "lstm") for form in ("dynamic", "dynamic-u8", "f16")),
)


def _formed(path: Path, form: str, arrays: Sequence[Array]) -> Path:
    """A file of another form: quantized by ONNX Runtime's quantizers, or in float16."""
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization import matmul_nbits_quantizer as nbits

    made = path.with_suffix(f".{form}.onnx")
    plain = onnx.load(path)
    plain.graph.ClearField("value_info")  # the quantizers rename values and keep the shapes of others
    onnx.save(plain, path)
    if form.startswith("dynamic"):
        quantization.quantize_dynamic(path, made, weight_type=getattr(quantization.QuantType, "QUInt8" if form.endswith("u8") else "QInt8"))
    elif form.startswith(("nbits", "qdq-int4")):
        bits = 8 if form == "nbits8" else 4
        form_of = quantization.QuantFormat.QDQ if form == "qdq-int4" else quantization.QuantFormat.QOperator
        settings = nbits.DefaultWeightOnlyQuantConfig(
            block_size=32, bits=bits, is_symmetric=form == "qdq-int4", accuracy_level=4 if form.endswith("a8") else 0, quant_format=form_of
        )
        quantizer = nbits.MatMulNBitsQuantizer(onnx.load(path), algo_config=settings)
        quantizer.process()
        quantizer.model.save_model_to_file(str(made))
    elif form == "f16":
        from onnxruntime.transformers.float16 import convert_float_to_float16

        onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), made)
    else:
        format = quantization.QuantFormat.QOperator if form == "qoperator" else quantization.QuantFormat.QDQ
        kind = quantization.QuantType.QUInt8 if form.endswith("u8") else quantization.QuantType.QInt8
        quantization.quantize_static(
            path,
            made,
            _Read(path, arrays),
            quant_format=format,
            per_channel=form.endswith("channel"),
            weight_type=kind,
            activation_type=kind,
        )
    return made


class _Read:
    """What a quantizer reads the ranges of values from: a few inputs like the given ones."""

    def __init__(self, path: Path, arrays: Sequence[Array]) -> None:
        import onnx

        names, numbers = [each.name for each in onnx.load(path).graph.input], np.random.default_rng(0)
        self.left = [{n: numbers.standard_normal(a.shape).astype(a.dtype) for n, a in zip(names, arrays, strict=True)} for _ in range(3)]

    def get_next(self) -> dict[str, Array] | None:
        return self.left.pop() if self.left else None


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Both sides of one model: compared, then timed."""
    from ourcc.compiler.commands.build import build
    from ourcc.compiler.commands.measure import compare, rows
    from ourcc.compiler.commands.peers import make_peer
    from ourcc.compiler.options import build_options

    torch.set_num_threads(1)
    torch.manual_seed(0)
    name, _, form = name.partition(".")
    cliff = CLIFFS[name]
    model, inputs = cliff.make().eval(), tuple(torch.randn(*shape) for shape in cliff.shapes)
    names = sorted({symbol for sizes in cliff.symbols for symbol in sizes.values()})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.onnx")
        sizes = [{place: torch.export.Dim(symbol, min=1, max=512) for place, symbol in given.items()} for given in cliff.symbols]
        torch.onnx.export(model, inputs, str(path), dynamo=True, dynamic_shapes=tuple(sizes) or None, verbose=False)
        ranges = [f"{symbol}=1..512" for symbol in names]
        options = build_options({"targets": ["native"], "threads": 1, "shapes": ranges})
        arrays = [x.numpy() for x in inputs]
        plain = build(str(path), options) if form else None
        path = _formed(path, form, arrays) if form else path
        engine = build(str(path), options)
        runtime = make_peer("onnxruntime", path)
    differs = _difference(_listed(engine(*arrays)), runtime(arrays))
    calls: dict[str, Callable[[], object]] = {"ourcc": partial(engine, *arrays), "onnxruntime": partial(runtime, arrays)}
    if plain is not None:
        calls["ourcc float32"] = partial(plain, *arrays)
    ours, theirs, *others = rows(compare(calls, rounds, inner=0.005))
    return {
        "ourcc_ms": {"minimum": ours[1], "median": ours[2]},
        "onnxruntime_ms": {"minimum": theirs[1], "median": theirs[2]},
        "ratio": {"minimum": round(ours[1] / theirs[1], 2), "median": round(ours[2] / theirs[2], 2)},
        **({"float_ratio": round(others[0][1] / ours[1], 2)} if others else {}),
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
    parser.add_argument("--models", default=",".join((*CLIFFS, *FORMED)), help="which ones, separated by commas")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of measuring")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = chosen(options.models, [*CLIFFS, *FORMED])
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
        if "float_ratio" in found[name]:
            print(f"{'':15s}   {found[name]['float_ratio']:.2f} times as fast as in float32", flush=True)
        for text in found[name]["schedules"]:
            print(f"{'':15s}   {text}", flush=True)
    write_json(options.output / "cliffs.json", {"threads": 1, "machine": machine_facts(), "models": found})
    return 1 if any("error" in result for result in found.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
