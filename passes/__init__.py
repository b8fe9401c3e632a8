"""What may be done to a program: one file per pass. The passes by name, in alphabetical order; each is imported when it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ..ir.errors import UsageError

if TYPE_CHECKING:
    from .base import Pass

PASSES: dict[str, str] = {
    "absorb_scales": "absorb_scales:AbsorbScales",
    "canonicalize": "canonicalize:Canonicalize",
    "decompose": "decompose:Decompose",
    "drop_index_checks": "place_index_checks:DropIndexChecks",
    "eliminate_common_subexpressions": "eliminate_common_subexpressions:EliminateCommonSubexpressions",
    "eliminate_dead_code": "eliminate_dead_code:EliminateDeadCode",
    "encode_weights": "quantize.encode_weights:EncodeWeights",
    "fold_batch_norm": "fold_batch_norm:FoldBatchNorm",
    "fold_constants": "fold_constants:FoldConstants",
    "integer_products": "integer_products:IntegerProducts",
    "join_products": "join_products:JoinProducts",
    "merge_transposes": "merge_transposes:MergeTransposes",
    "pack_codes": "pack_codes:PackCodes",
    "place_index_checks": "place_index_checks:PlaceIndexChecks",
    "quantize_activations": "quantize.activations:QuantizeActivations",
    "quantize_int8_weight": "quantize.int8_weight:QuantizeInt8Weight",
    "recognize_attention": "recognize_attention:RecognizeAttention",
    "recognize_causal": "recognize_causal:RecognizeCausal",
    "recognize_gelu": "recognize_gelu:RecognizeGelu",
    "recognize_normalization": "recognize_normalization:RecognizeNormalization",
    "sink_broadcasts": "sink_broadcasts:SinkBroadcasts",
    "sink_casts": "sink_casts:SinkCasts",
    "sparsify_two_four": "sparsify.two_four:SparsifyTwoFour",
    "trim_constants": "trim_constants:TrimConstants",
    "unflatten_products": "unflatten_products:UnflattenProducts",
}


def load_pass(name: str) -> type[Pass]:
    """The class of a pass; UsageError for an unknown name."""
    entry = PASSES.get(name)
    if entry is None:
        raise UsageError(f"there is no pass {name!r}", hint=f"the passes are {', '.join(PASSES)}")
    module, _, attribute = entry.partition(":")
    loaded: type[Pass] = getattr(importlib.import_module(f".{module}", __name__), attribute)
    return loaded
