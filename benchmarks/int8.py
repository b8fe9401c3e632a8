"""Models quantized by ONNX Runtime's quantizer, one thread: one int8 file for the engine, ONNX Runtime and OpenVINO, and its float file.

Static calibration on drawn inputs, QDQ, unsigned activations, int8 weights with a scale for each channel. Codes that
ours and ONNX Runtime's answers are apart are told beside the times; the float file's times say what int8 gains.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bench import RESULTS
from children import chosen, run_child, write_json
from machine_facts import machine_facts

SIZES: dict[str, list[tuple[int, int]]] = {"resnet50": [(1, 1)], "minilm": [(1, 128), (8, 64)], "bert": [(1, 128)]}
CALIBRATION = 4
"""Drawn inputs that the quantizer sees."""


def quantize(model: Any, source: Path, target: Path, size: tuple[int, int]) -> None:
    """The file in int8."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    names = [name for name, _ in _inputs(source)]

    class Drawn(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rows: Iterator[dict[str, np.ndarray[Any, Any]]] = iter(
                dict(zip(names, (x.numpy() for x in model.draw(*size, seed)), strict=True)) for seed in range(1, CALIBRATION + 1)
            )

        def get_next(self) -> dict[str, np.ndarray[Any, Any]] | None:
            return next(self.rows, None)

    logging.getLogger().setLevel(logging.ERROR)
    prepared = target.with_suffix(".prepared.onnx")
    quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
    kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(str(prepared), str(target), Drawn(), quant_format=QuantFormat.QDQ, per_channel=True, **kinds)


def _inputs(path: Path) -> list[tuple[str, Any]]:
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    known = {tensor.name for tensor in graph.initializer}
    return [(value.name, value) for value in graph.input if value.name not in known]


def measure(name: str, layers: int | None, rounds: int) -> dict[str, Any]:
    """One model at its sizes."""
    import torch
    import zoo

    from ourcc.compiler.commands.build import build
    from ourcc.compiler.commands.measure import compare, rows
    from ourcc.compiler.commands.peers import make_peer
    from ourcc.compiler.options import build_options
    from ourcc.ir.errors import CompilerError

    torch.set_num_threads(1)
    model = zoo.make(name, layers)
    sizes = []
    with tempfile.TemporaryDirectory() as folder:
        path, coded = Path(folder, f"{name}.onnx"), Path(folder, f"{name}.int8.onnx")
        zoo.write_onnx(model, path)
        quantize(model, path, coded, SIZES[name][0])
        runs: dict[str, Callable[[Sequence[Any]], Sequence[Any]]] = {}
        for what, file in (("int8", coded), ("float", path)):
            engine = build(str(file), build_options({"targets": ["native"], "shapes": zoo.shapes_of(model), "threads": 1}))
            runs[f"ourcc {what}"] = partial(_run, engine)
            for peer in ("onnxruntime", "openvino"):
                try:
                    runs[f"{peer} {what}"] = make_peer(peer, file)
                except CompilerError as error:
                    print(f"{name:9s} {peer} {what}: {error}", flush=True)
        for size in SIZES[name]:
            arrays = [x.numpy() for x in model.draw(*size, 0)]
            ours, theirs, floats = (np.asarray(runs[what](arrays)[0]) for what in ("ourcc int8", "onnxruntime int8", "onnxruntime float"))
            apart = {"to_onnxruntime_int8": _apart(ours, theirs), "onnxruntime_int8_to_float": _apart(theirs, floats)}
            timings = compare({what: partial(run, arrays) for what, run in runs.items()}, rounds)
            times = [{"what": what, "minimum_ms": low, "median_ms": middle, "ratio": ratio} for what, low, middle, ratio in rows(timings)]
            sizes.append({"size": zoo.size_text(model, size), "apart": apart, "times": times})
            print(f"{name:9s} {zoo.size_text(model, size)}: {apart}", flush=True)
            for row in times:
                print(f"{name:9s} {row['what']:18s} {row['minimum_ms']:9.2f} ms, {row['ratio']:5.2f} times ours", flush=True)
    return {"title": zoo.TITLES[name], "sizes": sizes}


def _run(engine: Any, arrays: Sequence[Any]) -> list[Any]:
    found = engine(*arrays)
    return [*found] if isinstance(found, tuple) else [found]


def _apart(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """The largest difference over the largest magnitude."""
    return float(f"{np.abs(one - other).max() / np.abs(other).max():.3g}")


def main() -> None:
    """Each model in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(SIZES), help="which ones, separated by commas")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of measuring")
    parser.add_argument("--layers", type=int, help="so many layers instead of all: to try the script out")
    parser.add_argument("--output", type=Path, default=RESULTS / "int8.json", help="file of the results")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = chosen(options.models, list(SIZES))
    if options.child is not None:
        write_json(options.child, measure(names[0], options.layers, options.rounds))
        return
    passed_on = ["--rounds", str(options.rounds), *([] if options.layers is None else ["--layers", str(options.layers)])]
    found = {name: run_child(__file__, ["--models", name, *passed_on]) for name in names}
    write_json(options.output, {"machine": machine_facts(), "threads": 1, "models": found})


if __name__ == "__main__":
    main()
