"""What may be done to a program: one file per pass. The passes by name, in alphabetical order; each is imported when it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ..ir.errors import UsageError
from ..ir.spelling import nearest

if TYPE_CHECKING:
    from .base import Pass

PASSES: dict[str, str] = {
    "absorb_scales": "recognize.absorb_scales:AbsorbScales",
    "canonicalize": "tidy.canonicalize:Canonicalize",
    "decompose": "tidy.decompose:Decompose",
    "drop_index_checks": "checks.place_index_checks:DropIndexChecks",
    "eliminate_common_subexpressions": "tidy.eliminate_common_subexpressions:EliminateCommonSubexpressions",
    "eliminate_dead_code": "tidy.eliminate_dead_code:EliminateDeadCode",
    "encode_weights": "quantize.encode_weights:EncodeWeights",
    "fold_batch_norm": "tidy.fold_batch_norm:FoldBatchNorm",
    "fold_code_scales": "quantize.fold_code_scales:FoldCodeScales",
    "fold_constants": "tidy.fold_constants:FoldConstants",
    "integer_products": "quantize.integer_products:IntegerProducts",
    "join_products": "fusion.join_products:JoinProducts",
    "merge_transposes": "tidy.merge_transposes:MergeTransposes",
    "merge_windows": "weights.merge_windows:MergeWindows",
    "narrow_products": "quantize.narrow_products:NarrowProducts",
    "narrow_values": "quantize.narrow_values:NarrowValues",
    "pack_codes": "weights.pack_codes:PackCodes",
    "pad_terms": "weights.pad_terms:PadTerms",
    "place_index_checks": "checks.place_index_checks:PlaceIndexChecks",
    "quantize_activations": "quantize.activations:QuantizeActivations",
    "quantize_attention": "quantize.attention:QuantizeAttention",
    "quantize_int8_weight": "quantize.int8_weight:QuantizeInt8Weight",
    "rank_lines": "tidy.rank_lines:RankLines",
    "recognize_attention": "recognize.attention:RecognizeAttention",
    "recognize_causal": "recognize.causal:RecognizeCausal",
    "recognize_coded_weights": "recognize.coded_weights:RecognizeCodedWeights",
    "recognize_gelu": "recognize.gelu:RecognizeGelu",
    "recognize_normalization": "recognize.normalization:RecognizeNormalization",
    "recognize_softmax": "recognize.softmax:RecognizeSoftmax",
    "sink_broadcasts": "tidy.sink_broadcasts:SinkBroadcasts",
    "sink_casts": "tidy.sink_casts:SinkCasts",
    "sparsify_two_four": "sparsify.two_four:SparsifyTwoFour",
    "tabulate_codes": "quantize.tabulate_codes:TabulateCodes",
    "trim_constants": "tidy.trim_constants:TrimConstants",
    "unflatten_norms": "tidy.unflatten_norms:UnflattenNorms",
    "unflatten_products": "tidy.unflatten_products:UnflattenProducts",
}


def load_pass(name: str) -> type[Pass]:
    """The class of a pass; UsageError for an unknown name."""
    entry = PASSES.get(name)
    if entry is None:
        raise UsageError(f"there is no pass {name!r}", hint=nearest(name, PASSES, cutoff=0.7) or f"the passes are {', '.join(PASSES)}")
    module, _, attribute = entry.partition(":")
    loaded: type[Pass] = getattr(importlib.import_module(f".{module}", __name__), attribute)
    return loaded
