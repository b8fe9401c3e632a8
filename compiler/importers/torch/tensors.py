"""Torch's dtypes and tensors as ours, without copying where the bytes may be shared."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ir.errors import UnsupportedError
from ....ir.types import DType
from ....runtime.arrays import from_torch, torch_dtype

__all__ = ["array_of", "dtype_of", "tensor_of", "torch_dtype"]


def dtype_of(dtype: Any) -> DType:
    """The element type of a torch dtype; UnsupportedError where there is none."""
    found = from_torch(dtype)
    if found is None:
        raise UnsupportedError(f"torch dtype {dtype} has no element type here", hint="convert the tensor to a plain dtype first")
    return found


def array_of(tensor: Any) -> np.ndarray[Any, Any]:
    """A torch tensor as a numpy array; shares memory with a dense CPU tensor."""
    import torch

    if tensor.layout is not torch.strided:
        raise UnsupportedError(f"got a tensor of layout {tensor.layout}, expected a dense one", hint="convert it with .to_dense()")
    dtype = dtype_of(tensor.dtype)
    dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if type(dense) is not torch.Tensor:
        dense = dense.as_subclass(torch.Tensor)
    if dtype.numpy.kind in "fiubc" and dtype.numpy.isbuiltin == 1:
        array: np.ndarray[Any, Any] = dense.numpy()
        return array
    # numpy's own table lacks these; the bytes travel as integers of the same width.
    carrier = torch.int16 if dtype.bits == 16 else torch.uint8
    return np.asarray(dense.view(carrier).numpy().view(dtype.numpy))


def tensor_of(array: Any) -> Any:
    """A buffer that a plan hands out (numpy or device array) as a torch tensor; read-only memory is copied."""
    import torch

    if isinstance(array, torch.Tensor):
        return array
    if not isinstance(array, np.ndarray):
        # Elements that the array protocol cannot name came as integers of their width.
        return torch.as_tensor(array).view(torch_dtype(array.type.dtype))
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    carrier = np.int16 if array.dtype.itemsize == 2 else np.uint8
    from ....ir.types import from_numpy

    return torch.from_numpy(array.view(carrier)).view(torch_dtype(from_numpy(array.dtype)))
