"""Tensors that a graph of torch writes, as the memory of its engine's states: where they lie, or copies where that cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

ALIGNMENT = 16
"""Bytes: a state begins at a multiple of this, as wide loads on a GPU want it."""


class WrittenTensors:
    """The states of one call in the caller's own tensors.

    A tensor that is not dense, not aligned, or that shares bytes with another argument is written by way of a copy.
    """

    def __init__(self, tensors: Mapping[str, Any], arguments: Sequence[Any]) -> None:
        self.changed = False
        self._tensors = tensors
        spans = [_span(value) for value in arguments if _has_memory(value)]
        self._memory = {name: tensor if _may_be_written(tensor, spans) else _copied(tensor) for name, tensor in tensors.items()}
        self._addresses = {name: int(tensor.data_ptr()) for name, tensor in self._memory.items()}

    @property
    def addresses(self) -> Mapping[str, int]:
        """Where each state lies."""
        return self._addresses

    @property
    def tensors(self) -> Mapping[str, Any]:
        """The memory of each state."""
        return self._memory

    def finish(self) -> None:
        """After the call: copies go back, and torch is told what has changed."""
        import torch

        for name, tensor in self._tensors.items():
            if self._memory[name] is not tensor:
                overwrite(tensor, self._memory[name])
            elif not tensor.is_inference():
                torch.autograd.graph.increment_version(tensor)


def overwrite(tensor: Any, value: Any) -> None:
    """Let a tensor of the caller's hold a value of its type."""
    import torch

    with torch.no_grad():
        tensor.copy_(value)


def _has_memory(value: Any) -> bool:
    return hasattr(value, "data_ptr") and value.numel() > 0


def _span(tensor: Any) -> tuple[int, int]:
    """The bytes from a tensor's first element to the end of its last one."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    first = int(tensor.data_ptr())
    return first, first + (int(last) + 1) * tensor.element_size()


def _may_be_written(tensor: Any, spans: Iterable[tuple[int, int]]) -> bool:
    if not tensor.numel() or not tensor.is_contiguous() or tensor.data_ptr() % ALIGNMENT:
        return False
    first, end = _span(tensor)
    # Its own span is among them.
    return sum(other < end and first < last for other, last in spans) == 1


def _copied(tensor: Any) -> Any:
    import torch

    with torch.no_grad():
        return tensor.detach().clone(memory_format=torch.contiguous_format)
