"""What TorchInductor would launch for a function, with every choice that its autotuning has, on a device that is not there.

Call it in a process that pretends (faked.py).
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any
from unittest import mock

import torch
from cubins import FOLDER
from launches import SHARED_LIMIT, NotEstimated, Wanted

KERNEL = re.compile(r"^(\w+) = async_compile\.triton\('(\w+)', '''(.*?)'''", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"^\s+(\w+)\.run\((?!\*)(.*), stream=\w+\)$", re.MULTILINE)
LIBRARY = re.compile(r"^\s+(?:\w+ = )?(?:extern_kernels|torch\.ops)\.([\w.]+)\(", re.MULTILINE)


@dataclass
class _Chooser:
    """Takes the place of the measurement of templates: the choice with a number, of those that are Triton's."""

    number: int = 0
    known: int = 0
    titles: list[str] = field(default_factory=list)

    def __call__(self, _: Any, name: str, choices: Sequence[Any], *__: Any, **___: Any) -> tuple[Any, Any]:
        from torch._inductor.select_algorithm import TritonTemplateCaller

        own = sorted((each for each in choices if isinstance(each, TritonTemplateCaller)), key=_worst_last)
        if not own:
            raise NotEstimated(f"{name} has no template")
        self.known = max(self.known, len(own))
        chosen = own[min(self.number, len(own) - 1)]
        self.titles.append(chosen.description)
        return chosen.output_node(), chosen


def _worst_last(choice: Any) -> tuple[bool, float, float]:
    """An order in which a search that is cut off has met the likely ones: few bytes and few rounds of programs first.

    What shared memory hardly holds comes last.
    """
    found = {name: int(value) for name, value in re.findall(r"(BLOCK_[MNK]|num_stages)=(\d+)", choice.description)}
    m, n, k = (found.get(f"BLOCK_{letter}", 1) for letter in "MNK")
    size = choice.layout.size
    rows, columns = int(size[-2]), int(size[-1])
    processors = torch.cuda.get_device_properties().multi_processor_count
    tiles = -(-rows // m) * -(-columns // n)
    rounds = -(-tiles // processors)
    work = rounds * m * n * (1 / min(m, 128) + 1 / min(n, 256) + 1 / 64)
    staged = found.get("num_stages", 1) * k
    return (m + n) * staged * choice.layout.dtype.itemsize > SHARED_LIMIT, work, -staged


def configure() -> None:
    """Templates with all their configurations, no measurement, no cache, no library."""
    import torch._inductor.config as config
    import torch._inductor.runtime.triton_helpers as helpers
    import torch._inductor.utils as utils
    import torch.utils._triton as asked

    config.max_autotune = config.max_autotune_gemm = config.max_autotune_pointwise = True
    config.max_autotune_gemm_backends = "TRITON"
    config.benchmark_kernel = True
    config.benchmark_epilogue_fusion = False
    config.fx_graph_cache = False
    config.autotune_local_cache = False
    config.triton.autotune_at_compile_time = False
    config.triton.enable_persistent_tma_matmul = True
    utils.is_big_gpu = lambda *_: True
    helpers.set_driver_to_gpu = lambda: None
    for module in (utils, asked):
        for name in ("has_triton", "has_triton_package"):
            if hasattr(module, name):
                setattr(module, name, lambda *_: True)
    for name in ("has_triton_tma_device", "has_triton_stable_tma_api"):
        setattr(asked, name, lambda *_: True)


def written(function: Callable[..., Any], inputs: Sequence[tuple[tuple[int, ...], torch.dtype]], chooser: _Chooser) -> str:
    """The module that Inductor writes for a function."""
    from torch._inductor.debug import DebugContext
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.graph import GraphLowering
    from torch._inductor.select_algorithm import AlgorithmSelectorCache
    from torch._inductor.virtualized import V
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    AlgorithmSelectorCache.__call__ = lambda self, *args, **more: chooser(self, *args, **more)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    # Its binding asks for the device itself, which a clone does not.
    copied = mock.patch.object(torch.Tensor, "contiguous", lambda self: self.clone(memory_format=torch.contiguous_format))
    with mode, torch.no_grad(), copied:
        given = [torch.empty(shape, dtype=dtype, device="cuda") for shape, dtype in inputs]
        graph = make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="fake")(*given)
    with V.set_fake_mode(mode):
        lowering = GraphLowering(graph, example_inputs=given, shape_env=None, is_inference=True)
        with V.set_graph_handler(lowering), V.set_debug_handler(DebugContext()):
            lowering.run(*given)
            text, _ = lowering.codegen()
    return str(getattr(text, "value", text))


def texts(function: Callable[..., Any], inputs: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> Iterator[tuple[str, str]]:
    """The module for each choice of templates, where all products take the choice of one number, and what was chosen."""
    chooser = _Chooser()
    while True:
        text = written(function, inputs, chooser)
        yield "; ".join(dict.fromkeys(chooser.titles)) or "fused", text
        chooser.number += 1
        chooser.titles.clear()
        if chooser.number >= chooser.known:
            return


def roads(function: Callable[..., Any], inputs: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> Iterator[tuple[str, list[list[Wanted]]]]:
    """Each choice of templates: its name, and for each kernel in order the configurations that it is tuned over."""
    for title, text in texts(function, inputs):
        yield title, steps_of(text)


def steps_of(text: str) -> list[list[Wanted]]:
    """The kernels that a module calls, in order."""
    if library := LIBRARY.search(text):
        raise NotEstimated(f"calls {library[1]}")
    return [choices_of(call) for call in calls_of(text)]


@dataclass(frozen=True)
class Call:
    """A call of a kernel of a module: equal ones launch the same."""

    kernel: str
    source: str
    arguments: tuple[str, ...]


def calls_of(text: str) -> list[Call]:
    """The calls of kernels that a module makes, in order, without those of libraries."""
    kernels = {name: (kernel, source) for name, kernel, source in KERNEL.findall(text)}
    numbers = [(name, tuple(each for each in arguments.split(", ") if each.isdigit())) for name, arguments in CALL.findall(text)]
    return [Call(*kernels[name], arguments) for name, arguments in numbers]


def choices_of(call: Call) -> list[Wanted]:
    """A kernel with each of its configurations."""
    from torch._inductor.runtime.triton_heuristics import GridExpr

    tuned = getattr(_module(call.source), call.kernel)
    meta, inductor = tuned.triton_meta, tuned.inductor_meta
    numbers = [int(each) for each in call.arguments]
    found = []
    for config in tuned.configs:
        made = tuned._create_compile_meta(config)
        signature, constants = made["signature"], dict(made["constants"])
        extra = inductor.get("extra_launcher_args", ())
        # A size of 1 is a constant of the kernel, and passed all the same.
        passed = meta.get("constants", {})
        scalars = [name for name, kind in signature.items() if (kind != "constexpr" or name in passed) and not kind.startswith("*")]
        given = dict(zip([*scalars, *extra], numbers, strict=True))
        sizes = {name: value for name, value in {**constants, **given}.items() if isinstance(value, int)}
        grid = GridExpr.from_meta(inductor, config).eval_slow(dict(sizes))
        names = list(signature)
        divisible = frozenset(names[at] for (at,) in meta["configs"][0])
        options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
        types = {name: kind for name, kind in signature.items() if name not in constants}
        found.append(Wanted(tuned.fn, types, constants, divisible, options, tuple(grid), inductor["kernel_num_gb"] * 1e9, given))
    if not found or prod(found[0].grid) < 1:
        raise NotEstimated(f"{call.kernel} has no configuration")
    return found


def _module(source: str) -> Any:
    """The module of a kernel's source, which must stand in a file."""
    name = f"peer_{hashlib.sha256(source.encode()).hexdigest()[:32]}"
    path = FOLDER / "sources" / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
