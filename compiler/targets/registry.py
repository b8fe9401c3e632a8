"""The registry of targets: what an engine can be built for, one line a target."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...ir.errors import UsageError
from ...ir.spelling import nearest
from ...ir.target import EMULATED
from .target import NATIVE, CpuTarget, CudaTarget, Target

_LEVELS = ("x86-64-v3", "x86-64-v3-vnni", "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-bf16", "x86-64-v4-amx", "x86-64-v4-amx-fp16")
TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        CpuTarget("cpu", _LEVELS, "any x86-64 machine with AVX2, the best level chosen at load"),
        CpuTarget("native", (NATIVE,), "this very machine, looked at when building"),
        CpuTarget("x86-64", ("x86-64",), "any x86-64 machine at all"),
        CpuTarget("x86-64-v3", ("x86-64-v3",), "x86-64 machines with AVX2 and FMA"),
        CpuTarget("x86-64-v3-vnni", ("x86-64-v3-vnni",), "x86-64 machines with AVX2 and dot products of bytes (AVX-VNNI)"),
        CpuTarget("x86-64-v4", ("x86-64-v4",), "x86-64 machines with AVX-512"),
        CpuTarget("x86-64-v4-vnni", ("x86-64-v4-vnni",), "x86-64 machines with AVX-512 and its dot products of bytes"),
        CpuTarget("x86-64-v4-bf16", ("x86-64-v4-bf16",), "x86-64 machines with AVX-512 and its dot products of bytes and of bf16"),
        CpuTarget("x86-64-v4-amx", ("x86-64-v4-amx",), "x86-64 machines with AMX, which multiplies matrices of bytes and of bf16"),
        CpuTarget("x86-64-v4-amx-fp16", ("x86-64-v4-amx-fp16",), "x86-64 machines whose AMX multiplies matrices of fp16 as well"),
        CudaTarget("sm_90a", ("sm_90a",), "NVIDIA Hopper (H100, H200)"),
        CudaTarget("sm_100a", ("sm_100a",), "NVIDIA Blackwell (B200, GB200)"),
        CudaTarget("sm_103a", ("sm_103a",), "NVIDIA Blackwell Ultra (B300, GB300)"),
        CudaTarget("sm_120a", ("sm_120a",), "NVIDIA Blackwell (RTX 50, RTX PRO 6000)"),
        CudaTarget("h100", ("h100",), "sm_90a with the schedules and predictions of an H100"),
        CudaTarget("h200", ("h200",), "sm_90a with the schedules and predictions of an H200"),
        CudaTarget("b200", ("b200",), "sm_100a with the schedules and predictions of a B200"),
        CudaTarget("b300", ("b300",), "sm_103a with the schedules and predictions of a B300"),
    )
}


_MEANT = {
    "h100": r"g?h100|cuda|gpu|nvidia|hopper",
    "h200": r"g?h200",
    "b200": r"g?b[12]00|blackwell",
    "b300": r"g?b300",
    "sm_90a": r"h800|h20",
    "sm_103a": r"blackwellultra",
    "sm_120a": r"(geforce)?rtx(50[0-9][0-9](ti|super)?|pro6000)",
    "cpu": r"x86",
    "x86-64": r"x8664v[12]|sse[0-9]*|avx",
    "x86-64-v3": r"avx2|haswell|zen[123]?",
    "x86-64-v3-vnni": r"avxvnni|(alder|raptor|meteor|lunar|arrow)lake",
    "x86-64-v4": r"avx512[a-z]*|skylake",
    "x86-64-v4-bf16": r"zen[45]",
    "x86-64-v4-amx": r"amx|(sapphire|emerald)rapids",
    "x86-64-v4-amx-fp16": r"amxfp16|graniterapids",
}
"""What other programs and the makers' names of devices call a target, without spaces and signs."""
_OLDER = re.compile(
    r"(ampere|ada|adalovelace|turing|volta|pascal|maxwell|kepler)|a(2|10|16|30|40|100|800|[2456]000)g?|l(2|4|20|40)s?|t4|v100|p(4|40|100)"
    r"|(geforce)?[rg]tx[1-4]0?[0-9]{2,3}(ti|super)*|sm[3-8][0-9]a?"
)
"""GPUs before Hopper, by such names."""


def parse_target(name: str) -> Target:
    """The target of this name; a UsageError names the nearest one."""
    target = TARGETS.get(name)
    if target is None:
        plain = re.sub(r"[\s_-]", "", name.lower()).removeprefix("nvidia") or "nvidia"
        meant = next((target for target, names in _MEANT.items() if re.fullmatch(names, plain)), None)
        hint = f"did you mean {meant!r}? ourcc doctor shows what this machine runs" if meant else nearest(name, TARGETS)
        if _OLDER.fullmatch(plain):
            hint = "GPUs before Hopper are not supported (Ampere, Ada and older); architectures are named in ir/target.py"
        raise UsageError(f"unknown target: got {name!r}, expected one of {', '.join(TARGETS)}", hint=hint)
    return target


def target_of_part(name: str) -> Target:
    """The target of an engine's part, by the part's name; of a level that was emulated this machine with models of its instructions."""
    level = name.removesuffix(EMULATED)
    return parse_target(name) if level == name else emulating(level)


def emulating(level: str) -> Target:
    """This machine with the programs of another level."""
    return CpuTarget(NATIVE, (NATIVE,), TARGETS[NATIVE].description, emulates=level)


def loaded_as(name: str) -> str:
    """What a target's name means of an engine: the best part for the CPU for `cpu` and `native`, else the part of that name."""
    return parse_target(name).loaded_as


def target_of_gpu(capability: tuple[int, int], name: str = "") -> CudaTarget | None:
    """The target of a GPU with this compute capability: that of its board where the driver's name of it says which."""
    found = [target for target in TARGETS.values() if isinstance(target, CudaTarget) and target.capability == capability]
    words = name.lower().split()
    return next((target for target in found if target.name in words), found[0] if found else None)


def target_names(family: str) -> tuple[str, ...]:
    """The targets of a family."""
    return tuple(name for name, target in TARGETS.items() if target.family == family)


def parse_targets(names: Iterable[str]) -> tuple[Target, ...]:
    """The targets of these names in the given order, each once; `native` for none."""
    names = tuple(names)
    for name in names:
        several = [each.strip() for each in name.split(",")]
        if len(several) > 1:
            hint = f"each by itself: {' '.join(f'--target {each}' for each in several if each)}"
            raise UsageError(f"target: got {name!r}, expected one name; repeat --target for several", hint=hint)
    found = {name: parse_target(name) for name in names}
    boards: dict[str, str] = {}
    for target in found.values():
        other = boards.setdefault(target.loaded_as, target.name) if isinstance(target, CudaTarget) else target.name
        if other != target.name:
            hint = "build an engine for each, or one for the architecture"
            raise UsageError(f"target: {other} and {target.name} are both {target.loaded_as}, of which an engine holds one part", hint=hint)
    return tuple(found.values()) or (TARGETS["native"],)
