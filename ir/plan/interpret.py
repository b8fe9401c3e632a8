"""The interpreter of plans: every step on numpy, in a byte-exact model of memory, so that a wrong plan is found without a target.

The arena is one run of bytes, as it is in an engine: a slot that is too small runs into the next one. Where nothing is
alive its bytes are poison. Kernels run as tile programs, host steps as the bodies of their ops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from .. import dims
from ..control import CallFunction, run_control
from ..errors import InputError, UnsupportedError, VerifyError
from ..graph.reference import bind_attribute
from ..ops import table
from ..ops.check import IN_RANGE, failure, told
from ..tile.interpret import run_launch
from ..tile.program import GridAxis, Param
from ..tile.program import Launch as TileLaunch
from ..types import TensorType, string, type_of
from . import storage
from .lives import arena_lives
from .places import known_at_entry
from .plan import Plan, slot_offsets
from .steps import VALUE, Call, Check, CheckPlace, Copy, Host, Launch, Step, Variant, Zero, called

Array = np.ndarray[Any, Any]

POISON = 0xFF
"""The byte that nobody wrote: NaN for floats, -1 for integers, and neither of the two bools."""


def run_plan(
    plan: Plan,
    kernels: Mapping[str, TileLaunch],
    constants: Mapping[str, Array],
    inputs: Sequence[Array],
    states: MutableMapping[str, Array] | None = None,
    functions: Mapping[str, Plan] = MappingProxyType({}),
) -> list[Array]:
    """The outputs of a plan; `kernels` by name, `constants` by key and in the order of memory, `states` by name: they are written.

    `functions` are the plans that it may run.
    """
    held: MutableMapping[str, Array] = {} if states is None else states

    def call(name: str, arrays: Sequence[Array]) -> list[Array]:
        return run_plan(functions[name], kernels, constants, arrays, functions=functions)

    machine = _Machine(plan, kernels, inputs, _Memory(plan, constants, held), call)
    for number, step in enumerate(plan.steps):
        machine.step(step)
        machine.memory.bury(number, machine.values)
    results = [np.array(machine.read(name)) for _, name in plan.outputs]
    held.update({name: machine.memory.state(name) for name in held})
    return results


class _Memory:
    """The bytes of every root, and which of the arena's are alive."""

    def __init__(self, plan: Plan, constants: Mapping[str, Array], states: Mapping[str, Array]) -> None:
        self.plan = plan
        self.constants = constants
        self.states = states
        self.roots: dict[tuple[str, str], Array] = {}
        self.texts: dict[str, Array] = {}
        self.offsets: dict[str, int] = {}
        self.lives = arena_lives(plan)
        self.ends: dict[int, list[str]] = {}
        for name, (_, last) in self.lives.items():
            self.ends.setdefault(last, []).append(name)

    def enter(self, values: Mapping[str, int]) -> None:
        """Lay out the arena for these symbol values."""
        self.offsets, size = slot_offsets(self.plan.slots, values)
        if size < 0:
            raise VerifyError(f"the arena of the plan has {size} bytes")
        self.roots["arena", ""] = np.full(size, POISON, np.uint8)

    def give(self, name: str, array: Array) -> None:
        """The caller's memory, which is not written through."""
        if array.dtype.kind == "O":
            self.texts[name] = array
        else:
            self.roots["input", name] = packed(array)

    def bytes(self, name: str, type: TensorType, values: Mapping[str, int]) -> Array:
        """The bytes from the first of a buffer to the last one of its root; memory is made where there is none yet."""
        held = self.plan.named[name].storage
        if isinstance(held, storage.Alias):
            root = self.plan.named[held.root]
            return self.bytes(held.root, _sized(root.type, values, held.root), values)[dims.evaluate(held.offset, values) :]
        if isinstance(held, storage.Arena):
            return self.roots["arena", ""][self.offsets[held.slot] :]
        if isinstance(held, storage.Constant):
            return self._kept("constant", held.key, self.constants)
        if isinstance(held, storage.State):
            return self._kept("state", held.name, self.states)
        key = (held.__class__.__name__.lower(), name)
        if key not in self.roots:
            is_told = isinstance(held, storage.Verdict)
            self.roots[key] = np.array([IN_RANGE]).view(np.uint8) if is_told else np.full(_bytes(type), POISON, np.uint8)
        return self.roots[key]

    def _kept(self, kind: str, name: str, given: Mapping[str, Array]) -> Array:
        if (kind, name) not in self.roots:
            if name not in given:
                raise InputError(f"the plan needs the {kind} {name!r}, which is not given")
            self.roots[kind, name] = packed(given[name])
        return self.roots[kind, name]

    def state(self, name: str) -> Array:
        """What a state holds now."""
        array = self.states[name]
        return unpacked(self._kept("state", name, self.states), type_of(array))

    def bury(self, number: int, values: Mapping[str, int]) -> None:
        """Poison what is alive no longer after a step."""
        for name in self.ends.get(number, ()):
            first, end = self._span(name, values)
            dead = np.ones(max(end - first, 0), bool)
            for other, (start, last) in self.lives.items():
                if start <= number < last:
                    low, high = self._span(other, values)
                    dead[max(low - first, 0) : max(high - first, 0)] = False
            self.roots["arena", ""][first:end][dead[: len(self.roots["arena", ""]) - first]] = POISON

    def _span(self, name: str, values: Mapping[str, int]) -> tuple[int, int]:
        buffer = self.plan.named[name]
        if not isinstance(buffer.storage, storage.Arena):
            raise VerifyError(f"buffer {name} does not lie in the arena")
        first = self.offsets[buffer.storage.slot]
        return first, first + _bytes(_sized(buffer.type, values, name))


class _Machine:
    """One call: symbol values so far, and the memory that steps read and write."""

    def __init__(self, plan: Plan, kernels: Mapping[str, TileLaunch], inputs: Sequence[Array], memory: _Memory, call: CallFunction) -> None:
        self.plan = plan
        self.call = call
        self.kernels = kernels
        self.memory = memory
        self.values = bind(plan, inputs)
        for (_, name), array in zip(plan.inputs, inputs, strict=True):
            memory.give(name, array)
        memory.enter(self.values)

    def step(self, step: Step) -> None:
        if isinstance(step, Launch):
            self.launch(step)
        elif isinstance(step, Host):
            self.host(step)
        elif isinstance(step, Call):
            raise UnsupportedError(f"call {step.target} of the plan needs its framework", hint="run the engine under torch.compile")
        elif isinstance(step, Copy):
            self.write(step.target, np.array(self.read(step.source)))
        elif isinstance(step, Zero):
            self.view(step.target)[...] = 0
        elif isinstance(step, CheckPlace):
            place, size = (dims.evaluate(each, self.values) for each in (step.place, step.size))
            if not (-size if step.negative else 0) <= place < size:
                raise failure(place, size, step.negative, step.subject)
        else:
            self.check(step)

    def launch(self, step: Launch) -> None:
        variant = next(variant for variant in step.variants if self._serves(variant))
        kernel = self.kernels[variant.kernel]
        names = [*(param.name for param in kernel.params), *(counter.name for counter in kernel.counters)]
        places = dict(zip(names, variant.arguments, strict=True))
        own = {name: dims.evaluate(size, self.values) for name, size in step.symbols}
        points = math.prod(len(_points(axis, own)) for axis in kernel.grid)
        if math.prod(dims.evaluate(size, self.values) for size in variant.grid) != points:
            raise VerifyError(f"launch {step.name}: its grid {list(variant.grid)} is not the {points} points of the kernel")
        operands = {param.name: self._operand(param, places[param.name], own) for param in kernel.params}
        counters = {counter.name: self.view(places[counter.name]) for counter in kernel.counters}
        fresh = set(step.writes) - set(step.reads)
        for param in kernel.params:
            if places[param.name] in fresh:
                # What was there before counts for nothing, and neither does an operand that lies there.
                _poison(operands[param.name])
        facts = dims.Facts({name: dims.range_of(size, self.plan.symbols) for name, size in step.symbols})
        run_launch(kernel, operands, counters, own, facts)
        for counter in counters.values():
            _poison(counter)

    def _serves(self, variant: Variant) -> bool:
        zero = all(dims.evaluate(size, self.values) == 0 for size in variant.guard.zero)
        return zero and all(dims.evaluate(size, self.values) >= 0 for size in variant.guard.positive)

    def _operand(self, param: Param, name: str, own: Mapping[str, int]) -> Array:
        """A buffer as a kernel sees it: maybe with adjacent dimensions merged, and in its layout."""
        shape = param.shape if param.layout is None else param.layout.extents(param.shape)
        type = _sized(TensorType(param.dtype, tuple(shape)), own, name)
        array = self.view(name)
        if array.shape == type.shape:
            return array
        if array.size != math.prod(_static(type)) or not array.flags.c_contiguous:
            raise VerifyError(f"operand %{param.name} is {type}, and buffer {name} is {type_of(array)}")
        return array.reshape(_static(type))

    def host(self, step: Host) -> None:
        attrs = {name: bind_attribute(value, self.values) for name, value in step.attrs.items()}
        results = tuple(self.plan.named[name].type for name in step.writes)
        operands = tuple(self.read(name) if name else None for name in step.reads)
        if called(step):
            arrays = run_control(step.routine, attrs, operands, self.call)
        else:
            arrays = [np.array(array) for array in table.run(table.OPS[step.routine], operands, attrs, results, False)]
        for name, result, axis in step.binds:
            value = int(arrays[result]) if axis == VALUE else int(arrays[result].shape[axis])
            if value not in (bounds := self.plan.symbols.ranges.get(name, dims.UNBOUNDED)):
                raise InputError(f"host step {step.routine} gives {name} = {value}, expected {name} in {bounds}")
            self.values[name] = value
        for name, array in zip(step.writes, arrays, strict=True):
            self.write(name, array)

    def check(self, step: Check) -> None:
        held = int(self.read(step.worst))
        worst = told(held) if isinstance(self.plan.named[step.worst].storage, storage.Verdict) else held
        if worst != IN_RANGE:
            size = None if step.size is None else dims.evaluate(step.size, self.values)
            raise failure(worst, size, step.negative, step.subject)

    # --- memory

    def view(self, name: str) -> Array:
        """A buffer's elements where they lie; packed elements have no view."""
        buffer = self.plan.named[name]
        type = _sized(buffer.type, self.values, name)
        data, shape = self.memory.bytes(name, type, self.values), _static(type)
        strides = (
            tuple(dims.evaluate(stride, self.values) for stride in buffer.storage.strides)
            if isinstance(buffer.storage, storage.Alias)
            else None
        )
        if strides is None:
            if data.size < _bytes(type):
                raise VerifyError(f"buffer {name} takes {_bytes(type)} bytes, and {data.size} are left of its memory")
            return data[: _bytes(type)].view(type.dtype.numpy).reshape(shape)
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if 0 not in shape and (last + 1) * type.dtype.itemsize > data.size:
            raise VerifyError(f"alias {name} takes {(last + 1) * type.dtype.itemsize} bytes, and {data.size} are left of its root")
        whole = data[: data.size // type.dtype.itemsize * type.dtype.itemsize].view(type.dtype.numpy)
        return np.lib.stride_tricks.as_strided(whole, shape, tuple(stride * type.dtype.itemsize for stride in strides))

    def read(self, name: str) -> Array:
        """A buffer's values."""
        buffer = self.plan.named[name]
        if buffer.type.dtype == string:
            if isinstance(buffer.storage, storage.Constant):
                return self.memory.constants[buffer.storage.key]
            if name not in self.memory.texts:
                raise VerifyError(f"buffer {name} is read before it is written")
            return self.memory.texts[name]
        if buffer.type.dtype.bits >= 8:
            return self.view(name)
        type = _sized(buffer.type, self.values, name)
        return unpacked(self.memory.bytes(name, type, self.values)[: _bytes(type)], type)

    def write(self, name: str, array: Array) -> None:
        """Set a buffer's values."""
        declared = self.plan.named[name].type
        if declared.dtype == string:
            self.memory.texts[name] = array
            return
        type = _sized(declared, self.values, name)
        if type_of(array) != type:
            raise VerifyError(f"buffer {name} is {type}, got {type_of(array)}")
        if type.dtype.bits >= 8:
            self.view(name)[...] = array
        else:
            self.memory.bytes(name, type, self.values)[: _bytes(type)] = packed(array)


def _points(axis: GridAxis, values: Mapping[str, int]) -> range:
    return range(dims.evaluate(axis.low, values), dims.evaluate(axis.high, values), axis.step or 1)


def bind(plan: Plan, inputs: Sequence[Array]) -> dict[str, int]:
    """The symbol values that follow from a call's inputs; InputError where these do not fit."""
    if len(inputs) != len(plan.inputs):
        raise InputError(f"got {len(inputs)} inputs, expected {len(plan.inputs)}")
    values = plan.symbols.fixed
    places = {buffer: place for place, (_, buffer) in enumerate(plan.inputs)}
    values.update({symbol: int(inputs[places[buffer]]) for symbol, buffer in plan.numbers})
    for solve in known_at_entry(plan)[1]:
        values[solve.symbol] = (inputs[solve.place].shape[solve.axis] - dims.evaluate(solve.rest, values)) // solve.factor
    for (title, name), array in zip(plan.inputs, inputs, strict=True):
        expected = _sized(plan.named[name].type, values, name)
        if type_of(array) != expected:
            raise InputError(f"input {title}: got {type_of(array)}, expected {expected}")
    return values


def _poison(array: Array) -> None:
    array[...] = np.full(array.dtype.itemsize, POISON, np.uint8).view(array.dtype)[0]


def packed(array: Array) -> Array:
    """A copy of an array as bytes, elements of less than a byte packed, the first one lowest."""
    type = type_of(array)
    flat = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    if type.dtype.bits >= 8:
        return flat.copy()
    bits = np.unpackbits(flat.reshape(-1, 1), axis=1, count=type.dtype.bits, bitorder="little")
    return np.packbits(bits, bitorder="little")


def unpacked(data: Array, type: TensorType) -> Array:
    """The array of which `packed` gave the bytes."""
    shape, bits = _static(type), type.dtype.bits
    if bits >= 8:
        return data.view(type.dtype.numpy).reshape(shape)
    codes = np.unpackbits(data, bitorder="little")[: math.prod(shape) * bits].reshape(-1, bits)
    if type.dtype.kind == "int":
        # numpy's form of signed codes is sign-extended in its byte.
        codes = np.concatenate([codes, np.repeat(codes[:, -1:], 8 - bits, axis=1)], axis=1)
    return np.packbits(codes, axis=1, bitorder="little").reshape(-1).view(type.dtype.numpy).reshape(shape)


def _sized(type: TensorType, values: Mapping[str, int], name: str) -> TensorType:
    late = sorted(frozenset().union(*(dims.symbols(size) for size in type.shape)) - values.keys())
    if late:
        raise VerifyError(f"the sizes of {name} depend on {late[0]}, which has no value yet")
    return type.with_shape(tuple(dims.evaluate(size, values) for size in type.shape))


def _static(type: TensorType) -> tuple[int, ...]:
    return tuple(size for size in type.shape if isinstance(size, int))


def _bytes(type: TensorType) -> int:
    return dims.evaluate(type.nbytes, {})
