"""The registry of targets: what an engine can be built for, one line a target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..ir.errors import UsageError
from ..ir.target import CPU_LEVELS
from .spelling import nearest

Family = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Target:
    """One thing to build for; `levels` are the instruction sets that the engine then holds a part for, best last."""

    name: str
    family: Family
    levels: tuple[str, ...]
    description: str


_LEVELS = ("x86-64-v3", "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-bf16", "x86-64-v4-amx")
TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("cpu", "cpu", _LEVELS, "any x86-64 machine with AVX2, the best level chosen at load"),
        Target("native", "cpu", ("native",), "this very machine, looked at when building"),
        Target("x86-64", "cpu", ("x86-64",), "any x86-64 machine at all"),
        Target("x86-64-v3", "cpu", ("x86-64-v3",), "x86-64 machines with AVX2 and FMA"),
        Target("x86-64-v4", "cpu", ("x86-64-v4",), "x86-64 machines with AVX-512"),
        Target("x86-64-v4-vnni", "cpu", ("x86-64-v4-vnni",), "x86-64 machines with AVX-512 and its dot products of bytes"),
        Target("x86-64-v4-bf16", "cpu", ("x86-64-v4-bf16",), "x86-64 machines with AVX-512 and its dot products of bytes and of bf16"),
        Target("x86-64-v4-amx", "cpu", ("x86-64-v4-amx",), "x86-64 machines with AMX, which multiplies matrices of bytes and of bf16"),
        Target("sm_90a", "cuda", ("sm_90a",), "NVIDIA Hopper (H100, H200)"),
        Target("sm_100a", "cuda", ("sm_100a",), "NVIDIA Blackwell (B200, GB200)"),
        Target("sm_120a", "cuda", ("sm_120a",), "NVIDIA Blackwell (RTX 50, RTX PRO 6000)"),
    )
}


_MEANT = {"cuda": "sm_90a", "gpu": "sm_90a", "nvidia": "sm_90a", "hopper": "sm_90a", "blackwell": "sm_100a", "x86": "cpu", "avx2": "cpu"}
"""What other programs call a target."""


def parse_target(name: str) -> Target:
    """The target of this name; a UsageError names the nearest one."""
    target = TARGETS.get(name)
    if target is None:
        meant = _MEANT.get(name.lower())
        hint = f"did you mean {meant!r}? ourcc doctor shows what this machine runs" if meant else nearest(name, TARGETS)
        raise UsageError(f"unknown target: got {name!r}, expected one of {', '.join(TARGETS)}", hint=hint)
    return target


def loaded_as(name: str) -> str:
    """What a target's name means of an engine: the best part for the CPU for `cpu` and `native`, else the part of that name."""
    target = parse_target(name)
    return "cpu" if target.family == "cpu" and target.name not in (level.name for level in CPU_LEVELS) else target.name


def parse_targets(names: Iterable[str]) -> tuple[Target, ...]:
    """The targets of these names in the given order, each once; `native` for none."""
    found = {name: parse_target(name) for name in names}
    return tuple(found.values()) or (TARGETS["native"],)
