"""Bodies that ONNX itself gives for its ops: used where no rule says it better."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....ir import dims
from ....ir.errors import ModelError
from ....ir.graph import Value
from .context import Node
from .tensors import ELEMENT_NUMBERS

if TYPE_CHECKING:
    import onnx


def function_body(proto: onnx.NodeProto, node: Node) -> onnx.FunctionProto | None:
    """The body of an op that ONNX defines by others, for this node's attributes and types; None without one."""
    import onnx
    import onnx.defs

    try:
        schema = onnx.defs.get_schema(node.op_type, node.opset, node.domain)
    except onnx.defs.SchemaError:
        return None
    for attribute in schema.attributes.values():
        if attribute.default_value.name and attribute.name not in node.attrs:
            node.attrs[attribute.name] = onnx.helper.get_attribute_value(attribute.default_value)
            if isinstance(node.attrs[attribute.name], bytes):
                node.attrs[attribute.name] = node.attrs[attribute.name].decode()
    if schema.has_function:
        body = schema.get_function_with_opset_version(_best(schema.function_opset_versions, node.opset))
        return _parsed(body)
    if schema.has_context_dependent_function:
        concrete = onnx.NodeProto()
        concrete.CopyFrom(proto)
        for attribute_proto in [a for a in concrete.attribute if a.ref_attr_name]:
            concrete.attribute.remove(attribute_proto)
            if attribute_proto.name in node.attrs:
                concrete.attribute.append(onnx.helper.make_attribute(attribute_proto.name, node.attrs[attribute_proto.name]))
        version = _best(schema.context_dependent_function_opset_versions, node.opset)
        types = [_type_bytes(item) if isinstance(item, Value) else b"" for item in node.inputs]
        try:
            body = schema.get_context_dependent_function_with_opset_version(version, concrete.SerializeToString(), types)
        except RuntimeError as error:
            # Names go into the text of the body: those that are no identifiers cannot be read back.
            raise node.fail("its names or attributes do not fit the body that ONNX gives for it") from error
        return _parsed(body) if body else None
    return None


def _best(versions: list[int], opset: int) -> int:
    """The newest body for this opset; the oldest one there is where all are newer (a body names its own opset)."""
    return max((version for version in versions if version <= opset), default=min(versions))


def _parsed(body: bytes) -> onnx.FunctionProto:
    import onnx

    return onnx.FunctionProto.FromString(body)


def _type_bytes(value: Value) -> bytes:
    import onnx

    if value.dtype not in ELEMENT_NUMBERS:
        raise ModelError(f"element type {value.dtype} has no number in ONNX")
    shape = [size if isinstance(size, int) else str(size) if isinstance(size, dims.Expr) else None for size in value.shape]
    data: bytes = onnx.helper.make_tensor_type_proto(ELEMENT_NUMBERS[value.dtype], shape).SerializeToString()
    return data
