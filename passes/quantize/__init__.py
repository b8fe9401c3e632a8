"""Quantization: what users may ask for, and one file for each way of it; weights are stored narrow and the graph says how they are read."""

from __future__ import annotations

import re
from dataclasses import dataclass

INTEGER = "int8"
"""What a product of codes, added up in 32 bits, is called."""
INTEGER_WEIGHT = f"{INTEGER}-weight"


def activation_name(rounding: str) -> str:
    """What it is called that a weight is multiplied by codes (roundings.py), with a scale for each token or block of it."""
    return f"{rounding}-activation"


ACTIVATION = activation_name(INTEGER)
INTEGERS = (INTEGER, "mxfp4", "nvfp4")
"""Roundings of activations whose codes are multiplied as integers."""
STORABLE = ("mxfp8", "mxfp4", "nvfp4")
"""Roundings of activations to formats of weights that have scales of 8 bits, as which they may be stored."""
SCALES, CODES = "scales", "codes"
STORED = ("", SCALES, CODES)
"""What of activations is stored as of weights: nothing, their scales, their codes as well."""
SCORES = "int8-scores"
"""What it is called that attention multiplies queries by keys as codes of 8 bits, with a scale for each token of a head."""


@dataclass(frozen=True)
class Quantization:
    """What `--quantize NAME` does: the number format of the weights (ir/formats), how they are read, and what happens to activations.

    Without a format weights stay as they come, and activations are rounded where they come coded.
    Weights are read by `decode` if they `is_coded`, else by `dequantize`, which integer products know. `activations` names what these
    are rounded to, by a scale of each token or block of it.
    """

    name: str
    format: str | None
    is_coded: bool = True
    activations: str | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """What is done to weights and to activations, either of which may be done alone, in the contract's words."""
        weights = () if self.format is None else (name_of(self.format),)
        return weights if self.activations is None else (*weights, activation_name(self.activations))

    @property
    def promises(self) -> tuple[str, ...]:
        """What the contract says where all of it is done, in its words."""
        return self.parts if self.is_coded else (self.name,)

    @property
    def scores(self) -> bool:
        """Whether attention multiplies queries by keys as integers too: int8 throughout."""
        return self.activations == INTEGER and not self.is_coded

    @property
    def is_integer(self) -> bool:
        """Whether products are sums of integers."""
        return self.activations in INTEGERS

    def steps(self, stored: str = "") -> tuple[str, ...]:
        """The passes that do it; of activations is `stored` what may be as it is of weights."""
        coded = "pack_codes" if self.format is None else f"encode_weights{{format={self.format}}}"
        weights = coded if self.is_coded else "quantize_int8_weight"
        scores = ("quantize_attention",) if self.scores else ()
        if self.activations is None:
            return (weights,)
        how = [] if self.activations == INTEGER else [f"format={self.activations}"]
        how += [f"stored={stored}"] if stored and self.activations in STORABLE else []
        return (weights, f"quantize_activations{{{', '.join(how)}}}" if how else "quantize_activations", *scores)


QUANTIZATIONS: dict[str, Quantization] = {
    each.name: each
    for each in (
        Quantization("int8-weight", "int8", is_coded=False),
        Quantization("int8", "int8", is_coded=False, activations="int8"),
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
        Quantization("fp8", "fp8.e4m3", activations="fp8"),
        Quantization("fp8-block", "fp8.e4m3.block", activations="fp8-block"),
        Quantization("mxfp8", "mxfp8.e4m3", activations="mxfp8"),
        Quantization("mxfp4", "mxfp4", activations="mxfp4"),
        Quantization("nvfp4", "nvfp4", activations="nvfp4"),
        Quantization("int4-a8", "int4.g32", activations="int8"),
        Quantization("int4-g64-a8", "int4.g64", activations="int8"),
        Quantization("int4-g128-a8", "int4.g128", activations="int8"),
        Quantization("int3-a8", "int3.g32", activations="int8"),
        Quantization("int2-a8", "int2.g32", activations="int8"),
        Quantization("mxfp6-a8", "mxfp6.e2m3", activations="int8"),
        Quantization("mxfp4-a8", "mxfp4", activations="int8"),
        Quantization("nvfp4-a8", "nvfp4", activations="int8"),
        Quantization("a8", None, activations="int8"),
    )
}
"""By the names that users say: weights stored narrow and computed in the model's own precision, and activations in few bits too."""
ACTIVATIONS = tuple(dict.fromkeys(activation_name(each.activations) for each in QUANTIZATIONS.values() if each.activations is not None))
"""What the contract calls the roundings of activations."""


def name_of(format: str) -> str:
    """What users call a weight in a number format; integers in groups of another size go by their bits."""
    bits = re.match(r"u?(int[2-68])\.", format)
    known = next((each.name for each in QUANTIZATIONS.values() if each.format == format), None)
    return known or f"{bits[1] if bits else format}-weight"
