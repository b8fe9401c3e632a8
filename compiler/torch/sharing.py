"""What the graphs that torch makes of one model share: frozen parameters, packed weights, and engines by their program."""

from __future__ import annotations

import functools
import hashlib
import itertools
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...ir.errors import VerifyError
from ...ir.graph import ConstantData, Module
from ...ir.graph.compare import specialization
from ...ir.graph.verify import Verifier
from ...ir.types import TensorType
from ...runtime.engine import Engine
from ...runtime.weights import Constant
from ..importers.torch.tensors import array_of
from ..options import BuildOptions

LYING = 256
"""Bytes: constants begin at multiples of this, as the memory that the runtime would give them does."""
Place = tuple[int, int]
"""Where a parameter lies, and at which version."""


def place_of(value: Any) -> Place:
    """The address of a tensor and torch's count of the writes to it."""
    return int(value.data_ptr()), int(value._version)


def counts_writes(value: Any) -> bool:
    """Whether torch counts the writes to a tensor: not to one made under `inference_mode`, whose changes nobody would see."""
    return hasattr(value, "data_ptr") and not value.is_inference()


class Watched:
    """A frozen parameter: where it lay and at which version. Its storage is held, so the place cannot be reused."""

    def __init__(self, number: int, value: Any) -> None:
        self.number = number
        self.parameter = weakref.ref(value)
        self.held = value.detach()
        self.place = place_of(value)
        self.pointer = self.place[0]
        self.end: int = self.pointer + value.untyped_storage().nbytes()

    def holds(self, values: Sequence[Any]) -> bool:
        """Whether the parameter of this call is the one that was frozen."""
        return place_of(values[self.number]) == self.place

    def is_current(self) -> bool:
        """Whether there still is a parameter of that place and version: if not, no call will bring it."""
        value = self.parameter()
        return value is not None and place_of(value) == self.place

    def overlaps(self, data: np.ndarray[Any, Any]) -> bool:
        """Whether bytes lie in the parameter's memory."""
        first = int(data.__array_interface__["data"][0])
        return first < self.end and self.pointer < first + data.size


class PackedWeights:
    """Packed weights of this process by content: the graphs that torch makes of one model hold each of them once."""

    def __init__(self) -> None:
        self._held: weakref.WeakValueDictionary[tuple[str, bytes], Constant] = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._held)

    def share(self, constant: Constant, watched: Sequence[Watched]) -> Constant:
        """The constant, or an equal one that a graph already holds."""
        if isinstance(constant, LyingConstant) or any(parameter.overlaps(constant.data) for parameter in watched):
            # It lies in the parameter's own memory, which all graphs share, and may change there.
            return constant
        key = str(constant.type), hashlib.sha256(constant.data.data).digest()
        return self._held.setdefault(key, constant)


@functools.cache
def packed_weights() -> PackedWeights:
    """The ones of this process."""
    return PackedWeights()


class LyingConstant(Constant):
    """A frozen parameter on a GPU: kernels read it where it lies, and the host has a copy once somebody there reads it."""

    tensor: Any

    def __init__(self, type: TensorType, tensor: Any) -> None:
        vars(self).update(type=type, tensor=tensor)

    @functools.cached_property
    def data(self) -> np.ndarray[Any, Any]:
        """The bytes on the host."""
        return Constant.of(array_of(self.tensor)).data

    @property
    def nbytes(self) -> int:
        """The bytes of the tensor."""
        return int(self.tensor.nbytes)

    def on_gpu(self, ordinal: int) -> int | None:
        """Where it lies, if that is this GPU."""
        device = self.tensor.device
        return int(self.tensor.data_ptr()) if (device.type, device.index) == ("cuda", ordinal) else None


class FrozenOnGpu:
    """Frozen parameters on GPUs that kernels can read where they lie, by the host memory that a build has of them.

    Dense ones whose place is aligned: as they are in torch's memory, engines hold them.
    """

    def __init__(self, module: Module, watched: Sequence[Watched], digests: Mapping[int, str]) -> None:
        held = {digests[each.number]: each.held for each in watched if each.number in digests and _may_lie(each.held)}
        datas = (value.constant for value in module.constants.values() if value.constant is not None and value.constant.loaded)
        self._held = {_place(data.array): held[data.digest] for data in datas if data.digest in held}

    def lying(self, constant: Constant) -> Constant:
        """The constant, or the parameter whose bytes it has."""
        tensor = self._held.get(_place(constant.data))
        return constant if tensor is None or int(tensor.nbytes) != constant.nbytes else LyingConstant(constant.type, tensor)


def _may_lie(tensor: Any) -> bool:
    return bool(tensor.device.type == "cuda" and tensor.is_contiguous() and tensor.data_ptr() % LYING == 0 and tensor.numel())


def _place(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


@dataclass(frozen=True, eq=False)
class SharedProgram:
    """A simplified module with all else that decides its engine: the options, and the frozen parameters it rests on."""

    module: Module
    ops: tuple[str, ...]
    options: BuildOptions
    places: frozenset[Place]

    @staticmethod
    def of(module: Module, options: BuildOptions, frozen: Iterable[Place]) -> SharedProgram:
        """The program of a module that is not changed any more."""
        return SharedProgram(module, tuple(op.name for op in module.main), options, frozenset(frozen))

    @property
    def is_shareable(self) -> bool:
        """Whether an engine may serve several graphs: calls back into torch and states are those of one graph."""
        return "aten_call" not in self.ops and not self.module.states

    def serves(self, other: SharedProgram) -> bool:
        """Whether an engine of this program gives the other's answers: it is this one with sizes in the place of symbols.

        An engine may read parameters where they lie. So all that this one rests on must be watched by the other's graph,
        which then notices every change that the engine would.
        """
        if not self.is_shareable or self.ops != other.ops or self.options != other.options or not self.places <= other.places:
            return False
        return specialization(self.module, other.module) is not None


def admit_ones(module: Module) -> None:
    """Let symbols of 2.. be 1 as well, where the program verifies all the same.

    Torch compiles size 1 apart and so says 2.. of every other size. Often the graph of size 1 has the same program: an
    engine for 1.. answers for both. Only graphs of torch.compile come here: elsewhere a range is the user's own.
    """
    verifier = Verifier()
    for name, bounds in list(module.facts.ranges.items()):
        facts = module.facts
        if bounds.low != 2 or facts.divisors.get(name, 1) != 1:
            continue
        module.facts = facts.with_range(name, 1, bounds.high)
        try:
            verifier.verify(module)
        except VerifyError:
            module.facts = facts


def forget_values(module: Module) -> None:
    """Keep the digests of constants only: a compiled module is compared and not compiled again."""
    for value in module.constants.values():
        if value.constant is not None:
            value.constant = ConstantData(digest=value.constant.digest, available=False)


@dataclass(frozen=True, eq=False)
class KeptEngine:
    """An engine and its program."""

    program: SharedProgram
    engine: Engine


class KeptEngines:
    """The engines of this process for graphs of torch; each lives as long as a graph holds it."""

    def __init__(self) -> None:
        self._held: weakref.WeakValueDictionary[int, KeptEngine] = weakref.WeakValueDictionary()
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def find(self, program: SharedProgram) -> KeptEngine | None:
        """The first engine that serves a program."""
        with self._lock:
            held = list(self._held.values())
        return next((kept for kept in held if kept.program.serves(program)), None)

    def keep(self, kept: KeptEngine) -> None:
        """Let later graphs find an engine."""
        with self._lock:
            self._held[next(self._numbers)] = kept


@functools.cache
def kept_engines() -> KeptEngines:
    """The ones of this process."""
    return KeptEngines()
