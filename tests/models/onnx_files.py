"""Writing a model of `models.py` as an ONNX file whose batch and sequence are symbols."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from pathlib import Path

import torch

from .models import Model

RANGES = {"B": (1, 32), "S": (1, 512)}
EXAMPLE = (3, 10)
"""The size that the exporters trace with: neither is a size that torch specialises, and they differ."""


def symbols_of(model: Model) -> list[str]:
    """The symbols of a model's inputs, in the order in which they appear."""
    return list(dict.fromkeys(symbol for name in model.names for symbol in model.axes[name].values()))


def shapes_of(model: Model) -> list[str]:
    """The ranges of a model's symbols, as the option `shapes` takes them."""
    return [f"{symbol}={RANGES[symbol][0]}..{RANGES[symbol][1]}" for symbol in symbols_of(model)]


def dynamic_shapes(model: Model) -> tuple[dict[int, torch.export.Dim], ...]:
    """For each input the symbol of each of its axes that has one."""
    made = {symbol: torch.export.Dim(symbol, min=low, max=high) for symbol, (low, high) in RANGES.items()}
    return tuple({axis: made[symbol] for axis, symbol in model.axes[name].items()} for name in model.names)


def write_onnx(model: Model, path: Path) -> Path:
    """Export a model, weights inside the file."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
        # The exporter warns about packages that these models do not use.
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model.module,
            model.draw(*EXAMPLE),
            input_names=list(model.names),
            output_names=["answer"],
            dynamic_shapes=(dynamic_shapes(model),),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        program.save(str(path))
    return path
