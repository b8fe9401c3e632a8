"""Rules of nodes that make constants, and dense forms of sparse ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .....ir.errors import ModelError, Source, UnsupportedError
from .....ir.graph import Value
from .....ir.types import f32, i64
from ..context import Node, rule
from ..external import ExternalFiles
from ..tensors import check_shape, constant_data, element_type

if TYPE_CHECKING:
    import onnx

DENSE_ELEMENTS = 1 << 28


def dense(sparse: onnx.SparseTensorProto, files: ExternalFiles, source: Source) -> np.ndarray[Any, Any]:
    """A sparse constant, with its zeros."""
    shape = tuple(int(size) for size in sparse.dims)
    check_shape(shape, element_type(sparse.values.data_type, source), source)
    if math.prod(shape) > DENSE_ELEMENTS:
        raise UnsupportedError(
            f"sparse constant of shape {list(shape)} is too large to be made dense", source=source, hint="store it densely or smaller"
        )
    values = constant_data(sparse.values, files, source)[0].array
    indices = constant_data(sparse.indices, files, source)[0].array
    if values.ndim != 1 or indices.dtype != np.int64 or indices.shape not in ((values.size,), (values.size, len(shape))):
        raise ModelError(
            f"sparse constant: indices {indices.dtype}{list(indices.shape)} do not fit {values.size} values of shape {list(shape)}",
            source=source,
        )
    result = np.zeros(shape, dtype=values.dtype)
    bounds = np.array([math.prod(shape)] if indices.ndim == 1 else shape)
    if indices.size and (indices.min() < 0 or (indices.reshape(values.size, -1) >= bounds).any()):
        raise ModelError("sparse constant: an index is out of range", source=source)
    if indices.ndim == 1:
        result.reshape(-1)[indices] = values
    else:
        result[tuple(indices.T)] = values
    return result


@rule("Constant")
def _constant(n: Node) -> Value:
    given = [name for name, value in n.attrs.items() if value is not None]
    if len(given) != 1:
        raise n.fail(f"got {len(given)} values, expected one")
    files = n.runner.files
    name, value = given[0], n.attrs[given[0]]
    if name == "value":
        data, type = constant_data(value, files, n.source)
        return n.b.module.add_constant(n.outputs[0], data, n.source, type)
    if name == "sparse_value":
        return n.b.module.add_constant(n.outputs[0], dense(value, files, n.source), n.source)
    dtypes: dict[str, Any] = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    dtypes |= {"value_string": object, "value_strings": object}
    if name not in dtypes:
        raise n.fail(f"attribute {name!r} is not known")
    return n.b.module.add_constant(n.outputs[0], np.array(value, dtype=dtypes[name]), n.source)


@rule("ConstantOfShape")
def _constant_of_shape(n: Node) -> Value:
    shape = n.sizes(0, "the shape")
    if not n.has("value"):
        dtype, value = f32, 0.0
    else:
        files = n.runner.files
        data, type = constant_data(n.attrs["value"], files, n.source)
        if data.array.size != 1:
            raise n.fail(f"value has {data.array.size} elements, expected one")
        dtype, value = type.dtype, data.array.reshape(-1)[0]
    value = bool(value) if dtype.kind == "bool" else int(value) if dtype.is_integer else float(value)
    result: Value = n.b.full(shape=shape, value=value, dtype=dtype)
    return result


@rule("EyeLike")
def _eye_like(n: Node) -> Value:
    x = n.x(0)
    if x.type.rank != 2:
        raise n.fail(f"input has rank {x.type.rank}, expected 2")
    dtype = element_type(n.attr_int("dtype"), n.source) if n.has("dtype") else x.dtype
    rows, columns = (n.b.iota(shape=x.shape, axis=axis, dtype=i64) for axis in (0, 1))
    result: Value = n.b.cast(n.b.eq(n.b.add(rows, n.attr_int("k")), columns), dtype=dtype)
    return result
