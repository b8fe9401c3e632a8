"""`ourcc doctor`: what this machine can build, run and measure, and what is missing."""

from __future__ import annotations

import platform
from pathlib import Path

import click

from ...codegen.c.toolchain import Compiler, find_compiler
from ...ir.errors import ToolchainError
from ...ir.extras import fault_of, install_hint, is_installed
from ..environment import Environment, environment
from ..report.table import Cell, Report, Table
from ..targets import machine
from ..targets.registry import TARGETS
from ..targets.target import Here, Target
from .frame import command as frame
from .output import print_report


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
    here = Here.look()
    cpu, cuda = here.cpu, here.cuda
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
    tables = (_targets(here, None if isinstance(compiler, Compiler) else compiler), _gpus(cuda), _libraries(), _caches(settings))
    return Report(facts, tuple(table for table in tables if table.rows))


def _compiler(requested: str | None) -> Compiler | ToolchainError:
    """The compiler, or why there is none: a machine without one can still run engines."""
    try:
        return find_compiler(requested)
    except ToolchainError as error:
        return error


def _targets(here: Here, no_compiler: ToolchainError | None) -> Table:
    rows = tuple(_target_row(target, here, no_compiler) for target in TARGETS.values())
    return Table("targets", ("target", "build", "run", "why_not"), rows)


def _target_row(target: Target, here: Here, no_compiler: ToolchainError | None) -> tuple[Cell, ...]:
    lacking = target.lacks()
    if target.needs_compiler and no_compiler is not None:
        lacking = f"{no_compiler.message}: {no_compiler.hint}"
    why_not = target.why_not_here(here)
    return (target.name, lacking is None, why_not is None, "; ".join(filter(None, (lacking, why_not))) or None)


def _gpus(cuda: machine.CudaDriver) -> Table:
    rows = tuple((gpu.name, gpu.target, round(gpu.memory_bytes / 2**30, 1)) for gpu in cuda.gpus)
    return Table("gpus", ("name", "target", "memory_gib"), rows)


def _libraries() -> Table:
    names = [(name, "library") for name in machine.LIBRARIES] + [(name, "extra") for name in machine.EXTRAS]
    rows = tuple((name, kind, machine.library_version(name), _broken(name)) for name, kind in names)
    return Table("libraries", ("name", "kind", "version", "fault"), rows)


def _broken(name: str) -> str | None:
    """Why a library that is installed cannot be used."""
    return f"{fault}: {install_hint(name)}" if is_installed(name) and (fault := fault_of(name)) is not None else None


def _caches(settings: Environment) -> Table:
    folders = [("build cache", str(settings.directory))] + [("tuning store", store) for store in settings.stores]
    return Table("caches", ("kind", "place", "entries"), tuple((kind, place, _count(place)) for kind, place in folders))


def _count(place: str) -> int | None:
    folder = Path(place)
    if "://" in place or not folder.is_dir():
        return None
    return sum(1 for path in folder.rglob("*") if path.is_file())
