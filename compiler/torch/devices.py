"""Where the tensors of a torch graph lie, the target that follows, and answers brought to where torch says that they are."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...ir.errors import UnsupportedError
from ..options import BuildOptions
from ..targets.registry import target_names, target_of_gpu
from ..targets.target import Target


def devices_of(graph_module: Any, example_inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The devices of a graph's inputs, constants and values, each once; what it makes may lie where no input does."""
    return tuple(dict.fromkeys(value.device for value in _tensors(graph_module, example_inputs) if hasattr(value, "device")))


def _tensors(graph_module: Any, example_inputs: Sequence[Any]) -> Iterator[Any]:
    yield from example_inputs
    for node in graph_module.graph.nodes:
        if node.op == "get_attr":
            yield functools.reduce(getattr, str(node.target).split("."), graph_module)
        value = node.meta.get("val")
        yield from value if isinstance(value, (tuple, list)) else (value,)


def with_target(options: BuildOptions, devices: Sequence[Any]) -> BuildOptions:
    """The options with the target of a graph's devices: a GPU's where anything is on one, since it takes what is on the CPU, too."""
    kinds = {device.type for device in devices}
    if kinds - {"cpu", "cuda"}:
        hint = "move the model and its inputs to one device"
        raise UnsupportedError(f"tensors are on {', '.join(sorted(kinds))}, expected cpu or cuda", hint=hint)
    found = [device for device in devices if device.type == "cuda"]
    if len(found) > 1:
        raise UnsupportedError(
            f"tensors of one graph are on {', '.join(map(str, found))}, expected one GPU", hint="move the model and its inputs to one GPU"
        )
    return dataclasses.replace(options, targets=(device_target(found[0]),)) if found else options


def device_target(device: Any) -> Target:
    """The target of a CUDA device; UnsupportedError where there is none for its architecture."""
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    target = target_of_gpu((major, minor), torch.cuda.get_device_name(device))
    if target is None:
        known = ", ".join(target_names("cuda"))
        raise UnsupportedError(f"{device} has architecture sm_{major}{minor}, expected one of {known}", hint="run on the CPU")
    return target


def expect_writable(states: Mapping[str, Any], target: Target) -> None:
    """UnsupportedError where a graph writes an argument that is not on the device of its target: kernels write it where it lies."""
    for name, device in states.items():
        if device.type != target.place:
            raise UnsupportedError(f"the graph writes {name!r}, which is on {device}, and computes on {target.place}", hint="move it there")


def on_device(tensor: Any, device: Any) -> Any:
    """An answer where torch says that it is; engines answer where their inputs are."""
    return tensor if device is None or tensor.device == device else tensor.to(device)
