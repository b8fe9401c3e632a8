"""The engine: a compiled model that is loaded, called, and saved; immutable and safe to call from many threads."""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn

from ..ir.errors import EngineError, NoLanguageModelError
from ..ir.plan import called
from .again import again, read_from
from .contents import Contract, EngineContents, Port
from .digests import Watch
from .families import Running, make_part, remedy, why_not
from .file import write_engine
from .function import Executor, Function, Functions, Part
from .program import Callback
from .reader import Reading, read_engine
from .session import Session
from .states import KeptStates

_LOG = logging.getLogger(__name__)
OF_LANGUAGE = frozenset(
    {"chat", "chat_tokens", "facts", "follow", "generate", "generate_batch", "load_chat", "load_sequence", "moved_bytes", "prompt_tokens"}
    | {"sequence", "sequences", "tokenizer"}
)
"""What the engine of a language model has besides."""


@dataclass(frozen=True)
class _Elsewhere:
    """The part of an engine that runs on other machines: every use says why it does not run on this one."""

    reason: EngineError
    device: str = "none"

    def executor(self, function: str) -> Executor:
        raise self.reason

    def states(self) -> KeptStates:
        raise self.reason


class _Later:
    """The part of an engine that was just built: its code is loaded when it is first called."""

    def __init__(self, device: str, make: Callable[[], Part]) -> None:
        self.device = device
        self._make = make
        self._part: Part | None = None
        self._lock = threading.Lock()

    def executor(self, function: str) -> Executor:
        part = self._part
        return (part if part is not None else self._made()).executor(function)

    def states(self) -> KeptStates:
        return self._made().states()

    def _made(self) -> Part:
        with self._lock:
            if self._part is None:
                self._part = self._make()
            return self._part


class Engine:
    """A compiled model for this machine.

    `engine(x, mask)` takes inputs in order, `engine(x, mask=mask)` by name too, and `engine.run({name: array})` names
    outputs as well. Numpy arrays, Python numbers and lists of them, and what speaks DLPack give numpy arrays; torch
    tensors give torch tensors; always in fresh memory. That calls the entry; `engine.functions` has it and the others by
    name, and those that keep state are called in a session, `engine.session()`. `target` picks one of the engine's targets (default: the
    best that runs here) or parts, `threads` the CPU threads (default: all that this process may use), `call` serves the calls
    back into a framework, and without `graphs` a GPU's kernels are launched one by one, never as a CUDA graph. An engine that need not
    run here (`must_run=False`) is made for other machines: it is saved and looked at like any other, only a call says why it does not
    run, and only a call loads its code.
    """

    def __init__(
        self,
        contents: EngineContents,
        *,
        target: str | None = None,
        threads: int | None = None,
        call: Callback | None = None,
        graphs: bool = True,
        must_run: bool = True,
    ) -> None:
        if threads is not None and threads < 0:
            raise EngineError(f"got {threads} threads, expected 0 (all) or more")
        self._contents = contents
        self._part_name: str | None = None
        try:
            with _without_collecting():
                self._part_name = choose_part(contents, target)
        except EngineError as error:
            if must_run:
                raise
            self._part: Part = _Elsewhere(error)
        else:
            make = partial(_part, contents, self._part_name, Running(threads or 0, call, graphs))
            with _without_collecting():
                self._part = make() if must_run else _Later(contents.parts[self._part_name].family, make)
        self._functions = Functions((name, Function(name, ports, self._part)) for name, ports in contents.functions.items())
        self._entry = next(iter(self._functions.values()))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        target: str | None = None,
        threads: int | None = None,
        verify: bool = False,
        trusted_keys: Iterable[bytes] | None = None,
        checked: str | None = None,
        copy_weights: bool = False,
        watch: Watch | None = None,
        call: Callback | None = None,
        graphs: bool = True,
    ) -> Engine:
        """Open an engine file, every byte checked; the keywords between `threads` and `call` are those of `Reading`.

        Weights stay mapped: whoever cuts the file off or writes into it reaches the engine that runs. `copy_weights`
        makes it independent of the file.
        """
        reading = Reading(verify, trusted_keys, checked, copy_weights, watch)
        with read_from(path):
            return cls(read_engine(path, reading), target=target, threads=threads, call=call, graphs=graphs)

    def save(self, path: str | os.PathLike[str], *, signing_key: bytes | None = None) -> None:
        """Write the engine to one file, all or nothing; with a signing key (32 raw bytes of an Ed25519 key) it is signed.

        A signed file at `path` is replaced without a key only by what its signature fits, which is kept; anything else is an
        EngineError. An engine that was loaded from a signed file and is saved elsewhere is not signed.
        """
        write_engine(path, self._contents, signing_key=signing_key)

    def __call__(self, /, *inputs: Any, **named: Any) -> Any:
        """The entry's output, or a tuple of outputs, for inputs in order, the rest of them by name."""
        return self._entry(*inputs, **named)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The entry's outputs by name for inputs by name."""
        return self._entry.run(inputs)

    def session(self) -> Session:
        """What functions keep between calls, for one caller: states as they begin, and the functions on them."""
        states = self._contents.parts[self._part_name].states if self._part_name is not None else {}
        types = {name: state.type for name, state in states.items()}
        return Session(self._part, self._contents.functions, types, self._program)

    @cached_property
    def _program(self) -> str:
        """The digest of what the engine computes, weights included; the same for all of its targets."""
        return hashlib.sha256(self._contents.graph.encode()).hexdigest()

    @property
    def functions(self) -> Mapping[str, Function]:
        """The functions by name, the entry first."""
        return self._functions

    @property
    def contents(self) -> EngineContents:
        """Everything the engine holds."""
        return self._contents

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Names and types of the entry's inputs."""
        return self._contents.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """Names and types of the entry's outputs."""
        return self._contents.outputs

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets that the engine holds: `cpu` for all instruction-set levels, and GPUs by name."""
        return self._contents.targets

    @property
    def target(self) -> str | None:
        """The target that runs here; None if none does."""
        return None if self._part_name is None else self._contents.target(self._part_name)

    @property
    def parts(self) -> tuple[str, ...]:
        """What can be loaded, best first: instruction-set levels and GPU targets, each with plans and kernels of its own."""
        return tuple(self._contents.parts)

    @property
    def part(self) -> str | None:
        """The part that runs here; None if none does."""
        return self._part_name

    @property
    def contract(self) -> Contract:
        """Requested, realised and why, one row per source op."""
        return Contract.from_json(self._contents.report.get("contract", []))

    if not TYPE_CHECKING:  # type checkers know what an engine has, and look at nothing else

        def __getattr__(self, name: str) -> NoReturn:
            if name in OF_LANGUAGE and type(self) is Engine:
                takes = f"inputs {', '.join(port.name for port in self.inputs)}" if self.inputs else "no inputs"
                raise NoLanguageModelError(
                    f"the engine holds no language model, which {name} is for: it takes {takes}",
                    hint="call it: engine(...) or engine.run({...}); ourcc.build of a .gguf file or a folder with config.json and"
                    " .safetensors files makes a language model",
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> NoReturn:
        raise TypeError("an engine is neither copied nor pickled: it is immutable, and save writes it to a file that load opens")

    def __repr__(self) -> str:
        functions = self._contents.functions
        called = (
            "; ".join(f"{name}{ports}" for name, ports in functions.items()) if len(functions) > 1 else str(next(iter(functions.values())))
        )
        return f"Engine({called}; {', '.join(self.parts)}, running {self.part or 'elsewhere'})"


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Plans are many objects and none leads to itself: looking for such takes a fifth of the time that reading them does."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def choose_part(contents: EngineContents, wanted: str | None = None) -> str:
    """The best part that runs here, or the best that `wanted` means; EngineError says why none does."""
    held = ", ".join(contents.parts)
    names = tuple(contents.parts) if wanted is None else contents.named(wanted)
    if not names:
        raise EngineError(f"engine holds no target {wanted}, it holds {held}", hint=_rebuild(str(wanted)))
    reasons = {}
    for name in names:
        reasons[name] = why_not(contents, name)
        if reasons[name] is None:
            _LOG.debug("part %s of %s", name, held)
            return name
        _LOG.info("part %s does not run here: %s", name, reasons[name])
    note = "\n".join(f"{name}: {reason}" for name, reason in reasons.items())
    if wanted is not None:
        other = next((name for name in contents.parts if name not in names and why_not(contents, name) is None), None)
        hint = remedy(contents, names) or (
            _rebuild("native") if other is None else f"{other} of the engine runs here: leave the target out"
        )
        raise EngineError(f"target {wanted} of the engine does not run on this machine", note=note, hint=hint)
    hint = "; or ".join(filter(None, (remedy(contents, names), _rebuild("native"))))
    raise EngineError(f"engine holds no target for this machine, it holds {held}", note=note, hint=hint)


def _rebuild(target: str) -> str:
    return f"build the missing one: {again(target)}"


def _part(contents: EngineContents, name: str, running: Running) -> Part:
    held = contents.parts[name]
    # What functions keep is one thing to all of them: where they disagree this is an error.
    _ = held.states
    for function, plan in held.plans.items():
        lost = sorted({callee for step in plan.steps for callee in called(step)} - held.plans.keys())
        if lost:
            raise EngineError(f"the plan of {function} for {name} runs the function {lost[0]}, which the engine does not hold")
    part = make_part(contents, name, running)
    for function in held.plans:
        # A plan that is wrong, or that needs what is not there, is told when the engine is opened.
        program = part.executor(function).program
        expected = contents.functions.get(function, program.ports)
        if program.ports != expected:
            got = f"got {program.ports}, expected {expected}"
            raise EngineError(f"inputs of the plan of {function} for {name} are not those of the engine: {got}")
    return part
