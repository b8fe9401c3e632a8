"""Quantization: what users may ask for, and one file for each way of it; weights are stored narrow and the graph says how they are read."""

from __future__ import annotations

import re
from dataclasses import dataclass

INTEGER = "int8"
"""What a product of codes, added up in 32 bits, is called."""
ACTIVATION = "int8-activation"
"""What it is called that a weight is multiplied by codes of 8 bits, with a scale for each token or block of it."""

SCORES = "int8-scores"
"""What it is called that attention multiplies queries by keys as codes of 8 bits, with a scale for each token of a head."""


@dataclass(frozen=True)
class Quantization:
    """What `--quantize NAME` does: the number format of the weights (ir/formats), how they are read, and what happens to activations.

    Without a format weights stay as they come, and activations are rounded where they come coded.
    Weights are read by `decode` if they `is_coded`, else by `dequantize`, which integer products know. With `activations`
    these are rounded to int8 by the scale of each token, or of each block of 32 in it where weights have scales in blocks.
    """

    name: str
    format: str | None
    is_coded: bool = True
    activations: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """What is done to weights and to activations, either of which may be done alone, in the contract's words."""
        weights = () if self.format is None else (name_of(self.format),)
        return (*weights, ACTIVATION) if self.activations else weights

    @property
    def promises(self) -> tuple[str, ...]:
        """What the contract says where all of it is done, in its words."""
        return self.parts if self.is_coded else (self.name,)

    @property
    def scores(self) -> bool:
        """Whether attention multiplies queries by keys as integers too: int8 throughout."""
        return self.activations and not self.is_coded

    @property
    def steps(self) -> tuple[str, ...]:
        """The passes that do it."""
        coded = "pack_codes" if self.format is None else f"encode_weights{{format={self.format}}}"
        weights = coded if self.is_coded else "quantize_int8_weight"
        scores = ("quantize_attention",) if self.scores else ()
        return (weights, "quantize_activations", *scores) if self.activations else (weights,)


QUANTIZATIONS: dict[str, Quantization] = {
    each.name: each
    for each in (
        Quantization("int8-weight", "int8", is_coded=False),
        Quantization("int8", "int8", is_coded=False, activations=True),
        Quantization("int4-weight", "int4.g32"),
        Quantization("int4-weight-g64", "int4.g64"),
        Quantization("int4-weight-g128", "int4.g128"),
        Quantization("int3-weight", "int3.g32"),
        Quantization("int2-weight", "int2.g32"),
        Quantization("fp8-weight", "fp8.e4m3"),
        Quantization("fp8-block-weight", "fp8.e4m3.block"),
        Quantization("mxfp8-weight", "mxfp8.e4m3"),
        Quantization("mxfp6-weight", "mxfp6.e2m3"),
        Quantization("mxfp4-weight", "mxfp4"),
        Quantization("nvfp4-weight", "nvfp4"),
        Quantization("int4-a8", "int4.g32", activations=True),
        Quantization("int4-g64-a8", "int4.g64", activations=True),
        Quantization("int4-g128-a8", "int4.g128", activations=True),
        Quantization("int3-a8", "int3.g32", activations=True),
        Quantization("int2-a8", "int2.g32", activations=True),
        Quantization("mxfp6-a8", "mxfp6.e2m3", activations=True),
        Quantization("mxfp4-a8", "mxfp4", activations=True),
        Quantization("nvfp4-a8", "nvfp4", activations=True),
        Quantization("a8", None, activations=True),
    )
}
"""By the names that users say: weights stored narrow and computed in the model's own precision, and int8 throughout."""


def name_of(format: str) -> str:
    """What users call a weight in a number format; integers in groups of another size go by their bits."""
    bits = re.match(r"u?(int[2-68])\.", format)
    known = next((each.name for each in QUANTIZATIONS.values() if each.format == format), None)
    return known or f"{bits[1] if bits else format}-weight"
