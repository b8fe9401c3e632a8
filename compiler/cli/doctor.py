"""`ourcc doctor`: what this machine can build, run and measure, and what is missing."""

from __future__ import annotations

import platform
from pathlib import Path

import click

from ...codegen.c.compile import Compiler, find_compiler
from ...ir.errors import ToolchainError
from ...ir.extras import install_hint
from ...ir.target import cpu_level
from .. import machine
from ..options import Environment, environment
from ..report.table import Cell, Report, Table
from ..targets import TARGETS, Target
from .frame import command as frame
from .output import print_report

_NO_TRITON = f"triton is not installed: {install_hint('triton')}"


@frame("doctor")
@click.option("--measure", is_flag=True, help="Also measure multiply-adds and memory reads on one thread (about a second).")
def command(measure: bool, as_json: bool) -> None:
    """Tell what this machine can build, run and measure.

    What is missing is shown with the way to get it.
    """
    settings = environment()
    print_report(examine(settings, measure=measure), as_json=as_json)


def examine(settings: Environment, *, measure: bool) -> Report:
    """The whole report on this machine."""
    cpu, cuda = machine.read_cpu(), machine.probe_cuda()
    compiler = _compiler(settings.compiler)
    facts: dict[str, Cell] = {
        "python": platform.python_version(),
        "cpu": cpu.model,
        "cpu_threads": cpu.threads,
        "cpu_level": cpu.level,
        "cpu_features": " ".join(cpu.notable),
        "c_compiler": f"{' '.join(compiler.command)} ({compiler.version})" if isinstance(compiler, Compiler) else None,
        "cuda_driver": cuda.version,
    }
    if measure:
        if not isinstance(compiler, Compiler):
            raise compiler
        rates = machine.measure_rates(compiler, cpu)
        facts |= {"fma_gflops_one_thread": rates.fma_gflops, "read_gbytes_per_second_one_thread": rates.read_gbytes_per_second}
    tables = (_targets(cpu, cuda, None if isinstance(compiler, Compiler) else compiler), _gpus(cuda), _libraries(), _caches(settings))
    return Report(facts, tuple(table for table in tables if table.rows))


def _compiler(requested: str | None) -> Compiler | ToolchainError:
    """The compiler, or why there is none: a machine without one can still run engines."""
    try:
        return find_compiler(requested)
    except ToolchainError as error:
        return error


def _targets(cpu: machine.Cpu, cuda: machine.CudaDriver, no_compiler: ToolchainError | None) -> Table:
    rows = tuple(_target_row(target, cpu, cuda, no_compiler) for target in TARGETS.values())
    return Table("targets", ("target", "build", "run", "why_not"), rows)


def _target_row(target: Target, cpu: machine.Cpu, cuda: machine.CudaDriver, no_compiler: ToolchainError | None) -> tuple[Cell, ...]:
    if target.family == "cpu":
        runs = target.name == "native" or cpu.features.issuperset(cpu_level(target.levels[0]).features)
        reasons = ([] if no_compiler is None else [f"{no_compiler.message}: {no_compiler.hint}"]) + (
            [] if runs else [f"this CPU is {cpu.level}, expected {target.levels[0]}"]
        )
        return (target.name, no_compiler is None, runs, "; ".join(reasons) or None)
    has_triton = machine.library_version("triton") is not None
    runs = any(gpu.target == target.name for gpu in cuda.gpus)
    seen = ", ".join(gpu.target for gpu in cuda.gpus)
    absent = f"the GPUs here are {seen}" if seen else cuda.problem or "no GPU"
    reasons = ([] if has_triton else [_NO_TRITON]) + ([] if runs else [absent])
    return (target.name, has_triton, runs, "; ".join(reasons) or None)


def _gpus(cuda: machine.CudaDriver) -> Table:
    rows = tuple((gpu.name, gpu.target, round(gpu.memory_bytes / 2**30, 1)) for gpu in cuda.gpus)
    return Table("gpus", ("name", "target", "memory_gib"), rows)


def _libraries() -> Table:
    names = [(name, "library") for name in machine.LIBRARIES] + [(name, "extra") for name in machine.EXTRAS]
    return Table("libraries", ("name", "kind", "version"), tuple((name, kind, machine.library_version(name)) for name, kind in names))


def _caches(settings: Environment) -> Table:
    folders = [("build cache", str(settings.directory))] + [("tuning store", store) for store in settings.stores]
    return Table("caches", ("kind", "place", "entries"), tuple((kind, place, _count(place)) for kind, place in folders))


def _count(place: str) -> int | None:
    folder = Path(place)
    if "://" in place or not folder.is_dir():
        return None
    return sum(1 for path in folder.rglob("*") if path.is_file())
