"""How each op of ONNX becomes ops of the IR: one module per family, filled into one table."""

from . import (
    attention,
    col2im,
    constants,
    contraction,
    contrib_attention,
    contrib_fused,
    contrib_grouped,
    contrib_norms,
    contrib_quantized,
    control,
    indexing,
    movement,
    normalization,
    pointwise,
    quantization,
    quantized_pointwise,
    quantized_products,
    recurrent,
    reduction,
    resize,
    sampling,
    sequences,
    shape,
    signal,
    window,
)

pointwise.declare_table_rules()


def has_function(op_type: str, domain: str, opset: int) -> bool:
    """Whether ONNX itself defines the op by other ops."""
    import onnx.defs

    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


__all__ = [
    "attention",
    "col2im",
    "constants",
    "contraction",
    "contrib_attention",
    "contrib_fused",
    "contrib_grouped",
    "contrib_norms",
    "contrib_quantized",
    "control",
    "has_function",
    "indexing",
    "movement",
    "normalization",
    "pointwise",
    "quantization",
    "quantized_pointwise",
    "quantized_products",
    "recurrent",
    "reduction",
    "resize",
    "sampling",
    "sequences",
    "shape",
    "signal",
    "window",
]
