"""From a module to a CUDA part of an engine, with no GPU at hand: schedules, Triton, cubins, guarded variants."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from ...codegen.c.compile import compile_shared
from ...codegen.c.toolchain import find_compiler
from ...codegen.host.routines import LAUNCHES, routine
from ...codegen.triton.compile import CompiledKernel, Failure
from ...codegen.triton.kernel import TritonKernel
from ...codegen.triton.launch_abi import expect_agreement, variant
from ...codegen.triton.printer import print_launch
from ...ir import dims
from ...ir.dims import Dim, Facts
from ...ir.errors import InternalError, ToolchainError
from ...ir.graph import Module
from ...ir.graph.copy import copied
from ...ir.plan import Guard, Launch, Plan, Variant, storage
from ...ir.plan.digest import digest_of
from ...ir.target import BASELINE, GpuTarget, gpu_target
from ...ir.tile.program import Launch as TileLaunch
from ...ir.workload import Workload
from ...passes.lower.build_plan import Lowered, verified
from ...passes.lower.lower import Fusions, fuse, lower, lower_printed, print_each
from ...passes.lower.schedule import Choose, Scheduled, Scheduler, cheapest
from ...passes.manager import PassManager
from ...passes.quantize.words import TF32, precision_name
from ...passes.regions.narrow_functions import GPU_NARROW
from ...passes.tidy.rank_lines import RankLines
from ...passes.tile.gpu import STRATEGIES, why_no_matrix_instruction
from ...passes.tile.gpu.rates import Rate, operations_rate, rate_of
from ...passes.tile.gpu.shape import LAUNCH_SECONDS
from ...passes.tile.gpu.undecoded import undecoded
from ...passes.tile.tf32 import in_tf32, multiplies_in_tf32
from ...runtime.contents import LIBRARY, PLANS, PartContents
from ..options import BuildOptions
from ..progress import Progress
from ..report.kernels import kernel_rows
from ..targets.target import Target
from .built import Built, Decoding, PackedConstants
from .gpu_kernels import GpuKernels, of_other_instructions
from .tuning import Tuning

HOST = "x86_64"
"""The hosts that a part's C is for."""
VECTOR = 16
"""Bytes of the widest load, and the divisor of sizes under which rows start at multiples of it."""


@dataclass(frozen=True)
class _Printed:
    """A kernel as printed for one guard: symbols that 16 must divide, parameters that must be aligned."""

    kernel: TritonKernel
    divided: tuple[str, ...]
    aligned: tuple[str, ...]


class CudaBackend:
    """Kernels by Triton, with no GPU at hand."""

    def machines(self, target: Target, module: Module, precision: str | None = None) -> list[GpuTarget]:
        """The one architecture that a target is."""
        return [replace(gpu_target(name), in_tf32=precision == TF32) for name in target.machines]

    def compile(
        self,
        module: Module,
        target: Target,
        machine: GpuTarget,
        options: BuildOptions,
        progress: Progress,
        tuning: Tuning,
        packed: PackedConstants,
    ) -> Built:
        """Kernels as Triton source, PTX and cubin; every launch has a variant for aligned rows where that is not known."""
        workload = options.workload_for(module.facts)
        fusions = _fused(module, machine, workload)
        scheduler = _scheduler(machine, tuning.for_gpu(target.name, machine), workload)
        kernels = GpuKernels(machine, progress)
        while True:
            try:
                lowered, printed = lower_printed(fusions, scheduler, machine.name, partial(_print_all, device=machine))
            except InternalError as error:
                raise kernels.none_left(error) from error
            compiled = kernels.build([item.kernel for items in printed.values() for item in items])
            # What is built decides: a schedule that spills in loops is not taken, whatever its predicted time.
            bad = _bad(lowered, printed, compiled, kernels)
            units = {id(lowered.scheduled[name]): name for name in sorted(bad, reverse=True)}
            refused = [name for name in units.values() if not scheduler.is_resigned(lowered.scheduled[name])]
            for name in refused or units.values():
                what = "refused, the next best schedule is tried" if refused else "taken, as there is no better schedule"
                progress.note(f"{lowered.scheduled[name].schedule} is {what}: {bad[name][0]}")
            if not refused:
                break
            for name in refused:
                scheduler.refuse(lowered.scheduled[name], *bad[name])
        tuning.done(target.name, machine.name, lowered)
        built = {name: each for name, each in compiled.items() if isinstance(each, CompiledKernel)}
        plans = {name: _with_kernels(plan, lowered, printed, built) for name, plan in lowered.plans.items()}
        files = {**dict(_files(built.values())), **_host_program(options, progress), PLANS: digest_of(plans).encode()}
        units_of = lowered.scheduled
        resources = {name: _resources(built[items[0].kernel.name], units_of[name], kernels) for name, items in printed.items()}
        rows = kernel_rows(
            lowered, partial(_rate, machine=machine), machine.memory_rate, resources, workload, floored=False, launch_seconds=LAUNCH_SECONDS
        )
        return Built(
            machine.name,
            target.name,
            PartContents(plans, files, "cuda", HOST if LIBRARY in files else ""),
            packed.of(lowered.constants),
            rows,
            lowered.kept,
            lowered.decisions,
            _sources_in_tf32(lowered),
            lowered.faults,
            decoding=_decoding(lowered, scheduler) if options.quantize or options.sparsity else None,
        )

    def lower(self, module: Module, machine: GpuTarget, workload: Workload | None = None) -> Lowered:
        """Kernels and plans with the schedules of least predicted cost."""
        return lower_cuda(module, _scheduler(machine, cheapest(machine), workload))

    def rate(self, unit: Scheduled, machine: GpuTarget) -> Rate:
        """That of the instruction which its schedule multiplies by."""
        return rate_of(unit.problem, unit.schedule, machine)

    def print(self, lowered: Lowered, machine: GpuTarget) -> Mapping[str, str]:
        """Triton's sources by file."""
        printed = _print_all(lowered, machine)
        return {f"{item.kernel.name}.py": item.kernel.source for items in printed.values() for item in items}


def _fused(module: Module, machine: GpuTarget, workload: Workload | None) -> Fusions:
    return fuse(_ranked(module), workload=workload, narrow=True, short=GPU_NARROW | machine.instructions)


def _ranked(module: Module) -> Module:
    """The module as GPUs compute it, whose kernels put short lines in order; a CPU's native routines do that in less."""
    (rule,) = (step := RankLines()).rules()
    if all(op.name not in rule.ops or rule.check(op, module) is not None for graph in module.functions.values() for op in graph):
        return module
    own = copied(module)
    PassManager((step,)).run(own)
    return own


def _scheduler(machine: GpuTarget, choose: Choose, workload: Workload | None) -> Scheduler:
    """What schedules for a machine; constants stay row-major."""
    return Scheduler(STRATEGIES, machine, choose, lambda region, constants: {}, workload, finish=in_tf32 if machine.in_tf32 else None)


def lower_cuda(module: Module, scheduler: Scheduler) -> Lowered:
    """Groups to tile programs and a plan; constants stay row-major."""
    return lower(_fused(module, scheduler.target, scheduler.workload), scheduler, scheduler.target.name)


def _sources_in_tf32(lowered: Lowered) -> frozenset[str]:
    """The user's ops in kernels that round the factors of products to tf32; few rows are multiplied by no such instruction."""
    narrow = {name for name, launch in lowered.kernels.items() if multiplies_in_tf32(launch)}
    steps = (step for step in lowered.launches if narrow.issuperset(variant.kernel for variant in step.variants))
    return frozenset(source for step in steps for source in step.sources)


def _decoding(lowered: Lowered, scheduler: Scheduler) -> Decoding | None:
    """What products of coded weights take beside products of plain ones, which are priced and not made; None where there is no such."""
    known: dict[int, tuple[float, float, str] | None] = {}
    coded, plain, dtypes = 0.0, 0.0, dict[str, None]()
    for step in lowered.launches:
        unit = lowered.scheduled[step.variants[-1].kernel]
        key = id(unit.problem)
        if key not in known:
            found = undecoded(unit.problem)
            known[key] = None if found is None else (unit.cost, scheduler.price(found.problem), precision_name(found.dtype))
        each = known[key]
        if each is not None:
            share = 1 / len(unit.program.launches)
            coded, plain = coded + each[0] * share, plain + each[1] * share
            dtypes[each[2]] = None
    return Decoding(coded, plain, tuple(dtypes)) if dtypes else None


def _bad(
    lowered: Lowered, printed: Mapping[str, list[_Printed]], compiled: Mapping[str, CompiledKernel | Failure], kernels: GpuKernels
) -> dict[str, tuple[str, int | None]]:
    """Kernels whose schedule should not be taken, by name: why, and the bytes spilled by those that work."""
    bad: dict[str, tuple[str, int | None]] = {}
    for name, items in printed.items():
        every = [compiled[item.kernel.name] for item in items]
        failed = [each for each in every if isinstance(each, Failure)]
        found = kernels.verdict(lowered.scheduled[name], failed or [compiled[item.kernel.name] for item in _usual(items)])
        if found is not None:
            bad[name] = found
    launched = [[variant.kernel for variant in step.variants] for step in lowered.launches]
    built = {name: [compiled[item.kernel.name] for item in items] for name, items in printed.items()}
    others = of_other_instructions(launched, built, kernels.device)
    return {**dict.fromkeys(others, ("it adds by another instruction", None)), **bad}


def _usual(items: list[_Printed]) -> list[_Printed]:
    """The kernels that sizes alone may ask for: what serves nothing but callers' memory of any start decides no schedule."""
    return items if items[0].divided else items[:1]


def _print_all(lowered: Lowered, device: GpuTarget) -> dict[str, list[_Printed]]:
    """The kernels of a plan as Triton source, by name."""
    return print_each(lowered, lambda name, launch: _print(name, launch, lowered, device))


def _print(name: str, launch: TileLaunch, lowered: Lowered, device: GpuTarget) -> list[_Printed]:
    """The kernel for aligned operands and sizes, and where that is not known the one for any."""
    launch = replace(launch, name=name)
    strangers, symbols = _callers(name, launch, lowered), lowered.scheduled[name].problem.symbols
    divided = _row_symbols(launch, symbols)
    own = frozenset(param.name for param in launch.params) | {counter.name for counter in launch.counters}
    if not strangers and not divided:
        return [_Printed(print_launch(launch, symbols, own, device.processors), (), ())]
    facts = Facts(symbols.ranges, {**symbols.divisors, **dict.fromkeys(divided, VECTOR)})
    fast = print_launch(replace(launch, name=f"{name}_aligned"), facts, own, device.processors)
    general = print_launch(launch, symbols, own - set(strangers), device.processors)
    return [_Printed(fast, divided, strangers), _Printed(general, (), ())]


def _callers(name: str, launch: TileLaunch, lowered: Lowered) -> tuple[str, ...]:
    """Parameters that are the caller's own memory in some launch of the kernel."""
    names = _parameter_names(launch)
    found = set()
    for plan in lowered.plans.values():
        foreign, steps = _foreign(plan), (step for step in plan.steps if isinstance(step, Launch))
        taken = (variant.arguments for step in steps for variant in step.variants if variant.kernel == name)
        found |= {parameter for each in taken for parameter, buffer in zip(names, each, strict=True) if buffer in foreign}
    return tuple(parameter for parameter in names if parameter in found)


def _foreign(plan: Plan) -> frozenset[str]:
    """The buffers that are the caller's own memory."""
    return frozenset(buffer.name for buffer in plan.buffers if isinstance(buffer.storage, storage.Input | storage.Output))


def _row_symbols(launch: TileLaunch, facts: Facts) -> tuple[str, ...]:
    """Symbols in the innermost size of an operand: whether its rows are aligned depends on them."""
    found: dict[str, None] = {}
    for param in launch.params:
        if len(param.dims) > 1 and dims.divides(VECTOR, param.dims[-1][1], facts) is None:
            found.update(dict.fromkeys(sorted(dims.symbols(param.dims[-1][1]))))
    return tuple(found)


def _parameter_names(launch: TileLaunch) -> list[str]:
    return [param.name for param in launch.params] + [counter.name for counter in launch.counters]


def _with_kernels(plan: Plan, lowered: Lowered, printed: dict[str, list[_Printed]], compiled: dict[str, CompiledKernel]) -> Plan:
    """A plan whose launches have a variant for each printed kernel of each class of sizes, the more guarded one first."""
    foreign = _foreign(plan)

    def made(step: Launch) -> Launch:
        found = (_with_variants(each, dict(step.symbols), foreign, lowered, printed, compiled) for each in step.variants)
        return replace(step, variants=tuple(chain.from_iterable(found)))

    return verified(replace(plan, steps=tuple(made(step) if isinstance(step, Launch) else step for step in plan.steps)))


def _with_variants(
    plain: Variant,
    binding: dict[str, Dim],
    foreign: frozenset[str],
    lowered: Lowered,
    printed: dict[str, list[_Printed]],
    compiled: dict[str, CompiledKernel],
) -> Iterator[Variant]:
    """A variant of a launch for each printed kernel."""
    buffers = dict(zip(_parameter_names(lowered.kernels[plain.kernel]), plain.arguments, strict=True))
    for item in printed[plain.kernel]:
        aligned = tuple(buffers[name] for name in item.aligned if buffers[name] in foreign)
        guard = Guard(_open(binding[name] % VECTOR for name in item.divided), plain.guard.positive, aligned)
        made = variant(compiled[item.kernel.name], guard)
        grid, scalars = (tuple(dims.substitute(size, binding) for size in sizes) for sizes in (made.grid, made.scalars))
        made = replace(made, arguments=tuple(buffers[name] for name in made.arguments), grid=grid, scalars=scalars)
        expect_agreement(made, compiled[item.kernel.name])
        yield made
        if guard == plain.guard:
            return


def _open(conditions: Iterable[Dim]) -> tuple[Dim, ...]:
    """The conditions that a call has to meet; a number that is 0 holds in every call."""
    return tuple(dim for dim in conditions if dim != 0)


def _host_program(options: BuildOptions, progress: Progress) -> dict[str, bytes]:
    """What launches the kernels on hosts of the usual kind; without a C compiler there is none, and Python launches them."""
    try:
        compiler = find_compiler(options.environment.compiler)
    except ToolchainError as error:
        progress.note(f"kernels will be launched by Python, which is slow: {error.message}")
        return {}
    if platform.machine() != HOST:
        progress.note(
            f"kernels will be launched by Python, which is slow: the host program is for {HOST}, this machine is {platform.machine()}"
        )
        return {}
    source = {f"{LAUNCHES}.c": routine(LAUNCHES)}
    return {LIBRARY: compile_shared(source, BASELINE, compiler, cache=options.environment.objects).data}


def _rate(unit: Scheduled, machine: GpuTarget) -> float:
    return operations_rate(unit.problem, unit.schedule, machine)


def _files(compiled: Iterable[CompiledKernel]) -> Iterable[tuple[str, bytes]]:
    for item in compiled:
        yield f"{item.kernel.name}.py", item.kernel.source.encode()
        yield f"{item.kernel.name}.ptx", item.ptx.encode()
        yield f"{item.kernel.name}.cubin", item.cubin


def _resources(compiled: CompiledKernel, unit: Scheduled, kernels: GpuKernels) -> dict[str, Any]:
    found, device = compiled.resources, kernels.device
    mix = ", ".join(f"{count} {name}" for name, count in sorted(found.instructions.items(), key=lambda item: -item[1])[:6])
    why_not = why_no_matrix_instruction(unit.problem, unit.schedule, device)
    if why_not is None and device.matrix_instruction not in found.instructions and "mma.sync" in found.instructions:
        why_not = "triton takes mma.sync for it"
    notes = [
        *compiled.kernel.notes,
        *([f"no {device.matrix_instruction}: {why_not}"] if why_not is not None else []),
        *kernels.notes(compiled, unit),
    ]
    return {
        "registers": found.registers,
        "shared_bytes": found.shared,
        "spills": found.spilled,
        "inner_spills": kernels.spilled_in_loops(compiled),
        "instructions": mix,
        "notes": "; ".join(notes) or None,
    }
