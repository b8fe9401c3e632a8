"""The child process that alone imports Triton: compiles or interprets kernels sent to it as text.

It runs as a script, imports nothing of this package, and speaks in frames over its standard streams: a length, a JSON
header, and the blobs whose sizes the header lists. `exec` here is the one in the project: it runs source that our
printer made, under a virtual file name, so that Triton finds the lines and nothing depends on a folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import linecache
import os
import re
import struct
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import IO, Any

Message = tuple[dict[str, Any], list[bytes]]

EXP2 = "ex2.approx.ftz.f32 $0, $1;"
"""An instruction that kernels name; subnormal results and operands are 0."""
E2M1X2 = "{ .reg .b8 pair; cvt.rn.satfinite.e2m1x2.f32 pair, $2, $1; cvt.u32.u8 $0, pair; }"
"""Another: two numbers of e2m1 as a byte, the first one in its low half (Blackwell)."""


# --- frames -----------------------------------------------------------------------------------------------------------


def send(stream: IO[bytes], header: dict[str, Any], blobs: list[bytes]) -> None:
    """Write one message."""
    text = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
    stream.write(struct.pack("<Q", len(text)) + text)
    for blob in blobs:
        stream.write(blob)
    stream.flush()


def receive(stream: IO[bytes]) -> Message | None:
    """Read one message; None at the end of the stream."""
    size = stream.read(8)
    if len(size) < 8:
        return None
    header = json.loads(stream.read(struct.unpack("<Q", size)[0]))
    return header, [stream.read(length) for length in header["blobs"]]


# --- kernels ----------------------------------------------------------------------------------------------------------


def define(name: str, source: str) -> Any:
    """The jitted function `name` of printed source, known to `linecache` under a virtual file name."""
    path = f"ourcc/{name}.py"
    linecache.cache[path] = (len(source), None, source.splitlines(True), path)
    namespace: dict[str, Any] = {"__name__": f"ourcc_kernel_{name}", "__file__": path}
    exec(compile(source, path, "exec"), namespace)
    return namespace[name]


def compile_kernel(request: dict[str, Any]) -> Message:
    """Triton source to PTX and cubin, with what the assembler says of them."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = define(request["name"], request["source"])
    attributes = {(position,): [["tt.divisibility", 16]] for position in request["divisible"]}
    source = ASTSource(function, request["signature"], {}, attributes)
    with _assembler() as log:
        compiled = triton.compile(source, target=GPUTarget("cuda", request["arch"], 32), options=_known(request["options"]))
    ptx, cubin = compiled.asm["ptx"], compiled.asm["cubin"]
    metadata = compiled.metadata
    header = {
        "shared": int(metadata.shared),
        # After compiling: where loops are specialised, more than were asked for.
        "warps": int(metadata.num_warps),
        "scratch": int(getattr(metadata, "global_scratch_size", 0)),
        "log": "\n".join(log),
        "sass": _disassemble(cubin) if request["is_read"] else {},
    }
    return header, [ptx.encode(), cubin]


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """The options that this Triton has; 3.6 and 3.9 differ in a few."""
    from triton.backends.nvidia.compiler import CUDAOptions

    return {name: value for name, value in options.items() if name in CUDAOptions.__dataclass_fields__}


@contextlib.contextmanager
def _assembler() -> Any:
    """Triton's backend with our own call of `ptxas`: every option written out, and its report kept."""
    from triton.backends.nvidia.compiler import CUDABackend, get_ptxas

    log: list[str] = []
    original = CUDABackend.make_cubin

    def make_cubin(backend: Any, ptx: str, metadata: Any, options: Any, capability: int) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
            source.write_text(ptx)
            fused = "true" if options.enable_fp_fusion else "false"
            command = [get_ptxas(capability).path, "-v", "-lineinfo", f"--fmad={fused}", "--opt-level", "3"]
            command += [f"--gpu-name=sm_{capability}a", str(source), "-o", str(target)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            log.append(done.stderr.replace(folder, ""))
            if done.returncode:
                raise RuntimeError(f"ptxas failed with status {done.returncode}:\n{done.stderr}")
            return target.read_bytes()

    CUDABackend.make_cubin = make_cubin
    try:
        yield log
    finally:
        CUDABackend.make_cubin = original


def _disassemble(cubin: bytes) -> dict[str, int]:
    """How often each machine instruction stands in a cubin, by full name."""
    counts: dict[str, int] = {}
    for match in re.finditer(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", listing_of(cubin), re.MULTILINE):
        counts[match[1]] = counts.get(match[1], 0) + 1
    return dict(sorted(counts.items()))


def listing_of(cubin: bytes) -> str:
    """The machine code of a cubin as text, with the lines of source that each instruction stands for."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([knobs.nvidia.nvdisasm.path, "-c", "-gi", file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"nvdisasm failed with status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


# --- interpretation ---------------------------------------------------------------------------------------------------


def interpret_kernel(request: dict[str, Any], blobs: list[bytes]) -> Message:
    """Run a kernel over its grid on arrays; gives all arrays back."""
    import numpy as np
    import torch

    function = define(request["name"], request["source"])
    tensors = []
    for dtype, blob in zip(request["dtypes"], blobs, strict=True):
        # Triton's interpreter wants torch tensors; one guard byte keeps empty ones valid.
        storage = torch.frombuffer(bytearray(blob) or bytearray(16), dtype=torch.uint8)
        tensors.append(storage.view(_torch_type(dtype)))
    with np.errstate(all="ignore"):
        function[(request["programs"],)](*tensors, *request["sizes"])
    return {}, [bytes(tensor.view(torch.uint8).numpy().tobytes())[: len(blob)] for tensor, blob in zip(tensors, blobs, strict=True)]


def _torch_type(signature: str) -> Any:
    import torch

    names = {
        "fp64": "float64",
        "fp32": "float32",
        "fp16": "float16",
        "bf16": "bfloat16",
        "fp8e4nv": "float8_e4m3fn",
        "fp8e5": "float8_e5m2",
    }
    names |= {f"i{n}": f"int{n}" for n in (8, 16, 32, 64)} | {f"u{n}": f"uint{n}" for n in (8, 16, 32, 64)} | {"i1": "bool"}
    return getattr(torch, names[signature.removeprefix("*")])


def correct_interpreter() -> None:
    """Make the interpreter's narrow floats and its conditions that are one for a tile right, and it itself faster.

    It keeps bf16 and fp8 as raw bits: products of them are products of integers, and conversions truncate. What it makes of one
    comparison for all lanes has the dtype of what was compared, which no mask may have.
    """
    import ml_dtypes
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    narrow = {
        tl.bfloat16: ml_dtypes.bfloat16,
        tl.float8e4nv: ml_dtypes.float8_e4m3fn,
        tl.float8e5: ml_dtypes.float8_e5m2,
    }
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    plain_cast, plain_dot, plain_splat = builder.cast_impl, builder.create_dot, builder.create_splat

    def cast(self: Any, source: Any, target: Any, *_: Any) -> Any:
        before, after = source.dtype.scalar, target.scalar
        if before not in narrow and after not in narrow:
            with np.errstate(all="ignore"):
                return plain_cast(self, source, target)
        data = source.data.view(narrow[before]).astype(np.float32) if before in narrow else source.data
        if after not in narrow:
            return handle(data.astype(interpreter._get_np_dtype(after)), after)
        if after in (tl.float8e4nv, tl.float8e5):
            # As the instruction does: what is too large becomes the largest.
            most = np.float32(ml_dtypes.finfo(narrow[after]).max)
            data = np.clip(data, -most, most)
        return handle(data.astype(narrow[after]).view(interpreter._get_np_dtype(after)), after)

    def dot(self: Any, left: Any, right: Any, acc: Any, *rest: Any) -> Any:
        wide = [cast(self, x, tl.float32) if x.dtype.scalar in narrow else x for x in (left, right)]
        return plain_dot(self, *wide, acc, *rest)

    def splat(self: Any, kind: Any, value: Any) -> Any:
        if value.data.dtype != np.bool_:
            return plain_splat(self, kind, value)
        return handle(np.full(kind.shape, value.data, dtype=np.bool_), tl.int1)

    builder.cast_impl = cast
    builder.create_splat = splat
    builder.create_fp_to_fp = cast
    builder.create_dot = dot
    builder.create_inline_asm = _instruction
    for name in ("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc"):
        setattr(builder, f"create_{name}", lambda self, source, target: cast(self, source, target))
    _fast_reductions(interpreter, np)
    _fast_types(interpreter)


def _instruction(_: Any, text: str, constraints: str, values: Any, kinds: Any, *rest: Any) -> Any:
    """What an instruction that kernels name gives."""
    import numpy as np
    from triton.runtime import interpreter

    if text not in (EXP2, E2M1X2):
        raise NotImplementedError(f"the interpreter does not know the instruction {text!r}")
    numbers = [value.data.astype(np.float32) for value in values]
    with np.errstate(all="ignore"):
        data = _exp2(*numbers) if text == EXP2 else _e2m1(numbers[0]) | _e2m1(numbers[1]) << 4
    result = interpreter.TensorHandle(data, kinds[0].scalar)
    return types.SimpleNamespace(get_result=lambda _: result)


def _exp2(x: Any) -> Any:
    import numpy as np

    power = np.exp2(x)
    return np.where(power < np.finfo(np.float32).tiny, np.float32(0), power)


def _e2m1(x: Any) -> Any:
    """Codes of the nearest numbers, by the numbers in the middle between two: they round to the even code; NaN is 6."""
    import numpy as np

    size = np.where(np.isnan(x), np.float32(6), np.abs(x))
    middles = enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0))
    code = sum((size >= middle if n % 2 else size > middle).astype(np.int32) for n, middle in middles)
    return code | np.where(np.signbit(x) & ~np.isnan(x), 8, 0).astype(np.int32)


def _fast_types(interpreter: Any) -> None:
    """Skip what has no effect: checks of overflow (they assert nothing unless it debugs), and the table of types made at each call."""
    options = interpreter.interpreter_builder.options
    if not options.debug:
        interpreter.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=False)
    plain, known = interpreter._get_np_dtype, dict[str, Any]()

    def numpy_type(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in known:
            known[name] = plain(dtype)
        return known[name]

    interpreter._get_np_dtype = numpy_type


def _fast_reductions(interpreter: Any, np: Any) -> None:
    folds = {"combine_sum": np.add, "combine_prod": np.multiply}
    folds |= {f"combine_max{kind}": np.maximum for kind in ("", "_f32")} | {f"combine_min{kind}": np.minimum for kind in ("", "_f32")}
    slow_reduce, slow_scan = interpreter.ReduceOps.apply_impl, interpreter.ScanOps.apply_impl

    def name_of(function: Any) -> str:
        return str(getattr(getattr(function, "fn", function), "__name__", ""))

    def reduce(self: Any, values: Any) -> Any:
        name = name_of(self.combine_fn)
        if name not in folds:
            return slow_reduce(self, values)
        data = values[0].handle.data
        result = folds[name].reduce(data, axis=self.axis, keepdims=self.keep_dims, dtype=data.dtype)
        return (self.to_tensor(result, values[0].dtype),)

    def scan(self: Any, values: Any) -> Any:
        name = name_of(self.combine_fn)
        if name not in folds:
            return slow_scan(self, values)
        data = np.flip(values[0].handle.data, self.axis) if self.reverse else values[0].handle.data
        result = folds[name].accumulate(data, axis=self.axis, dtype=data.dtype)
        result = np.ascontiguousarray(np.flip(result, self.axis)) if self.reverse else result
        return (self.to_tensor(result, values[0].dtype),)

    interpreter.ReduceOps.apply_impl = reduce
    interpreter.ScanOps.apply_impl = scan


# --- the loop ---------------------------------------------------------------------------------------------------------


def answer(header: dict[str, Any], blobs: list[bytes]) -> Message:
    """Do what one message asks; a failure is an answer too."""
    try:
        if header["kind"] == "compile":
            return compile_kernel(header)
        if header["kind"] == "disassemble":
            return {}, [listing_of(blobs[0]).encode()]
        return interpret_kernel(header, blobs)
    except Exception as error:  # noqa: BLE001 - whatever Triton raises belongs into the parent's message
        return {"error": said(error), "type": type(error).__name__}, []


def said(error: BaseException) -> str:
    """A failure in words. Where Triton points into the source, what is wrong comes first and the line behind it."""
    text = str(error) or repr(error)
    pointed = re.fullmatch(r"at ([0-9]+):[0-9]+:\n(.*)\n *\^\n?(.*)", text, re.DOTALL)
    if pointed is None:
        return text
    number, before, why = pointed.groups()
    if not why.strip() and error.__cause__ is not None:
        # In a function that this line calls.
        why = said(error.__cause__)
    first, *rest = why.strip().splitlines() or ["it says no more"]
    return "\n".join([f"{first} (line {number}: {before.rpartition(chr(10))[2].strip()})", *rest])


def main() -> None:
    """Answer messages until the parent closes the stream; what libraries print goes to standard error."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    if os.environ.get("TRITON_INTERPRET") == "1":
        correct_interpreter()
    while (message := receive(sys.stdin.buffer)) is not None:
        send(output, *answer(*message))


if __name__ == "__main__":
    main()
