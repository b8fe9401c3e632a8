"""Launches that a package's own functions make, taken down instead of made: its grids, block sizes and warps are its own choice.

Call it in a process that pretends (faked.py), with tensors that hold nothing.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from launches import Wanted

ELEMENTS = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "i1",
    torch.float8_e4m3fn: "fp8e4nv",
}
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


def recorded(run: Callable[[], Any], known: Mapping[str, int]) -> list[Wanted]:
    """What `run` launches, in order; `known` are integers that its kernels load, by the names that they give them."""
    from triton.runtime import JITFunction

    found: list[Wanted] = []

    def take_down(function: Any, *arguments: Any, grid: Any, warmup: bool = False, **more: Any) -> None:
        found.append(wanted_of(function, arguments, more, grid, known))

    with mock.patch.object(JITFunction, "run", take_down), faked_tensors():
        run()
    return found


@contextlib.contextmanager
def faked_tensors() -> Iterator[None]:
    """Tensors made inside have shapes and nothing else."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        yield


def wanted_of(function: Any, arguments: tuple[Any, ...], more: Mapping[str, Any], grid: Any, known: Mapping[str, int]) -> Wanted:
    """A launch as Triton would specialise it: ones are constants, multiples of 16 are known as such, what is None is left out."""
    options = {name: more[name] for name in OPTIONS if name in more and name not in function.arg_names}
    bound = inspect.signature(function.fn).bind(*arguments, **{name: value for name, value in more.items() if name not in options})
    bound.apply_defaults()
    types: dict[str, str] = {}
    constants: dict[str, Any] = {}
    divisible = set()
    unique = 0.0
    constexprs = {function.arg_names[at] for at in function.constexprs}
    for name, value in bound.arguments.items():
        if name in constexprs or value is None or (isinstance(value, int) and not isinstance(value, bool) and value == 1):
            constants[name] = value
        elif isinstance(value, torch.Tensor):
            types[name] = f"*{ELEMENTS[value.dtype]}"
            divisible.add(name)
            unique += value.numel() * value.element_size()
        elif isinstance(value, bool):
            types[name] = "i1"
        elif isinstance(value, int):
            types[name] = "i32" if value < 2**31 else "i64"
            if value % 16 == 0:
                divisible.add(name)
        else:
            types[name] = "fp32"
    whole = dict(bound.arguments)
    sizes = {name: value for name, value in whole.items() if isinstance(value, int)} | dict(known)
    places = grid(whole | dict(options)) if callable(grid) else grid
    return Wanted(function, types, constants, frozenset(divisible), options, tuple(int(each) for each in places), unique, sizes)
