"""What ourcc is compared with: ONNX Runtime, eager PyTorch, Inductor, OpenVINO, other engines, each called with arrays in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...ir.errors import InputError, ToolchainError, UsageError
from ...ir.extras import need
from ...ir.spelling import function_of
from ...runtime.engine import Engine

Array = np.ndarray[Any, Any]
Run = Callable[[Sequence[Array]], list[Array]]


SUFFIXES = {"onnxruntime": ".onnx", "openvino": ".onnx", "eager": ".pt2", "inductor": ".pt2"}
"""What each peer runs."""
OURS = "ourcc"
"""The peer that is another engine."""


def peer_file(name: str, subject: Path) -> Path:
    """The file that a peer runs beside `subject`: itself, or the file of the same name with the peer's suffix."""
    suffix = SUFFIXES.get(name)
    if suffix is None:
        raise UsageError(f"{name} runs another engine: got no file", hint=f"say which engine it shall be: --against {name}=ENGINE.ourcc")
    found = subject.with_suffix(suffix)
    if not found.exists():
        raise UsageError(
            f"{name} runs {suffix} files: got {subject.name!r}, and there is no {found.name!r} beside it",
            hint=f"say which file it shall run: --against {name}=MODEL{suffix}",
        )
    return found


def make_peer(name: str, model: Path, threads: int = 1) -> Run:
    """A peer that runs a model file; UsageError if it cannot take such a file, ToolchainError if it is missing."""
    if model.suffix != SUFFIXES[name]:
        raise UsageError(f"{name} runs {SUFFIXES[name]} files: got {model.name!r}")
    if name == "onnxruntime":
        return onnxruntime_run(model, threads)
    return openvino_run(model, threads) if name == "openvino" else _torch(model, name == "inductor", threads)


def onnxruntime_run(model: Path, threads: int, sizes: Mapping[str, int] | None = None) -> Run:
    """An ONNX file in ONNX Runtime; `sizes` of symbols are known to it when it prepares."""
    need("onnxruntime", "the peer onnxruntime")
    if not str(model).isprintable():
        raise UsageError(f"the peer onnxruntime takes no such name: got {str(model)!r}, expected printable text", hint="rename the file")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    for symbol, size in (sizes or {}).items():
        options.add_free_dimension_override_by_name(symbol, size)
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    # Its exceptions have no common base but Exception.
    refusals = tuple(kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception))
    with _refusing("onnxruntime", *refusals):
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]

    def run(arrays: Sequence[Array]) -> list[Array]:
        _check_count("onnxruntime", arrays, names)
        with _refusing("onnxruntime", *refusals):
            return list(session.run(None, dict(zip(names, arrays, strict=True))))

    return run


def engine_run(engine: Engine, function: str | None = None) -> Run:
    """Another engine: its function of this name, else its first one."""
    name = function_of(engine.functions, function if function in engine.functions else None)
    called = engine.session().functions[name]
    names = [port.name for port in called.inputs]

    def run(arrays: Sequence[Array]) -> list[Array]:
        _check_count(OURS, arrays, names)
        with _refusing(OURS, InputError):
            return list(called.run(dict(zip(names, arrays, strict=True))).values())

    return run


def _check_count(peer: str, arrays: Sequence[Array], names: Sequence[str]) -> None:
    if len(arrays) != len(names):
        got = f"the peer {peer} got {len(arrays)} inputs, expected {len(names)}: {', '.join(names)}"
        raise UsageError(got, hint=_BELONGS)


_BELONGS = "does the file belong to the engine, with inputs of the same names, types and sizes? the engine itself runs with ourcc run"


@contextmanager
def _refusing(peer: str, *refusals: type[Exception]) -> Iterator[None]:
    """A peer's own exception as an error that names it: what it cannot run is no bug of ours."""
    try:
        yield
    except refusals as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        # OpenVINO says first where in its sources it raised.
        said = next((line for line in lines if not line.endswith(":")), lines[0])
        raise ToolchainError(f"the peer {peer} does not run this: {said}", hint=_BELONGS) from error


def openvino_run(model: Any, threads: int, precision: str = "f32", shapes: Sequence[Sequence[int]] | None = None) -> Run:
    """An ONNX file, or a model of OpenVINO's own, in OpenVINO; `shapes` of the inputs are known to it when it compiles.

    `precision` is what it may compute floats in: f32, bf16 or f16.
    """
    need("openvino", "the peer openvino")
    import openvino

    core = openvino.Core()
    hints = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"}
    with _refusing("openvino", RuntimeError):
        read = core.read_model(str(model)) if isinstance(model, Path) else model.clone()
        if shapes is not None:
            read.reshape({port: list(shape) for port, shape in zip(read.inputs, shapes, strict=True)})
        compiled = core.compile_model(read, "CPU", hints)
    names = [port.any_name for port in compiled.inputs]

    def run(arrays: Sequence[Array]) -> list[Array]:
        _check_count("openvino", arrays, names)
        with _refusing("openvino", RuntimeError):
            return list(compiled(list(arrays)).values())

    return run


def _torch(model: Path, compiled: bool, threads: int) -> Run:
    need("torch", f"the peer {'inductor' if compiled else 'eager'}")
    from ..importers.torch.pt2.program import read_program

    program = read_program(model)
    run = torch_run(program.module(), compiled, threads, lambda tensors: _arguments(program, tensors))
    names = [str(spec.arg.name) for spec in _inputs_of(program) if type(spec.arg).__name__ != "ConstantArgument"]

    def counted(arrays: Sequence[Array]) -> list[Array]:
        _check_count("inductor" if compiled else "eager", arrays, names)
        return run(arrays)

    return counted


def _inputs_of(program: Any) -> list[Any]:
    """What an exported program says of the inputs that its caller gives."""
    return [spec for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]


def _arguments(program: Any, tensors: Sequence[Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """What an exported program is called with: numbers that it was exported with stand between its tensors."""
    from torch.export.graph_signature import ConstantArgument, SymBoolArgument, SymFloatArgument, SymIntArgument
    from torch.utils._pytree import tree_unflatten

    rest, leaves = iter(tensors), []
    for spec in _inputs_of(program):
        if isinstance(spec.arg, ConstantArgument):
            leaves.append(spec.arg.value)
        elif isinstance(spec.arg, (SymIntArgument, SymFloatArgument, SymBoolArgument)):
            leaves.append(next(rest).item())
        else:
            leaves.append(next(rest))
    positional, named = tree_unflatten(leaves, program.call_spec.in_spec)
    return positional, named


Arguments = Callable[[Sequence[Any]], tuple[Sequence[Any], Mapping[str, Any]]]
"""From the tensors of a call to what a module is called with."""


def torch_run(module: Any, compiled: bool, threads: int, arguments: Arguments = lambda tensors: (tensors, {})) -> Run:
    """A torch module as a peer: eager, or compiled by Inductor with freezing on."""
    import torch

    from ..importers.torch.tensors import array_of, tensor_of

    torch.set_num_threads(threads)
    if compiled:
        import torch._inductor.config as inductor

        inductor.freezing = True
        module = torch.compile(module, backend="inductor")

    def run(arrays: Sequence[Array]) -> list[Array]:
        with torch.no_grad(), _refusing("inductor" if compiled else "eager", RuntimeError, TypeError):
            positional, named = arguments([tensor_of(array) for array in arrays])
            result = module(*positional, **named)
        results = result if isinstance(result, (tuple, list)) else [result]
        return [array_of(part) if isinstance(part, torch.Tensor) else np.asarray(part) for part in results]

    return run
