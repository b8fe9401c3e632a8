"""What the compiler lacks and torch runs: ATen calls with their arguments, made once and called from the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....ir import dims
from ....ir.dims import Dim
from ....ir.plan import Call
from .tensors import tensor_of


@dataclass(frozen=True)
class TensorOperand:
    """The place of a tensor among the operands of a call; `strides` where torch expects other ones than dense."""

    position: int
    strides: tuple[int, ...] | None = None
    is_size: bool = False


@dataclass(frozen=True)
class AtenCall:
    """One ATen operator with its arguments; Operands stand where tensors and sizes come in.

    `wanted` are the places of the results that somebody reads, as paths into tuples (`()` is the one result).
    """

    operator: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    wanted: tuple[tuple[int, ...], ...]

    def __call__(self, operands: Sequence[Any]) -> list[Any]:
        """The wanted results for these operands."""
        import torch

        tensors = [tensor_of(operand) for operand in operands]
        with torch.no_grad():
            results = self.operator(*_fill(self.arguments, tensors), **{k: _fill(v, tensors) for k, v in self.keywords.items()})
        if not self.wanted:
            # A call for its side effect; a plan's step writes something.
            return [torch.empty(0, dtype=torch.bool)]
        # A plan reads bytes: what torch would conjugate or negate only when it is read is done here.
        return [_at(results, path).resolve_conj().resolve_neg() for path in self.wanted]


def _at(results: Any, path: Sequence[int]) -> Any:
    for number in path:
        results = results[number]
    return results


def _fill(argument: Any, tensors: Sequence[Any]) -> Any:
    if isinstance(argument, TensorOperand):
        tensor = tensors[argument.position]
        if argument.is_size:
            return tensor.item()
        return tensor if argument.strides is None else with_strides(tensor, argument.strides)
    if isinstance(argument, (tuple, list)):
        return (tuple if isinstance(argument, tuple) else list)(_fill(part, tensors) for part in argument)
    if isinstance(argument, Mapping):
        return {name: _fill(part, tensors) for name, part in argument.items()}
    return argument


def with_strides(tensor: Any, strides: Sequence[int], offset: int = 0) -> Any:
    """The same values in memory of its own, laid out by these strides; an axis of stride 0 is stored once.

    `offset` elements of that memory come before the first one.
    """
    import torch

    shape = tuple(tensor.shape)
    for axis, stride in enumerate(strides):
        if stride == 0 and shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    memory = torch.empty(offset + last + 1 if tensor.numel() else offset, dtype=tensor.dtype, device=tensor.device)
    return memory.as_strided(tuple(tensor.shape), tuple(strides), offset).copy_(tensor).expand(shape)


def dense_strides(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """Row-major strides."""
    strides: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * dims.maximum(size, 1)
    return tuple(reversed(strides))


def unusual_strides(shape: Sequence[Dim], strides: Sequence[Dim], facts: dims.Facts) -> bool:
    """Whether strides differ from row-major ones where that can be seen."""
    expected = dense_strides(shape)
    pairs = zip(shape, strides, expected, strict=True)
    return any(
        size not in (0, 1) and dims.equal(dims.simplify(got, facts), dims.simplify(want, facts), facts) is not True
        for size, got, want in pairs
    )


def callback(calls: Sequence[AtenCall]) -> Callable[[Call, Sequence[Any]], Sequence[Any]]:
    """What an engine calls for its `Call` steps."""

    def run(step: Call, operands: Sequence[Any]) -> Sequence[Any]:
        return calls[step.key](operands)

    return run
