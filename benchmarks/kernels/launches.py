"""Kernels of peers as they launch them, compiled by the assembler that serves ours, kept by content.

A `Wanted` kernel is what a peer would compile and launch; `compiled` gives it as a launch to be estimated.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cubins import FOLDER, Cubin, columns_of, listing_of, marks_of, registers_of, warps_of
from estimate import Launch


class NotEstimated(Exception):
    """A peer's kernel for which there is no estimate, and why."""


@dataclass(frozen=True, eq=False)
class Wanted:
    """A kernel and its launch.

    `types` are of all arguments that are not `constants`, `divisible` those that are known to be multiples of 16, `sizes`
    the integers among the arguments and what loads are known to give: names of the source by which its loops are counted.
    """

    function: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    divisible: frozenset[str]
    options: Mapping[str, Any]
    grid: tuple[int, ...]
    unique: float
    sizes: Mapping[str, Any] = field(default_factory=dict)

    def title(self) -> str:
        """What was chosen, in a few words."""
        shown = [f"{name} {value}" for name, value in self.constants.items() if isinstance(value, int) and not isinstance(value, bool)]
        return ", ".join([*shown, *(f"{name} {value}" for name, value in self.options.items())])


def source_of(function: Any) -> str:
    """A jitted function's source."""
    return function.raw_src if isinstance(function.raw_src, str) else "".join(function.raw_src)


def compiled(wanted: Wanted, capability: int) -> Launch:
    """The launch of a kernel; NotEstimated if the compiler refuses it, which is kept like a success."""
    path = FOLDER / "peers" / f"{_digest(wanted, capability)}.json"
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
    else:
        found = _compile(wanted, capability)
        path.parent.mkdir(parents=True, exist_ok=True)
        own = path.with_suffix(f".{os.getpid()}")
        own.write_text(json.dumps(found), encoding="utf-8")
        own.replace(path)
    if "refused" in found:
        raise NotEstimated(found["refused"])
    cubin = Cubin(**found)
    if helpers := _helpers_with_loops(wanted.function):
        raise NotEstimated(f"loops stand in functions that it calls: {', '.join(helpers)}")
    known = {name: value for name, value in wanted.sizes.items() if isinstance(value, int)}
    return Launch(
        Cubin(**(asdict(cubin) | {"source": _with_known_loads(cubin.source, known), "constants": dict(cubin.constants) | known})),
        wanted.grid,
        wanted.unique,
    )


def _digest(wanted: Wanted, capability: int) -> str:
    import triton

    source = source_of(wanted.function)
    parts = (
        source,
        wanted.function.starting_line_number,
        sorted(wanted.types.items()),
        sorted((name, repr(value)) for name, value in wanted.constants.items()),
        sorted(wanted.divisible),
        sorted(wanted.options.items()),
        capability,
        triton.__version__,
        Path(__file__).with_name("cubins.py").read_text(encoding="utf-8"),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _compile(wanted: Wanted, capability: int) -> dict[str, Any]:
    os.environ.setdefault("TRITON_CACHE_DIR", str(FOLDER / "triton"))
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = wanted.function
    names = function.arg_names
    signature = {name: "constexpr" if name in wanted.constants else wanted.types[name] for name in names}
    attributes = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if name in wanted.divisible}
    constants = {(names.index(name),): value for name, value in wanted.constants.items() if name in names}
    try:
        made = triton.compile(
            ASTSource(function, signature, constants, attributes), target=GPUTarget("cuda", capability, 32), options=dict(wanted.options)
        )
    except Exception as error:  # noqa: BLE001 - whatever a toolchain raises refuses this configuration only
        return {"refused": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    if made.metadata.shared > SHARED_LIMIT:
        return {"refused": f"{made.metadata.shared} bytes of shared memory"}
    cubin, ptx = made.asm["cubin"], made.asm["ptx"]
    plain = {name: value for name, value in wanted.constants.items() if isinstance(value, int | float | bool | str)}
    return asdict(
        Cubin(
            function.__name__,
            listing_of(cubin),
            source_of(function),
            function.starting_line_number,
            plain,
            warps_of(ptx),
            registers_of(cubin),
            int(made.metadata.shared),
            marks_of(ptx),
            columns_of(ptx),
        )
    )


SHARED_LIMIT = 232448
"""Bytes of shared memory that a program gets at most, on both architectures."""


def _with_known_loads(source: str, known: Mapping[str, int]) -> str:
    """The source in which a name that is loaded, and known, is that number; for counting loops only, line for line.

    Conversions between integers, which change none of them, are left out; that loops are flattened is said in words.
    """
    source = re.sub(r"\.to\((?:INDEX_DTYPE|tl\.u?int(?:32|64))\)", "", source)
    for name in re.findall(r"^\s*(\w+) ?: tl\.constexpr = True$", source, re.MULTILINE):
        source = source.replace(f"flatten={name}", "flatten=True")
    for name, value in known.items():
        source = re.sub(rf"^(\s*){re.escape(name)} = tl\.load\([^\n]*\)$", rf"\g<1>{name} = {value}", source, flags=re.MULTILINE)
    return source


def _helpers_with_loops(function: Any) -> list[str]:
    """Jitted functions that the kernel calls, at any depth, and that have loops of their own."""
    from triton.runtime import JITFunction

    found: dict[str, None] = {}
    seen = {function.__name__}
    waiting = [function]
    while waiting:
        called = waiting.pop()
        for name in set(re.findall(r"\b([A-Za-z_]\w*)\s*\(", source_of(called))) - seen:
            inner = called.fn.__globals__.get(name)
            if isinstance(inner, JITFunction):
                seen.add(name)
                waiting.append(inner)
                if re.search(r"^\s+(for|while)\b", source_of(inner), re.MULTILINE):
                    found[name] = None
    return list(found)
