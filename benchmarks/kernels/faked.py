"""A CUDA device that is not there: what torch and Triton ask before they write kernels is answered from a machine's data sheet.

Nothing runs on it. A process that pretends can do nothing else with torch's devices, so it is one of its own (see peers.py).
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from machines import Machine

SHARED_BY_ASKING = {90: 232448, 100: 232448}
"""Bytes of shared memory of a program that asks for more than usual."""


class _Guard:
    """A device that is entered and left."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> _Guard:
        return self

    def __exit__(self, *_: Any) -> bool:
        return False


def capability_of(machine: Machine) -> int:
    """The machine's architecture as a number, such as 90."""
    return int(machine.architecture.removeprefix("sm_").rstrip("af"))


def pretend(machine: Machine) -> None:
    """From now on this process has this machine, as far as torch and Triton ask."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    import torch
    import torch._dynamo.device_interface as interfaces

    major, minor = divmod(capability_of(machine), 10)
    facts = SimpleNamespace(
        name=f"NVIDIA {machine.name}",
        multi_processor_count=machine.processors,
        major=major,
        minor=minor,
        regs_per_multiprocessor=machine.registers,
        max_threads_per_multi_processor=32 * machine.warps,
        max_threads_per_block=1024,
        warp_size=32,
        total_memory=80 << 30,
        L2_cache_size=50 << 20,
        shared_memory_per_block_optin=SHARED_BY_ASKING[capability_of(machine)],
        shared_memory_per_multiprocessor=machine.shared,
        gcnArchName="",
    )
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda *_, **__: facts,
        "get_device_capability": lambda *_, **__: (major, minor),
        "get_device_name": lambda *_: facts.name,
        "is_initialized": lambda: True,
        "synchronize": lambda *_, **__: None,
        "set_device": lambda *_: None,
        "_lazy_init": lambda: None,
        "_exchange_device": lambda *_: 0,
        "_maybe_exchange_device": lambda *_: 0,
        "device": _Guard,
        "_DeviceGuard": _Guard,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    torch._C._cuda_getCurrentRawStream = lambda *_: 0  # type: ignore[attr-defined]
    cuda = interfaces.CudaInterface
    for name in ("is_available", "device_count", "current_device", "get_device_properties"):
        setattr(cuda, name, staticmethod(answers[name]))
    for name, answer in (
        ("get_compute_capability", lambda *_, **__: capability_of(machine)),
        ("is_triton_capable", lambda *_: True),
        ("raise_if_triton_unavailable", lambda *_: None),
    ):
        setattr(cuda, name, staticmethod(answer))
    for name in ("get_device_properties", "current_device"):
        setattr(cuda.Worker, name, staticmethod(answers[name]))
    _pretend_to_triton(machine)


def _pretend_to_triton(machine: Machine) -> None:
    import torch
    import triton
    from triton.backends.compiler import GPUTarget

    capability = capability_of(machine)

    class Driver:
        """What is asked of a driver before anything runs."""

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", capability, 32)

        def get_active_torch_device(self) -> torch.device:
            return torch.device("cuda", 0)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, *_: Any) -> int:
            return 0

        def get_device_capability(self, *_: Any) -> tuple[int, int]:
            return divmod(capability, 10)

        def is_active(self) -> bool:
            return True

        def map_python_to_cpp_type(self, name: str) -> str:
            return name

    triton.runtime.driver.set_active(Driver())
