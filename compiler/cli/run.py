"""`ourcc run`: an engine on inputs from files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...ir.errors import IndexRangeError, InputError, UsageError
from ...ir.spelling import function_of
from ...runtime.kinds import ARRAYS
from ..engines.outputs import check_places
from ..engines.trust import Trust
from ..report.table import Cell, Report, Table
from .frame import READABLE, Writable
from .frame import command as frame
from .output import print_report, show_progress
from .trust import trusted_key_option

if TYPE_CHECKING:
    import numpy

    from ...runtime.engine import Engine

    Array = numpy.ndarray[Any, Any]


@frame("run")
@click.argument("engine", type=READABLE)
@click.option(
    "--input", "inputs", multiple=True, metavar="NAME=FILE.npy|DATA.npz", help="One input, or a file that holds several (repeatable)."
)
@click.option("-o", "--output", type=Writable(ARRAYS), metavar="OUT.npz", help="Write all outputs to this file.")
@click.option("--target", metavar="NAME", help="Run this target or level of the engine (default: the best here).")
@click.option("--function", metavar="NAME", help="Call this function (default: the first one). States are as a session begins.")
@trusted_key_option
def command(
    engine: Path, inputs: tuple[str, ...], output: Path | None, target: str | None, function: str | None, trust: Trust, as_json: bool
) -> None:
    """Run an engine on inputs from files."""
    files = {f"--input {text}": Path(text.partition("=")[2] or text) for text in inputs}
    check_places({"-o": output}, {"ENGINE": engine, **files}, trust)
    arrays = read_inputs(inputs)
    from ..commands.load import load

    with show_progress(as_json=as_json) as progress:
        loaded = load(engine, target=target, trusted_keys=trust.keys, progress=progress)
    _expect_no_language(loaded, engine, bool(arrays) or function is not None)
    functions = loaded.session().functions
    called = functions[function_of(functions, function)]
    try:
        outputs = called.run(arrays)
    except IndexRangeError as error:
        error.hint = error.hint and "an engine of ourcc build --unchecked-indices leaves such an index undefined, and checks none"
        raise
    except InputError as error:
        missing = [f"--input {port.name}=FILE.npy" for port in called.inputs if port.name not in arrays]
        if missing:
            error.hint = error.hint or f"give {' '.join(missing)}, or one .npz file of all: --input DATA.npz"
        raise
    if output is not None:
        write_outputs(output, outputs)
    rows = tuple(_describe(name, value) for name, value in outputs.items())
    columns = ("name", "dtype", "shape", "minimum", "mean", "maximum", "not_finite")
    widened = [name for name, value in outputs.items() if value.dtype.kind == "V"] if output is not None else []
    notes = (f"written as float32, which holds them exactly, since .npz files lack their dtype: {', '.join(widened)}",) if widened else ()
    report = Report(tables=(Table("outputs", columns, rows, notes, keys=("name",)),))
    print_report(report, as_json=as_json, written=(output,))


def _expect_no_language(loaded: Engine, path: Path, is_meant: bool) -> None:
    """UsageError for the engine of a language model, unless inputs or a function of it are named: what it is for is text."""
    from ...runtime.language.model import LanguageModel

    if isinstance(loaded, LanguageModel) and not is_meant:
        functions = ", ".join(loaded.functions)
        hint = f"ourcc generate {path} PROMPT, or ourcc chat {path}; to call a function as it is, name one (--function {functions})"
        raise UsageError(f"{str(path)!r} is the engine of a language model, whose inputs are tokens and places in its cache", hint=hint)


def read_inputs(given: tuple[str, ...]) -> dict[str, Array]:
    """Arrays by input name from NAME=FILE.npy and DATA.npz; files are never unpickled."""
    arrays: dict[str, Array] = {}
    for text in given:
        name, equals, file = text.partition("=")
        if not (file or text) or not Path(file or text).exists():
            raise UsageError(f"--input: there is no file {file or text!r}")
        if Path(file or text).is_dir():
            raise UsageError(f"--input: {file or text!r} is a folder, expected a file")
        found = {name: _read(file, "npy")} if equals else _read(text, "npz")
        for key, value in found.items():
            if key in arrays:
                raise UsageError(f"input {key!r} is given twice")
            arrays[key] = value
    return arrays


def _read(file: str, kind: str) -> Any:
    import zipfile
    import zlib

    import numpy

    try:
        content = numpy.load(file, allow_pickle=False)
        if isinstance(content, numpy.ndarray) != (kind == "npy"):
            expected = "one array (.npy) after NAME=" if kind == "npy" else "several named arrays (.npz), or NAME=FILE.npy"
            raise UsageError(f"input {file!r}: got {'an .npz' if kind == 'npy' else 'an .npy'} file, expected {expected}")
        return content if kind == "npy" else {key: content[key] for key in content.files}
    except (ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        hint = "files that hold pickled objects are never read; save plain arrays with numpy.save or numpy.savez"
        raise InputError(f"input {file!r} is not a .{kind} file of numbers, or is damaged", hint=hint) from error


def write_outputs(path: Path, outputs: Mapping[str, Array]) -> None:
    """Write all outputs or nothing: to a file beside it, which then takes its place."""
    import io
    import zipfile

    import numpy

    from ...runtime.replace import replace_file

    memory = io.BytesIO()
    # Not numpy.savez: it takes names as keywords, and an output may be called "file".
    with zipfile.ZipFile(memory, "w") as archive:
        for name, value in outputs.items():
            # The format has no 16-bit brain float and no 8-bit floats: they go as float32, which holds them exactly.
            plain = value.astype(numpy.float32) if value.dtype.kind == "V" else value
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                numpy.lib.format.write_array(member, numpy.asarray(plain), allow_pickle=False)
    replace_file(path, [memory.getbuffer()])


def _describe(name: str, value: Array) -> tuple[Cell, ...]:
    import numpy

    shape = "x".join(str(size) for size in value.shape) or "scalar"
    if value.size == 0 or value.dtype.kind in "OSUc":
        return (name, str(value.dtype), shape, None, None, None, None)
    wide = value.astype(numpy.float64)
    finite = wide[numpy.isfinite(wide)]
    statistics = (float(finite.min()), float(finite.mean()), float(finite.max())) if finite.size else (None, None, None)
    return (name, str(value.dtype), shape, *statistics, int(wide.size - finite.size))
