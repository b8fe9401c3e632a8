"""What a pruned engine is compared with: its model with the same weights pruned, and how far that lies from the model itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...ir.graph.reference import DIGITS, Verdict, interpret, judge
from ...passes.manager import PassManager
from ...passes.pipeline import parse_pipeline
from ..models.importing import import_model
from ..models.inputs import Array
from ..options import BuildOptions
from ..pipeline import GRAPH_PIPELINE, weight_passes


class PrunedModel:
    """A model that is pruned as a build prunes it, and not quantized: `module` as the model that an engine is compared with.

    Pruning picks weights of the simplified program, so that the program before and behind it is interpreted as well: simplifying may
    change no answer, pruning may change any.
    """

    def __init__(self, model: Path, options: BuildOptions) -> None:
        self.module = import_model(model, options)
        self.dense = import_model(model, options)
        PassManager(parse_pipeline(", ".join([GRAPH_PIPELINE, *weight_passes(options)]))).run(self.module)
        PassManager(parse_pipeline(GRAPH_PIPELINE)).run(self.dense)
        self.states: dict[str, dict[str, Array]] = {"stepwise": {}, "dense": {}}

    def answers(self, arrays: Sequence[Array]) -> list[Array]:
        """What the pruned model answers, op by op in its own precision: the peer of an engine that is pruned."""
        return interpret(self.module, arrays, states=self.states["stepwise"])

    def changes(self, arrays: Sequence[Array], answers: Sequence[Array], whole: Sequence[Array]) -> list[tuple[float, Verdict]]:
        """For each output how far the pruned model's `answers` lie from the whole model's in float64, and whether the simplified one,
        which is not pruned, answers as the whole one does.
        """
        dense = interpret(self.dense, arrays, wide=True, states=self.states["dense"])
        return [
            (_distance(pruned, exact), judge(_as(pruned, found), _as(pruned, exact), exact, digits=DIGITS["f32"]))
            for pruned, found, exact in zip(answers, dense, whole, strict=True)
        ]


def _as(like: Array, array: Array) -> Array:
    """An array in another one's dtype."""
    with np.errstate(over="ignore"):
        return np.asarray(array).astype(like.dtype)


def _distance(left: Array, right: Array) -> float:
    with np.errstate(invalid="ignore"):
        distance = np.abs(np.asarray(left, dtype=np.float64) - np.asarray(right, dtype=np.float64))
    return float(distance[np.isfinite(distance)].max(initial=0.0))


__all__ = ["PrunedModel"]
