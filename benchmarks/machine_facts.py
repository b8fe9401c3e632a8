"""What a figure must carry: the processor, what it was measured to do, and the versions that made it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from machine_rates import measured_rates

from ourcc.codegen.c.toolchain import find_compiler
from ourcc.compiler.environment import environment
from ourcc.compiler.targets.machine import library_version, read_cpu

PACKAGES = ("ourcc", "torch", "onnxruntime", "openvino", "nncf", "transformers", "numpy", "llama-cpp-python", "xllamacpp", "openvino-genai")


def machine_facts() -> dict[str, Any]:
    """Processor, flags, measured rates of one thread, compiler and versions."""
    cpu, compiler = read_cpu(), find_compiler(environment().compiler)
    return {
        "cpu": cpu.model,
        "flags": list(cpu.notable),
        "processors": cpu.threads,
        **measured_rates(),
        "compiler": compiler.version,
        "versions": {name: version for name in PACKAGES if (version := library_version(name)) is not None},
    }


def best_rates(measured: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The most of each rate: a machine shared with others shows what it can do only now and then."""
    best: dict[str, float] = {}
    for one in measured:
        for name, rate in one.items():
            best[name] = max(rate, best.get(name, 0.0))
    return best
