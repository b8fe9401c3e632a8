"""What torch's own operators refuse and a trace of them does not: the operator itself is asked, on operands made for that."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NO_KERNEL = "not implemented for '"
"""What torch says where nothing is wrong with a program and it merely has no CPU kernel for a dtype."""
LIMIT = 1 << 24
"""Operators are not asked about operands of more elements: that takes memory and time."""


def refusal(operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> str | None:
    """Why torch refuses to run an operator on tensors like these fake ones; None where it runs or only lacks a kernel for a dtype.

    Floats of one dtype are what operators are made for and what traces know: torch is asked about other operands only, and about
    numbers that a dtype does not hold.
    """
    import torch

    leaves, form = torch.utils._pytree.tree_flatten((tuple(arguments), dict(keywords)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not _can_be_asked(operator, tensors) or not _is_unusual(operator, tensors, arguments, keywords):
        return None
    try:
        given = tuple(_given(leaf) for leaf in leaves)
    except _UnknownError:
        return None
    return _said(operator, form, given) if sum(_elements(leaf) for leaf in given) <= LIMIT else None


def unless_refused(operator: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition that leaves an operator whole where torch refuses its operands, and says so when it runs it, or where the
    decomposition refuses what the operator itself takes.
    """

    @functools.wraps(decomposition)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        if refusal(operator, arguments, keywords) is not None:
            return NotImplemented
        try:
            return decomposition(*arguments, **keywords)
        except (RuntimeError, TypeError, ValueError):
            return NotImplemented

    return checked


class _UnknownError(Exception):
    """A size or number that only a call decides."""


@dataclass(frozen=True)
class _Tensor:
    """A tensor to be made, as it lies in memory."""

    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Elements from the first to the last in memory."""
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)) if all(self.shape) else 0

    def full(self, fill: int) -> Any:
        """The tensor with a number everywhere."""
        import torch

        return torch.full((self.elements,), fill, dtype=self.dtype).as_strided(self.shape, self.strides)


def _can_be_asked(operator: Any, tensors: Sequence[Any]) -> bool:
    """Whether running an operator on the CPU changes nothing, random numbers included."""
    import torch

    schema = getattr(operator, "_schema", None)
    return (
        schema is not None
        and not schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in operator.tags
        and all(tensor.device.type == "cpu" and tensor.layout is torch.strided for tensor in tensors)
    )


def _is_unusual(operator: Any, tensors: Sequence[Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Whether there are other tensors than floats of one dtype, a number out of their range, or a truth value where none is declared."""
    import torch

    dtypes = {tensor.dtype for tensor in tensors}
    asked = keywords.get("dtype")
    leaves = torch.utils._pytree.tree_leaves((tuple(arguments), dict(keywords)))
    if any(_is_beyond(leaf, dtype) for leaf in leaves for dtype in (*dtypes, *((asked,) if asked is not None else ()))):
        return True
    if len(dtypes) > 1 or any(not dtype.is_floating_point for dtype in dtypes):
        return True
    declared = operator._schema.arguments
    given = [*zip(declared, arguments, strict=False), *((argument, keywords.get(argument.name)) for argument in declared)]
    return bool(dtypes) and any(isinstance(value, bool) and "bool" not in str(argument.type) for argument, value in given)


def _is_beyond(leaf: Any, dtype: Any) -> bool:
    """Whether a leaf is a finite number larger than each of a dtype of floats."""
    import torch

    is_number = isinstance(leaf, (int, float)) and not isinstance(leaf, bool)
    return is_number and dtype.is_floating_point and torch.finfo(dtype).max < abs(leaf) < math.inf


def _given(leaf: Any) -> Any:
    """An argument as part of a question: True and 1 are two, symbolic numbers are what they were when torch traced."""
    import torch

    if isinstance(leaf, torch.Tensor):
        return _Tensor(leaf.dtype, tuple(_known(size) for size in leaf.shape), tuple(_known(stride) for stride in leaf.stride()))
    return type(leaf), _known(leaf)


def _known(number: Any) -> Any:
    import torch

    if not isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return number
    if not number.node.has_hint():
        raise _UnknownError
    return number.node.hint


def _elements(leaf: Any) -> int:
    return max(leaf.elements, math.prod(leaf.shape)) if isinstance(leaf, _Tensor) else 0


@functools.lru_cache(maxsize=4096)
def _said(operator: Any, form: Any, given: tuple[Any, ...]) -> str | None:
    """What torch says to zeros, and to ones where zeros will not do (divisors)."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    said = ""
    with _disable_current_modes(), torch.no_grad(), torch.autocast("cpu", enabled=False):
        for fill in (0, 1):
            leaves = [leaf.full(fill) if isinstance(leaf, _Tensor) else leaf[1] for leaf in given]
            arguments, keywords = torch.utils._pytree.tree_unflatten(leaves, form)
            try:
                operator(*arguments, **keywords)
            except (RuntimeError, TypeError, ValueError, IndexError, ArithmeticError, AssertionError) as error:
                said = str(error).strip().split("\n")[0]
            else:
                return None
    return None if NO_KERNEL in said else said
