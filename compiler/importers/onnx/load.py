"""Opening an ONNX model: bounded bytes from a path, parsed, and checked for form before anything is built."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ....ir.errors import ModelError, Source
from ....ir.extras import need
from .external import ExternalFiles

if TYPE_CHECKING:
    import onnx

FILE_BYTES = (1 << 31) - 1
NODES = 500_000
DEPTH = 24
NAME_LENGTH = 16_384
FUNCTIONS = 10_000


@dataclass(frozen=True)
class OpenModel:
    """A checked model: its weight files, the name of the file it came from, how many nodes are written in it."""

    proto: onnx.ModelProto
    files: ExternalFiles
    name: str | None
    nodes: int


Model: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto | OpenModel"
"""What a model is taken as; one that is open is not read again."""


def open_model(model: Model) -> OpenModel:
    """Read, parse and check a model; nothing is built yet."""
    if isinstance(model, OpenModel):
        return model
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        proto = _parse(_read(path), path.name)
        folder, name = path.parent, path.name
    else:
        proto = _parse(model, None) if isinstance(model, bytes) else model
        folder, name = None, None
    return OpenModel(proto, ExternalFiles(folder), name, _check_model(proto, name))


def external_files(path: Path) -> Iterator[Path]:
    """Where a model's file says that its weights lie, read or not."""
    tensors: list[onnx.TensorProto] = []
    graphs, nodes = [(proto := _parse(_read(path), path.name)).graph], [node for f in proto.functions for node in f.node]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            tensors += graph.initializer
            nodes += graph.node
            continue
        for attribute in nodes.pop().attribute:
            tensors += [attribute.t, *attribute.tensors]
            graphs += [attribute.g, *attribute.graphs] if attribute.HasField("g") or attribute.graphs else []
    places = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    yield from (path.parent / place for place in sorted(places) if "\0" not in place)


def _read(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelError(f"cannot open {str(path)!r}: {reason}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ModelError(f"{str(path)!r} is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        if status.st_size > FILE_BYTES:
            raise ModelError(
                f"{str(path)!r} has {status.st_size} bytes, expected at most {FILE_BYTES}", hint="save the weights as external data"
            )
        return file.read(FILE_BYTES + 1)


def _parse(data: bytes, name: str | None) -> onnx.ModelProto:
    # Every road from a file to onnx comes through here, so that one that is missing or broken is said.
    need("onnx", "ONNX models")
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    source = Source(name) if name else None
    if not data:
        raise ModelError("the model file is empty", source=source)
    try:
        return onnx.ModelProto.FromString(data)
    except (DecodeError, RecursionError, MemoryError) as error:
        raise ModelError(
            "the file is not an ONNX model, or it is truncated",
            source=source,
            note=str(error)[:200] or None,
            hint="export the model again, or check the download",
        ) from error


def _check_model(model: onnx.ModelProto, name: str | None) -> int:
    """ModelError for what no model may be; the number of its nodes, those of functions and nested graphs included."""
    source = Source(name or "model")
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise ModelError("the file holds no ONNX graph", source=source, hint="export the model again, or check the download")
    if model.ir_version < 1:
        raise ModelError(f"ir_version {model.ir_version} is not valid", source=source)
    opset_versions(model.opset_import, source, model.ir_version)
    if len(model.functions) > FUNCTIONS:
        raise ModelError(f"the model has {len(model.functions)} functions, expected at most {FUNCTIONS}", source=source)
    count = _check_nodes(model.graph, 0, source)
    for function in model.functions:
        _check_names((function.name, function.domain, function.overload, *function.input, *function.output), source)
        count += _check_node_list(function.node, 0, source)
    if count > NODES:
        raise ModelError(f"the model has {count} nodes, expected at most {NODES}", source=source)
    return count


def opset_versions(imports: Iterable[onnx.OperatorSetIdProto], source: Source, ir_version: int = 10) -> dict[str, int]:
    """Version by domain ("" is ONNX's own); models older than opset imports have version 1."""
    import onnx.defs

    versions: dict[str, int] = {}
    for entry in imports:
        _check_names((entry.domain,), source)
        domain = normal_domain(entry.domain)
        if entry.version < 1:
            raise ModelError(f"opset version {entry.version} of domain {domain!r} is not valid", source=source)
        versions[domain] = entry.version
    newest = onnx.defs.onnx_opset_version()
    if versions.get("", 1) > newest:
        raise ModelError(
            f"opset {versions['']} is newer than {newest}, the newest that this installation knows",
            source=source,
            hint="install a newer onnx",
        )
    if not versions and ir_version < 3:
        versions[""] = 1
    return versions


def normal_domain(domain: str) -> str:
    """The domain with ONNX's own two spellings made one."""
    return "" if domain == "ai.onnx" else domain


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that a node holds."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _check_nodes(graph: onnx.GraphProto, depth: int, source: Source) -> int:
    for value in (*graph.input, *graph.output):
        dims = value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ()
        _check_names((value.name, *(dim.dim_param for dim in dims)), source)
    for tensor in graph.initializer:
        _check_names((tensor.name, *(text for entry in tensor.external_data for text in (entry.key, entry.value))), source)
    _check_names((graph.name, *(sparse.values.name for sparse in graph.sparse_initializer)), source)
    inputs = [value.name for value in graph.input]
    if len(set(inputs)) != len(inputs):
        raise ModelError("two inputs of the graph have the same name", source=source)
    return _check_node_list(graph.node, depth, source)


def _check_node_list(nodes: Iterable[onnx.NodeProto], depth: int, source: Source) -> int:
    if depth > DEPTH:
        raise ModelError(f"graphs are nested more than {DEPTH} deep", source=source)
    count = 0
    for node in nodes:
        count += 1
        _check_names((node.name, node.op_type, node.domain, node.overload, *node.input, *node.output), source)
        _check_names((text for attribute in node.attribute for text in (attribute.name, attribute.ref_attr_name)), source)
        for graph in subgraphs(node):
            count += _check_nodes(graph, depth + 1, source)
    return count


def _check_names(names: Iterable[str | bytes], source: Source) -> None:
    """Names are text of a sane length; what is not UTF-8 arrives as bytes."""
    for name in names:
        if isinstance(name, bytes):
            raise ModelError(f"the name {name[:40]!r} is not UTF-8 text", source=source)
        if len(name) > NAME_LENGTH:
            raise ModelError(f"the name {name[:40]!r}... is {len(name)} characters long, expected at most {NAME_LENGTH}", source=source)
