"""Plans for tests: one by hand that has every kind of step and memory, real ones of small modules, and ways to spoil them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ourcc.compiler.backends.built import pack
from ourcc.compiler.pipeline import lower
from ourcc.compiler.targets.registry import TARGETS
from ourcc.ir import dims
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.plan import Buffer, Check, Copy, Guard, Host, Launch, Plan, Slot, StateDeclaration, Step, Storage, Variant, Zero, storage
from ourcc.ir.types import TensorType, f32, i32, i64
from ourcc.passes.lower.build_plan import Lowered

S, K = dims.symbol("S"), dims.symbol("K")
ROWS = TensorType(f32, (S, 64))
CACHE = TensorType(f32, (2, 8, 64))


def launch(name: str, reads: tuple[str, ...], writes: tuple[str, ...], own: tuple[str, ...] = ()) -> Launch:
    arguments = tuple(dict.fromkeys((*reads, *writes, *own)))
    return Launch(name, (Variant(name, Guard(), (S,), arguments),), reads, writes)


def made() -> Plan:
    """x goes through kernels with workspaces and counters into a cache, which is written in place; and its nonzero places."""
    rounded = dims.ceil_div(ROWS.nbytes, 64) * 64
    buffers = (
        Buffer("x", ROWS, storage.Input()),
        Buffer("w", TensorType(f32, (64,)), storage.Constant("w")),
        Buffer("a", ROWS, storage.Arena("s0")),
        Buffer("b", ROWS, storage.Arena("s1")),
        Buffer("c", ROWS, storage.Arena("s0")),
        Buffer("work", TensorType(f32, (64,)), storage.Arena("s2")),
        Buffer("count", TensorType(i32, (4,)), storage.Arena("s3")),
        Buffer("worst", TensorType(i64, ()), storage.Arena("s4")),
        Buffer("kv", CACHE, storage.State("kv")),
        Buffer("new", CACHE, storage.Alias("kv", 0, (512, 64, 1))),
        Buffer("y", ROWS, storage.Output()),
        Buffer("d", TensorType(i64, (2, K)), storage.Dynamic()),
        Buffer("z", TensorType(i64, (2, K)), storage.Output()),
    )
    steps: tuple[Step, ...] = (
        launch("index", ("x",), ("worst",)),
        launch("k0", ("x", "w"), ("a",)),
        Zero("count"),
        launch("k1", ("a",), ("b",), ("work", "count")),
        Zero("count"),
        launch("k2", ("b", "x"), ("c",), ("count",)),
        Copy("kv", "new"),
        launch("append", ("c", "new"), ("new",)),
        launch("k4", ("new", "c"), ("y",)),
        Host("nonzero", {"count": K}, ("x",), ("d",), (("K", 0, 1),)),
        Copy("d", "z"),
        Check("worst", S, False, "rows"),
    )
    sizes = (rounded, rounded, 256, 64, 64)
    slots = tuple(Slot(f"s{n}", (size,), (f"s{n - 1}",) if n else ()) for n, size in enumerate(sizes))
    facts = dims.Facts({"S": dims.Range(1, 512), "K": dims.Range(0, None)})
    outputs = (("y", "y"), ("z", "z"))
    return Plan("cpu", facts, (("x", "x"),), outputs, buffers, slots, steps, (), (StateDeclaration("kv", CACHE),), (("kv", "new"),))


# --- real plans -------------------------------------------------------------------------------------------------------


def _module(name: str, *inputs: tuple[str, TensorType]) -> tuple[Module, Graph, Builder, list[Any]]:
    module = Module(name)
    graph = Graph("main")
    module.functions["main"] = graph
    return module, graph, Builder(module, graph), [graph.add_input(title, type) for title, type in inputs]


def network() -> Module:
    """Products with residuals over a symbolic number of rows: slots are shared, and an input is returned."""
    module, graph, builder, (x,) = _module("network", ("x", TensorType(f32, (dims.symbol("S"), 8))))
    module.declare("S", 1, 40)
    weights = [module.add_constant(f"w{n}", np.linspace(-1, 1, 64).reshape(8, 8).astype(np.float32) / (n + 1)) for n in range(4)]
    value = x
    for weight in weights:
        value = builder.add(builder.tanh(builder.matmul(value, weight)), value)
    graph.set_outputs([builder.matmul(value, weights[0]), x, value], ["y", "same", "value"])
    return module


def found() -> Module:
    """The places of what is not 0: a size that only a run tells."""
    module, graph, builder, (x,) = _module("found", ("x", TensorType(f32, (dims.symbol("S"), 3))))
    module.declare("S", 1, 40)
    count = module.declare("K", 0, None)
    weight = module.add_constant("w", np.eye(3, dtype=np.float32))
    places = builder.nonzero(builder.matmul(builder.relu(x), weight), count=count)
    graph.set_outputs([builder.add(places, places)], ["y"])
    return module


def joined() -> Module:
    """One input put into a part of another: two launches write parts of one result."""
    module, graph, builder, (x, y) = _module("joined", ("x", TensorType(f32, (4, 16))), ("y", TensorType(f32, (2, 8))))
    graph.set_outputs([builder.put_slice(x, y, starts=(1, 3), steps=(1, 1))], ["y"])
    return module


MODULES = {"network": network, "found": found, "joined": joined}


def lowered(name: str, target: str) -> tuple[Module, Lowered]:
    """A module and its plan and kernels for a target."""
    module = MODULES[name]()
    return module, lower(module, TARGETS[target])


def constants(module: Module, lowered: Lowered) -> dict[str, Any]:
    """The constants of a plan as they lie in memory."""
    return {key: pack(held, module) for key, held in lowered.plan.constants.items()}


# --- spoiling ---------------------------------------------------------------------------------------------------------


def with_step(plan: Plan, number: int, step: Step) -> Plan:
    return replace(plan, steps=(*plan.steps[:number], step, *plan.steps[number + 1 :]))


def inserted(plan: Plan, number: int, step: Step) -> Plan:
    return replace(plan, steps=(*plan.steps[:number], step, *plan.steps[number:]))


def without(plan: Plan, number: int) -> Plan:
    return replace(plan, steps=plan.steps[:number] + plan.steps[number + 1 :])


def swapped(plan: Plan, one: int, other: int) -> Plan:
    steps = list(plan.steps)
    steps[one], steps[other] = steps[other], steps[one]
    return replace(plan, steps=tuple(steps))


def moved(plan: Plan, name: str, held: Storage) -> Plan:
    return replace(plan, buffers=tuple(replace(b, storage=held) if b.name == name else b for b in plan.buffers))


def with_buffer(plan: Plan, *buffers: Buffer) -> Plan:
    return replace(plan, buffers=(*plan.buffers, *buffers))


def over(plan: Plan, name: str, above: tuple[str, ...]) -> Plan:
    """With a slot that lies above other ones."""
    return replace(plan, slots=tuple(replace(slot, above=above) if slot.name == name else slot for slot in plan.slots))


def with_slot(plan: Plan, name: str, *sizes: dims.Dim) -> Plan:
    return replace(plan, slots=tuple(replace(slot, sizes=sizes) if slot.name == name else slot for slot in plan.slots))
